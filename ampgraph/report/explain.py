"""Why a node has its precision: each slot's reason, its list, its region, and what the other type would cost."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ..core.errors import AmpError, nearest
from ..core.rewrites import Rewrite
from ..core.selection import matched_ops, unmatched_hint
from ..core.shown import Shown, plural
from ..core.sketches import Html, bar, heading, table
from ..core.walk import reachable
from ..oplists.framework_lists import Listing
from ..oplists.options import Options
from ..planner.assemble import UNDECIDED, DecidedModel
from ..planner.classify import by_list
from ..planner.costs import LAUNCH
from ..planner.cut import INFINITE, Undecided
from ..planner.decisions import CUT, HIGH, LOW
from ..planner.fused_pairs import folded_into_product
from .casts import label
from .lines import Rows, columns, first, grouped, in_rows, titled

SHOWN = 5  # names in a hint
SEARCHED = 20_000  # names that a misspelt one is compared with
BEHIND = 20  # values behind a rewrite that may be looked at instead of its nodes
Replaced = Mapping[str, tuple[Rewrite, Sequence[str]]]
"""Name of a node or value that a rewrite is about -> (the rewrite, what may be looked at instead, nearest first)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a type costs, as `explain` says it: bytes, kernel starts included (None: the type is not possible), how many
    kernels start, and the names of the values that are cast and of the weights that are stored for it."""

    bytes: int | None
    starts: int
    casts: tuple[str, ...]
    weights: tuple[str, ...]

    def __str__(self) -> str:
        if self.bytes is None:
            return "more than any cast: it is not possible here"
        both = (("casts", self.casts), ("stores", self.weights))
        cost = plural(self.bytes - self.starts * LAUNCH, "byte")
        cost = f"{plural(self.starts, 'kernel start')} and {cost}" if self.starts else cost
        return ", ".join([cost, *(f"{what} {', '.join(map(repr, names))}" for what, names in both if names)])


@dataclass(frozen=True, slots=True)
class Cost:
    """What low and float32 cost for one decision while all others stay."""

    low: Choice
    float32: Choice


@dataclass(frozen=True, slots=True)
class SlotReport:
    """Slots of a node with one decision: the names of the values that they hold, what was decided and why; ``shared``:
    other nodes with the same decision; ``cost``: where the cut decided; ``meant``: what the reason means at this level
    and target, where a list decided and its words would mislead, else ""."""

    slot: str
    values: tuple[str, ...]
    dtype: str
    rule: str
    reason: str
    shared: tuple[str, ...] = ()
    cost: Cost | None = None
    meant: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """The report of `explain` on one node. ``precision``: the low type if any slot is low. ``listed``: its class, with
    place and reason in the list; "" in none. ``meant``: what that reason means at this level and target, where its
    words would mislead. ``at_level``: what becomes of the class. ``rule``: a framework's own rule for the class, with
    its source. ``kernel``: why the target's kernel computes in float32 inside. ``folded_into``: the fusion that makes
    it part of the product before it. ``region``: what its nodes are together. ``facts``: (name, type) of tensors whose
    type is not decided. Texts are "" where there is nothing to say."""

    node: str
    kind: str
    scope: str
    layer: str
    level: str
    dtype: str
    target: str
    precision: str
    listed: str
    listed_at: str
    listed_reason: str
    meant: str
    at_level: str
    rule: str
    kernel: str
    folded_into: str
    region: str
    slots: tuple[SlotReport, ...]
    facts: tuple[tuple[str, str], ...]

    @property
    def held(self) -> SlotReport | None:
        """The first decision on the node's slots that is float32; None if all are low, or there are no slots."""
        return next((slot for slot in self.slots if slot.dtype == FLOAT32), None)

    @property
    def short(self) -> str:
        """Why the node has its precision, in a line: by its first float32 slot, else its first; "" without slots."""
        held = self.held or next(iter(self.slots), None)
        return f"by {held.rule}: {held.meant or held.reason}" if held else ""

    def lines(self) -> list[str]:
        """The text that `explain` prints of one node, by lines."""
        listed = f"{self.listed}, {self.at_level} at {self.level}: {self.meant or self.listed_reason}"
        inside = f"left to the cut, as on {self.target} it computes in float32: {self.kernel}"
        taken = f"left to the cut, as on {self.target} {self.folded_into} takes it into the product before"
        rows = [
            ("node", f"{self.kind} '{self.node}' is {self.precision}"),
            ("options", f"level {self.level}, {self.dtype}, target {self.target}"),
            ("scope", self.scope),
            ("layer", self.layer),
            ("list", f"{self.listed_at}: {listed}" if self.listed else f"{self.kind} is in no list"),
            ("rule", self.rule),
            ("kernel", self.kernel and inside),
            ("kernel", self.folded_into and taken),
            ("region", self.region),
            *(row for slot in self.slots for row in _slot_rows(slot, self.dtype)),
            ("", "" if self.slots else "nothing to decide: it has no float32 tensor"),
            ("existing", ", ".join(f"'{name}' {dtype}" for name, dtype in self.facts)),
        ]
        return in_rows((name, text) for name, text in rows if text)

    def _overview(self) -> Iterable[Html]:
        """The page's first part: the precision, where the node stands, and each slot's type, reason and costs."""
        yield heading(f"{self.kind} '{self.node}' is {self.precision}", f" at {self.level} for {self.target}")
        places = [("scope", self.scope), ("layer", self.layer), ("region", self.region), ("class", self.listed)]
        yield table((), [(name, text) for name, text in places if text])
        rows = []
        for slot in self.slots:
            costs = (str(slot.cost.low), str(slot.cost.float32)) if slot.cost else ("", "")
            mark = bar({slot.dtype: 1}, width=24)
            rows.append((slot.slot, slot.dtype, mark, slot.rule, slot.meant or slot.reason, *costs))
        if rows:
            yield table(("slot", "type", "", "by", "why", f"{self.dtype} costs", f"{FLOAT32} costs"), rows)


def find_node(flow: Dataflow, wanted: str) -> Op:
    """The one node that `explain NAME` means: by its name, else by a value that it makes, by its place
    (``scope/index:Kind``), or as the only match of a glob. Raises AmpError AMP308 for none, and for several."""
    for ops in (
        [op for op in flow.ops if op.name == wanted],
        [op for op in flow.ops if any(flow.values[v].name == wanted for v in op.outputs)],
        [op for op in flow.ops if _place(flow, op) == wanted],
        [op for op in flow.ops if fnmatch.fnmatchcase(label(flow, op), wanted)],
    ):
        if len(ops) == 1:
            return ops[0]
        if ops:
            shown = first([_unique_name(flow, op) for op in ops[:SHOWN]], SHOWN) + " ..." * (len(ops) > SHOWN)
            raise AmpError("AMP308", f"'{wanted}' means {len(ops)} nodes", hint=f"name one of them: {shown}")
    raise AmpError("AMP308", f"no node '{wanted}'", hint=_hint_for(flow, wanted))


def find_nodes(flow: Dataflow, wanted: str) -> list[Op]:
    """The nodes that `explain PATTERN` means, in the order of the file: those that the pattern names as --fp32 takes
    it, by globs of names only if it matches several and is nobody's own name; else the one that `find_node` finds.

    Raises AmpError AMP308 for none."""
    sort = wanted.partition(":")[0]
    if sort == "op":
        kind = wanted.removeprefix("op:").removeprefix("ai.onnx::")
        ops = [op for op in flow.ops if op.kind == kind or fnmatch.fnmatchcase(op.kind, kind)]
    elif sort in ("scope", "value"):
        ids = {op.id for op, _ in matched_ops(flow, wanted)}
        ops = [op for op in flow.ops if op.id in ids]
    else:
        ops = [op for op in flow.ops if fnmatch.fnmatchcase(label(flow, op), wanted)]
        ops = ops if len(ops) > 1 and not any(wanted in (op.name, label(flow, op)) for op in ops) else []
    if ops or sort not in ("op", "scope", "value"):
        return ops or [find_node(flow, wanted)]
    try:
        return [find_node(flow, wanted)]  # its name may begin so
    except AmpError as error:
        raise AmpError("AMP308", f"no node '{wanted}'", hint=unmatched_hint(flow, wanted)) from error


def _unique_name(flow: Dataflow, op: Op) -> str:
    """For `explain`: a name that means this node alone: its own or its first output's if unique, else its place."""
    if sum(other.name == op.name for other in flow.ops) == 1:
        return op.name
    first = flow.values[op.outputs[0]].name if op.outputs else ""
    if first and sum(flow.values[v].name == first for other in flow.ops for v in other.outputs) == 1:
        return first
    return _place(flow, op)


def _place(flow: Dataflow, op: Op) -> str:
    """For `explain`: where a node stands, as a name that no other node has: ``scope/index:Kind``."""
    return f"{flow.scopes[op.scope].path}/{op.index}:{op.kind}"


def _hint_for(flow: Dataflow, wanted: str) -> str:
    """For the error of `explain` for a name that no node has: the readers of an input or stored tensor of that name,
    else a close name, names that contain it, or examples of names."""
    for value in flow.values:
        if value.name == wanted and value.producer == NONE:
            readers = ", ".join(f"'{label(flow, op)}'" for op in list(flow.readers(value.id))[:SHOWN])
            what = "a stored tensor" if value.weight else "an input"
            return f"that is {what}, read by {readers or 'nothing'}"
    names = list(dict.fromkeys(label(flow, op) for op in flow.ops))
    close = nearest(wanted, names[:SEARCHED])
    inside = [name for name in names if wanted.lower().strip("*") in name.lower()][:SHOWN]
    if close or not inside:
        return close or f"nodes are named like {', '.join(names[:3])}"
    return f"names that hold it: {', '.join(inside)}"


def replaced_nodes(flow: Dataflow, rewrites: Sequence[Rewrite]) -> Replaced:
    """For `explain`: what is looked at instead of nodes that rewrites are about, and of what they make: the place of a
    node that stays, else the value that is read in their place and those computed of their result, of which the first
    may be gone too, or no node's. ``flow``: before the rewrites."""
    names: dict[str, tuple[Rewrite, Sequence[str]]] = {}
    for rewrite in rewrites:
        ops = [flow.at(rewrite.scope, index) for index in rewrite.nodes]
        behind = reachable(ops[-1].outputs[:1], lambda v: [made for op in flow.readers(v) for made in op.outputs])
        names_behind = (flow.values[v].name for v in itertools.islice(behind, BEHIND))
        values = [name for name in (rewrite.result, *names_behind) if name]
        for op in ops:
            for name in (label(flow, op), *(flow.values[v].name for v in op.outputs)):
                names[name] = rewrite, [_place(flow, op)] if rewrite.exchanges else values
    return names


def explain(decided: DecidedModel, wanted: str, replaced: Replaced | None = None) -> list[Explanation]:
    """The report of `explain`: why the nodes that a name or pattern means have their precision, one for each.
    ``replaced``: what `replaced_nodes` finds. Raises AmpError AMP308 for no node."""
    flow = decided.flow
    if replaced is None or wanted not in replaced:
        return [_explanation_of(decided, op, None) for op in find_nodes(flow, wanted)]
    rewrite, candidates = replaced[wanted]
    there = {name for op in flow.ops for name in (_place(flow, op), *(flow.values[v].name for v in op.outputs))}
    instead = next((name for name in candidates if name in there), wanted)
    return [_explanation_of(decided, op, rewrite) for op in find_nodes(flow, instead)]


def _explanation_of(decided: DecidedModel, op: Op, rewrite: Rewrite | None) -> Explanation:
    """All that `explain` says of a node. ``rewrite``: the one that put it in place of the node asked for, or None."""
    flow, options = decided.flow, decided.options
    region = rewrite.explanation if rewrite is not None else decided.region_of.get(op.id, "")
    listing = options.lists.listing(flow, op)
    trusted = listing is not None and options.level.trusts_kernels(listing.cls)
    inside = options.kernels.float32_inside.get(op.kind, "") if trusted else ""
    taken = folded_into_product(flow, options, op)
    together: dict[int, list[str]] = {}
    for name, unit in op.slots.items():
        together.setdefault(decided.settled.find(unit), []).append(name)
    at_level = options.lists.at(listing.cls, options.level) if listing else ""
    if inside or taken:
        at_level = "cut"
    meant = _reason_meant_here(options, op, listing) if listing else ""
    by_class = by_list(listing, options.level, meant).text if listing and meant else ""
    slots = tuple(_slot_report(decided, op, names, root, by_class) for root, names in together.items())
    low = any(slot.dtype == options.dtype for slot in slots)
    made = sorted({flow.values[v].dtype for v in op.outputs if flow.values[v].dtype})
    if slots:
        precision = options.dtype if low else FLOAT32
    elif len(made) == 1:
        precision = made[0]
    else:
        precision = "mixed" if made else "no tensor"
    return Explanation(
        node=label(flow, op),
        kind=op.kind,
        scope=flow.scopes[op.scope].path,
        layer=flow.layer(op),
        level=options.level.name,
        dtype=options.dtype,
        target=options.target,
        precision=precision,
        listed=listing.cls if listing else "",
        listed_at=listing.source if listing else "",
        listed_reason=listing.reason if listing else "",
        meant=meant,
        at_level=at_level,
        rule=options.lists.framework.meaning(listing.cls) if listing else "",
        kernel=inside,
        folded_into=taken,
        region=region,
        slots=slots,
        facts=_undecided_values(flow, op),
    )


def _reason_meant_here(options: Options, op: Op, listing: Listing) -> str:
    """For `explain`: what a list's reason means where its words would mislead: they argue for float32 and the class is
    low at this level, or the node is a product that the target's kernel adds up in the low type; "" elsewhere."""
    kernels, level = options.kernels, options.level
    low = options.lists.at(listing.cls, level) == "low"
    if low and listing.cls in FOR_FLOAT32 and level.accuracy_guards == "hold":
        return f"rules pin it to float32 where its numbers ask for that ({listing.reason})"
    if op.role in options.lists.products and kernels.accumulates == options.dtype:
        return f"a product, which {kernels.target} adds up in {kernels.accumulates}"
    return ""


def _undecided_values(flow: Dataflow, op: Op) -> tuple[tuple[str, str], ...]:
    """For `explain`: (name, type) of the values of a node whose type is not decided: integers, and given types."""
    decided = {
        use.value for v in op.inputs if v != NONE for use in flow.uses[v] if use.op == op.id and use.unit != NONE
    }
    decided |= {v for v in op.outputs if flow.values[v].unit != NONE}
    rest = [v for v in dict.fromkeys((*op.inputs, *op.outputs)) if v != NONE and v not in decided]
    return tuple((flow.values[v].name, flow.values[v].dtype or "unknown") for v in rest)


def _slot_report(decided: DecidedModel, op: Op, slots: Sequence[str], root: int, by_class: str) -> SlotReport:
    """For `explain`: slots of an operator with one decision: what they hold, why they have their type, the costs.

    ``root``: the unit that represents them. ``by_class``: words that do not mislead for a reason of the list, or ""."""
    flow, settled = decided.flow, decided.settled
    find, why = settled.find, settled.whys[root] or UNDECIDED
    own = [use for v in op.inputs if v != NONE for use in flow.uses[v] if use.op == op.id and use.unit != NONE]
    values = [use.value for use in own if find(use.unit) == root]
    values += [v for v in op.outputs if flow.values[v].unit != NONE and find(flow.values[v].unit) == root]
    shared = {u.op for u in flow.units if u.op not in (NONE, op.id) and find(u.id) == root}
    return SlotReport(
        slot=", ".join(slots),
        values=tuple(dict.fromkeys(flow.values[v].name for v in values)),
        dtype=decided.options.dtype if settled.sides[root] == LOW else FLOAT32,
        rule=why.rule,
        reason=why.text,
        shared=tuple(label(flow, flow.ops[other]) for other in sorted(shared)),
        cost=_cost(decided, root) if settled.ranks[root] == CUT else None,
        meant=by_class if why.rule == "list" else "",
    )


def _cost(decided: DecidedModel, root: int) -> Cost:
    """For `explain`: what low and float32 cost for one decision (the unit ``root``) while all others stay: bytes,
    kernel starts, the Casts and tensors that are paid for."""
    flow, undecided = decided.flow, Undecided(decided.task)
    settled, find = decided.settled, decided.settled.find

    def is_of_root(value: Value) -> bool:
        units = [value.unit, *(use.unit for use in flow.uses[value.id])]
        return any(unit != NONE and find(unit) == root for unit in units)

    found = {value.id: undecided.net(value.id) for value in flow.values if is_of_root(value)}
    nets = {value: net for value, net in found.items() if net is not None and root in (net.writer, *net.readers)}
    sides = {u: settled.sides[u] for net in nets.values() for u in (*net.readers, net.writer) if u is not None}

    def choice(side: int) -> Choice:
        costs = {value: net.cost({**sides, root: side}) for value, net in nets.items()}
        total = sum(costs.values()) + (undecided.extra(root) if side == HIGH else 0)
        paid = [flow.values[value] for value, cost in costs.items() if cost]
        casts = [value for value in paid if not value.weight]
        starts = sum(undecided.costs.starts(value.id) for value in casts)
        weights = tuple(value.name for value in paid if value.weight)
        return Choice(total if total < INFINITE else None, starts, tuple(value.name for value in casts), weights)

    return Cost(choice(LOW), choice(HIGH))


EXAMPLES = 3
FOR_FLOAT32 = ("deny", "fp32")
"""Classes of the lists whose reasons speak for float32."""


def explanation_lines(*found: Explanation) -> list[str]:
    """The text that `explain` prints, by lines: one node in full, or a line each."""
    if len(found) == 1:
        return found[0].lines()
    table = [(f"{one.kind} '{one.node}'", one.precision, one.short) for one in found]
    return [line.rstrip() for line in columns(table)]


def float32_lines(*found: Explanation) -> list[str]:
    """The text of `explain` without a node, by lines: what is float32, by rule and operator, the most first: how many,
    the reason of the first, and some names."""
    lines = []
    held = [(one.held.rule, one) for one in found if one.held]
    for (_, kind), pairs in grouped(held, lambda pair: (pair[0], pair[1].kind)):
        group = [one for _, one in pairs]
        names = first([f"'{one.node}'" for one in group], EXAMPLES)
        lines += [f"{len(group):,} {kind} float32, {group[0].short}", f"    {names}"]
    return lines or ["nothing that could be low is float32"]


def _slot_rows(slot: SlotReport, low: str) -> Rows:
    """The rows of `explain` on slots with one decision: type, why, what they hold, what ``low`` and float32 cost."""
    lines = [
        f"{slot.dtype}, by {slot.rule}: {slot.meant or slot.reason}",
        f"holds {', '.join(repr(name) for name in slot.values) or 'no tensor'}",
    ]
    if slot.shared:
        lines.append(f"decided together with {first(slot.shared, EXAMPLES)}")
    if slot.cost:
        lines.append(f"with the neighbours as they are (a kernel start counts as {LAUNCH:,} bytes):")
        lines += [f"  {low} costs {slot.cost.low}", f"  {FLOAT32} costs {slot.cost.float32}"]
    return titled(f"slot {slot.slot}", lines)
