"""Two conversions of one model, or two plans for it, side by side: decisions, Casts and weights that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..core.dataflow import NONE, Dataflow
from ..core.errors import AmpError
from ..core.json_types import JsonObject
from ..core.plan import Decision, Plan
from ..core.shown import Data, Shown, json_fields, plural
from ..core.sketches import Html, bar, heading, table
from ..oplists.traits import has
from .inspect import named_precisions, view_model
from .lines import and_more, finite, first, grouped, in_rows, titled

SHOWN = 5  # names and Casts of one sort; --json lists all
SETTINGS = ("level", "dtype", "policy", "target", "low_io")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that differs between the two sides: a node's precision, a weight's type, a setting. ``kind``: a node's
    operator, else ""; ``first_why`` and ``second_why``: the reasons, which only plans have, else ""."""

    name: str
    kind: str
    first: str
    second: str
    first_why: str = ""
    second_why: str = ""


@dataclass(frozen=True)
class OneSided:
    """Report of `diff`: what only the first and what only the second has, in words; its length is that of both."""

    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def lines(self) -> list[str]:
        """The lines that `diff` prints of what only one side has; none for a side that has nothing."""
        sides = (("first", self.first), ("second", self.second))
        return [f"{len(n):,} in the {side} alone: {first(n, SHOWN, ', ...')}" for side, n in sides if n]


@dataclass(frozen=True, slots=True)
class OutputErrors(Data):
    """The error of an output on both sides, at the 90th percentile; None where a side was not judged there."""

    name: str
    first: float | None
    second: float | None


@dataclass(frozen=True, repr=False)
class SideBySide(Shown):
    """The report of `diff` on two models or two plans, by name. ``settings``: options that differ, or format versions;
    ``nodes``: what only one side has, of plans their rewrites; ``bytes``: of all stored tensors of each side, None for
    plans; ``errors``: beside a reference, if one was given."""

    first: str
    second: str
    sort: str  # "models" or "plans"
    settings: tuple[Difference, ...]
    decisions: tuple[Difference, ...]
    nodes: OneSided
    casts: OneSided
    weights: tuple[Difference, ...]
    bytes: tuple[int, int] | None = None
    errors: tuple[OutputErrors, ...] = ()

    @property
    def alike(self) -> bool:
        """Whether the two sides differ in nothing that a runtime would see."""
        return not (self.decisions or self.nodes or self.casts or self.weights)

    def to_dict(self) -> JsonObject:
        """What `diff` found, as plain data for JSON."""
        return json_fields(self) | {"alike": self.alike}

    def lines(self) -> list[str]:
        """The text that `diff` prints, by lines."""
        errors = [f"{e.name}  {_error_text(e.first)} and {_error_text(e.second)}" for e in self.errors]
        rows = [
            ("first", self.first),
            ("second", self.second),
            *((item.name, f"{item.first} and {item.second}") for item in self.settings),
            *titled("decisions", _decision_lines(self.decisions)),
            *titled("nodes", self.nodes.lines()),
            *titled("casts", self.casts.lines()),
            *titled("weights", _weight_lines(self)),
            *titled("errors", errors),
        ]
        return in_rows([*rows, ("verdict", self.verdict)])

    @property
    def verdict(self) -> str:
        """In how much the two sides of `diff` differ, in a line."""
        parts = [(len(self.decisions), "decision"), (len(self.nodes), "node"), (len(self.casts), "Cast")]
        counts = [plural(count, what) for count, what in (*parts, (len(self.weights), "weight")) if count]
        return f"they differ in {', '.join(counts)}" if counts else f"the {self.sort} are alike"

    def _overview(self) -> Iterable[Html]:
        """The top of the comparison's page: the verdict, what differs, and decisions by operator with reasons."""
        yield heading(self.verdict)
        sides = [("nodes", self.nodes), ("Casts", self.casts)]
        rows: list[tuple[str, ...]] = [(one.name, one.first, one.second) for one in self.settings]
        for what, side in sides:
            if len(side):
                rows.append((f"{what} there alone", f"{len(side.first):,}", f"{len(side.second):,}"))
        if self.bytes is not None:
            rows.append(("bytes of weights", *(f"{size:,}" for size in self.bytes)))
            rows.append(("", *(bar({"bytes": size}, max(self.bytes)) for size in self.bytes)))
        rows += [(f"error of {one.name}", _error_text(one.first), _error_text(one.second)) for one in self.errors]
        yield table(("", self.first, self.second), rows)
        groups = [
            (f"{len(items):,}", kind, one, other, items[0].name, items[0].first_why, items[0].second_why)
            for (kind, one, other), items in grouped(self.decisions, _kind_and_sides)
        ]
        if groups:
            yield table(("nodes", "operator", "first", "second", "such as", "why first", "why second"), groups)


# -- models -----------------------------------------------------------------------------------------------------------


def compare_models(first: object, second: object) -> SideBySide:
    """The report of `diff` on two models, node by node. Raises AmpError AMP208 for models without a common node."""
    one, other = view_model(first), view_model(second)
    ours, theirs = named_precisions(one.flow), named_precisions(other.flow)
    if ours and theirs and not ours.keys() & theirs.keys():
        hint = "give two conversions of one model"
        raise AmpError("AMP208", "the models have no node in common", where=other.label, hint=hint)
    decisions = [
        Difference(ours[key][0], key[0], ours[key][1], theirs[key][1])
        for key in ours
        if key in theirs and ours[key][1] != theirs[key][1]
    ]
    versions = ({"version": seen.graph.version()} for seen in (one, other))
    return SideBySide(
        one.label, other.label, "models", tuple(_different_entries(*versions)), tuple(decisions),
        _one_sided(map(_node_name, ours), map(_node_name, theirs)),
        _one_sided(_cast_texts(one.flow), _cast_texts(other.flow)),
        tuple(_different_entries(_weight_types(one.flow), _weight_types(other.flow))),
        (one.census.weight_bytes, other.census.weight_bytes),
    )  # fmt: skip


def _node_name(key: tuple[str, str]) -> str:
    """A node as the report of `diff` names it. ``key``: (kind, name) as in `named_precisions`."""
    return f"{key[0]} '{key[1]}'"


def _cast_texts(flow: Dataflow) -> Iterable[str]:
    """Report of `diff`: a model's Casts, each as text: scope and name of what is cast, from which type to which."""
    for op in flow.ops:
        if has(op.role, "casts") and op.inputs and op.inputs[0] != NONE and op.outputs:
            source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
            yield f"{flow.scopes[op.scope].path}'{source.name}' {source.dtype} -> {target.dtype}"


def _weight_types(flow: Dataflow) -> dict[str, str]:
    """Report of `diff`: scope and name of each stored tensor of a model -> its type."""
    return {f"{flow.scopes[v.scope].path}'{v.name}'": v.dtype for v in flow.values if v.weight}


def _different_entries(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterable[Difference]:
    """Report of `diff`: the entries in which two tables (name -> value) differ; ``none`` for what a side lacks."""
    for name in dict.fromkeys((*ours, *theirs)):
        first, second = ours.get(name, "none"), theirs.get(name, "none")
        if first != second:
            yield Difference(name, "", first, second)


def _one_sided(ours: Iterable[str], theirs: Iterable[str]) -> OneSided:
    """Report of `diff`: the texts that only one side has, as often as it has them more often than the other."""
    one, other = Counter(ours), Counter(theirs)
    return OneSided(tuple((one - other).elements()), tuple((other - one).elements()))


# -- plans ------------------------------------------------------------------------------------------------------------


def compare_plans(first: Plan, second: Plan, names: tuple[str, str]) -> SideBySide:
    """The report of `diff` on two plans: their decisions by slot. ``names``: of the first and the second. Raises
    AmpError AMP403 for plans that are for two models."""
    if first.digest != second.digest:
        hint = "compare plans that were made for one model"
        raise AmpError("AMP403", "the plans are for two models", where=names[1], hint=hint)
    ours, theirs = _decisions_by_place(first), _decisions_by_place(second)
    decisions = []
    for key, one in ours.items():
        other = theirs.get(key)
        if other is not None and one.dtype != other.dtype:
            where = "graph" if key[1] < 0 else f"#{key[1]}"
            name = f"{one.scope}{one.kind} {where} {one.slot}"
            whys = [f"{side.why.rule}: {side.why.text}" for side in (one, other)]
            decisions.append(Difference(name, one.kind, one.dtype, other.dtype, *whys))
    settings = ({name: str(getattr(plan, name)) for name in SETTINGS} for plan in (first, second))
    return SideBySide(
        *names, "plans", tuple(_different_entries(*settings)), tuple(decisions),
        _one_sided(_rewrite_texts(first), _rewrite_texts(second)),
        _one_sided(_cast_edge_texts(first), _cast_edge_texts(second)),
        tuple(_different_entries(_weight_storage(first), _weight_storage(second))),
    )  # fmt: skip


def _decisions_by_place(plan: Plan) -> dict[tuple[str, int, str, str], Decision]:
    """Report of `diff`: the decisions of a plan by (scope, index in the file, operator, slot)."""
    in_file = {decision.scope: _index_in_file(plan, decision.scope) for decision in plan.decisions}
    return {(d.scope, in_file[d.scope](d.index), d.kind, d.slot): d for d in plan.decisions}


def _index_in_file(plan: Plan, scope: str) -> Callable[[int], int]:
    """Report of `diff`: a function from a node's index in a plan (after rewrites) to that in the file, in one scope."""
    removed = sorted(index for rewrite in plan.rewrites if rewrite.scope == scope for index in rewrite.removed_nodes)

    def index_in_file(index: int) -> int:
        for place in removed:
            if place <= index:
                index += 1
        return index

    return index_in_file


def _rewrite_texts(plan: Plan) -> Iterable[str]:
    """Report of `diff`: a plan's rewrites, each by what it writes and where."""
    return (f"{rewrite.writes} '{rewrite.scope}{rewrite.nodes[-1]}'" for rewrite in plan.rewrites)


def _cast_edge_texts(plan: Plan) -> Iterable[str]:
    """Report of `diff`: a plan's Casts, each by value and type."""
    return (f"{cast.scope}'{cast.value}' -> {cast.to}" for cast in plan.casts)


def _weight_storage(plan: Plan) -> dict[str, str]:
    """Report of `diff`: scope and name of each stored tensor that a plan changes -> how (`WeightEdit.store`)."""
    return {f"{edit.scope}'{edit.value}'": edit.store for edit in plan.weights}


# -- as text ----------------------------------------------------------------------------------------------------------


def _error_text(error: float | None) -> str:
    """Report of `diff`: the error of one side as text, or that it was not judged."""
    return "not judged" if error is None else finite(error, ".2e")


def _kind_and_sides(decision: Difference) -> tuple[str, str, str]:
    """Report of `diff`: (operator, precision on the first side, on the second), by which nodes are counted together."""
    return decision.kind, decision.first, decision.second


def _decision_lines(decisions: tuple[Difference, ...]) -> list[str]:
    """Report of `diff`: decisions that differ, grouped by kind and difference, with the reason of the first of each."""
    lines = []
    for (kind, one, other), items in grouped(decisions, _kind_and_sides):
        names = first([item.name for item in items], SHOWN, ", ...")
        lines.append(f"{len(items):,} {kind} {one} in the first, {other} in the second ({names})")
        if items[0].first_why:
            lines += [f"  first   {items[0].first_why}", f"  second  {items[0].second_why}"]
    return lines


def _weight_lines(found: SideBySide) -> list[str]:
    """The report's lines on stored weights: bytes of either side, and the tensors whose types differ."""
    lines = []
    if found.bytes is not None and found.bytes[0] != found.bytes[1]:
        lines.append(f"{found.bytes[0]:,} and {found.bytes[1]:,} bytes")
    lines += [f"{item.name} {item.first} and {item.second}" for item in found.weights[:SHOWN]]
    return lines + and_more(found.weights, SHOWN)
