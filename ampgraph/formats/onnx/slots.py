"""How one node's inputs and outputs fall into slots, by schema: computed once for each operator version and arity."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...core.graph import LOW
from .schemas import Formal, allowed, element, kind_of, schema

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
            formal = _formal(formals, position)
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
        slots.append(NodeSlot(name, tuple(ins), tuple(outs), admits, _low_of(admits), literal))
    return NodeSlots(kind_of(domain, op_type), found.since_version, tuple(slots))


def _low_of(admits: Iterable[tuple[str, str]]) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for container, dtype in admits:
        if dtype in LOW:
            found.setdefault(container, set()).add(dtype)
    return {container: frozenset(types) for container, types in found.items()}


def _formal(formals: tuple[Formal, ...], position: int) -> Formal | None:
    if position < len(formals):
        return formals[position]
    return formals[-1] if formals and formals[-1].variadic else None
