"""What the target's runtime takes into the kernel of a neighbour, where both are of one type."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op
from ..oplists.patterns import Region
from .fusions import is_closed
from .joints import adds_vector, by_channel, is_constant
from .options import Options


def taken_by_product(flow: Dataflow, options: Options, op: Op) -> str:
    """By which fusion a product takes into its weights the stored numbers by which this operator scales and shifts each
    of its channels, where the level would make the product low alone; or an empty string."""
    if options.level.gray != "float32" or not any(op.kind in kinds for kinds in options.kernels.taken.values()):
        return ""
    stored = [place for place, v in enumerate(op.inputs) if v != NONE and is_constant(flow, v)]
    places = [place for place, v in enumerate(op.inputs) if v != NONE and place not in stored]
    if places != [0] or not stored or len(op.outputs) != 1 or flow.attribute(op, "training_mode"):
        return ""  # the fusions look for what is stored behind the data
    data = op.inputs[0]
    statistics = options.lists.traits.has(op.role, "stored_statistics")
    product = _product(flow, options, op, data)
    if product is None or len(flow.uses[data]) != 1 or not (statistics or by_channel(flow, op.inputs[stored[0]])):
        return ""
    return options.kernels.taken[product.kind].get(op.kind, "")


def _product(flow: Dataflow, options: Options, op: Op, data: int) -> Op | None:
    """The product that makes data, by way of others that it takes."""
    writer = flow.writer(data)
    if writer is None or writer.scope != op.scope:
        return None
    if writer.kind in options.kernels.taken:
        return writer if _is_white(options, flow, writer) else None
    before = next((v for v in writer.inputs if v != NONE and not is_constant(flow, v)), NONE)
    return _product(flow, options, writer, before) if taken_by_product(flow, options, writer) else None


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
