"""What a target's runtime makes one kernel of while all of it has one type: pairs of operators, and neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..core.dataflow import NONE, Dataflow, Op, Shape
from ..core.walk import sole_reader
from ..oplists.kernels import Join, Place
from ..oplists.options import Options
from ..oplists.patterns import Region
from ..rules.fusions import is_closed
from .facts.values import constants

AXES = 3  # of data that SkipLayerNormalization adds to
ROWS = 2  # axes of what a Gemm makes


class FusedPair(NamedTuple):
    """Two operators with the fusion that joins them. ``values``: what the first makes and only the second reads, with
    what it is handed on as unchanged."""

    values: tuple[int, ...]
    first: Op
    then: Op
    join: Join

    @property
    def value(self) -> int:
        """What the second reads."""
        return self.values[-1]

    def units(self, flow: Dataflow) -> tuple[int, int]:
        """Of the first and of the second, where they meet."""
        return flow.values[self.values[0]].unit, flow.uses[self.value][0].unit


def find_fused_pairs(flow: Dataflow, options: Options) -> list[FusedPair]:
    """All that the target would join in float32, in the order of the model."""
    by_pair = {pair: join for join in options.kernels.joined for pair in join.pairs if _both(flow, pair)}
    idle = options.lists.traits.operators("nothing_in_inference")
    ends = {first: idle | {then for one, then in by_pair if one == first} for first, _ in by_pair}
    found: list[FusedPair] = []
    for role, behind in ends.items():
        for op in flow.with_roles((role,)):
            then = sole_reader(flow, op.outputs[0], op.scope)
            if then is not None and then.role in behind and (fused := _fused_pair(flow, options, op, then, by_pair)):
                found.append(fused)
    return sorted(found, key=lambda fused: fused.first.id)


def _both(flow: Dataflow, pair: tuple[str, str]) -> bool:
    """Whether a model has operators of both kinds at all; most have not, which spares the search."""
    return all(flow.with_roles((role,)) for role in pair)


def _fused_pair(
    flow: Dataflow, options: Options, op: Op, then: Op | None, by_pair: Mapping[tuple[str, str], Join]
) -> FusedPair | None:
    """The pair of an operator and its only reader, if the target fuses them."""
    values = [op.outputs[0]]
    while then is not None and options.lists.traits.has(then.role, "nothing_in_inference") and then.slots:
        values.append(then.outputs[0])
        then = sole_reader(flow, then.outputs[0], then.scope)
    join = by_pair.get((op.role, then.role)) if then is not None else None
    if join is None or then is None or not then.slots or not op.slots or len(op.outputs) != 1:
        return None
    fused = FusedPair(tuple(values), op, then, join)
    return fused if NONE not in fused.units(flow) and _WHERE[join.where](flow, options, fused) else None


def _beside(op: Op, value: int) -> Iterator[int]:
    """The other operands of an operator."""
    return (v for v in op.inputs if v not in (NONE, value))


def _over_last_axis(flow: Dataflow, options: Options, fused: FusedPair) -> bool:
    """Whether the second operator works along the last axis, and the first adds no bias that a product before it
    takes."""
    axes, shape = flow.integers(fused.then, "axis"), flow.shape(fused.value) or flow.shape(fused.then.outputs[0])
    axis = axes[0] if axes else -1
    return shape is not None and axis in (-1, len(shape) - 1) and not _goes_to_product(flow, options, fused, shape)


def _goes_to_product(flow: Dataflow, options: Options, fused: FusedPair, shape: Shape) -> bool:
    """Whether the first adds what is stored to a product that takes it before: to rows, or to what has known sizes."""
    computed = [v for v in fused.first.inputs if not flow.values[v].weight]
    writer = flow.writer(computed[0]) if len(computed) == 1 else None
    if writer is None or not options.lists.traits.has(writer.role, "products"):
        return False
    return len(shape) == ROWS or all(isinstance(size, int) for size in shape)


def _reads_stored(flow: Dataflow, options: Options, fused: FusedPair) -> bool:
    """Whether all that the second reads beside is stored: statistics, or a number for each channel."""
    statistics = options.lists.traits.has(fused.then.role, "stored_statistics")
    beside = _beside(fused.then, fused.value)
    return all(flow.values[v].weight and (statistics or by_channel(flow, v)) for v in beside)


def by_channel(flow: Dataflow, value: int) -> bool:
    """Whether a stored tensor has a number for each channel of pictures or signals, or one for all."""
    shape = flow.shape(value)
    if shape is None:
        return False
    others = shape[:-3] + shape[-2:] if len(shape) > 2 else shape
    return all(size == 1 for size in others)


def _scales(flow: Dataflow, options: Options, fused: FusedPair) -> bool:
    """Whether one of the two multiplies or divides by a stored number."""
    traits = options.lists.traits
    op = fused.first if traits.has(fused.first.role, "scalings") else fused.then
    places = traits.positions(op.role, "divides") or range(len(op.inputs))
    numbers = (op.inputs[place] for place in places if op.inputs[place] not in fused.values)
    return any(flow.scalar(number) is not None for number in numbers)


def adds_vector(flow: Dataflow, options: Options, op: Op) -> bool:
    """Whether an operator adds a stored vector to what is no matrix: a product of matrices takes that itself."""
    shape = flow.shape(op.outputs[0])
    stored = [v for v in op.inputs if v != NONE and v in constants(flow, options.lists.traits)]
    vector = len(stored) == 1 and len(op.inputs) == 2 and len(flow.shape(stored[0]) or ()) == 1
    return vector and (shape is None or len(shape) != ROWS)


def _add_alike(flow: Dataflow, options: Options, fused: FusedPair) -> bool:
    """Whether the first adds two computed values of one shape, of rows of vectors."""
    shapes = [flow.shape(v) for v in fused.first.inputs]
    known = shapes[0] is not None and len(shapes[0]) == AXES and len(shapes) == 2
    return known and shapes[0] == shapes[1] and not any(flow.values[v].weight for v in fused.first.inputs)


_WHERE: Mapping[Place, Callable[[Dataflow, Options, FusedPair], bool]] = MappingProxyType(
    {
        "last_axis": _over_last_axis,
        "stored": _reads_stored,
        "inverse": lambda flow, _, fused: flow.scalar(fused.first.inputs[0]) == 1,
        "number": _scales,
        "same_source": lambda _, __, fused: fused.first.inputs[0] in fused.then.inputs,
        "alike": _add_alike,
        "vector": lambda flow, options, fused: adds_vector(flow, options, fused.first),
    }
)


LONGEST = 16  # operators behind a product that are looked at


def folded_into_product(flow: Dataflow, options: Options, op: Op) -> str:
    """The fusion by which a product takes this operator's stored scale or shift into its weights, where the product
    alone would be low; or ""."""
    taken = options.kernels.taken
    if options.level.infer != "float32" or not any(op.kind in kinds for kinds in taken.values()):
        return ""
    behind: list[Op] = []
    writer: Op | None = op
    while writer is not None and writer.scope == op.scope and len(behind) < LONGEST:
        if behind and writer.kind in taken:
            kinds, listing = taken[writer.kind], options.lists.listing(flow, writer)
            allowed = listing is not None and listing.cls == "allow"
            fits = allowed and all(one.kind in kinds for one in behind)
            return kinds[op.kind] if fits else ""
        behind.append(writer)
        data = _data(flow, options, writer)
        writer = flow.writer(data) if data != NONE else None
    return ""


def _data(flow: Dataflow, options: Options, op: Op) -> int:
    """The value that an operator scales or shifts by channel, if nothing else reads it; or NONE."""
    known = constants(flow, options.lists.traits)
    stored = [place for place, v in enumerate(op.inputs) if v != NONE and v in known]
    places = [place for place, v in enumerate(op.inputs) if v != NONE and place not in stored]
    if places != [0] or not stored or len(op.outputs) != 1 or flow.attribute(op, "training_mode"):
        return NONE  # the fusions look for what is stored behind the data
    statistics = options.lists.traits.has(op.role, "stored_statistics")
    alone = len(flow.uses[op.inputs[0]]) == 1
    return op.inputs[0] if alone and (statistics or by_channel(flow, op.inputs[stored[0]])) else NONE


def bias_folded_into(flow: Dataflow, options: Options, region: Region) -> Op | None:
    """The addition of a stored vector to what a region alone reads, where the target makes one kernel of both."""
    form, op = options.kernels.fuses.get(region.kind), flow.writer(region.source)
    if form is None or op is None or region.variant not in form.wide_variants or not is_closed(flow, region):
        return None
    ids, pair = {one.id for one in region.ops}, (op.role, region.kind)
    known = op.slots and any(pair in join.pairs for join in options.kernels.joined) and adds_vector(flow, options, op)
    alone = op.scope == region.result.scope and all(use.op in ids for use in flow.uses[op.outputs[0]])
    return op if known and alone else None
