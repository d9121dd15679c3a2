"""Ties the nodes of a region to one decision, and finds the norms that can be written as their standard operator."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

from ..core.dataflow import NONE, Dataflow, Op
from ..core.plan import BIAS, Why
from ..core.selection import matched_op_ids
from ..oplists.kernels import Fused
from ..oplists.options import Options
from ..oplists.patterns import Region, find_biases
from ..rules import fusions
from ..rules.fusions import affine_behind, fused_when_wide, in_one_type, is_fused, norm_axis
from .classify import SIDES, Classes
from .decisions import FP32_STREAM, FREE, HIGH, LOW, REGION, VALIDITY, Hold, Ledger, Tie
from .facts.facts import Facts
from .fused_pairs import bias_folded_into, goes_to_reader
from .scales import find_scalings
from .streams import StreamFinder

LONGEST_BIAS = 1 << 20  # elements: what is longer is none


@dataclass(frozen=True)
class Regions:
    """The regions of a model, as decided. ``of_op``: id of an operator in a region -> the operator that this stands
    for, or `Bias`; ``classes``: by an operator's id, the list class that governs it (its region's), "" for none;
    ``ties``: (units of one decision, side, why) of each region; ``beside``: what must hold of units around regions;
    ``fused``: ids of operators whose Casts cost nothing, as the target's runtime takes them into one kernel;
    ``shared``: ids of operators of float32 regions that make squares, or sums of them, which others read too."""

    of_op: Mapping[int, str] = field(default_factory=dict)
    classes: Sequence[str] = ()
    ties: Sequence[tuple[Sequence[int], int, Why]] = ()
    beside: Sequence[Hold | Tie] = ()
    fused: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()

    @cached_property
    def allowed(self) -> frozenset[int]:
        """The ids of operators that are products, or governed like one."""
        return frozenset(op for op, cls in enumerate(self.classes) if cls == "allow")

    @cached_property
    def inside(self) -> frozenset[int]:
        """The ids of operators of regions that are more than a product with its bias."""
        return frozenset(op for op, kind in self.of_op.items() if kind != "Bias")

    def enter(self, ledger: Ledger) -> None:
        """Ties and decides the units of each region, or leaves them to the cut; then what is ``beside`` regions."""
        for units, side, why in self.ties:
            root = ledger.tie(units)
            if side == FREE:
                ledger.release(root, why)
            else:
                ledger.decide(root, side, REGION, why)
        for item in self.beside:
            if isinstance(item, Tie):
                ledger.tie(item.units)
            else:
                ledger.hold(item)


def find_tied(facts: Facts, classes: Classes) -> Regions:
    """The regions of a model, one decision for each, by the class of the operator that it stands for. Streams that the
    recipe keeps in float32 are found by what the regions are, and may change what is decided of these."""
    regions = tie_regions(facts, classes)
    if not facts.options.recipe.fp32_stream or FP32_STREAM in facts.options.off:
        return regions
    streams = StreamFinder(facts, regions.of_op, regions.classes).streams
    kept = frozenset(op for stream in streams for op in stream)
    return tie_regions(facts, classes, kept) if kept else regions


def tie_regions(facts: Facts, classes: Classes, streams: Collection[int] = ()) -> Regions:
    """The regions of a model, no operator in two: by the level's verdict, but float32 where only that is one kernel, or
    the low one adds another epsilon, and free where the kernel keeps float32 inside. A bias that is one kernel with
    what reads it is not tied to its product. ``streams``: ids of additions that `--fp32-stream` keeps in float32."""
    flow, options = facts.flow, facts.options
    of_op: dict[int, str] = {}
    governed = list(classes.of_op)
    ties: list[tuple[Sequence[int], int, Why]] = []
    beside: list[Hold | Tie] = []
    fused, shared = set[int](), set[int]()
    verdict = cache(partial(region_verdict, options))
    float32_ops = {*matched_op_ids(flow, (*options.fp32, *options.pinned)), *streams}
    folded_biases = set[int]()
    products = {kind for kind in {op.role for op in flow.ops} if _class_of(options, kind) == "allow"}
    for region in [*fusions.regions(flow), *fusions.fused_only_regions(flow, options), *find_biases(flow, products)]:
        if any(op.id in of_op for op in region.ops) or not any(op.slots for op in region.ops):
            continue
        if region.kind == "Bias" and (region.result.id in folded_biases or _is_decided_apart(facts, region)):
            continue
        governing = region.ops[0].role if region.kind == "Bias" else region.kind
        for op in region.ops:
            of_op[op.id] = region.kind
            governed[op.id] = _class_of(options, governing)
        form = fused_form(flow, options, region)
        core = core_of(flow, options, region) if form is not None else region.ops
        decided = _by_kernels(flow, options, region, verdict(region.kind, governing))
        bias = bias_folded_into(flow, options, region) if decided[0] == HIGH else None
        if bias is not None:
            folded_biases.add(bias.id)
        ties.append((_units(core if bias is None else [*core, bias]), *decided))
        if decided[0] == HIGH and region.kind != "Bias":
            shared |= _squares_for_others(facts, region)
        behind = _units([op for op in region.ops if op not in core])
        if form is None:
            beside += beside_fusion(facts, region, _units(core), decided[0])
        elif behind:
            fused.update(op.id for op in core)
            why = Why("region", f"{region.kind} is one kernel on {options.target}: {form.why}")
            if not in_one_type(flow, options, region):
                ties.append((behind, FREE, why))
                continue
            in_stream = reads_float32_stream(facts, region, float32_ops)
            ties.append((behind, FREE, why) if in_stream is None else (behind, HIGH, in_stream))
            if in_stream is None:
                beside.append(Tie((flow.values[region.source].unit, *behind)))
    sides = {cls: SIDES[options.level.of_class(cls)] for cls in ("allow", "infer")}
    ties += [((found.unit,), LOW, found.why) for found in find_scalings(facts, sides) if found.op not in of_op]
    return Regions(of_op, governed, ties, beside, frozenset(fused), frozenset(shared))


def _squares_for_others(facts: Facts, region: Region) -> set[int]:
    """Decision on a region: ids of its operators that square and what follows them, before a root, where others than
    the region read one of these values, which may leave the low range; none where nobody does."""
    flow, traits, found = facts.flow, facts.traits, set[int]()
    for op in sorted(region.ops, key=lambda op: op.id):
        made = {flow.values[v].producer for v in op.inputs if v != NONE}
        follows = not (traits.has(op.role, "roots") or found.isdisjoint(made))
        if op is not region.result and (op.id in facts.squares or follows):
            found.add(op.id)
    own = {op.id for op in region.ops} | {NONE}
    uses = (use.op for op in found for v in flow.ops[op].outputs for use in flow.uses[v])
    return found if any(op not in own for op in uses) else set()


def _by_kernels(flow: Dataflow, options: Options, region: Region, decided: tuple[int, Why]) -> tuple[int, Why]:
    """Decision on a region: (side, why), by the kernels that the target makes of it, else ``decided``, the level's.

    Of these steps the last one that applies decides: float32 where only that is one kernel (not at a level that lowers
    everything); float32 where the low kernel would add another epsilon; free, so left to the cut, where the target has
    one kernel that takes low values and keeps float32 inside, and `is_trusted` says that it may be that."""
    if decided[0] != HIGH and not options.level.lowers_everything and fused_when_wide(flow, options, region):
        text = f"{region.kind} is one kernel on {options.target} in float32, and many in {options.dtype}"
        decided = HIGH, Why("region", text)
    mistake = mistaken_epsilon(options, region) if decided[0] != HIGH else ""
    if mistake:
        decided = HIGH, Why("kernel", mistake)
    known = options.kernels.fuses.get(region.kind)
    if known is not None and known.float32_inside and is_trusted(options, region):
        decided = FREE, Why("region", f"{region.kind} is one kernel on {options.target}: {known.why}")
    return decided


def reads_float32_stream(facts: Facts, region: Region, held: Collection[int]) -> Why | None:
    """Why all of a norm is float32 under `--fp32-stream`: an addition of ``held`` reads the same data; None where none
    does. ``held``: ids of operators that the option, the user, or what the file says of itself keeps in float32."""
    flow, additions = facts.flow, facts.traits.operators("additions")
    readers = {use.op for use in flow.uses[region.source]} - {op.id for op in region.ops} - {NONE}
    if not any(flow.ops[op].role in additions and op in held for op in readers):
        return None
    text = f"in a float32 stream: {region.kind} reads data that others add to, and is no kernel of two types"
    return Why(FP32_STREAM, text)


def _units(ops: Sequence[Op]) -> list[int]:
    """Decision on a region: the units of all slots of some operators."""
    return [unit for op in ops for unit in op.slots.values()]


def is_trusted(options: Options, region: Region) -> bool:
    """Decision on a region that would stay float32: whether it may be one kernel of the target that keeps float32
    inside, as the level trusts such kernels, or as the low kernel would add another epsilon."""
    form, cls = options.kernels.fuses.get(region.kind), _class_of(options, region.kind)
    trusted = options.level.trusts_kernels(cls) or bool(mistaken_epsilon(options, region))
    return form is not None and (form.quotient or form.float32_inside) and trusted


def mistaken_epsilon(options: Options, region: Region) -> str:
    """Decision on a norm: why one that the level makes low must not be: the low kernel adds another epsilon; or ""."""
    form = options.kernels.fuses.get(region.kind)
    if form is None or options.level.of_class(_class_of(options, region.kind)) != "low":
        return ""
    added = form.low_epsilon.get(options.dtype, 0.0)
    if not added or math.isclose(region.epsilon, added, rel_tol=1e-3):
        return ""
    text = f"adds {added:g} instead of an epsilon of {region.epsilon:g} in {options.dtype}"
    return f"the one kernel that {options.target} makes of {region.kind} {text}"


def core_of(flow: Dataflow, options: Options, region: Region) -> tuple[Op, ...]:
    """Decision on a norm: its nodes up to its scale, without those that only hand on a stored scale or its data."""

    def hands_on(op: Op) -> bool:
        if options.lists.traits.has(op.role, "stays_in_place") and flow.values[op.inputs[0]].weight:
            return True
        return options.lists.traits.has(op.role, "nothing_in_inference") and op.inputs[0] == region.source

    return tuple(op for op in region.core if not hands_on(op))


def fused_form(flow: Dataflow, options: Options, region: Region) -> Fused | None:
    """Decision on a norm: the form in which the target's runtime makes one kernel of it in float32, with the Casts
    around it and the scale behind, where the level trusts that kernel; None where the norm has no such form."""
    form, source = options.kernels.fuses.get(region.kind), flow.values[region.source].unit
    if form is None or region.normal is None or not region.complete or not is_trusted(options, region):
        return None
    if source == NONE and in_one_type(flow, options, region):
        return None
    core = core_of(flow, options, region)
    ids = {op.id for op in core}
    inner = [value for op in core if op is not region.normal for value in op.outputs]
    removed = options.lists.traits.operators("nothing_in_inference")  # before the runtime fuses
    known = (
        {op.role for op in core if op.slots and op.role not in removed} == form.operators
        and len({op.scope for op in region.ops}) == 1
        and all(use.op in ids for value in inner for use in flow.uses[value])
        and norm_axis(flow, region) == -1
    )
    return form if known else None


def region_verdict(options: Options, kind: str, governing: str) -> tuple[int, Why]:
    """What the level says of a region of some kind, by the class of the operator ``governing`` (of a `Bias` its
    product): the side, and why. An operator in no list counts as `deny`."""
    listing, level = options.lists.entry(governing), options.level
    cls = listing.cls if listing else "deny"
    source = listing.source if listing else "no list"
    name = "its product" if kind == "Bias" else f"{kind}, which these nodes compute"
    rule = level.of_class(cls)
    text = f"decided with {name}; {source}: {cls} at {level.name} is {rule}"
    return SIDES[rule], Why("region", text, BIAS if kind == "Bias" else kind)


def _class_of(options: Options, kind: str) -> str:
    """Decision on a region: the list class of the operator that it stands for; "" for none."""
    listing = options.lists.entry(kind)
    return listing.cls if listing else ""


def _is_decided_apart(facts: Facts, region: Region) -> bool:
    """Whether a bias is decided apart from its product: it does not fit the low range, the sum with it alone was
    measured to leave that, or the target makes one kernel of it and what reads it."""
    flow, passing, product = facts.flow, facts.passing, region.ops[0]
    bias, total = flow.values[region.bias], region.result.outputs[0]
    readable = 0 < flow.weights.size(bias) <= LONGEST_BIAS
    if not readable or facts.extent(bias).largest > facts.low.largest:
        return True
    sum_alone_passes = total in passing and not any(v in passing for v in (*product.inputs, *product.outputs))
    return sum_alone_passes or goes_to_reader(flow, facts.options, region.result)


def beside_fusion(facts: Facts, region: Region, units: list[int], side: int) -> list[Hold | Tie]:
    """What keeps a Cast to low from standing in front of a region, where a fusion of the runtime's would take it along
    and not load: of float32 ``units`` (by ``side``) those that write the source are held too, else they share one
    decision, with what scales and shifts a norm by computed values. Empty without such a fusion."""
    flow, options = facts.flow, facts.options
    if not is_fused(flow, options, region):
        return []
    kinds = options.kernels.fusions[region.kind].operators
    behind = [] if region.complete else affine_behind(flow, region.result, kinds)
    beside = {*_units_writing(facts, region.source), *(unit for op in behind for unit in op.slots.values())}
    others = sorted(beside - set(units))
    if not others:
        return []
    if side == HIGH:
        return [Hold(tuple(others), VALIDITY, Why("kernel", options.kernels.fusions[region.kind].reason))]
    return [Tie((units[0], *others))]


def _units_writing(facts: Facts, value: int) -> Iterator[int]:
    """Decision on a region: yields the unit that writes a value, and those of the values that it is handed on from
    without a change, by Casts and the like, and through calls of functions, which the runtime writes out."""
    values, scopes = facts.flow.values, facts.flow.scopes
    if value == NONE or values[value].unit == NONE:
        return
    writer = facts.flow.writer(value)
    yield values[value].unit
    for before in facts.crossings.before.get(value, ()):
        if "function" in (scopes[values[before].scope].kind, scopes[values[value].scope].kind):
            yield from _units_writing(facts, before)
    if writer is not None and writer.role in facts.traits.operators("casts", "nothing_in_inference"):
        yield from _units_writing(facts, writer.inputs[0])
