"""The user's patterns: a node name glob, ``op:Kind``, ``scope:layers.3.*`` or ``value:NAME``."""

from __future__ import annotations

import fnmatch
import re

from ..dataflow import NONE, Dataflow
from ..errors import AmpError, nearest
from ..plans import Why
from .state import HIGH, LOW, USER, State


def apply_overrides(state: State) -> None:
    """Raises AmpError AMP305 for a pattern that matches nothing, AMP306 for a node asked for in both precisions."""
    for option, patterns, value in (("--fp32", state.options.fp32, HIGH), ("--low", state.options.low, LOW)):
        for pattern in patterns:
            why = Why("user", f"{option} {pattern}")
            units = _matching_units(state.flow, pattern)
            if not units:
                raise AmpError("AMP305", f"{option} {pattern} matches no float32 node", hint=_hint(state.flow, pattern))
            for unit in units:
                state.set(unit, value, USER, why)


def _matching_units(flow: Dataflow, pattern: str) -> list[int]:
    sort, _, rest = pattern.partition(":")
    if sort == "value":
        match = _matcher(rest)
        return [v.unit for v in flow.values if v.unit != NONE and v.producer != NONE and match(v.name)]
    if sort == "op":
        kind = rest.removeprefix("ai.onnx::")
        match = _matcher(kind)
        return _units(op for op in flow.ops if match(op.kind))
    if sort == "scope":
        match = _matcher(rest.replace("/", ".").strip("."))
        return _units(op for op in flow.ops if op.slots and _in_scope(flow.layer(op), match))
    match = _matcher(pattern)
    return _units(op for op in flow.ops if match(op.name))


def _units(ops) -> list[int]:
    return [unit for op in ops for unit in op.slots.values()]


def _matcher(pattern: str):
    return re.compile(fnmatch.translate(pattern)).match


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
