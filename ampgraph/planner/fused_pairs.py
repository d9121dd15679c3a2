"""What a target's runtime takes into the kernel of the operator before, or of the one behind, by what is stored."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op
from ..core.walk import sole_reader
from ..oplists.options import Options
from ..oplists.patterns import Region
from ..rules.fusions import is_closed
from .facts.values import constants

ROWS = 2  # axes of what a Gemm makes
LONGEST = 16  # operators behind a product that are looked at


def _has_channel_shape(flow: Dataflow, value: int) -> bool:
    """Pairs that a target fuses: whether a stored tensor has a number for each channel of pictures, or one."""
    shape = flow.shape(value)
    if shape is None:
        return False
    others = shape[:-3] + shape[-2:] if len(shape) > 2 else shape
    return all(size == 1 for size in others)


def folded_into_product(flow: Dataflow, options: Options, op: Op) -> str:
    """The fusion by which a product in front takes an operator's stored scale or shift into its weights, through others
    of that sort, at a level where the product alone would be low; "" where there is none."""
    folded_into = options.kernels.folded_into
    if options.level.infer != "float32" or not any(op.kind in kinds for kinds in folded_into.values()):
        return ""
    behind: list[Op] = []
    writer: Op | None = op
    while writer is not None and writer.scope == op.scope and len(behind) < LONGEST:
        if behind and writer.kind in folded_into:
            kinds, listing = folded_into[writer.kind], options.lists.listing(flow, writer)
            allowed = listing is not None and listing.cls == "allow"
            return kinds[op.kind] if allowed and all(follower.kind in kinds for follower in behind) else ""
        behind.append(writer)
        data = _data_operand(flow, options, writer)
        writer = flow.writer(data) if data != NONE else None
    return ""


def _data_operand(flow: Dataflow, options: Options, op: Op) -> int:
    """Pairs that a target fuses: the first operand of an operator that alone reads it, and scales or shifts it by
    channel with stored tensors behind it; NONE where it does something else."""
    known = constants(flow, options.lists.traits)
    stored = [place for place, v in enumerate(op.inputs) if v != NONE and v in known]
    places = [place for place, v in enumerate(op.inputs) if v != NONE and place not in stored]
    if places != [0] or not stored or len(op.outputs) != 1 or flow.attribute(op, "training_mode"):
        return NONE  # the fusions look for what is stored behind the data
    statistics = options.lists.traits.has(op.role, "stored_statistics")
    alone = len(flow.uses[op.inputs[0]]) == 1
    return op.inputs[0] if alone and (statistics or _has_channel_shape(flow, op.inputs[stored[0]])) else NONE


def bias_folded_into(flow: Dataflow, options: Options, region: Region) -> Op | None:
    """Pairs that a target fuses: the addition of a stored vector whose result a region alone reads, where the target
    makes one kernel of both; None where there is none."""
    form, op = options.kernels.fuses.get(region.kind), flow.writer(region.source)
    if form is None or op is None or region.variant not in form.wide_variants or not is_closed(flow, region):
        return None
    ids = {own.id for own in region.ops}
    alone = op.scope == region.result.scope and all(use.op in ids for use in flow.uses[op.outputs[0]])
    return op if op.slots and alone and _is_bias_of(flow, options, op, region.kind) else None


def goes_to_reader(flow: Dataflow, options: Options, op: Op) -> bool:
    """Pairs that a target fuses: whether it makes one kernel of an addition of a stored vector and its one reader."""
    reader = sole_reader(flow, op.outputs[0], op.scope)
    return reader is not None and bool(reader.slots) and _is_bias_of(flow, options, op, reader.role)


def _is_bias_of(flow: Dataflow, options: Options, op: Op, kind: str) -> bool:
    """Pairs that a target fuses: whether it makes one kernel of an operator and one of a kind behind it, where the
    first adds a stored vector to what is no matrix: a product of matrices takes that itself."""
    fusions = [fusion for fusion in options.kernels.fused_pairs if fusion.where == "vector"]
    if not any((op.role, kind) in fusion.pairs for fusion in fusions):
        return False
    shape = flow.shape(op.outputs[0])
    stored = [v for v in op.inputs if v != NONE and v in constants(flow, options.lists.traits)]
    vector = len(stored) == 1 and len(op.inputs) == 2 and len(flow.shape(stored[0]) or ()) == 1
    return vector and (shape is None or len(shape) != ROWS)
