"""Regions written in the form that the target's runtime fuses into one kernel: as exact, or rounded once less."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import isclose

from ..core.dataflow import NONE, Dataflow, Op
from ..core.plan import BY_SQUARES, GELU, GELU_BY_TANH, HALF_FIRST, HALF_LAST, QUOTIENT, Rewrite
from ..oplists.patterns import Region, find_regions
from .fusions import is_closed, is_split
from .options import Options
from .selection import touched

WRITTEN = {"erf": GELU, "tanh": GELU_BY_TANH, "tanh of squares": GELU_BY_TANH}
"""What variants of a pattern are written as."""
CUBED = {"tanh": "tanh of squares"}
"""Variants of a pattern that can be written as another one, which has the same numbers."""
CUBE = 3
NUMBERS = (0.044715, 0.7978845608, 1.0, 0.5)
"""Of a GELU by tanh: the cube's factor, the sum's, one and half."""


def find_forms(flow: Dataflow, options: Options, names: Collection[str], beyond: Collection[int] = ()) -> list[Rewrite]:
    """What is rewritten, by rewrites of these names, in regions that the target fuses; nothing in a model without a
    product that may be low. ``beyond``: values that were measured to leave the low range.

    x * (1 / root) becomes x / root, which is rounded once instead of twice, and x * ((1 + e) * half) becomes
    half * (x * (1 + e)): times a power of two is exact. One by tanh becomes (half * x) * (1 + t), and one of
    x + c x x x that stays float32, that reads what the user keeps float32, that would overflow or that the target knows
    with a power alone becomes one of x * (1 + c x x).
    """
    fuses = options.kernels.fuses
    if not fuses or options.level.white == "float32" or not any(_is_product(options, op) for op in flow.ops):
        return []
    named = touched(flow, options.named)  # the user speaks of these nodes: they stay
    wide = touched(flow, (*options.fp32, *options.pinned))
    wide_values = {*beyond, *(value for op in wide for value in flow.ops[op].outputs)}
    found: list[Rewrite] = []
    for region in find_regions(flow):
        scope = flow.scopes[region.result.scope]
        if region.kind not in fuses or scope.kind == "function" or any(op.id in named for op in region.ops):
            continue
        inside = frozenset(op.id for op in region.ops if op.scope == scope.id)
        writer = _FormFinder(flow, options, inside, wide_values)
        found += writer.written(region, names)
    return found


def _is_product(options: Options, op: Op) -> bool:
    listing = options.lists.of(op.role) if op.slots else None
    return listing is not None and listing.cls == "white"


@dataclass(frozen=True)
class _FormFinder:
    """Rewrites of one region. ``inside``: its operators; ``wide``: values that are float32, be they read or made."""

    flow: Dataflow
    options: Options
    inside: frozenset[int]
    wide: Collection[int]

    def written(self, region: Region, names: Collection[str]) -> Iterator[Rewrite]:
        """What a region is written as, by rewrites of these names."""
        fused = self.options.kernels.fuses[region.kind]
        whole = self.one_operator(region) if "gelu" in names else None
        whole = self.of_squares(region) if whole is None and "squares" in names else whole
        if whole is not None:
            yield whole
        elif fused.quotient and "quotient" in names:
            yield from self.quotient(region)
        elif fused.half_last and "half" in names and {op.role for op in region.ops if op.slots} <= fused.operators:
            yield from self.half_last(region)
        elif region.variant in fused.half_first and self.options.dtype not in fused.float32_alone and "half" in names:
            yield from self.half_first(region)

    def one_operator(self, region: Region) -> Rewrite | None:
        """A GELU that the target does not know in the low type is written as its operator."""
        flow, kernels = self.flow, self.options.kernels
        kind = WRITTEN.get(region.variant, "")
        admits = kernels.admits(region.kind, flow.opset, "T", self.options.dtype)
        if not kind or not region.fixed or not 0 < region.since <= flow.opset or not admits or region.source == NONE:
            return None
        if not is_split(flow, self.options, region) or len({op.scope for op in region.ops}) > 1:
            return None
        return self._whole("gelu", kind, region, (region.source,))

    def of_squares(self, region: Region) -> Rewrite | None:
        """A GELU by tanh that the target knows in another form: it stays float32, or has no power of 3."""
        flow, options = self.flow, self.options
        fused, other = options.kernels.fuses[region.kind], CUBED.get(region.variant, "")
        if other not in fused.wide_variants or region.source == NONE or not is_closed(flow, region):
            return None
        listing = options.lists.of(region.kind)
        wide = listing is not None and options.level.of(listing.cls) == "float32"
        wide = wide or any(v in self.wide for op in region.ops for v in (*op.inputs, *op.outputs))
        split = is_split(flow, options, region)
        known = split or any(flow.scalar(v) == CUBE for op in region.ops for v in op.inputs if v != NONE)
        if not wide and known and not (split and options.level.kept != "low"):
            return None
        numbers = [self._number(region, number) for number in NUMBERS]
        if NONE in numbers or len({op.scope for op in region.ops}) > 1:
            return None
        return self._whole("squares", BY_SQUARES, region, (region.source, *numbers))

    def _number(self, region: Region, number: float) -> int:
        """What a region reads a number from."""
        read = (v for op in region.ops for v in op.inputs if v != NONE)
        return next((v for v in read if isclose(self.flow.scalar(v) or 0.0, number, rel_tol=1e-4)), NONE)

    def quotient(self, region: Region) -> Iterator[Rewrite]:
        """A norm multiplies by an inverse: it divides."""
        normal = region.normal
        for place in (0, 1) if normal is not None and self._multiplies(normal) else ():
            assert normal is not None
            inverse, data = self._only_for(normal.inputs[place], normal), normal.inputs[1 - place]
            divisor = self._inverted(inverse) if inverse is not None else NONE
            if inverse is not None and divisor != NONE and data != NONE:
                names = (self.flow.values[data].name, self.flow.values[divisor].name)
                yield self._rewrite("quotient", QUOTIENT, (inverse, normal), names)
                return

    def half_last(self, region: Region) -> Iterator[Rewrite]:
        """A GELU multiplies by half a sum: it halves the product."""
        outer = region.result
        for place in (0, 1) if self._multiplies(outer) else ():
            inner, data = self._only_for(outer.inputs[place], outer), outer.inputs[1 - place]
            half = self._factor(inner) if inner is not None else NONE
            if inner is None or half == NONE or self.flow.scalar(data) is not None:
                continue
            if self._sum(next((v for v in inner.inputs if v != half), NONE)):
                names = (self.flow.values[half].name, self.flow.values[data].name)
                yield self._rewrite("half", HALF_LAST, (inner, outer), names)
                return

    def half_first(self, region: Region) -> Iterator[Rewrite]:
        """A GELU multiplies its sum by half the data."""
        outer = region.result
        for place in (0, 1) if self._multiplies(outer) else ():
            inner, other = self._only_for(outer.inputs[place], outer), outer.inputs[1 - place]
            if inner is None or not self._multiplies(inner) or other == NONE:
                continue
            sums = [v for v in inner.inputs if self._sum(v)]
            if len(sums) == 1:
                names = (self.flow.values[sums[0]].name, self.flow.values[other].name)
                yield self._rewrite("half", HALF_FIRST, (inner, outer), names)
                return

    def _multiplies(self, op: Op) -> bool:
        return op.id in self.inside and self.options.lists.traits.has(op.role, "multiplies") and len(op.inputs) == 2

    def _only_for(self, value: int, reader: Op) -> Op | None:
        """The writer of a value, in the region and for one reader alone."""
        op = self.flow.writer(value) if value != NONE else None
        alone = op is not None and op.id in self.inside and len(self.flow.uses[value]) == 1
        return op if alone and op is not None and op.scope == reader.scope else None

    def _inverted(self, op: Op) -> int:
        """What an operator divides one by."""
        places = self.options.lists.traits.positions(op.role, "divides")
        ones = all(self.flow.scalar(v) == 1 for place, v in enumerate(op.inputs) if place not in places)
        return op.inputs[places[0]] if places and ones else NONE

    def _factor(self, op: Op) -> int:
        """The power of two that an operator multiplies by."""
        numbers = [v for v in op.inputs if v != NONE and self.flow.scalar(v) == 0.5] if self._multiplies(op) else []
        return numbers[0] if len(numbers) == 1 else NONE

    def _sum(self, value: int) -> bool:
        op = self.flow.writer(value) if value != NONE else None
        return op is not None and op.id in self.inside and self.options.lists.traits.has(op.role, "additions")

    def _whole(self, name: str, kind: str, region: Region, read: Sequence[int]) -> Rewrite:
        """All of a region is written by other operators."""
        nodes = (*sorted(op.index for op in region.ops if op is not region.result), region.result.index)
        scope = self.flow.scopes[region.result.scope].path
        return Rewrite(scope, kind, nodes, tuple(self.flow.values[v].name for v in read), 0, 0.0, name)

    def _rewrite(self, name: str, kind: str, ops: tuple[Op, Op], read: tuple[str, str]) -> Rewrite:
        scope = self.flow.scopes[ops[-1].scope].path
        return Rewrite(scope, kind, tuple(op.index for op in ops), read, 0, 0.0, name)
