"""Operator schemas as slots: which inputs and outputs share a type, and which types it may be.

ai.onnx and ai.onnx.ml come from the installed onnx; com.microsoft comes from op_lists/schemas as data.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import onnx

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
    """``Conv`` for the default domain, ``domain::Op`` for the others."""
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
    """The schema in force at ``opset``, or None where nothing is known of the operator."""
    if domain in ONNX_DOMAINS:
        try:
            found = onnx.defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain)
        except onnx.defs.SchemaError:
            return _data_schemas().get((domain, op_type))
        return _from_onnx(found)
    return _data_schemas().get((domain, op_type))


@functools.cache
def first_opset_admitting(op_type: str, slot: str, opset: int, low: str) -> int:
    """The first later opset at which ``slot`` of an ai.onnx operator admits ``low``; 0 when there is none."""
    wanted = ("", low)
    for version in range(opset + 1, onnx.defs.onnx_opset_version() + 1):
        later = schema("", op_type, version)
        if later and slot in later.constraints and wanted in allowed(later.constraints[slot]):
            return version
    return 0


def _from_onnx(found: onnx.defs.OpSchema) -> Schema:
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def formals(parameters: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[Formal, ...]:
        return tuple(Formal(p.name, p.type_str, p.option == variadic, p.is_homogeneous) for p in parameters)

    constraints = {c.type_param_str: frozenset(c.allowed_type_strs) for c in found.type_constraints}
    kind = kind_of(found.domain, found.name)
    return Schema(kind, found.since_version, formals(found.inputs), formals(found.outputs), constraints)


@functools.lru_cache(maxsize=1)
def _data_schemas() -> dict[tuple[str, str], Schema]:
    """com.microsoft's schemas, the newest version of each."""
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
