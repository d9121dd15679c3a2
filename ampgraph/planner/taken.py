"""What the target's runtime takes into the kernel of a neighbour, where both are of one type."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op
from ..oplists.patterns import Region
from .options import Options


def taken_by_product(flow: Dataflow, options: Options, op: Op) -> str:
    """By which fusion a product takes the stored statistics behind it into its weights, where the level would make the
    product low alone; or an empty string."""
    if options.level.gray != "float32" or not options.lists.traits.has(op.role, "stored_statistics"):
        return ""
    kernels = options.kernels
    writer = flow.writer(op.inputs[0])
    if (
        writer is None
        or writer.kind not in kernels.normalized
        or writer.scope != op.scope
        or not _is_white(flow, options, writer)
    ):
        return ""
    stored = all(flow.values[v].weight for v in op.inputs[1:] if v != NONE)
    alone = len(flow.uses[op.inputs[0]]) == 1 and len(op.outputs) == 1
    return kernels.normalized[writer.kind] if stored and alone and not flow.attribute(op, "training_mode") else ""


def taken_by_softmax(flow: Dataflow, options: Options, region: Region) -> bool:
    """Whether a softmax alone reads a product with its bias, and the target adds the bias in the softmax's kernel."""
    traits = options.lists.traits
    shape = flow.shape(region.result.outputs[0])
    if shape is not None and len(shape) == 2:
        return False  # a matrix: the product takes it
    reader: Op | None = region.result
    while reader is not None and (reader is region.result or traits.has(reader.role, "nothing_in_inference")):
        uses = flow.uses[reader.outputs[0]]
        reader = flow.ops[uses[0].op] if len(uses) == 1 and uses[0].op != NONE else None
    return reader is not None and reader.kind in options.kernels.shifted and reader.scope == region.result.scope


def _is_white(flow: Dataflow, options: Options, op: Op) -> bool:
    listing = options.lists.listing(flow, op)
    return listing is not None and listing.cls == "white"
