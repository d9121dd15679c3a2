"""The user's patterns: a node name glob, ``op:Kind``, ``scope:layers.3.*`` or ``value:NAME``."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from ..core.dataflow import NONE, Dataflow, Op
from ..core.errors import AmpError, nearest
from ..core.plan import Note, Why
from .state import HIGH, LOW, USER, State, describe


def apply_overrides(state: State) -> None:
    """Raises AmpError AMP305 for a pattern that matches nothing, AMP306 for a node asked for in both precisions."""
    flow = state.flow
    for option, patterns, value in (("--fp32", state.options.fp32, HIGH), ("--low", state.options.low, LOW)):
        for pattern in patterns:
            why = Why("user", f"{option} {pattern}")
            matched = {op.id: units for op, units in _matches(flow, pattern)}
            if not matched:
                raise AmpError("AMP305", f"{option} {pattern} matches no float32 node", hint=_hint(flow, pattern))
            for units in matched.values():
                for unit in units:
                    state.set(unit, value, USER, why)
            _tell_regions(state, f"{option} {pattern}", set(matched))


def touched(flow: Dataflow, patterns: tuple[str, ...]) -> set[int]:
    """The operators that some pattern names."""
    return {op.id for pattern in patterns for op, _ in _matches(flow, pattern)}


def _matches(flow: Dataflow, pattern: str) -> Iterator[tuple[Op, list[int]]]:
    """Operators with float32 slots that a pattern names, and the units concerned."""
    sort, _, rest = pattern.partition(":")
    if sort == "value":
        match = _matcher(rest)
        for value in flow.values:
            if value.unit != NONE and value.producer != NONE and match(value.name):
                yield flow.ops[value.producer], [value.unit]
        return
    if sort == "op":
        match = _matcher(rest.removeprefix("ai.onnx::"))
        chosen = (op for op in flow.ops if match(op.kind))
    elif sort == "scope":
        match = _matcher(rest.replace("/", ".").strip("."))
        chosen = (op for op in flow.ops if op.slots and _in_scope(flow.layer(op), match))
    else:
        match = _matcher(pattern)
        chosen = (op for op in flow.ops if match(op.name))
    for op in chosen:
        for inner in (op, *_inside(flow, op)):
            if inner.slots:
                yield inner, list(inner.slots.values())


def _inside(flow: Dataflow, op: Op) -> list[Op]:
    """What a function call or a control-flow node runs, at any depth: naming the node names all of it."""
    within = {scope.id for scope in flow.scopes if scope.op == op.id and scope.parent != NONE}
    if not within:
        return []
    for scope in flow.scopes:  # parents come before their children
        if scope.parent in within:
            within.add(scope.id)
    return [inner for inner in flow.ops if inner.scope in within]


def _tell_regions(state: State, text: str, matched: set[int]) -> None:
    """A pattern that hits part of a region takes the region: says which nodes came along."""
    flow = state.flow
    regions: dict[int, list[int]] = {}
    for op in state.region_of_op if matched else ():
        for root in flow.op_units(flow.ops[op]):
            regions.setdefault(root, []).append(op)
    for members in regions.values():
        hit = [op for op in members if op in matched]
        rest = [describe(flow, flow.ops[op]) for op in members if op not in matched]
        if hit and rest:
            kind, where = state.region_of_op[hit[0]], describe(flow, flow.ops[hit[0]])
            names = ", ".join(rest[:4]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")
            state.notes.append(Note("pattern", where, f"{text} is part of a {kind} region and takes it whole: {names}"))


def _matcher(pattern: str):
    glob = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or glob(name)  # a name with brackets means itself


def _in_scope(layer: str, match) -> bool:
    """A scope pattern covers what lies below it too: layers.3 covers layers.3.attention."""
    parts = layer.split(".")
    return any(match(".".join(parts[:n])) for n in range(len(parts), 0, -1))


def _hint(flow: Dataflow, pattern: str) -> str:
    sort, _, rest = pattern.partition(":")
    if sort == "op":
        return (
            nearest(rest, sorted({op.kind for op in flow.ops if op.slots}))
            or "see `ampgraph inspect` for the operators"
        )
    if sort == "scope":
        return (
            nearest(rest, sorted({flow.layer(op) for op in flow.ops} - {""})) or "see `ampgraph inspect` for the layers"
        )
    if sort == "value":
        return nearest(rest, [v.name for v in flow.values][:50000]) or "values are named as in the file"
    return (
        nearest(pattern, [op.name for op in flow.ops if op.name][:50000])
        or "nodes are named as in the file; op:, scope: and value: are other ways"
    )
