"""What a conversion did, as data: nodes by precision and why, casts, weights, guards that fired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..dataflow import FLOAT32
from ..oplists import OpLists
from ..plans import Decision, Plan
from .census import Census, Stored

ORDINARY = {
    "list": "by its list",
    "cut": "by the cut",
    "user": "by a pattern",
    "region": "with its region",
    "boundary": "at a border",
    "unlisted": "in no list",
    "unknown": "without a schema",
    "opset": "held by the opset",
    "schema": "held by the schema",
    "kernel": "without a kernel",
    "slot": "a float32 slot",
}
"""Rules that are no guards, in words; every other rule is a guard's name."""


@dataclass(frozen=True)
class Held:
    """Nodes that one rule keeps in float32; ``text`` is the reason of the first."""

    rule: str
    kind: str
    count: int
    text: str


@dataclass(frozen=True)
class Heavy:
    """White operators: how many are low now, were low in the file, stay float32."""

    low: int
    given: int
    float32: int
    held: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Summary:
    """The report of `convert`. ``nodes`` and ``reasons`` count nodes that had a float32 tensor, once for each call of a
    function that holds them; ``other`` counts the rest of the file's nodes."""

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
    heavy: Heavy
    casts_before: int
    casts_after: int
    weights_before: dict[str, Stored]
    weights_after: dict[str, Stored]
    guards: tuple[Held, ...] = ()
    opset: tuple[Held, ...] = ()
    unlisted: tuple[Held, ...] = ()
    notes: tuple[dict[str, str], ...] = field(default=())

    @property
    def bytes_before(self) -> int:
        """Of all stored tensors in the input."""
        return sum(stored.bytes for stored in self.weights_before.values())

    @property
    def bytes_after(self) -> int:
        """Of all stored tensors in the result."""
        return sum(stored.bytes for stored in self.weights_after.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "bytes_before": self.bytes_before, "bytes_after": self.bytes_after}


def summarize(plan: Plan, before: Census, after: Census, lists: OpLists, *, model: str, output: str | None,
              changed: bool) -> Summary:
    """Puts the plan and what it made of the file into one report."""
    chosen = _nodes(plan)
    nodes: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for decision in chosen:
        nodes[decision.dtype] += 1
        reasons.setdefault(decision.dtype, Counter())[decision.why.rule] += 1
    float32 = [d for d in chosen if d.dtype == FLOAT32]
    return Summary(
        model=model, output=output, level=plan.level, dtype=plan.dtype, policy=plan.policy, target=plan.target,
        changed=changed, nodes=dict(nodes), other=max(before.nodes - before.casts - len(chosen), 0),
        reasons={dtype: dict(rules.most_common()) for dtype, rules in reasons.items()},
        heavy=_heavy(chosen, before, lists), casts_before=before.casts, casts_after=after.casts,
        weights_before=before.weights, weights_after=after.weights,
        guards=_held(d for d in float32 if d.why.rule not in ORDINARY),
        opset=_held(d for d in float32 if d.why.rule == "opset"),
        unlisted=_held(d for d in float32 if d.why.rule in ("unlisted", "unknown")),
        notes=tuple(asdict(note) for note in plan.notes),
    )


def _nodes(plan: Plan) -> list[Decision]:
    """One decision for each node: that of its first low slot, else of its first slot. Casts are counted apart."""
    found: dict[tuple[str, int], Decision] = {}
    for decision in plan.decisions:
        if decision.index < 0 or decision.kind == "Cast":
            continue
        place = decision.scope, decision.index
        held = found.get(place)
        if held is None or (held.dtype == FLOAT32 and decision.dtype != FLOAT32):
            found[place] = decision
    return list(found.values())


def _heavy(chosen: list[Decision], before: Census, lists: OpLists) -> Heavy:
    white = {kind for kind, listing in lists.items() if listing.cls == "white"}
    heavy = [d for d in chosen if d.kind in white]
    float32 = [d for d in heavy if d.dtype == FLOAT32]
    given = sum(count for kind, count in before.given.items() if kind in white)
    return Heavy(len(heavy) - len(float32), given, len(float32), _held(float32))


def _held(decisions: Iterable[Decision]) -> tuple[Held, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    texts: dict[tuple[str, str], str] = {}
    for decision in decisions:
        key = decision.why.rule, decision.kind
        counts[key] += 1
        texts.setdefault(key, decision.why.text)
    return tuple(Held(rule, kind, count, texts[rule, kind]) for (rule, kind), count in counts.most_common())
