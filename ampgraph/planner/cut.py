"""The minimum cut: the cheapest types for the units that nothing else decided.

Costs are bytes moved, plus a constant for each kernel started. A value costs a Cast when a reader's type differs from
its writer's, once however many readers there are; a stored tensor costs what must stay float32 or be stored twice.
Among cheapest plans the one with the smallest float32 side is taken, so that plans are unique.

So a unit is low unless something draws it to float32, and the search begins at what does: mostly it ends a few values
further on, and no more than these are asked for what they cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..core.dataflow import NONE, Op
from .costs import STORED_TWICE_LIMIT, CutTask
from .decisions import FREE, HIGH, LOW
from .max_flow import ENDLESS, FlowNetwork

INFINITE = 1 << 80
NOBODY = -1
"""Where a value is written by no unit: in the place of the writer's side."""
STORED_BYTE = 32
"""Bytes moved that a stored byte counts for: it is paid in the file, in transfers and in memory for good."""


@dataclass(slots=True)
class Net:
    """A value, with the units that write and read it and what its Casts cost: ``up`` bytes are paid when its writer is
    low and some reader float32, ``down`` in the opposite case. For a stored tensor ``writer`` is None: ``up`` is paid
    when some reader is float32, ``down`` when one is low."""

    writer: int | None
    readers: frozenset[int]
    up: int
    down: int

    def cost(self, sides: Mapping[int, int]) -> int:
        """What is paid for the value where the units have these sides, `LOW` or `HIGH`."""
        read = {sides[reader] for reader in self.readers}
        made = None if self.writer is None else sides[self.writer]
        return self.up * (HIGH in read and made != HIGH) + self.down * (LOW in read and made != LOW)


class CutProblem(ABC):
    """Free units as nodes of a flow network, source side low, sink side float32. A unit here stands for all that are
    tied to it; nets have numbers. What both cost is asked as the search reaches them."""

    def __init__(self) -> None:
        self._flow = FlowNetwork(reach=self._add_unit)
        self._places: dict[int, int] = {}  # unit -> its node of the network
        self._units: dict[int, int] = {}  # and back; other nodes stand between the readers of a value
        self._nets: set[int] = set()  # those whose arcs are added

    @abstractmethod
    def side(self, unit: int) -> int:
        """The side of a unit of the cut: `LOW` or `HIGH`; `FREE` where the cut decides."""

    @abstractmethod
    def extra(self, unit: int) -> int:
        """For the cut: what a free unit costs more in float32 than in the low type, in bytes; negative: less."""

    @abstractmethod
    def nets_of(self, unit: int) -> Iterable[int]:
        """For the cut: the numbers of the nets that a free unit is in, some more than once."""

    @abstractmethod
    def net(self, number: int) -> Net | None:
        """For the cut: a net by its number; None where nothing is paid for it whatever is decided."""

    @abstractmethod
    def starting_points(self) -> tuple[Iterable[int], Iterable[int]]:
        """Where the cut's search begins: numbers of nets that may draw a free unit to float32, as one of their units is
        float32 already; and free units whose ``extra`` is negative."""

    def float32_units(self) -> set[int]:
        """The free units that are float32 in the cheapest assignment: the fewest among equals. To be called once: the
        flow that it sends uses the network up."""
        nets, units = self.starting_points()
        for number in nets:
            self._add_net(number)
        for unit in units:
            self._flow.suspect(self._place(unit))
        return {self._units[place] for place in self._flow.sink_side() if place in self._units}

    def _place(self, unit: int) -> int:
        """The node of the flow network for a unit, made when it is first reached."""
        place = self._places.get(unit)
        if place is None:
            place = self._places[unit] = self._flow.node()
            self._units[place] = unit
        return place

    def _add_unit(self, place: int) -> None:
        """For the cut: adds what the unit of a node costs by itself, and the nets that it is in. The network calls it
        once for each node that the search reaches."""
        unit = self._units.get(place)
        if unit is not None:
            self._flow.supply(place, self.extra(unit))
            for number in self.nets_of(unit):
                self._add_net(number)

    def _add_net(self, number: int) -> None:
        """For the cut: adds the arcs of a net, once."""
        net = None if number in self._nets else self.net(number)
        self._nets.add(number)
        if net is None:
            return
        sides = {self.side(reader) for reader in net.readers}
        free = [self._place(reader) for reader in net.readers if reader != net.writer and self.side(reader) == FREE]
        lows, highs, made = LOW in sides, HIGH in sides, FREE if net.writer is None else self.side(net.writer)
        at = self._place(net.writer) if net.writer is not None and made == FREE else None
        all_free = net.writer is None and not lows and not highs
        paid = min(net.up, net.down) if all_free else 0  # is paid whatever the readers are
        if made != HIGH and (highs or free):
            self._add_price(at, [] if highs else free, net.up, paid)
        if made != LOW and (lows or free):
            self._add_price(at, [] if lows else free, -net.down, paid)

    def _add_price(self, writer: int | None, readers: list[int], price: int, paid: int) -> None:
        """For the cut: adds the arcs of one of a net's prices. A positive ``price`` is paid if the writer is low and a
        reader float32; a negative one, as -price, if it is the other way round. ``writer``, ``readers``: nodes of the
        free ones. No writer: its side, or that it is a stored tensor, makes the price depend on the readers alone; no
        readers: a decided one makes it depend on the writer alone. ``paid``: what is paid in any case, and flows from
        the one price to the other through the first reader."""
        flow = self._flow
        if not readers:
            if writer is not None:
                flow.supply(writer, -price)
            return
        nearest = readers[0] if len(readers) == 1 else flow.node()
        for reader in readers if len(readers) > 1 else ():
            back = paid if reader == readers[0] else 0
            if price > 0:
                flow.connect(nearest, reader, ENDLESS, back)
            else:
                flow.connect(nearest, reader, back, ENDLESS)
        if writer is not None:
            flow.connect(writer, nearest, max(price, 0), max(-price, 0))
        else:
            flow.supply(nearest, price - paid if price > 0 else price + paid)


class Undecided(CutProblem):
    """The free units of a model with decisions; the number of a net is that of its value."""

    def __init__(self, task: CutTask) -> None:
        super().__init__()
        self.task, self.costs = task, task.costs
        self._sides, self._roots = task.decisions.sides, task.decisions.roots
        self._reads: dict[int, set[tuple[int, int]]] = {}  # by value, what `_readers` has answered

    def side(self, unit: int) -> int:
        """The side of a unit, which stands for those tied to it (`Decisions.roots`); FREE where the cut decides."""
        return self._sides[unit]

    def extra(self, unit: int) -> int:
        """For the cut: what a unit, and those tied to it, cost more in float32 than low: for each slot the bytes that
        its operator moves more, times what a byte is worth there; negative where that is less than nothing."""
        flow, roots, moved = self.task.flow, self._roots, 0
        for op in sorted({flow.units[tied].op for tied in self._units_of_root.get(unit, ())} - {NONE}):
            slots = [own for own in flow.ops[op].slots.values() if roots[own] == unit and not flow.units[own].crosses]
            if slots:
                moved += len(slots) * self._float32_surplus(flow.ops[op], unit)
        return moved * self.task.byte_worth.get(unit, 1)

    def _float32_surplus(self, op: Op, unit: int) -> int:
        """For the cut: bytes that an operator reads and writes more where a unit is float32: 2 for each element of the
        values of that unit, as often as its scope runs. Stored tensors are left out."""
        values = self.task.flow.values
        found = {v for v in op.outputs if values[v].unit != NONE and self._roots[values[v].unit] == unit}
        reads = op.id, unit
        found |= {v for v in op.inputs if v != NONE and not values[v].weight and reads in self._readers(v)}
        return sum(2 * self.costs.elements(v) for v in found) * self.task.flow.scopes[op.scope].times

    def _readers(self, value: int) -> set[tuple[int, int]]:
        """For the cut: (operator, unit that decides how it reads) of each reader of a float32 value."""
        if value not in self._reads:
            uses = self.task.flow.uses[value]
            self._reads[value] = {(use.op, self._roots[use.unit]) for use in uses if use.unit != NONE}
        return self._reads[value]

    def nets_of(self, unit: int) -> Sequence[int]:
        """For the cut: numbers of the values that the unit's operators read or write."""
        return self.survey[0].get(unit, ())

    def net(self, number: int) -> Net | None:
        """For the cut: what is paid where a value's writer and its readers have different types: its Casts, or how a
        stored tensor is kept. None where nothing is: one unit decides for all of them, or none reads it."""
        task, roots, item = self.task, self._roots, self.task.flow.values[number]
        uses = task.flow.uses[number]
        readers = frozenset([roots[use.unit] for use in uses if use.unit != NONE and use.op not in task.fused])
        writer = roots[item.unit] if item.unit != NONE and item.producer not in task.fused else None
        if not readers or (writer is None and not item.weight) or (writer is not None and readers == {writer}):
            return None
        price, elements = self.costs.cast(number), self.costs.elements(number)
        if not item.weight:
            up = 0 if task.options.kernels.raises_inside else price
            # integers made float are never rounded and widened again
            return Net(writer, readers, INFINITE if number in task.integer_valued else up, price)
        if 4 * elements <= STORED_TWICE_LIMIT and (task.flow.parameters_copied or not item.parameter):
            # grids and anchors: too small to trade digits for
            byte = 1 if readers <= task.byte_worth.keys() else STORED_BYTE
            return Net(None, readers, 4 * elements * byte, 2 * elements * byte)
        return Net(None, readers, 2 * elements * STORED_BYTE + price, price)

    def starting_points(self) -> tuple[Iterable[int], Iterable[int]]:
        """Where the cut's search begins: at values beside float32 units, and at free units that are dear in low."""
        dear = [unit for unit, worth in self.task.byte_worth.items() if worth < 0 and self._sides[unit] == FREE]
        return self.survey[1], sorted(dear)

    @cached_property
    def _units_of_root(self) -> Mapping[int, Sequence[int]]:
        """For the cut: a unit that stands for others (a root) -> all these, itself among them."""
        tied: dict[int, list[int]] = {}
        for unit, root in enumerate(self._roots):
            tied.setdefault(root, []).append(unit)
        return tied

    @cached_property
    def survey(self) -> tuple[Mapping[int, Sequence[int]], Sequence[int]]:
        """For the cut: free unit -> the values that it writes or reads, some more than once; and the values that may
        draw some free unit to float32."""
        flow, roots, fused = self.task.flow, self._roots, self.task.fused
        side = [*(self._sides[root] for root in roots), NOBODY]  # NONE, -1, is the last
        values: dict[int, list[int]] = {}
        drawing = []
        for value, (item, uses) in enumerate(zip(flow.values, flow.uses, strict=True)):
            writer = NOBODY if item.weight else side[item.unit]
            readers = [side[use.unit] for use in uses if use.op not in fused]
            if writer == FREE:
                values.setdefault(roots[item.unit], []).append(value)
            if FREE in readers:
                for use in uses:
                    if side[use.unit] == FREE:
                        values.setdefault(roots[use.unit], []).append(value)
            if _may_draw(writer, readers, item.weight):
                drawing.append(value)
        return values, drawing


def _may_draw(writer: int, readers: Sequence[int], stored: bool) -> bool:
    """For the cut: whether a value may make float32 cheaper for a free unit whatever the other free ones are, given the
    sides of its writer (`NOBODY`: none) and its readers. A ``stored`` tensor does beside a float32 reader alone: to
    store it in float32 costs at least as much as in the low type."""
    if writer == FREE:
        return HIGH in readers
    if FREE not in readers or LOW in readers:
        return False
    return writer == HIGH or (stored and HIGH in readers)
