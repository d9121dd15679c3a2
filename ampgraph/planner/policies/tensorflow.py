"""The policy ``tensorflow``: what the graph rewrite auto_mixed_precision of TensorFlow does, by its painting.

Seeds are operators on the allow list; low spreads from them through infer and clear operators, unless what a deny
operator made flows there. Source of the algorithm: TensorFlow 2.21, core/grappler/optimizers/auto_mixed_precision.cc.
An item is a type attribute of an operator, here a unit; edges join items by data flow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.dataflow import NONE, Dataflow, Unit
from ...core.plan import Note, Why
from ...oplists.options import Options
from ..assemble import DecidedModel
from ..decisions import HIGH, LIST, LOW, Verdict, Verdicts, describe
from .forward import Begun, begin, unlisted_notes
from .registry import Policy, Setting, register

ALLOW, INFER, DENY, CLEAR = "allow", "infer", "deny", "clear"
ABSENT = {"O1": (INFER, DENY, CLEAR)}
"""The lists that a level empties (TENSOR_CORES_ONLY)."""
RENAMED = {"O2": {INFER: DENY}}
"""The lists that a level puts into another (TREAT_INFER_AS_DENY)."""
FORCING = "O3"
"""The level at which every operator is a seed (UNSAFE_FORCE_ALL)."""
UNLISTED = "unlisted"


@dataclass
class Item:
    """What TensorFlow paints: a unit. ``cls``: the list of its operator, "" for none; ``free``: whether it may be
    painted at all: not low in the file, no input or output, not pinned to float32 by the user; ``admits``: whether the
    schema takes the low type; ``has_kernel``: whether neither schema nor kernels pin it; ``converts``: whether it is
    the result of a conversion, low where all its readers are; ``before``, ``after``: numbers of the items that it
    reads, in order, and that read it."""

    cls: str
    free: bool
    admits: bool = True
    has_kernel: bool = True
    converts: bool = False
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    @property
    def spreads(self) -> bool:
        """Whether TensorFlow's paint may reach it through its neighbours."""
        return self.free and self.admits and self.has_kernel


@dataclass
class Painted:
    """What TensorFlow's painting found, by number of an item. ``low``: why it is low; ``denied``: the number of the
    deny item that it goes back to (a deny item: its own)."""

    low: dict[int, str] = field(default_factory=dict)
    denied: dict[int, int] = field(default_factory=dict)


def paint(items: Sequence[Item], forced: Collection[int] = ()) -> Painted:
    """Paints items, in the order of the model, as TensorFlow does: seeds, then what is denied, then what spreads. At
    last seeds that the schema does not admit are dropped (they have spread), and conversions added that low alone
    reads. ``forced``: what is a seed whatever its class; then nothing is denied (UNSAFE_FORCE_ALL)."""
    painted = Painted()
    for number, item in enumerate(items):
        if item.free and (item.cls == ALLOW or number in forced):
            painted.low[number] = "is a seed" if item.cls == ALLOW else "is forced"
    if painted.low:
        if not forced:
            _spread_deny(items, painted)
        _paint_between(items, painted)
        _paint_after(items, painted)
        _paint_clear(items, painted)
        for number in [n for n in painted.low if items[n].cls == ALLOW and not items[n].admits]:
            del painted.low[number]
        for number, item in enumerate(items):
            read_low = bool(item.after) and all(reader in painted.low for reader in item.after)
            if item.converts and item.free and read_low:
                painted.low.setdefault(number, "is a conversion that low operators alone read")
    return painted


def _spread_deny(items: Sequence[Item], painted: Painted) -> None:
    """As TensorFlow paints: denies deny items, and infer and clear items behind one, clear only if another follows."""
    leading = _reached(_items_of(items, DENY, INFER), lambda n: items[n].cls == CLEAR, lambda n: items[n].before)
    found = _reached(_items_of(items, DENY), leading.__contains__, lambda n: items[n].after)
    for number, root in found.items():
        painted.denied[number] = number if items[number].cls == DENY else root


def _paint_between(items: Sequence[Item], painted: Painted) -> None:
    """As TensorFlow paints: clear and infer items on a way from one seed to another become low, unless denied."""

    def enters(number: int) -> bool:
        return number not in painted.denied and items[number].spreads and items[number].cls in (CLEAR, INFER)

    seeds = [number for number in _items_of(items, ALLOW) if items[number].free]
    down = _reached(seeds, enters, lambda n: items[n].after)
    for number in _reached(seeds, down.__contains__, lambda n: items[n].before):
        painted.low.setdefault(number, "stands between two operators of the allow list")


def _paint_after(items: Sequence[Item], painted: Painted) -> None:
    """As TensorFlow paints: infer items behind a low one become low, in order, unless they or operands are denied."""
    low, denied = painted.low, painted.denied
    for number, item in enumerate(items):
        if item.cls != INFER or not item.free or not item.admits or number in denied or number in low:
            continue
        if any(n in low for n in item.before) and not any(n in denied for n in item.before):
            low[number] = "stands directly after what is low"


def _paint_clear(items: Sequence[Item], painted: Painted) -> None:
    """As TensorFlow paints: clear items joined to a low one through clear items become low too, unless denied."""

    def enters(number: int) -> bool:
        item = items[number]
        return number not in painted.low and number not in painted.denied and item.spreads and item.cls == CLEAR

    for number in _reached(sorted(painted.low), enters, lambda n: [*items[n].before, *items[n].after]):
        painted.low.setdefault(number, "is joined to what is low through operators that compute nothing")


def _items_of(items: Sequence[Item], *classes: str) -> Iterator[int]:
    """As TensorFlow paints: the numbers of the items of some classes."""
    return (number for number, item in enumerate(items) if item.cls in classes)


def _reached(
    roots: Iterable[int], enters: Callable[[int], bool], follow: Callable[[int], Sequence[int]]
) -> dict[int, int]:
    """As TensorFlow paints: roots and all that is reached from them, depth first: item -> the first root that reaches
    it. ``enters``: whether a number that is no root may be reached; ``follow``: where a number leads."""
    found: dict[int, int] = {}
    for root in roots:
        stack = [root]
        while stack:
            number = stack.pop()
            if number not in found and (number == root or enters(number)):
                found[number] = root
                stack += follow(number)
    return found


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Decides every unit as TensorFlow would paint it."""
    painting = _TensorFlowTypes(begin(flow, options))
    notes = () if options.level.name == FORCING else painting.notes()
    return painting.begun.finish("TensorFlow", Verdicts(painting.verdicts()), painting.refused(), notes)


class _TensorFlowTypes:
    """A model painted by TensorFlow: units are items of the same number; tied ones are low where all are painted."""

    def __init__(self, begun: Begun) -> None:
        self.begun, self.flow = begun, begun.flow
        self.items = [self._item_of(unit) for unit in self.flow.units]
        self._join_edges()
        self.painted = paint(self.items, self._forced() if begun.options.level.name == FORCING else ())

    def _forced(self) -> frozenset[int]:
        """The items that TensorFlow's UNSAFE_FORCE_ALL makes seeds: all but those of random operators."""
        traits, flow = self.begun.options.lists.traits, self.flow
        found = (unit for unit in flow.units if unit.op != NONE)
        return frozenset(unit.id for unit in found if not traits.has(flow.ops[unit.op].role, "random"))

    def verdicts(self) -> Iterator[tuple[int, Verdict]]:
        """Yields each unit with its verdict by TensorFlow's painting, if it, or one tied to it, is not low already."""
        low, kept = self.painted.low, dict[int, str]()  # by representative of units of which one is not low
        for unit in self.flow.units:
            if unit.id not in low and not unit.fixed_low:
                kept.setdefault(self.flow.find(unit.id), self._why_float32(unit))
        for unit in self.flow.units:
            root = self.flow.find(unit.id)
            if root in kept:
                yield unit.id, Verdict(HIGH, LIST, Why("tensorflow", kept[root]))
            elif unit.id in low:
                yield unit.id, Verdict(LOW, LIST, Why("tensorflow", low[unit.id]))

    def _why_float32(self, unit: Unit) -> str:
        """Why TensorFlow's painting leaves a unit in float32."""
        flow, root = self.flow, self.painted.denied.get(unit.id)
        if root == unit.id:
            return "is on the deny list"
        if root is not None:
            return f"reads what '{describe(flow, flow.ops[flow.units[root].op])}' made, which is on the deny list"
        if unit.op == NONE:
            return "is a graph input or output"
        return "no paint reaches it" if self.items[unit.id].cls else "is in no list"

    def refused(self) -> Mapping[int, str]:
        """Unit -> why TensorFlow would make it low, of seeds and painted units that schema or kernels keep float32."""
        seeds = {n: "it is on the allow list" for n, item in enumerate(self.items) if item.cls == ALLOW and item.free}
        wanted = {**seeds, **self.painted.low}
        return {number: why for number, why in wanted.items() if self.begun.given.is_high(number)}

    def notes(self) -> Iterator[Note]:
        """Notes on operators that are in none of TensorFlow's lists, and therefore float32."""
        traits = self.begun.options.lists.traits
        found = (op for op in self.flow.ops if op.slots and not traits.has(op.role, "casts"))
        unlisted = (op for op in found if self._list_of_op(op.id) == "")
        return unlisted_notes(self.flow, "TensorFlow", unlisted, "float32, and no paint passes it")

    def _item_of(self, unit: Unit) -> Item:
        """The item of a unit, with what TensorFlow's painting asks of it; its edges are added later."""
        given, options = self.begun.given, self.begun.options
        op = self.flow.ops[unit.op] if unit.op != NONE else None
        traits = options.lists.traits
        pinned_by_user = given.is_high(unit.id) and not given.is_held(unit.id)
        return Item(
            cls=self._class(unit),
            free=not unit.fixed_low and (unit.crosses or unit.op != NONE) and not pinned_by_user,
            admits=options.dtype in unit.admits and not unit.fixed,
            has_kernel=not given.is_high(unit.id),
            converts=op is not None and traits.has(op.role, "casts") and unit.slot == "T2",
        )

    def _class(self, unit: Unit) -> str:
        """The list of TensorFlow's that a unit's operator is on at the level, empty for none. What crosses the boundary
        of a body or function computes nothing and counts as clear."""
        level = self.begun.options.level.name
        found = self._list_of_op(unit.op) if unit.op != NONE else ""
        if unit.crosses:
            found = CLEAR
        found = RENAMED.get(level, {}).get(found, found)
        return "" if found == UNLISTED or found in ABSENT.get(level, ()) else found

    def _list_of_op(self, op: int) -> str:
        """The list that an operator (its id) is on: `UNLISTED` if taken out of all, "" if it never was on one."""
        listing = self.begun.options.lists.listing(self.flow, self.flow.ops[op])
        return listing.cls if listing is not None else ""

    def _join_edges(self) -> None:
        """Joins items by data flow, operands in order, across boundaries of bodies and functions too."""
        outer = {target: source for source, target in self.flow.passed}
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                if value.unit != NONE and use.unit != NONE:
                    self._add_edge(value.unit, use.unit)
            if value.id in outer and value.unit != NONE and self.flow.values[outer[value.id]].unit != NONE:
                self._add_edge(self.flow.values[outer[value.id]].unit, value.unit)

    def _add_edge(self, source: int, target: int) -> None:
        """Adds an edge of the data flow, once."""
        if source != target and source not in self.items[target].before:
            self.items[target].before.append(source)
            self.items[source].after.append(target)


def _list_file(setting: Setting) -> str:
    """The file of TensorFlow's lists for a low type: float16 has CUDA's lists, bfloat16 those of oneDNN on the CPU."""
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
        lists=_list_file,
    )
)
