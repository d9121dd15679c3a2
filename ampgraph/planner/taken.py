"""What the target's runtime takes into the kernel of a neighbour, where both are of one type."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op
from ..oplists.patterns import Region
from ..rules.fusions import is_closed
from .joints import adds_vector, by_channel, is_constant
from .options import Options

LONGEST = 16  # operators behind a product that are looked at


def taken_by_product(flow: Dataflow, options: Options, op: Op) -> str:
    """By which fusion a product takes into its weights the stored numbers by which this operator scales and shifts each
    of its channels, where the level would make the product low alone; or an empty string."""
    taken = options.kernels.taken
    if options.level.gray != "float32" or not any(op.kind in kinds for kinds in taken.values()):
        return ""
    behind: list[Op] = []
    writer: Op | None = op
    while writer is not None and writer.scope == op.scope and len(behind) < LONGEST:
        if behind and writer.kind in taken:
            kinds = taken[writer.kind]
            fits = _is_white(options, flow, writer) and all(one.kind in kinds for one in behind)
            return kinds[op.kind] if fits else ""
        behind.append(writer)
        data = _data(flow, options, writer)
        writer = flow.writer(data) if data != NONE else None
    return ""


def _data(flow: Dataflow, options: Options, op: Op) -> int:
    """What an operator scales or shifts by stored numbers for each channel, if nobody else reads that; or NONE."""
    stored = [place for place, v in enumerate(op.inputs) if v != NONE and is_constant(flow, v)]
    places = [place for place, v in enumerate(op.inputs) if v != NONE and place not in stored]
    if places != [0] or not stored or len(op.outputs) != 1 or flow.attribute(op, "training_mode"):
        return NONE  # the fusions look for what is stored behind the data
    statistics = options.lists.traits.has(op.role, "stored_statistics")
    alone = len(flow.uses[op.inputs[0]]) == 1
    return op.inputs[0] if alone and (statistics or by_channel(flow, op.inputs[stored[0]])) else NONE


def taken_by_softmax(flow: Dataflow, options: Options, region: Region) -> bool:
    """Whether a softmax alone reads a product with its bias, and the target adds the bias in the softmax's kernel."""
    traits = options.lists.traits
    reader: Op | None = region.result
    while reader is not None and (reader is region.result or traits.has(reader.role, "nothing_in_inference")):
        uses = flow.uses[reader.outputs[0]]
        reader = flow.ops[uses[0].op] if len(uses) == 1 and uses[0].op != NONE else None
    if reader is None or reader.kind not in options.kernels.shifted or reader.scope != region.result.scope:
        return False
    shape = flow.shape(region.result.outputs[0])  # last: nothing else may ask for it
    return shape is None or len(shape) != 2  # a matrix: the product takes it


def bias_taken_by(flow: Dataflow, options: Options, region: Region) -> Op | None:
    """The addition of a stored vector to what a region alone reads, where the target makes one kernel of both."""
    form, op = options.kernels.fuses.get(region.kind), flow.writer(region.source)
    if form is None or op is None or region.variant not in form.wide_variants or not is_closed(flow, region):
        return None
    ids, pair = {one.id for one in region.ops}, (op.role, region.kind)
    known = op.slots and any(pair in join.pairs for join in options.kernels.joined) and adds_vector(flow, op)
    alone = op.scope == region.result.scope and all(use.op in ids for use in flow.uses[op.outputs[0]])
    return op if known and alone else None


def _is_white(options: Options, flow: Dataflow, op: Op) -> bool:
    listing = options.lists.listing(flow, op)
    return listing is not None and listing.cls == "white"
