"""Finds the regions that op_lists/patterns describes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

from ..core.dataflow import NONE, Dataflow, Op
from ..core.matching import Match, PatternSet
from .pattern_files import BIAS, conventions, shipped_patterns

PRODUCT = "Product"
NORMAL = "normal"  # what patterns call the data of a norm before its scale


class Region(NamedTuple):
    """Nodes that share one decision. ``kind``: the operator that they stand for, or `Bias`; ``result``: the last node.
    Values are `NONE` where a pattern has no such value."""

    kind: str
    ops: tuple[Op, ...]
    result: Op
    source: int = NONE  # the value that goes in
    scale: int = NONE
    bias: int = NONE
    epsilon: float = 0.0
    reduced: tuple[Op, ...] = ()  # every node whose axes the pattern compares
    axes: tuple[int, ...] = ()  # the axes of these, () where they are all or not stored
    open_axes: bool = False  # whether they are not stored
    since: int = 0  # the opset from which it can be written as its operator, 0 for never
    normal: Op | None = None  # a norm's last node before the scale
    core: tuple[Op, ...] = ()  # a norm's nodes up to that one
    complete: bool = False  # whether it ends where its pattern may end last
    variant: str = ""  # of its kind, as the pattern calls it
    fixed: bool = True  # whether its numbers are constants, and the right ones: no caller can override them


def find_regions(flow: Dataflow, patterns: PatternSet | None = None) -> Iterator[Region]:
    """Yields every region that ``patterns`` find, by default all of op_lists but biases, in their order."""
    return (_region_of_match(flow, match) for match in (patterns or region_patterns()).find(flow))


def find_biases(flow: Dataflow, products: Collection[str]) -> Iterator[Region]:
    """Yields the regions of products (of these kinds) with a bias, the Add of a stored vector to the result."""
    return (_region_of_match(flow, match) for match in bias_patterns().find(flow, {PRODUCT: products}))


def _region_of_match(flow: Dataflow, match: Match) -> Region:
    """A match of a pattern of op_lists as a region: data, scale, bias, eps and axes by their names in the pattern."""
    axes = match.attributes.get("axes")
    compared = [match.nodes[name] for name in match.pattern.compared if name in match.nodes]
    stored = axes if isinstance(axes, tuple) and all(isinstance(axis, int) for axis in axes) else None
    source, scale, bias = (match.parts.get(name, NONE) for name in ("x", "scale", "bias"))
    overridable = any(
        flow.values[v].default for op in match.ops for v in op.inputs if v not in (NONE, source, scale, bias)
    )
    normal, core = match.nodes.get(NORMAL), tuple[Op, ...]()
    if normal is not None:
        within = match.pattern.ancestors(NORMAL)
        behind = {op.id for name, op in match.nodes.items() if name not in within}
        core = tuple(op for op in match.ops if op.id not in behind)
    return Region(
        match.pattern.kind,
        match.ops,
        match.result,
        source,
        scale,
        bias,
        epsilon=match.numbers.get("eps") or 0.0,
        reduced=tuple(compared),
        axes=stored if stored is not None else (),
        open_axes=axes is not None and stored is None,
        since=match.pattern.since,
        normal=normal,
        core=core,
        complete=match.nodes.get(match.pattern.ends[-1]) is match.result,
        variant=match.pattern.variant,
        fixed=None not in match.numbers.values() and not overridable,
    )


# -- the patterns -----------------------------------------------------------------------------------------------------


@cache
def region_patterns() -> PatternSet:
    """The patterns of op_lists, but for products with their bias and what only some targets know."""
    shipped = [pattern for pattern in shipped_patterns() if pattern.kind != BIAS and not pattern.fused_only]
    return PatternSet(shipped, conventions())


@cache
def fused_only_patterns(kinds: frozenset[str]) -> PatternSet:
    """The patterns of op_lists for operators that are regions only where the target has one kernel for them."""
    found = [pattern for pattern in shipped_patterns() if pattern.fused_only and pattern.kind in kinds]
    return PatternSet(found, conventions())


@cache
def bias_patterns() -> PatternSet:
    """The patterns of op_lists for a bias, whose stored operand may not be an input with a default."""
    biases = [pattern for pattern in shipped_patterns() if pattern.kind == BIAS]
    return PatternSet(biases, conventions(), overridable=False)
