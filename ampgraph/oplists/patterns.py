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
    """Nodes that share one decision. ``kind`` is the operator they stand for; ``result`` their last node."""

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
    """Every region that the patterns of op_lists find but products with their bias, in the order of the anchors."""
    return (_region_of_match(flow, match) for match in (patterns or region_patterns()).find(flow))


def find_biases(flow: Dataflow, products: Collection[str]) -> Iterator[Region]:
    """The regions of a list's products with a bias: each with the Add of a stored vector to its result."""
    return (_region_of_match(flow, match) for match in bias_patterns().find(flow, {PRODUCT: products}))


def _region_of_match(flow: Dataflow, match: Match) -> Region:
    """A match of a pattern of op_lists as a region: data, scale, bias, eps and axes by the names of its kind."""
    part, axes = match.parts.get, match.attributes.get("axes")
    compared = [match.nodes[name] for name in match.pattern.compared if name in match.nodes]
    stored = axes if isinstance(axes, tuple) and all(isinstance(axis, int) for axis in axes) else None
    data = tuple(part(name, NONE) for name in ("x", "scale", "bias"))
    normal, core = match.nodes.get(NORMAL), tuple[Op, ...]()
    if normal is not None:
        within = match.pattern.ancestors(NORMAL)
        behind = {op.id for name, op in match.nodes.items() if name not in within}
        core = tuple(op for op in match.ops if op.id not in behind)
    return Region(
        match.pattern.kind,
        match.ops,
        match.result,
        part("x", NONE),
        part("scale", NONE),
        part("bias", NONE),
        match.numbers.get("eps") or 0.0,
        tuple(compared),
        stored if stored is not None else (),
        axes is not None and stored is None,
        match.pattern.since,
        normal,
        core,
        match.nodes.get(match.pattern.ends[-1]) is match.result,
        match.pattern.variant,
        None not in match.numbers.values()
        and not any(flow.values[v].default for op in match.ops for v in op.inputs if v not in (NONE, *data)),
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
    return PatternSet([one for one in shipped_patterns() if one.fused_only and one.kind in kinds], conventions())


@cache
def bias_patterns() -> PatternSet:
    """The patterns of op_lists for a bias, whose stored operand may not be an input with a default."""
    return PatternSet(
        [pattern for pattern in shipped_patterns() if pattern.kind == BIAS], conventions(), overridable=False
    )
