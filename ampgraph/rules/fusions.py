"""Which forms of a region a target's runtime makes one kernel of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from ..core.dataflow import NONE, Dataflow, Op
from ..core.walk import sole_readers, upstream
from ..oplists.options import Options
from ..oplists.patterns import Region, find_regions, fused_only_patterns
from .known import Known, named_ops

AFFINE = 2  # operators behind a norm: its scale and its bias
WIDE_NODES = 3  # a kernel in float32 and its two Casts


def is_split(flow: Dataflow, options: Options, region: Region) -> bool:
    """Fusions of a target: whether it fuses a region in float32 only, so that the low type takes many kernels."""
    form = options.kernels.fuses.get(region.kind)
    return form is not None and options.dtype in form.float32_alone and is_closed(flow, region)


def is_closed(flow: Dataflow, region: Region) -> bool:
    """Fusions of a target: whether a region is complete, of more nodes than a kernel and two Casts, and private."""
    if not region.complete:
        return False
    ids = {op.id for op in region.ops}
    inner = (v for op in region.ops if op is not region.result for v in op.outputs)
    many = len([op for op in region.ops if op.slots]) > WIDE_NODES
    return many and all(use.op in ids for v in inner for use in flow.uses[v])


def fused_when_wide(flow: Dataflow, options: Options, region: Region) -> bool:
    """Fusions of a target: whether it makes one kernel of a region in float32 between Casts, and many of a low one."""
    return is_split(flow, options, region) and region.variant in options.kernels.fuses[region.kind].wide_variants


def in_one_type(flow: Dataflow, options: Options, region: Region) -> bool:
    """Fusions of a target: whether it makes an operator of a region that loads only with data and scale of one type."""
    fusion = options.kernels.fusions.get(region.kind)
    return fusion is not None and fusion.breaks(flow.opset, options.dtype)


def is_fused(flow: Dataflow, options: Options, region: Region) -> bool:
    """Fusions of a target: whether a region's nodes are of the form that is taken, over the last axis, and nobody else
    reads what they make."""
    fusion, traits = options.kernels.fusions.get(region.kind), options.lists.traits
    if fusion is None or not in_one_type(flow, options, region):
        return False
    behind = [] if region.complete else affine_behind(flow, region.result, fusion.operators)
    ops, result = (*region.ops, *behind), [region.result, *behind][-1]
    kinds = {op.kind for op in ops if not traits.has(op.role, "stays_in_place")}
    if kinds != fusion.operators or not (region.complete or behind):
        return False
    ids = {op.id for op in ops}
    inner = (v for op in ops if op is not result for v in op.outputs)
    if any(use.op not in ids for v in inner for use in flow.uses[v]):
        return False
    if region.open_axes:  # which the runtime may compute before it looks
        return True
    shape = flow.shape(region.source)
    last = -1 if shape is None else len(shape) - 1
    return len(region.axes) == 1 and region.axes[0] in (-1, last)


def norm_axis(flow: Dataflow, region: Region) -> int | None:
    """Of a norm that a target fuses, or a rewrite writes: the one axis that every mean is over, counted from the end
    (-1: the last); None where there is no such axis, or its place is not known."""
    shape, axes = flow.shape(region.source), region.axes
    if len(axes) != 1 or any(flow.attribute(op, "keepdims") == 0 for op in region.reduced):
        return None
    if axes[0] < 0:
        return axes[0]
    return None if shape is None else axes[0] - len(shape)


def affine_behind(flow: Dataflow, result: Op, kinds: frozenset[str]) -> list[Op]:
    """Of a norm that a target fuses: the operators among ``kinds``, at most two, that alone read its result one after
    the other and scale and shift it by vectors (or by what has no known shape), as its own scale and bias would."""

    def shifts(pair: tuple[int, Op]) -> bool:
        value, reader = pair
        shapes = (flow.shape(v) for v in reader.inputs if v != value)
        return reader.kind in kinds and all(shape is None or len(shape) == 1 for shape in shapes)

    behind = islice(sole_readers(flow, result, result.scope), AFFINE)
    return [reader for _, reader in takewhile(shifts, behind)]


def regions(flow: Dataflow) -> list[Region]:
    """For rewrites and fusions: every region of a model but for products with their bias; looked for once."""
    if Region not in flow.memo:
        flow.memo[Region] = list(find_regions(flow))
    found: list[Region] = flow.memo[Region]
    return found


def fused_only_regions(flow: Dataflow, options: Options) -> list[Region]:
    """Fusions of a target: regions that count as such only there, where one kernel has them; found once a model."""
    patterns = fused_only_patterns(frozenset(options.kernels.fuses))
    if patterns not in flow.memo:
        flow.memo[patterns] = list(find_regions(flow, patterns)) if patterns.patterns else []
    found: list[Region] = flow.memo[patterns]
    return found


def fused_regions(known: Known) -> Iterator[Region]:
    """For rewrites: the regions that the target fuses, without those in functions or named by the user's patterns; none
    where no product of the model may be low."""
    flow, options = known.flow, known.options
    fuses = options.kernels.fuses
    if not fuses or options.level.allow == "float32" or not any(_is_product(options, op) for op in flow.ops):
        return
    named = named_ops(known)
    for region in regions(flow):
        in_function = flow.scopes[region.result.scope].kind == "function"
        if region.kind in fuses and not in_function and not any(op.id in named for op in region.ops):
            yield region


def scores_before(known: Known, softmax: Op) -> list[Op]:
    """Of an attention that a target fuses: the products of two operands whose results, shifted, scaled, masked and
    moved, a Softmax reads."""
    traits = known.traits
    added, moved = traits.operators("additions", "scalings"), traits.operators("reshapes")

    def further(op: Op) -> list[int]:
        if op.role in added:
            return [*op.inputs]
        if op.role in moved:
            return [*op.inputs[:1]]
        masks = traits.has(op.role, "elementwise")  # a Where
        return [v for place, v in enumerate(op.inputs) if masks and traits.at(op.role, "joins", place)]

    found = upstream(known.flow, softmax.inputs[:1], further)
    return [op for op in found if traits.has(op.role, "multiplies_matrices") and op.slots and len(op.inputs) == 2]


def in_file_order(region: Region) -> tuple[Op, ...]:
    """For a rewrite: the operators of a region in the order of the file, that of the result last."""
    inner = (op for op in region.ops if op is not region.result)
    return *sorted(inner, key=lambda op: op.index), region.result


@dataclass(frozen=True)
class Inside:
    """What is asked about the operators of one region that are in the scope of its result."""

    known: Known
    region: Region

    def has(self, op: Op) -> bool:
        """For a rewrite or fusion: whether an operator is one of the region's; those that a pattern found outside of a
        body count as none, since a rewrite edits one scope."""
        return op.scope == self.region.result.scope and any(op.id == own.id for own in self.region.ops)

    def multiplies(self, op: Op) -> bool:
        """For a rewrite or fusion: whether an operator is inside a region, and a product of two values."""
        return self.has(op) and self.known.traits.has(op.role, "multiplies") and len(op.inputs) == 2

    def is_sum(self, value: int) -> bool:
        """For a rewrite or fusion: whether an addition of this region makes a value."""
        op = self.known.flow.writer(value) if value != NONE else None
        return op is not None and self.has(op) and self.known.traits.has(op.role, "additions")

    def only_for(self, value: int, reader: Op) -> Op | None:
        """For a rewrite or fusion: the region's operator whose result only ``reader`` in its scope reads; else None."""
        op = self.known.flow.writer(value) if value != NONE else None
        if op is None or not self.has(op) or op.scope != reader.scope:
            return None
        return op if len(self.known.flow.uses[value]) == 1 else None


def _is_product(options: Options, op: Op) -> bool:
    """For a rewrite: whether the lists call an operator a product (class allow), which low types make faster."""
    listing = options.lists.entry(op.role) if op.slots else None
    return listing is not None and listing.cls == "allow"
