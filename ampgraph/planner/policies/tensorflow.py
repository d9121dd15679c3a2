"""The policy ``tensorflow``: what the graph rewrite auto_mixed_precision of TensorFlow does, by its painting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...core.dataflow import NONE, Dataflow, Unit
from ...core.plan import Note, Why
from ..decided import DecidedModel
from ..decisions import HIGH, LIST, LOW, VALIDITY, Ledger, describe
from ..options import Options
from .begun import PARITY, Begun, begin
from .painting import ALLOW, CLEAR, DENY, INFER, Item, Painted, paint
from .registry import Policy, Setting, register

ABSENT = {"O1": (INFER, DENY, CLEAR)}
"""The lists that a level empties (TENSOR_CORES_ONLY)."""
RENAMED = {"O2": {INFER: DENY}}
"""The lists that a level puts into another (TREAT_INFER_AS_DENY)."""
FORCING = "O3"
"""The level at which every operator is a seed (UNSAFE_FORCE_ALL)."""
UNLISTED = "unlisted"


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit as TensorFlow would paint it."""
    begun = begin(flow, options)
    canvas = _Canvas(begun)
    forced = canvas.forced() if options.level.name == FORCING else ()
    colours = _Colours(begun, canvas.items, paint(canvas.items, forced))
    return begun.finish("TensorFlow", colours, colours.refused(), () if forced else canvas.notes())


class _Canvas:
    """The units of a model as items, of the same numbers."""

    def __init__(self, begun: Begun) -> None:
        self.begun, self.flow = begun, begun.flow
        self.items = [self._item(unit) for unit in self.flow.units]
        self._join()

    def forced(self) -> frozenset[int]:
        """What UNSAFE_FORCE_ALL makes a seed: all but what holds state of its own."""
        traits, flow = self.begun.options.lists.traits, self.flow
        found = (unit for unit in flow.units if unit.op != NONE)
        return frozenset(unit.id for unit in found if not traits.has(flow.ops[unit.op].role, "random"))

    def notes(self) -> Iterator[Note]:
        """Operators that TensorFlow has no name for: float32, as everything that is in none of its lists."""
        names: dict[str, list[str]] = {}
        for op in self.flow.ops:
            if op.slots and self._listed(op.id) == "" and not self.begun.options.lists.traits.has(op.role, "casts"):
                names.setdefault(op.kind, []).append(describe(self.flow, op))
        for kind, found in sorted(names.items()):
            yield Note(
                PARITY, found[0], f"{len(found)} {kind} in none of TensorFlow's lists: float32, and no paint passes it"
            )

    def _item(self, unit: Unit) -> Item:
        begun, options = self.begun, self.begun.options
        op = self.flow.ops[unit.op] if unit.op != NONE else None
        traits = options.lists.traits
        return Item(
            cls=self._class(unit),
            free=not unit.fixed_low and (unit.border or unit.op != NONE) and not self._is_users(unit.id),
            admits=options.dtype in unit.admits and not unit.fixed,
            has_kernel=not begun.given.is_high(unit.id),
            converts=op is not None and traits.has(op.role, "casts") and unit.slot == "T2",
        )

    def _is_users(self, unit: int) -> bool:
        given = self.begun.given
        return given.is_high(unit) and given.ranks[given.find(unit)] != VALIDITY

    def _class(self, unit: Unit) -> str:
        """The list of a unit's operator, as the level has it; what crosses a border computes nothing."""
        level = self.begun.options.level.name
        found = CLEAR if unit.border else self._listed(unit.op) if unit.op != NONE else ""
        found = RENAMED.get(level, {}).get(found, found)
        return "" if found == UNLISTED or found in ABSENT.get(level, ()) else found

    def _listed(self, op: int) -> str:
        listing = self.begun.options.lists.listing(self.flow, self.flow.ops[op])
        return listing.cls if listing is not None else ""

    def _join(self) -> None:
        """Edges by data flow, operands in order; what is passed into or out of a body is one value."""
        outer = {target: source for source, target in self.flow.passed}
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                if value.unit != NONE and use.unit != NONE:
                    self._edge(value.unit, use.unit)
            if value.id in outer and value.unit != NONE and self.flow.values[outer[value.id]].unit != NONE:
                self._edge(self.flow.values[outer[value.id]].unit, value.unit)

    def _edge(self, source: int, target: int) -> None:
        if source != target and source not in self.items[target].before:
            self.items[target].before.append(source)
            self.items[source].after.append(target)


@dataclass(frozen=True)
class _Colours:
    """What was painted, as verdicts. Units that must share a type are low where all of them are."""

    begun: Begun
    items: list[Item]
    painted: Painted

    def enter(self, ledger: Ledger) -> None:
        kept = self._float32()
        for unit in self.begun.flow.units:
            root = self.begun.flow.find(unit.id)
            if root in kept:
                ledger.decide(unit.id, HIGH, LIST, Why("tensorflow", kept[root]))
            elif unit.id in self.painted.low:
                ledger.decide(unit.id, LOW, LIST, Why("tensorflow", self.painted.low[unit.id]))

    def refused(self) -> Mapping[int, str]:
        """Seeds, and what else was painted, that schema or kernel keep float32."""
        seeds = {n: "it is on the allow list" for n, item in enumerate(self.items) if item.cls == ALLOW and item.free}
        return {n: why for n, why in {**seeds, **self.painted.low}.items() if self.begun.given.is_high(n)}

    def _float32(self) -> dict[int, str]:
        """Representatives of units of which one is not low, with its reason."""
        found: dict[int, str] = {}
        for unit in self.begun.flow.units:
            if unit.id not in self.painted.low and not unit.fixed_low:
                found.setdefault(self.begun.flow.find(unit.id), self._why(unit))
        return found

    def _why(self, unit: Unit) -> str:
        flow, root = self.begun.flow, self.painted.denied.get(unit.id)
        if root == unit.id:
            return "is on the deny list"
        if root is not None:
            return f"reads what '{describe(flow, flow.ops[flow.units[root].op])}' made, which is on the deny list"
        if unit.op == NONE:
            return "is a border of the model"
        return "no paint reaches it" if self.items[unit.id].cls else "is in no list"


def _list(setting: Setting) -> str:
    """float16 for CUDA has lists of its own, bfloat16 those of oneDNN on the CPU."""
    return "tensorflow_bfloat16.toml" if setting.dtype == "bfloat16" else "tensorflow.toml"


register(
    Policy(
        name="tensorflow",
        framework="TensorFlow",
        rule=decide,
        levels={
            "O0": "off",
            "O1": "TENSOR_CORES_ONLY: the allow list alone",
            "O2": "TREAT_INFER_AS_DENY",
            "O3": "UNSAFE_FORCE_ALL",
            "auto": "auto_mixed_precision as it is",
        },
        default_level="auto",
        lists=_list,
    )
)
