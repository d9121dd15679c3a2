"""The decisions as data: what becomes low, why, where the casts go. JSON both ways."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import AmpError
from .files import read_text, text_file
from .json_types import JsonObject, json_line
from .renamed import OLD_RULES
from .rewrites import Rewrite, read_row
from .sketches import bar, collapsible, strip, table
from .spellings import LEVELS
from .typed import reader

FORMAT = 3
"""1 had one row for all rewrites and no joint roundings; 2 said in sentences alone what a reason is about."""
KINDS = 4  # operators that a row in a notebook names
BIAS = "a product with its bias"
"""What a reason of rule `region` is about where no operator computes the same."""
GRAPH = "graph"
"""The kind of a decision on the type of a graph's input or output, in the place of an operator's."""
_KINDS = {"border": GRAPH}
_RULES = {old.removeprefix("no-"): new.removeprefix("no-") for old, new in OLD_RULES.items()}
"""Words of plans of 0.2 -> those of today."""
_ABOUT = {
    "list": re.compile(r".*?: \w+ at \w+ is \w+: (.*)"),
    "region": re.compile(r"decided with ([^,;]*)"),
    "slot": re.compile(r".*? stays float32: (.*)"),
    "taint": re.compile(r"reads what '(.*?)' made in float32 \("),
}
"""Rule -> where its sentences say what they are about, in plans of formats 1 and 2: the first group."""


@dataclass(frozen=True, slots=True)
class Why:
    """The reason of a decision. ``rule`` is one word to count by (``list``, ``schema``, ``kernel``, ``weight``,
    ``index``, ``eps``, ``user``, ``cut`` ...), ``text`` the sentence that a person reads; ``about`` is what that speaks
    of, for some rules: for ``list`` and ``slot`` why the lists say so, for ``region`` what its nodes compute together,
    for ``taint`` the node whose float32 result is read."""

    rule: str
    text: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The type of one slot of one operator, and why. ``scope`` is the path of the operator's scope, ``index`` its place
    there; ``index`` -1 and kind `GRAPH` are an input or output of the model."""

    scope: str
    index: int
    kind: str
    slot: str
    dtype: str
    why: Why


@dataclass(frozen=True, slots=True)
class CastEdge:
    """``value`` of ``scope`` cast once to type ``to`` for uses: (scope, operator's index, -1 for an output,
    position)."""

    scope: str
    value: str
    to: str
    uses: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class WeightEdit:
    """A stored tensor that changes. ``store``: ``low`` (replaced), ``both`` (a low copy for ``uses``, as in a
    `CastEdge`), ``float32`` (floor only). Finite elements below ``floor``, which is negative, become it."""

    scope: str
    value: str
    store: str
    uses: tuple[tuple[str, int, int], ...] = ()
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class JointRounding:
    """Stored operands rounded together, so that their errors cancel in what an operator computes.

    ``shares``: (scope, stored tensor, factor) of tensors that are multiplied by the factor before they are rounded,
    which gives them what rounding takes from the operator's own number. Without any, the operator is a norm with stored
    statistics: of the low numbers beside each of its four parameters those are taken that come closest together. Or it
    is a convolution: each channel's weights in the middle between two low numbers are rounded so that the sum stays."""

    scope: str
    index: int
    why: Why
    shares: tuple[tuple[str, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Rounding:
    """A float32 value that some float32 readers (``uses``) get rounded to the low type, as a policy wants it."""

    scope: str
    value: str
    uses: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the user should know: ``topic`` groups notes of one sort, ``where`` names the node or tensor;
    ``advice``: it says what another option would gain."""

    topic: str
    where: str
    text: str
    advice: bool = False


@dataclass(repr=False)
class Plan:
    """Everything that `apply` does to a model, and why. A plan fits the one model that has its ``digest``.

    Indices count the nodes of a scope after ``rewrites``.
    """

    digest: str
    level: str
    dtype: str
    policy: str
    target: str
    low_io: list[str] = field(default_factory=list)  # graph inputs and outputs that become low
    decisions: list[Decision] = field(default_factory=list)
    casts: list[CastEdge] = field(default_factory=list)
    weights: list[WeightEdit] = field(default_factory=list)
    together: list[JointRounding] | None = field(default_factory=list)  # None: a plan of format 1 does not say
    rewrites: list[Rewrite] = field(default_factory=list)
    roundings: list[Rounding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)  # patterns of what the user or ranges pin to float32
    opset: int = 0  # that the model is moved to first, as that frees operators; 0 where it is not

    @property
    def changes_nothing(self) -> bool:
        """Whether the plan leaves the model as it is: nothing is low, cast, rewritten, rounded or stored anew."""
        return not (self.casts or self.weights or self.rewrites or self.roundings) and all(
            d.dtype == "float32" for d in self.decisions
        )

    def __repr__(self) -> str:
        low = sum(d.dtype != "float32" for d in self.decisions)
        head = f"level {self.level}, {self.dtype}, policy {self.policy}, target {self.target}"
        counts = (
            f"{low} of {len(self.decisions)} decisions low, {len(self.casts)} casts, {len(self.weights)} stored tensors"
        )
        return f"Plan({head}: {counts})"

    def _repr_html_(self) -> str:
        """For notebooks: types along the graph, decisions by type and reason with an example of each, what is edited,
        and all that is float32 behind a fold."""
        if not self.decisions:
            return f"<p>{html.escape(repr(self))}</p>"
        types = Counter(d.dtype for d in self.decisions)
        words = "types along the graph: " + ", ".join(f"{n:,} {name}" for name, n in types.most_common())
        edits = [(edit, f"{count:,}") for edit, count in self._edit_counts().most_common()]
        notes = [f"{note.topic}: {note.where} {note.text}" for note in self.notes]
        held = [
            f"{d.scope} #{d.index} {d.kind} {d.slot}: {d.why.rule}: {d.why.text}"
            for d in self.decisions
            if d.dtype == "float32"
        ]
        return "".join([
            f"<p>{html.escape(repr(self))}</p><p>{words}</p>", strip([d.dtype for d in self.decisions], words),
            table(("type", "by", "decisions", "", "operators", "such as"), self._reason_rows()),
            table(("what is edited", ""), edits) if edits else "",
            collapsible(f"notes: {len(notes):,}", notes) if notes else "",
            collapsible(f"float32: {len(held):,}", held) if held else "",
        ])  # fmt: skip

    def _reason_rows(self) -> list[tuple[str, ...]]:
        """Rows of a notebook, one for all decisions of one type by one rule, the most decisions first: (type, rule, how
        many, that as a bar, their most frequent operators, the reason of the first)."""
        groups: dict[tuple[str, str], list[Decision]] = {}
        for one in self.decisions:
            groups.setdefault((one.dtype, one.why.rule), []).append(one)
        ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
        most = len(ordered[0][1]) if ordered else 1
        rows: list[tuple[str, ...]] = []
        for (dtype, rule), some in ordered:
            kinds = Counter(one.kind for one in some).most_common()
            shown = [f"{count:,} {kind}" for kind, count in kinds[:KINDS]] + ["..."] * (len(kinds) > KINDS)
            rows.append(
                (dtype, rule, f"{len(some):,}", bar({dtype: len(some)}, most, 160), ", ".join(shown), some[0].why.text)
            )
        return rows

    def _edit_counts(self) -> Counter[str]:
        """How many rewrites, weights and Casts the plan has, by what is written in words."""
        found = Counter(f"Casts to {one.to}" for one in self.casts)
        stored = {"low": f"weights stored as {self.dtype}", "both": "weights stored in both types"}
        found.update(stored.get(one.store, "weights with another floor") for one in self.weights)
        found.update(f"rewrites: {one.name}" for one in self.rewrites)
        return found

    def to_dict(self) -> JsonObject:
        """Plain data for JSON, as in `to_json`."""
        found: JsonObject = json.loads(self.to_json())
        return found

    def to_json(self) -> str:
        """The plan as JSON, an item a line; the same plan gives the same text. Decisions hold numbers of reasons."""
        whys: dict[Why, int] = {}
        rows = []
        for d in self.decisions:
            rows.append([d.scope, d.index, d.kind, d.slot, d.dtype, whys.setdefault(d.why, len(whys))])
        head = {key: getattr(self, key) for key in ("digest", "level", "dtype", "policy", "target", "low_io")}
        head |= {key: value for key in ("pinned", "opset") if (value := getattr(self, key))}
        tables: dict[str, list[Any]] = {"reasons": [[w.rule, w.text, w.about] for w in whys], "decisions": rows}
        for key in ("casts", "weights", "rewrites", "roundings", "notes"):
            tables[key] = [i.to_row() if isinstance(i, Rewrite) else asdict(i) for i in getattr(self, key)]
        if self.together is not None:
            tables["together"] = [[t.scope, t.index, t.why.rule, t.why.text, t.shares] for t in self.together]
        parts = [f'"{key}": {json_line(value)}' for key, value in {"ampgraph_plan": FORMAT, **head}.items()]
        for key, items in tables.items():  # an item a line, so that two plans can be compared
            parts.append(f'"{key}": [\n' + ",\n".join(map(json_line, items)) + "]")
        return "{" + ",\n".join(parts) + "}\n"

    def check(self) -> None:
        """Raises ValueError for words and numbers that no plan has, and for what is said twice."""
        types = {"float32", self.dtype}
        good = self.dtype in ("float16", "bfloat16") and self.level in LEVELS and self.opset >= 0
        good &= all(d.dtype in types for d in self.decisions)
        good &= all(c.to in types for c in self.casts)
        good &= all(w.store in ("low", "both", "float32") for w in self.weights)
        good &= all(w.floor is None or w.floor < 0 for w in self.weights)
        good &= all(0.5 < factor < 2 for one in self.together or () for _, _, factor in one.shares)
        # two decisions on a slot must agree: sequences of one body share a name
        decided = {(d.scope, d.index, d.slot, d.dtype) for d in self.decisions}
        good &= _are_distinct((scope, index, slot) for scope, index, slot, _ in decided)
        good &= _are_distinct((w.scope, w.value) for w in self.weights)
        good &= _are_distinct((cast.scope, cast.value, use) for cast in self.casts for use in cast.uses)
        good &= _are_distinct((one.scope, index) for one in self.rewrites for index in one.nodes)
        if not good:
            raise ValueError("not a plan")

    @staticmethod
    def from_json(text: str, where: str = "plan") -> Plan:
        """Reads a plan of this format or an older one. Raises AmpError AMP401, with ``where``, for any other text."""
        try:
            data = json.loads(text)
            plan_format = data.pop("ampgraph_plan")
            if type(plan_format) is not int or plan_format not in range(1, FORMAT + 1):
                hint = "make the plan again with this version"
                raise AmpError("AMP401", f"plan format {plan_format} is not from 1 to {FORMAT}", where=where, hint=hint)
            return _plan_from_fields(data, plan_format)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise AmpError(
                "AMP401",
                "is not an ampgraph plan, or was damaged by an edit",
                where=where,
                hint="write one with `ampgraph convert MODEL --plan-out FILE`",
            ) from error

    def write(self, path: str | Path) -> None:
        """Writes the plan to a file, whole or not at all. Raises AmpError AMP105."""
        with text_file(path, self.to_json):
            pass

    @staticmethod
    def read(path: str | Path) -> Plan:
        """Reads the file of a plan. Raises AmpError AMP401."""
        return Plan.from_json(read_text(path, "a plan"), str(path))


def _are_distinct(places: Iterable[Hashable]) -> bool:
    """For the check of a `Plan`: whether no place comes twice."""
    found = list(places)
    return len(set(found)) == len(found)


def _reason_from_row(rule: str, text: str, about: str | None = None) -> Why:
    """A plan's reason from its row, with the rule's name of today; ``about``: None in formats 1 and 2 (see
    ``text``)."""
    rule = _RULES.get(rule, rule)
    if about is None and rule == "region" and text.startswith("decided with its product"):
        about = BIAS
    elif about is None:
        found = _ABOUT[rule].match(text) if rule in _ABOUT else None
        about = found[1] if found else ""
    return Why(rule, text, about)


def _plan_from_fields(data: dict[str, Any], plan_format: int) -> Plan:
    """A plan from a file's fields in format ``plan_format``. Raises ValueError, TypeError or LookupError for others."""
    reasons = tuple[tuple[str, str], ...] if plan_format < FORMAT else tuple[tuple[str, str, str], ...]
    whys = [_reason_from_row(*row) for row in reader(reasons)(data.pop("reasons"))]
    decisions = reader(tuple[tuple[str, int, str, str, str, int], ...])(data.pop("decisions"))
    if any(row[-1] < 0 for row in decisions) or not {"low_io", "casts", "weights", "roundings", "notes"} <= data.keys():
        raise ValueError("not a plan")
    data["decisions"] = [Decision(s, i, _KINDS.get(k, k), slot, t, whys[why]) for s, i, k, slot, t, why in decisions]
    data["rewrites"] = [read_row(row, plan_format == 1) for row in reader(list)(data["rewrites"])]
    joint = reader(tuple[tuple[str, int, str, str, tuple[tuple[str, str, float], ...]], ...] | None)
    rows = joint(data.get("together"))
    data["together"] = rows and [JointRounding(s, i, Why(rule, text), shares) for s, i, rule, text, shares in rows]
    plan: Plan = reader(Plan)(data)
    plan.check()
    return plan
