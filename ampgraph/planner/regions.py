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
    """``of_op``: operators of a region, with the operator that it stands for; ``classes``: the list class that governs
    each operator, its region's where it is in one; ``ties``: the units of each, with what the level says of it;
    ``beside``: what must hold of those that write what it reads; ``fused``: operators whose Casts cost nothing, since
    the target's runtime takes them into one kernel."""

    of_op: Mapping[int, str] = field(default_factory=dict)
    classes: Sequence[str] = ()
    ties: Sequence[tuple[Sequence[int], int, Why]] = ()
    beside: Sequence[Hold | Tie] = ()
    fused: frozenset[int] = frozenset()

    @cached_property
    def allowed(self) -> frozenset[int]:
        """Operators that are products, or governed like one."""
        return frozenset(op for op, cls in enumerate(self.classes) if cls == "allow")

    @cached_property
    def inside(self) -> frozenset[int]:
        """Operators of regions that are more than a product with its bias."""
        return frozenset(op for op, kind in self.of_op.items() if kind != "Bias")

    def enter(self, ledger: Ledger) -> None:
        """Ties the units of each region and decides them; what the level leaves open goes to the cut."""
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
    """The regions of a model, one decision for each, by the class of the operator that it stands for; with the streams
    that the recipe keeps in float32, which are found by what the regions are."""
    regions = tie_regions(facts, classes)
    if not facts.options.recipe.fp32_stream or FP32_STREAM in facts.options.off:
        return regions
    streams = StreamFinder(facts, regions.of_op, regions.classes).streams
    kept = frozenset(op for stream in streams for op in stream)
    return tie_regions(facts, classes, kept) if kept else regions


def tie_regions(facts: Facts, classes: Classes, streams: Collection[int] = ()) -> Regions:
    """The regions of a model. A bias that is one kernel with what reads it is none of its product's. ``streams``:
    additions that `--fp32-stream` keeps."""
    flow, options = facts.flow, facts.options
    of_op: dict[int, str] = {}
    governed = list(classes.of_op)
    ties: list[tuple[Sequence[int], int, Why]] = []
    beside: list[Hold | Tie] = []
    fused: set[int] = set()
    verdict = cache(partial(region_verdict, options))
    wide_ops = {*matched_op_ids(flow, (*options.fp32, *options.pinned)), *streams}
    taken = set[int]()
    products = {kind for kind in {op.role for op in flow.ops} if _class(options, kind) == "allow"}
    for region in [*fusions.regions(flow), *fusions.fused_only_regions(flow, options), *find_biases(flow, products)]:
        if any(op.id in of_op for op in region.ops) or not any(op.slots for op in region.ops):
            continue
        if region.kind == "Bias" and (region.result.id in taken or _is_own(facts, region)):
            continue
        governing = region.ops[0].role if region.kind == "Bias" else region.kind
        for op in region.ops:
            of_op[op.id] = region.kind
            governed[op.id] = _class(options, governing)
        form = fused_form(flow, options, region)
        core = core_of(flow, options, region) if form is not None else region.ops
        decided = verdict(region.kind, governing)
        if decided[0] != HIGH and options.level.fp32 != "low" and fused_when_wide(flow, options, region):
            text = f"{region.kind} is one kernel on {options.target} in float32, and many in {options.dtype}"
            decided = HIGH, Why("region", text)
        if decided[0] != HIGH and (mistake := mistaken_epsilon(options, region)):
            decided = HIGH, Why("kernel", mistake)
        if (known := options.kernels.fuses.get(region.kind)) and known.float32_inside and is_trusted(options, region):
            decided = FREE, Why("region", f"{region.kind} is one kernel on {options.target}: {known.why}")
        bias = bias_folded_into(flow, options, region) if decided[0] == HIGH else None
        taken |= set() if bias is None else {bias.id}
        ties.append((_units([*core, *([] if bias is None else [bias])]), *decided))
        if form is None:
            beside += beside_fusion(facts, region, _units(core), decided[0])
        elif behind := _units([op for op in region.ops if op not in core]):
            fused.update(op.id for op in core)
            same, wide = in_one_type(flow, options, region), reads_float32_stream(facts, region, wide_ops)
            why = Why("region", f"{region.kind} is one kernel on {options.target}: {form.why}")
            ties.append((behind, HIGH, wide) if same and wide else (behind, FREE, why))
            if same and not wide:
                beside.append(Tie((flow.values[region.source].unit, *behind)))
    sides = {cls: SIDES[options.level.of(cls)] for cls in ("allow", "infer")}
    ties += [((found.unit,), LOW, found.why) for found in find_scalings(facts, sides) if found.op not in of_op]
    return Regions(of_op, governed, ties, beside, frozenset(fused))


def reads_float32_stream(facts: Facts, region: Region, held: Collection[int]) -> Why | None:
    """Why all of a norm is float32 under `--fp32-stream`: additions read the same data, in float32. ``held``: those
    operators that the option, the user, or what the file says of itself keeps in float32."""
    flow, additions = facts.flow, facts.traits.operators("additions")
    readers = {use.op for use in flow.uses[region.source]} - {op.id for op in region.ops} - {NONE}
    wide = any(flow.ops[op].role in additions and op in held for op in readers)
    text = f"in a float32 stream: {region.kind} reads data that others add to, and is no kernel of two types"
    return Why(FP32_STREAM, text) if wide else None


def _units(ops: Sequence[Op]) -> list[int]:
    """Decision on a region: the units of all slots of its operators."""
    return [unit for op in ops for unit in op.slots.values()]


def is_trusted(options: Options, region: Region) -> bool:
    """Decision on a region that stays float32: whether it may be one low kernel of the target, with float32 inside."""
    form, cls = options.kernels.fuses.get(region.kind), _class(options, region.kind)
    trusted = options.level.trusts_kernels(cls) or bool(mistaken_epsilon(options, region))
    return form is not None and (form.quotient or form.float32_inside) and trusted


def mistaken_epsilon(options: Options, region: Region) -> str:
    """Decision on a norm: why one that would be low is float32 inside: the target's kernel adds another epsilon."""
    form = options.kernels.fuses.get(region.kind)
    if form is None or options.level.of(_class(options, region.kind)) != "low":
        return ""
    taken = form.low_epsilon.get(options.dtype, 0.0)
    if not taken or math.isclose(region.epsilon, taken, rel_tol=1e-3):
        return ""
    given = f"adds {taken:g} instead of an epsilon of {region.epsilon:g} in {options.dtype}"
    return f"the one kernel that {options.target} makes of {region.kind} {given}"


def core_of(flow: Dataflow, options: Options, region: Region) -> tuple[Op, ...]:
    """Decision on a norm: its nodes up to its scale, without what hands a stored scale or its data on."""
    aside = [
        op
        for op in region.core
        if options.lists.traits.has(op.role, "stays_in_place")
        and flow.values[op.inputs[0]].weight
        or (
            options.lists.traits.has(op.role, "nothing_in_inference") and op.inputs[0] == region.source
        )  # others may read it as well
    ]
    return tuple(op for op in region.core if op not in aside)


def fused_form(flow: Dataflow, options: Options, region: Region) -> Fused | None:
    """Decision on a norm: the form in float32 that the target's runtime makes one kernel of, with the Casts around it
    and the scale behind, where the level trusts that kernel."""
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
    """What the level says of a region, with the reason."""
    listing, level = options.lists.of(governing), options.level
    cls = listing.cls if listing else "deny"
    source = listing.source if listing else "no list"
    name = "its product" if kind == "Bias" else f"{kind}, which these nodes compute"
    rule = level.of(cls)
    text = f"decided with {name}; {source}: {cls} at {level.name} is {rule}"
    return SIDES[rule], Why("region", text, BIAS if kind == "Bias" else kind)


def _class(options: Options, kind: str) -> str:
    """Decision on a region: the list class of the operator that it stands for."""
    listing = options.lists.of(kind)
    return listing.cls if listing else ""


def _is_own(facts: Facts, region: Region) -> bool:
    """Whether a bias is decided apart from its product: it does not fit the low range, the sum with it alone was
    measured to leave that, or the target makes one kernel of it and what reads it."""
    flow, passing, product = facts.flow, facts.passing, region.ops[0]
    bias, made = flow.values[region.bias], region.result.outputs[0]
    read = 0 < flow.weights.size(bias) <= LONGEST_BIAS
    alone = made in passing and not any(v in passing for v in (*product.inputs, *product.outputs))
    fits = read and facts.extent(bias).largest <= facts.low.largest
    return not fits or alone or goes_to_reader(flow, facts.options, region.result)


def beside_fusion(facts: Facts, region: Region, units: list[int], side: int) -> list[Hold | Tie]:
    """Keeps a cast from the place in front of a region from where a runtime's fusion would take it along.

    ``units``: the region's. ``side``: what the level says of it: where that is float32 its source is too, else they
    share one decision. So does what scales and shifts the norm by what is not stored.
    """
    flow, options = facts.flow, facts.options
    if not is_fused(flow, options, region):
        return []
    kinds = options.kernels.fusions[region.kind].operators
    behind = [] if region.complete else affine_behind(flow, region.result, kinds)
    beside = {*_sources(facts, region.source), *(unit for op in behind for unit in op.slots.values())}
    others = sorted(beside - set(units))
    if not others:
        return []
    if side == HIGH:
        return [Hold(tuple(others), VALIDITY, Why("kernel", options.kernels.fusions[region.kind].reason))]
    return [Tie((units[0], *others))]


def _sources(facts: Facts, value: int) -> Iterator[int]:
    """The units that write a value, and what it is handed on from without a change: calls are written out too."""
    values, scopes = facts.flow.values, facts.flow.scopes
    if value == NONE or values[value].unit == NONE:
        return
    writer = facts.flow.writer(value)
    yield values[value].unit
    for before in facts.crossings.before.get(value, ()):
        if "function" in (scopes[values[before].scope].kind, scopes[values[value].scope].kind):
            yield from _sources(facts, before)
    if writer is not None and writer.role in facts.traits.operators("casts", "nothing_in_inference"):
        yield from _sources(facts, writer.inputs[0])
