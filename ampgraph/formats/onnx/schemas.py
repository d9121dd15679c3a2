"""Operator schemas as slots: which inputs and outputs share a type, and which types it may be.

ai.onnx and ai.onnx.ml come from the installed onnx; com.microsoft comes from op_lists/schemas as data.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import onnx

from ...core.graph import LOW

ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training")
_NAMES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class Formal:
    """A formal input or output: ``type`` is a type variable (``T``) or a literal type (``tensor(int64)``)."""

    name: str
    type: str
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True)
class Schema:
    """What an operator version takes and gives; ``constraints``: type variable -> allowed ONNX type strings."""

    kind: str
    since_version: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    constraints: dict[str, frozenset[str]]


def kind_of(domain: str, op_type: str) -> str:
    """An ONNX operator by one name: ``Conv`` of the default domain, ``domain::Op`` of the others."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}"


def element(type_string: str) -> tuple[str, str]:
    """``("seq", "float32")`` for ``seq(tensor(float))``: the container and the element type."""
    container = ""
    for prefix in ("optional", "seq"):
        if type_string.startswith(prefix + "("):
            container = container or prefix
            type_string = type_string[len(prefix) + 1 : -1]
    if not type_string.startswith("tensor("):
        return "other", ""
    inner = type_string[7:-1]
    return container, _NAMES.get(inner, inner)


@functools.cache
def allowed(types: frozenset[str]) -> frozenset[tuple[str, str]]:
    """The (container, element type) pairs of a type constraint."""
    return frozenset(element(t) for t in types)


def opset_of_ir(ir_version: int) -> int:
    """The newest opset that a reader of this IR version is sure to know."""
    known = [row[2] for row in onnx.helper.VERSION_TABLE if row[1] <= max(ir_version, 3)]
    return max(known) if known else 13


@functools.cache
def schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The schema of an ONNX operator in force at ``opset``, by the onnx package or op_lists/schemas, or None."""
    if domain in ONNX_DOMAINS:
        try:
            found = onnx.defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain)
        except onnx.defs.SchemaError:
            return _data_schemas().get((domain, op_type))
        return _schema_of(found)
    return _data_schemas().get((domain, op_type))


def same_version(op_type: str, ours: int, theirs: int) -> bool:
    """Whether an ai.onnx operator that exists in both opsets, ``ours`` and ``theirs``, is the same version of it."""
    mine, others = schema("", op_type, ours), schema("", op_type, theirs)
    return mine is not None and others is not None and mine.since_version == others.since_version


@functools.cache
def first_opset_admitting(op_type: str, slot: str, opset: int, low: str) -> int:
    """The first opset after ``opset`` at which ``slot`` of an ai.onnx operator admits ``low``; 0 when there is none."""
    wanted = ("", low)
    for version in range(opset + 1, onnx.defs.onnx_opset_version() + 1):
        later = schema("", op_type, version)
        if later and slot in later.constraints and wanted in allowed(later.constraints[slot]):
            return version
    return 0


def _schema_of(found: onnx.defs.OpSchema) -> Schema:
    """The schema of an operator as onnx declares it, in the terms of `Schema`."""
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def formals(parameters: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[Formal, ...]:
        return tuple(Formal(p.name, p.type_str, p.option == variadic, p.is_homogeneous) for p in parameters)

    constraints = {c.type_param_str: frozenset(c.allowed_type_strs) for c in found.type_constraints}
    kind = kind_of(found.domain, found.name)
    return Schema(kind, found.since_version, formals(found.inputs), formals(found.outputs), constraints)


@functools.lru_cache(maxsize=1)
def _data_schemas() -> dict[tuple[str, str], Schema]:
    """The schemas of com.microsoft's operators for ONNX files, of op_lists/schemas, the newest version of each."""
    table: dict[tuple[str, str], Schema] = {}
    text = resources.files("ampgraph.op_lists").joinpath("schemas/com_microsoft.json").read_text(encoding="utf-8")
    for row in json.loads(text)["operators"]:
        inputs, outputs = (
            tuple(Formal(name, kind, option == "variadic", same) for name, kind, option, same in row[side])
            for side in ("inputs", "outputs")
        )
        constraints = {name: frozenset(types) for name, types in row["constraints"].items()}
        key = (row["domain"], row["name"])
        if key not in table or table[key].since_version < row["since_version"]:
            table[key] = Schema(kind_of(*key), row["since_version"], inputs, outputs, constraints)
    return table


DTYPE_ATTRIBUTES = {
    "Bernoulli": "dtype",
    "BitCast": "to",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "DequantizeLinear": "output_dtype",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "Multinomial": "dtype",
    "QuantizeLinear": "output_dtype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}
"""Operators whose output type an attribute names."""

FOLLOWS_INPUT = {"RandomNormalLike", "RandomUniformLike", "EyeLike", "Bernoulli"}
"""Of those, the ones that take the type of their first input when the attribute is absent."""

STASHED = {"LayerNormalization", "SimplifiedLayerNormalization"}
"""Operators whose statistics (slot U) have the type that `stash_type` names: float32 unless it says otherwise."""

LINKED = {
    "ConcatFromSequence": ("S", "T"),
    "Optional": ("V", "O"),
    "OptionalGetElement": ("O", "V"),
    "SequenceAt": ("S", "T"),
    "SequenceConstruct": ("T", "S"),
    "SequenceInsert": ("T", "S"),
    "SplitToSequence": ("T", "S"),
}
"""Container operators: the slot that gives the element type and the slot that takes it."""


@dataclass(frozen=True, slots=True)
class NodeSlot:
    """One slot: the positions that share a type. ``literal`` is set where the schema names the type itself."""

    slot: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    admits: frozenset[tuple[str, str]]  # (container, element type)
    low: Mapping[str, frozenset[str]]  # by container, the low types among them
    literal: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """All slots of one node, for its operator in one version."""

    kind: str
    version: int
    slots: tuple[NodeSlot, ...]


@functools.cache
def slots_of(domain: str, op_type: str, opset: int, inputs: int, outputs: int) -> NodeSlots | None:
    """The slots of a node with that many inputs and outputs; None for an operator without a schema."""
    found = schema(domain, op_type, opset)
    if found is None:
        return None
    positions: dict[str, tuple[list[int], list[int]]] = {}
    for side, formals, count in ((0, found.inputs, inputs), (1, found.outputs, outputs)):
        for position in range(count):
            formal = _formal_at(formals, position)
            if formal is None:
                return None  # more than the schema knows: not this operator after all
            name = formal.type
            if formal.variadic and not formal.homogeneous:
                name = f"{formal.type}@{'io'[side]}{position}"
            elif name not in found.constraints:
                name = f"{formal.name}:{formal.type}"
            positions.setdefault(name, ([], []))[side].append(position)
    slots = []
    for name, (ins, outs) in positions.items():
        constraint = found.constraints.get(name.split("@")[0])
        literal = None if constraint is not None else element(name.split(":", 1)[1])
        admits = allowed(constraint) if constraint is not None else frozenset(filter(None, (literal,)))
        slots.append(NodeSlot(name, tuple(ins), tuple(outs), admits, _low_by_container(admits), literal))
    return NodeSlots(kind_of(domain, op_type), found.since_version, tuple(slots))


def _low_by_container(admits: Iterable[tuple[str, str]]) -> Mapping[str, frozenset[str]]:
    """The low types among what a type variable admits, by container (tensor, sequence, optional)."""
    found: dict[str, set[str]] = {}
    for container, dtype in admits:
        if dtype in LOW:
            found.setdefault(container, set()).add(dtype)
    return {container: frozenset(types) for container, types in found.items()}


def _formal_at(formals: tuple[Formal, ...], position: int) -> Formal | None:
    """The declared parameter at a position; the last one again where it is variadic, None beyond the end."""
    if position < len(formals):
        return formals[position]
    return formals[-1] if formals and formals[-1].variadic else None
