"""Which operators a user's pattern names: a node name glob, ``op:Kind``, ``scope:layers.3.*`` or ``value:NAME``."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator

from .dataflow import NONE, Dataflow, Op
from .errors import nearest

NAMES = 50_000  # at most, among which a hint looks for the closest: comparing so many takes about a second
Match = Callable[[str], object]
"""Whether a name fits, by the truth of what it gives."""


def matched_op_ids(flow: Dataflow, patterns: tuple[str, ...]) -> set[int]:
    """The ids of the operators that any of the user's patterns (--fp32, --low) names, as a shared set."""
    if patterns not in flow.memo:
        flow.memo[patterns] = {op.id for pattern in patterns for op, _ in matched_ops(flow, pattern)}
    found: set[int] = flow.memo[patterns]
    return found


def matched_ops(flow: Dataflow, pattern: str) -> Iterator[tuple[Op, list[int]]]:
    """(operator, units) of each operator with float32 slots that a user's pattern (--fp32, --low) names: all of its
    units, or for ``value:NAME`` that of the value. What a named call or control-flow node runs is named too."""
    sort, _, rest = pattern.partition(":")
    if sort == "value":
        match = _name_matcher(rest)
        for value in flow.values:
            if value.producer != NONE and match(value.name):
                op = flow.ops[value.producer]
                if value.unit != NONE:
                    yield op, [value.unit]
                elif value.name == rest and op.slots:  # indices of an ArgMax without a name: what it reads
                    yield op, list(op.slots.values())
        return
    if sort == "op":
        match = _name_matcher(rest.removeprefix("ai.onnx::"))
        chosen = (op for op in flow.ops if match(op.kind))
    elif sort == "scope":
        match = _name_matcher(rest.replace("/", ".").strip("."))
        chosen = (op for op in flow.ops if op.slots and _in_scope(flow.layer(op), match))
    else:
        match = _name_matcher(pattern)
        chosen = (op for op in flow.ops if match(op.name))
    for op in chosen:
        for inner in (op, *_ops_run_by(flow, op)):
            if inner.slots:
                yield inner, list(inner.slots.values())


def _ops_run_by(flow: Dataflow, op: Op) -> list[Op]:
    """For a user's pattern (--fp32, --low): the operators that a call or control-flow node runs, at any depth."""
    within = {scope.id for scope in flow.scopes if scope.op == op.id and scope.parent != NONE}
    if not within:
        return []
    for scope in flow.scopes:  # parents come before their children
        if scope.parent in within:
            within.add(scope.id)
    return [inner for inner in flow.ops if inner.scope in within]


def _name_matcher(pattern: str) -> Match:
    """For a user's pattern (--fp32, --low): a function that says whether a name equals it or matches it as a glob."""
    glob = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or glob(name)  # a name with brackets means itself


def _in_scope(layer: str, match: Match) -> bool:
    """Whether a user's pattern for a scope covers a layer: what lies below too, layers.3 covers layers.3.attention."""
    parts = layer.split(".")
    return any(match(".".join(parts[:n])) for n in range(len(parts), 0, -1))


def unmatched_hint(flow: Dataflow, pattern: str) -> str:
    """The hint for a user's pattern (--fp32, --low) that names nothing: the closest name, or where to look."""
    sort, _, rest = pattern.partition(":")
    if sort == "op":
        kinds = sorted({op.kind for op in flow.ops if op.slots})
        elsewhere = [kind for kind in kinds if kind.endswith(f"::{rest}")]  # of another domain than ONNX's
        return nearest((elsewhere or [rest])[0], kinds) or "see `ampgraph inspect` for the operators"
    if sort == "scope":
        return (
            nearest(rest, sorted({flow.layer(op) for op in flow.ops} - {""})) or "see `ampgraph inspect` for the layers"
        )
    if sort == "value":
        return nearest(rest, [v.name for v in flow.values][:NAMES]) or "values are named as in the file"
    return (
        nearest(pattern, [op.name for op in flow.ops if op.name][:NAMES])
        or "nodes are named as in the file; op:, scope: and value: are other ways"
    )
