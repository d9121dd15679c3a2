"""What a conversion did, as data: nodes by precision and why, casts, weights, guards that fired."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

from ..core.dataflow import FLOAT32, NONE, Dataflow
from ..core.graph import LOW, Census, Stored
from ..core.json_types import JsonObject
from ..core.light_imports import Later
from ..core.plan import Decision, Note, Plan, Why
from ..core.ranges import Range, Ranges, ranges_by_value
from ..core.rewrites import Rewrite
from ..core.shown import Data, Shown, json_fields, plural
from ..core.sketches import Html, bar, heading, markup, table
from ..core.verdict import CheckVerdict
from ..oplists.levels import load_levels
from ..oplists.operators import OpLists
from ..oplists.traits import has
from .casts import label
from .lines import (
    Rows,
    and_more,
    first,
    grouped,
    in_rows,
    middle_left_out,
    shortened,
    titled,
)

if TYPE_CHECKING:
    from ..planner.policies.registry import Policy
    from .estimate import Speed
else:  # imported when somebody asks for the types of what names it: it loads the planner
    Speed = Later(f"{__package__}.estimate", "Speed")

ORDINARY = frozenset({
    "level", "list", "cut", "user", "fp32_stream", "region", "boundary", "unlisted", "unknown", "opset", "schema",
    "kernel", "slot",
})  # fmt: skip
"""What decides without a look at numbers; every other name is that of a guard, or of a framework's policy."""

MEANING = {
    "cut": "either type is right, and {dtype} would save less here than its Casts cost",
    "epilogue": "after the last MatMul or Conv: outputs are float32 anyway, so it costs no Cast and is more exact",
    "index": "an integer or a size is computed from it, which must be exact",
    "pow": "can overflow {dtype} where float32 does not: x**2 does when |x| > 255.9",
    "quantized": "runtimes compute it in integers: {dtype} would only add Casts",
    "recurrence": "a loop adds to it in every iteration, where the roundings of {dtype} would add up",
    "spectrum": "part of a spectrum that a logarithm or a quotient reads: {dtype} would lose its small powers",
    "stream": "in a residual stream that norms read in float32, where float32 needs no more Casts",
    "unlisted": "in no list of ampgraph, so float32 to be safe; --low op:{kind} takes it all the same",
    "user": "by {text}, yours or a check's",
    "weight": "constant {text}",
}
"""Rule -> what its reasons ({text}) mean to a reader who does not know the planner, where they do not say so."""
MEANING_OF = {
    "list": "level {level} keeps {kind} in float32: {about}",
    "region": "together these nodes are {about}, which {level} keeps in float32",
    "slot": "float32 at every level: {about}",
    "taint": "reads what '{about}' made in float32: {dtype} may not hold it",
}
"""The same for rules whose reasons name what they are about ({about})."""
COUNTED = frozenset({"unlisted", "index", "quantized"})
"""Topics of notes on nodes that are float32, which the rows of a summary count already."""
MEASURED = frozenset({"samples", "range"})
"""Topics of notes that `_range_rows` shows, so that the rows on notes leave them out."""

HELP = "`ampgraph help WORD` explains the words here"
DRY_RUN = "not written (dry run)"
"""What stands in the place of a file where none was asked for."""
EXAMPLES = 3
MOST = 15
"""Lines of a report that does not say everything."""
LEAST = 3
"""Of those lines, how many reasons for float32 have at least."""
LONGEST = 200
"""Characters of a reason or note in such a report; --verbose has them whole."""
NAME = 40
"""Of those characters, how many a node's name has at least."""
OTHER_FLOATS = frozenset({*LOW, "float64"})


class SaidNote(TypedDict):
    """A plan's note as the summary and its JSON have it."""

    topic: str
    where: str
    text: str
    advice: bool


def summary_notes(notes: Iterable[Note]) -> tuple[SaidNote, ...]:
    """A plan's notes as its summary has them."""
    return tuple(SaidNote(topic=n.topic, where=n.where, text=n.text, advice=n.advice) for n in notes)


@dataclass(frozen=True)
class Pinned:
    """Nodes of one ``kind`` that one ``rule`` keeps in float32: how many, the name of the first, and the reason of that
    (``text``); ``meaning``: the reason for a reader who does not know the planner."""

    rule: str
    kind: str
    count: int
    first: str
    text: str
    meaning: str = ""

    def __str__(self) -> str:
        more = " ..." if self.count > 1 else ""
        return f"{self.count:,} {self.kind} float32 ({self.first}{more}): {self.text}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A node and what was decided of it; ``native``: the format's own node, which stays the same object through all
    edits; ``span``: the range that was measured of its results, in words, or ""."""

    kind: str
    role: str
    name: str
    dtype: str
    why: Why
    native: object = None
    span: str = ""


@dataclass(frozen=True)
class Choices:
    """All nodes but Casts: ``chosen`` are those with a float32 tensor, ``other`` counts the rest. Of the rest,
    ``existing`` counts products that are low in the file, ``floats`` nodes that make another floating type, by type."""

    chosen: list[Chosen]
    existing: int
    other: int
    floats: dict[str, int]


@dataclass(frozen=True)
class Rewritten(Data):
    """Rewrites of a plan that write the same: their name, what they write, how many, and a sentence on them."""

    name: str
    what: str
    count: int
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.name})"


@dataclass(frozen=True)
class Products(Data):
    """Products (operators of class `allow`): how many the conversion makes low, were low in the file already, and stay
    float32; ``pinned``: the last ones in groups."""

    low: int
    existing: int
    float32: int
    pinned: tuple[Pinned, ...] = ()


@dataclass(frozen=True, repr=False)
class Summary(Shown):
    """The report of `convert`. ``nodes`` and ``reasons`` count nodes that had a float32 tensor, once for each call of a
    function that holds them; ``other`` counts the rest, ``floats`` those of it that make another floating type. Casts
    are counted apart. ``low_io``: inputs and outputs that became low. ``speed``: an estimate for the target, where one
    of its devices is known; ``without_file``: why there is no ``output``."""

    model: str
    output: str | None
    level: str
    dtype: str
    policy: str
    target: str
    changed: bool
    nodes: dict[str, int]
    other: int
    reasons: dict[str, dict[str, int]]
    products: Products
    casts_before: int
    casts_after: int
    weights_before: dict[str, Stored]
    weights_after: dict[str, Stored]
    rewritten: tuple[Rewritten, ...] = ()
    float32: tuple[Pinned, ...] = ()
    notes: tuple[SaidNote, ...] = ()
    check: CheckVerdict | None = None
    floats: dict[str, int] = field(default_factory=dict)
    speed: Speed | None = None
    without_file: str = ""
    low_io: tuple[str, ...] = ()

    @property
    def bytes_before(self) -> int:
        """How many bytes all stored tensors take in the model that was given."""
        return sum(stored.bytes for stored in self.weights_before.values())

    @property
    def bytes_after(self) -> int:
        """How many bytes all stored tensors take in the converted model."""
        return sum(stored.bytes for stored in self.weights_after.values())

    @property
    def rewrites(self) -> dict[str, int]:
        """The summary's count of rewrites: what is written -> how many."""
        return {one.what: one.count for one in self.rewritten}

    @property
    def guards(self) -> tuple[Pinned, ...]:
        """The summary's nodes that stay float32 by rules that look at numbers, in groups of one rule and kind."""
        return tuple(held for held in self.float32 if held.rule not in (*ORDINARY, self.policy))

    @property
    def lowered(self) -> bool:
        """Whether any node computes in the low type that was asked for."""
        return self.nodes.get(self.dtype, 0) > 0

    @property
    def opset(self) -> tuple[Pinned, ...]:
        """The groups of the summary's `float32` whose nodes could be low at a later opset."""
        return tuple(held for held in self.float32 if held.rule == "opset")

    @property
    def unlisted(self) -> tuple[Pinned, ...]:
        """The groups of the summary's `float32` whose operators are in no list or have no schema."""
        return tuple(held for held in self.float32 if held.rule in ("unlisted", "unknown"))

    def to_dict(self) -> JsonObject:
        """The summary of a conversion as plain data for JSON."""
        counted = json_fields(self, "bytes_before", "bytes_after", "rewrites", "guards", "opset", "unlisted")
        return json_fields(self) | counted

    def _full(self) -> list[str]:
        """The text that `convert --verbose` prints, by lines."""
        return self.lines(every=True)

    def _overview(self) -> Iterable[Html]:
        """The top of the summary's page: the verdict and what to do next, nodes and weights by precision as bars."""
        weights = [
            (title, {dtype: tensors.bytes for dtype, tensors in stored.items()})
            for title, stored in (("weights before", self.weights_before), ("weights after", self.weights_after))
        ]
        whole = max(sum(parts.values()) for _, parts in weights)
        counts = {**self.nodes, "other": self.other}
        rows: list[tuple[str, ...]] = [
            ("nodes", bar(counts), ", ".join(f"{count:,} {name}" for name, count in counts.items() if count))
        ]
        rows += [(title, bar(parts, whole), plural(sum(parts.values()), "byte")) for title, parts in weights]
        rows.append(("Casts", "", f"{self.casts_before:,} before, {self.casts_after:,} after"))
        head = f"{self.output or self.model}: {self.level}, {self.dtype}, for {self.target}"
        yield heading(head)
        if self.check:
            yield heading(f"check: {self.check.finding}")
        yield Html(f"<p>next: {markup(next_step(self))}</p>")
        yield table((), rows)

    def lines(self, every: bool = False) -> list[str]:
        """The report of `convert`, by lines; at most `MOST`, where reasons and notes share what other rows leave,
        unless ``every`` one is asked for."""
        rows = [
            ("model", self.model),
            ("result", self.output or self.without_file),
            (
                "options",
                f"level {self.level}, {self.dtype}, policy {self.policy}, target {self.target}{_level_in_words(self)}",
            ),
        ]
        if not self.changed:
            rows.append(("", f"nothing to lower{_why_nothing(self)}: the result is an unchanged copy"))
        elif not self.lowered:
            rows.append(("", _nothing_gained(self)))
        rows += (_node_rows(self) if every else _node_rows(self)[:1]) + _product_rows(self, every)
        share = f" ({100 * self.bytes_after / self.bytes_before:.1f} % of before)" if self.bytes_before else ""
        rows.append(("casts", f"{_casts_in_words(self)}; {_interface_in_words(self)}"))
        rows.append(("weights", f"stored tensors: {self.bytes_before:,} -> {self.bytes_after:,} bytes{share}"))
        rows += [("speed", str(self.speed))] if self.speed else []
        end = [("check", self.check.finding)] if self.check else []
        end += [("next", next_step(self))]
        none = [no_guard_text(self)] if self.changed and not self.guards else []
        if every:
            rows += titled("rewrites", [*map(str, self.rewritten)]) + _range_rows(self, every)
            rows += titled("float32", [*map(str, self.float32), *none])
            return in_rows(rows + _note_rows(self) + end)
        rewrites = "; ".join(one.text for one in self.rewritten)
        rows += [("rewrites", shortened(rewrites, LONGEST))] if rewrites else []
        rows += _range_rows(self, every)
        reasons = len({held.rule for held in self.float32}) + bool(none)
        room = MOST - len(rows) - len(end)
        notes = _notes_in_short(self, room - min(reasons, LEAST))
        if len(notes) + reasons > room:
            notes = _notes_in_short(self, room - min(reasons, LEAST), advice=False)
        held = _float32_in_short(self, room - len(notes), none)
        return in_rows([*rows, *held, *((title, shortened(text, LONGEST)) for title, text in notes), *end])


def node_choices(plan: Plan, flow: Dataflow, lists: OpLists, ranges: Ranges | None = None) -> Choices:
    """For the summary: what a plan decided of each node of its dataflow, with measured ranges where there are some.
    Call it before the model is edited, as the dataflow is out of date afterwards."""
    decided = _decision_by_node(plan)
    spans = ranges_by_value(flow, ranges.values) if ranges else {}
    level = Why("level", f"{plan.level} asks for nothing low")
    chosen, existing, other = [], 0, 0
    floats: Counter[str] = Counter()
    for op in flow.ops:
        if has(op.role, "casts"):
            continue
        if not op.slots:
            made = {flow.values[v].dtype for v in op.outputs if v != NONE}
            low = not made.isdisjoint(LOW)
            floats.update(made & OTHER_FLOATS)
            existing += low and op.role in lists.products
            other += 1
            continue
        found = decided.get((flow.scopes[op.scope].path, op.index))
        dtype, why = (found.dtype, found.why) if found else (FLOAT32, level)
        span = _range_in_words([spans[v] for v in op.outputs if v in spans])
        chosen.append(Chosen(op.kind, op.role, label(flow, op), dtype, why, op.native, span))
    return Choices(chosen, existing, other, dict(floats))


def _range_in_words(found: Sequence[Range]) -> str:
    """For the summary: the measured ranges of a node's outputs as one, in words; "" without any."""
    if not found:
        return ""
    whole = Range()
    for one in found:
        whole.add(one)
    lost = f", {whole.nonfinite:,} not finite" if whole.nonfinite else ""
    return f"{whole.low:.4g} to {whole.high:.4g}{lost}"


def _decision_by_node(plan: Plan) -> dict[tuple[str, int], Decision]:
    """For the summary: by (path of the scope, index) one decision of a node: of its first low slot, else its first."""
    found: dict[tuple[str, int], Decision] = {}
    for decision in plan.decisions:
        place = decision.scope, decision.index
        held = found.get(place)
        if held is None or (held.dtype == FLOAT32 and decision.dtype != FLOAT32):
            found[place] = decision
    return found


def summarize(
    plan: Plan,
    made: Choices,
    before: Census,
    after: Census,
    lists: OpLists,
    *,
    model: str,
    output: str | None,
    changed: bool,
) -> Summary:
    """The summary of `convert`, without check, speed and reason for no file, which the caller adds. ``made``: by
    `node_choices`; ``before`` and ``after``: the census of the given model and of the result; ``model`` and ``output``:
    the files that were read and written; ``changed``: whether the result differs from the model."""
    nodes: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    made = _with_integers_as_reason(made, lists)
    for node in made.chosen:
        nodes[node.dtype] += 1
        reasons.setdefault(node.dtype, Counter())[node.why.rule] += 1
    float32 = [node for node in made.chosen if node.dtype == FLOAT32]
    return Summary(
        model=model,
        output=output,
        level=plan.level,
        dtype=plan.dtype,
        policy=plan.policy,
        target=plan.target,
        changed=changed,
        nodes=dict(nodes),
        other=made.other,
        reasons={dtype: dict(rules.most_common()) for dtype, rules in reasons.items()},
        products=_count_products(made, lists, plan),
        casts_before=before.casts,
        casts_after=after.casts,
        weights_before=before.weights,
        weights_after=after.weights,
        rewritten=rewrite_groups(plan),
        float32=_pinned_groups(float32, plan),
        notes=summary_notes(plan.notes),
        floats=made.floats,
        low_io=tuple(plan.low_io),
    )


def rewrite_groups(plan: Plan) -> tuple[Rewritten, ...]:
    """For the summary: the rewrites of a plan in groups of those that write the same, in the plan's order."""
    groups: dict[str, list[Rewrite]] = {}
    for one in plan.rewrites:
        groups.setdefault(one.what, []).append(one)
    return tuple(
        Rewritten(same[0].name, what, len(same), same[0].summary_text(len(same))) for what, same in groups.items()
    )


def _with_integers_as_reason(made: Choices, lists: OpLists) -> Choices:
    """For the summary: the choices with "quantized" as the reason of operators with integers inside that stay float32
    for their opset or schema, if no node of the model is low: a later opset would not help."""
    if any(node.dtype != FLOAT32 for node in made.chosen):
        return made
    integers = lists.traits.operators("quantized")
    why = Why("quantized", "it makes or reads integers, and nothing beside it is low")
    chosen = [
        replace(node, why=why) if node.role in integers and node.why.rule in ("opset", "schema") else node
        for node in made.chosen
    ]
    return replace(made, chosen=chosen)


def _count_products(made: Choices, lists: OpLists, plan: Plan) -> Products:
    """For the summary: how many matrix products a plan makes low, and which it does not and why."""
    products = [node for node in made.chosen if node.role in lists.products]
    float32 = [node for node in products if node.dtype == FLOAT32]
    return Products(len(products) - len(float32), made.existing, len(float32), _pinned_groups(float32, plan))


def _pinned_groups(nodes: Iterable[Chosen], plan: Plan) -> tuple[Pinned, ...]:
    """For the summary: nodes that stay float32, in groups of one rule and one kind, the largest group first."""
    return tuple(
        Pinned(rule, kind, len(group), group[0].name, group[0].why.text, _reason_in_words(group[0], plan))
        for (rule, kind), group in grouped(nodes, lambda node: (node.why.rule, node.kind))
    )


def _reason_in_words(node: Chosen, plan: Plan) -> str:
    """For the summary: why a node stays float32: what `MEANING_OF` or `MEANING` say of its rule, else its reason."""
    why = node.why
    sentence = MEANING.get(why.rule, "{text}")
    if why.about:
        sentence = MEANING_OF.get(why.rule, sentence)
    return sentence.format(kind=node.kind, text=why.text, about=why.about, dtype=plan.dtype, level=plan.level)


# -- as text --------------------------------------------------------------------------------------------------------


def no_guard_text(summary: Summary) -> str:
    """The summary's words where no guard keeps a node in float32: what that means, and whether values were measured."""
    if not _load_policy(summary.policy).ours:
        return "none: the policy is its framework's"
    if not summary.changed:
        return "nothing was lowered"
    if any(note["topic"] == "samples" for note in summary.notes):
        return "no risk of overflow or underflow was found beside what was measured"
    none = "" if summary.float32 else "none; "
    return f"{none}no risk of overflow or underflow found from operators and weights (--data DIR also measures values)"


def next_step(summary: Summary) -> str:
    """What the summary advises to do with the result, in a sentence: what the check advises, else by the outcome."""
    check, model, output = summary.check, summary.model, summary.output
    if check is not None and check.advice:
        if output and check.missed:
            return f"{output} is written, but wrong: {check.advice}"
        if output and check.doubtful:
            return f"{output} is written, but may be wrong: {check.advice}"
        return check.advice
    if not summary.lowered:
        return f"nothing is gained by {summary.dtype} here: use {model if output else 'the model'} as it is"
    if summary.without_file == DRY_RUN:
        return "nothing was written: the same without --dry-run writes and checks it"
    verify = shlex.join(["ampgraph", "verify", model, output]) if output else "ampgraph.verify"
    if check is None:
        return f"`{verify}` runs both and says whether the result is still right"
    if not check.ok:
        return f"judge the result by its own task: `{verify}{' --data DIR --metric METRIC' if output else ''}`"
    use = _how_to_use(summary, check)
    if not check.generated:
        return use
    optional = "" if check.exceeded else "optional: "
    data, files = (" --data DIR", " (DIR: .npz files; on the CPU)") if output else ("", "")
    return f"{use}; {optional}`{verify}{data}` says ok or missed on your own samples{files}"


def _how_to_use(summary: Summary, check: CheckVerdict) -> str:
    """What the summary says of a result that the check found ok: whether to use it, by accuracy and estimated speed."""
    inputs = f"on {check.samples - check.exceeded} of {check.samples} inputs" if check.exceeded else "to use"
    use, speed = f"accurate enough {inputs}", summary.speed
    if summary.low_io:
        use += f"; pass and expect {summary.dtype} where `casts` says so"
    if speed is not None and speed.idle:
        original = summary.model if summary.output else "the original"
        smaller = summary.bytes_after < summary.bytes_before
        advice = "use it where the size of the file matters, else" if smaller else "keep"
        use += f", but by the estimate {speed.gain}: {advice} {original}"
    elif speed is not None and speed.unknown:
        use += "; whether it is faster is not known"
    return use


def _why_nothing(summary: Summary) -> str:
    """The summary's words on why there was nothing to lower; "" where float32 nodes have reasons of their own."""
    if summary.nodes:
        return ""
    if not summary.floats:
        return ", as no node makes floating numbers"
    if list(summary.floats) == [summary.dtype]:
        return f", as the file computes in {summary.dtype} already ({plural(summary.floats[summary.dtype], 'node')})"
    kinds = " and ".join(f"{plural(count, 'node')} of {dtype}" for dtype, count in summary.floats.items())
    hint = "; export the model in float32" if "float64" in summary.floats else ""
    return f", as only float32 is lowered ({kinds}{hint})"


def _node_rows(summary: Summary) -> Rows:
    """The summary's rows on nodes: first how many in either type, then for each type by which rules."""
    low, high = summary.nodes.get(summary.dtype, 0), summary.nodes.get(FLOAT32, 0)
    other = f"{summary.other:,} without float32 data (integers, shapes ...)"
    lines = [f"{low:,} {summary.dtype}, {high:,} float32, {other}, Casts not counted"]
    for dtype, rules in summary.reasons.items():
        message = ", ".join(f"{count:,} by {_rule_in_words(rule, summary.policy)}" for rule, count in rules.items())
        lines.append(f"{dtype}: {message}")
    return titled("nodes", lines)


def _casts_in_words(summary: Summary) -> str:
    """The summary's words on Casts before and after, and on the redundant ones that the rewrite `cast` removed."""
    added = summary.casts_after - summary.casts_before
    gone = sum(one.count for one in summary.rewritten if one.name == "cast")
    rest = added + gone
    others = f", {abs(rest):,} {'added' if rest > 0 else 'fewer'} besides" if rest else ""
    parts = f": {gone:,} redundant removed{others}" if gone else ""
    return f"{summary.casts_before:,} -> {summary.casts_after:,} ({added:+,}{parts})"


def _interface_in_words(summary: Summary) -> str:
    """The summary's words on inputs and outputs: which of them became low, if any."""
    if not summary.low_io:
        return "inputs and outputs keep their types"
    return (
        f"{summary.dtype} now, as asked: {first(summary.low_io, EXAMPLES)}; other inputs and outputs keep their types"
    )


def _level_in_words(summary: Summary) -> str:
    """The summary's words behind the options: what a level of ampgraph's own policy asks for, where to read more."""
    about = load_levels().get(summary.level) if _load_policy(summary.policy).ours else None
    asked = about.description.replace("{low}", f"in {summary.dtype}") if about else ""
    return f"; the level asks for {asked} ({HELP})" if asked else f" ({HELP})"


def _nothing_gained(summary: Summary) -> str:
    """What the summary says of a conversion that changed the model but made nothing low."""
    if summary.products.existing:
        return f"nothing more to lower: the file has products in {summary.dtype} already"
    checked = "" if summary.check else ", and nothing to check"
    return f"nothing computes in {summary.dtype}: no faster, no smaller{checked}"


def _product_rows(summary: Summary, every: bool) -> Rows:
    """The summary's rows on products: how many are low and why others are not; ``every``: a row for each reason."""
    products = summary.products
    low = products.low + products.existing
    existing = f", {products.existing:,} of them low in the file already" if products.existing else ""
    held = first([f"{one.count:,} {one.kind} ({one.rule})" for one in products.pinned], EXAMPLES)
    rest = f"; float32: {held}" if held and not every else ""
    counts = f"{low:,} of {low + products.float32:,} MatMul, Conv and the like in {summary.dtype}{existing}{rest}"
    counts = counts if low + products.float32 else "none: there is no MatMul, Conv or the like"
    return titled("products", [counts, *(map(str, products.pinned) if every else ())])


def _float32_in_short(summary: Summary, most: int, none: Sequence[str]) -> Rows:
    """The summary's rows on what is float32, one for each rule that decided it, guards first, then by the number of
    nodes; ``most`` at most, the last of which counts the rest. ``none``: the sentence where no guard fired, if any."""
    rules: dict[str, list[Pinned]] = {}
    for held in summary.float32:
        rules.setdefault(held.rule, []).append(held)
    groups = [(sum(held.count for held in group), group) for group in rules.values()]
    groups.sort(key=lambda item: (item[1][0].rule in ORDINARY, -item[0]))
    room = most - len(none)
    shown = groups if len(groups) <= room else groups[: room - 1]
    lines = [_group_line(count, group, summary.policy) for count, group in shown]
    rest = groups[len(shown) :]
    nodes = sum(count for count, _ in rest)
    more = [f"{nodes:,} more for {plural(len(rest), 'other reason')}: --verbose lists them"] if rest else []
    return titled("float32", [*lines, *more, *none])


def _group_line(count: int, group: Sequence[Pinned], policy: str) -> str:
    """A line of the summary on the groups of nodes that one rule decided: how many (``count``) of which operators, one
    of them by name, why, and the rule; name and reason are cut where they are long."""
    kinds = first([f"{held.count:,} {held.kind}" for held in group], EXAMPLES, " ...")
    start = kinds if len(group) == 1 else f"{count:,} nodes ({kinds})"
    rule, why = f" ({_rule_in_words(group[0].rule, policy)})", group[0].meaning or group[0].text
    room = LONGEST - len(f"{start}, such as : {rule}")
    name = middle_left_out(group[0].first, max(room - len(why), NAME))
    return f"{start}, {'such as ' if count > 1 else ''}{name}: {shortened(why, room - len(name))}{rule}"


def _notes_in_short(summary: Summary, most: int, advice: bool = True) -> Rows:
    """The summary's rows on notes in short: the first note of each topic, and how many more there are; ``most`` rows at
    most (1 or more), the last of which counts topics that are left. Left out are topics that are `MEASURED`, notes on
    nodes that the rows on float32 count, and without ``advice`` those that only say what another option would gain."""
    # a policy's name is the rule of all its nodes and the topic of its notes, which say what the float32 rows do not
    rules = {held.rule for held in summary.float32} - {summary.policy}
    left = [note for note in summary.notes if not (note["where"] and note["topic"] in rules | COUNTED)]
    left = [note for note in left if advice or not note["advice"]]
    rows = []
    for topic, count in Counter(note["topic"] for note in left if note["topic"] not in MEASURED).items():
        note = next(note for note in left if note["topic"] == topic)
        where = f"{note['where']}: " if note["where"] else ""
        more = f" (and {count - 1:,} more such notes: --verbose)" if count > 1 else ""
        rows.append((topic, f"{where}{note['text']}{more}"))
    if len(rows) <= most:
        return rows
    return [*rows[: most - 1], ("notes", f"of {plural(len(rows) - most + 1, 'more topic')}: --verbose lists them")]


def _range_rows(summary: Summary, every: bool) -> Rows:
    """The summary's rows on measured ranges: how many values pass the limit and how many nodes are float32 for it, then
    the samples; ``every``: with examples of values. No rows where nothing was measured."""
    samples = [note["text"] for note in summary.notes if note["topic"] == "samples"]
    if not samples:
        return []
    passing = [note["text"] for note in summary.notes if note["topic"] == "range"]
    nodes = plural(summary.reasons.get(FLOAT32, {}).get("range", 0), "node")
    out = f"{plural(len(passing), 'value')} out of range, {nodes} float32 for it"
    examples = [*passing[:EXAMPLES], *and_more(passing, EXAMPLES)] if every else []
    return titled("ranges", [out if passing else "all values in range", *examples, *samples])


def _note_rows(summary: Summary) -> Rows:
    """The summary's rows on notes, by topic, with examples of each; topics of other rows are left out."""
    topics: dict[str, list[str]] = {}
    for note in summary.notes:
        if not (note["topic"] == "unlisted" and summary.unlisted) and note["topic"] not in MEASURED:
            where = f"{note['where']}: " if note["where"] else ""
            topics.setdefault(note["topic"], []).append(f"{where}{note['text']}")
    return [
        row
        for topic, message in topics.items()
        for row in titled(topic, message[:EXAMPLES] + and_more(message, EXAMPLES))
    ]


def _rule_in_words(rule: str, policy: str) -> str:
    """For the summary: the rule that decided a node's precision, as `ampgraph help` knows it. ``policy``: the plan's,
    after which a framework's own rule is named."""
    return f"{_load_policy(policy).framework}'s rules" if rule == policy else rule


def _load_policy(name: str) -> Policy:
    """For the summary: a policy by its name; the planner is imported for it."""
    from ..planner.policies.registry import policy  # a plan is applied where there is no planner

    return policy(name)
