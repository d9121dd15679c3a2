"""Schemas of ONNX operators as slots: which inputs and outputs share a type, and which types it may be.

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
    """An input or output in an ONNX operator's schema: ``type`` is a type variable (``T``) or a literal type
    (``tensor(int64)``); ``variadic``: it may repeat; ``homogeneous``: then all have one type."""

    name: str
    type: str
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True)
class Schema:
    """What one version of an ONNX operator takes and gives; ``constraints``: type variable -> allowed type strings."""

    kind: str
    since_version: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    constraints: dict[str, frozenset[str]]


def kind_of(domain: str, op_type: str) -> str:
    """An ONNX operator by one name: ``Conv`` of the default domain, ``domain::Op`` of the others."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}"


def element(type_string: str) -> tuple[str, str]:
    """(container, element type) of an ONNX type string: ``("seq", "float32")`` for ``seq(tensor(float))``, the
    outermost of nested containers; ``("other", "")`` for maps and sparse tensors."""
    container = ""
    for prefix in ("optional", "seq"):
        if type_string.startswith(prefix + "("):
            container = container or prefix
            type_string = type_string[len(prefix) + 1 : -1]
    if not type_string.startswith("tensor("):
        return "other", ""
    name = type_string[7:-1]
    return container, _NAMES.get(name, name)


@functools.cache
def allowed(types: frozenset[str]) -> frozenset[tuple[str, str]]:
    """The (container, element type) pairs of the type strings of an ONNX type constraint."""
    return frozenset(element(t) for t in types)


def opset_of_ir(ir_version: int) -> int:
    """The newest opset of ONNX that a reader of this IR version is sure to know."""
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
    """The schema of an ONNX operator as the onnx package declares it, as a `Schema`."""
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def formals(parameters: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[Formal, ...]:
        return tuple(Formal(p.name, p.type_str, p.option == variadic, p.is_homogeneous) for p in parameters)

    constraints = {c.type_param_str: frozenset(c.allowed_type_strs) for c in found.type_constraints}
    kind = kind_of(found.domain, found.name)
    return Schema(kind, found.since_version, formals(found.inputs), formals(found.outputs), constraints)


@functools.lru_cache(maxsize=1)
def _data_schemas() -> dict[tuple[str, str], Schema]:
    """(domain, operator) -> newest schema of com.microsoft's operators in ONNX files, from op_lists/schemas."""
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
"""Operators -> the attribute that names the type of their output."""

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
"""Operators on containers -> (the slot that gives the element type, the slot that takes it)."""


@dataclass(frozen=True, slots=True)
class NodeSlot:
    """One slot of an ONNX node: the positions of its inputs and outputs that share a type."""

    slot: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    admits: frozenset[tuple[str, str]]  # (container, element type)
    low: Mapping[str, frozenset[str]]  # by container, the low types among them
    literal: tuple[str, str] | None = None  # the type where the schema names it itself; None for a type variable


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """All slots of one ONNX node; ``version``: since_version of its operator's schema."""

    kind: str
    version: int
    slots: tuple[NodeSlot, ...]


@functools.cache
def slots_of(domain: str, op_type: str, opset: int, inputs: int, outputs: int) -> NodeSlots | None:
    """The slots of an ONNX node with that many inputs and outputs; None for an operator without a schema, or whose
    schema does not have as many. A slot is named after its type variable, ``T``; ``T@i2`` for one of several inputs of
    type T that need not agree; ``name:tensor(int64)`` where the schema names the type itself."""
    found = schema(domain, op_type, opset)
    if found is None:
        return None
    positions: dict[str, tuple[list[int], list[int]]] = {}  # slot -> positions of its inputs, of its outputs
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
    """Container ("" for a tensor, ``seq``, ``optional``) -> the low types that an ONNX type variable admits in it."""
    found: dict[str, set[str]] = {}
    for container, dtype in admits:
        if dtype in LOW:
            found.setdefault(container, set()).add(dtype)
    return {container: frozenset(types) for container, types in found.items()}


def _formal_at(formals: tuple[Formal, ...], position: int) -> Formal | None:
    """What an ONNX schema declares at a position; the last one again where it is variadic, None beyond the end."""
    if position < len(formals):
        return formals[position]
    return formals[-1] if formals and formals[-1].variadic else None
