"""Islands of integers: what runtimes fuse between DequantizeLinear and QuantizeLinear, and floats among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from ...core.dataflow import FLOAT32, NONE, Op
from ..facts.facts import Facts
from ..regions import Regions
from ..stages import Listed


class Islands:
    """``fused``: operators that read and write integers in truth, with what makes their floats and reads them;
    ``among``: the others of a connected part without a low product, where some of it is quantized."""

    def __init__(self, facts: Facts, regions: Regions, listed: Listed) -> None:
        self.facts, self.classes, self.listed = facts, regions.classes, listed
        self.flow, self.traits = facts.flow, facts.traits
        self._stored: dict[int, bool] = {}  # a value that is dequantized or moved from such -> whether it is a constant

    @cached_property
    def fused(self) -> list[Op]:
        """In the order of the model."""
        inside = self._inside()
        island: set[int] = set()
        for op in reversed(self.flow.ops):  # readers first
            if op.id in inside and self._is_product(op):
                island.add(op.id)
            elif op.id in inside or self.traits.has(op.role, "dequantizes"):
                island |= {op.id} if any(self._takes(reader, island) for reader in self._readers(op)) else set()
        for op in self.flow.ops:
            if self.traits.has(op.role, "quantizes") and (writer := self.flow.writer(op.inputs[0])) is not None:
                island |= {op.id} if writer.id in island else set()
        return [op for op in self.flow.ops if op.id in island and op.slots]

    @cached_property
    def among(self) -> list[Op]:
        """In the order of the model."""
        parts = _Parts(self)
        fused = {op.id for op in self.fused}
        return [op for op in self.flow.ops if op.slots and op.id not in fused and parts.is_quiet(op)]

    def floats(self, op: Op) -> list[int]:
        """The computed float32 values that an operator reads."""
        values = self.flow.values
        return [
            v for v in dict.fromkeys(op.inputs) if v != NONE and values[v].dtype == FLOAT32 and not values[v].weight
        ]

    def _inside(self) -> set[int]:
        """Operators all of whose floats were integers: dequantized, moved, or made by one of these."""
        inside, made = set[int](), set[int]()
        for op in self.flow.ops:
            floats = self.floats(op)
            if self.traits.has(op.role, "dequantizes"):
                data = self.flow.values[op.inputs[0]]
                self._stored.update(dict.fromkeys(op.outputs, data.weight))
            elif floats and op.slots and all(v in self._stored or v in made for v in floats):
                self._enter(op, floats, inside, made)
        return inside

    def _enter(self, op: Op, floats: list[int], inside: set[int], made: set[int]) -> None:
        if self.traits.has(op.role, "control_flow") or self.traits.has(op.role, "quantizes"):
            return
        dequantized = [v for v in floats if v in self._stored]
        constant = all(self._stored[v] for v in dequantized) and not any(v in made for v in floats)
        if self._is_product(op):
            if len(dequantized) < 2 or constant:
                return
        elif self.traits.has(op.role, "moves") and dequantized and not any(v in made for v in floats):
            self._stored.update(dict.fromkeys(op.outputs, constant))
        inside.add(op.id)
        made.update(op.outputs)

    def _is_product(self, op: Op) -> bool:
        return self.classes[op.id] == "white"

    def _takes(self, reader: Op, island: set[int]) -> bool:
        return reader.id in island or self.traits.has(reader.role, "quantizes")

    def _readers(self, op: Op) -> Iterator[Op]:
        return (reader for value in op.outputs if value != NONE for reader in self.flow.readers(value))


class _Parts:
    """The floats of a model, in parts that integers separate."""

    def __init__(self, islands: Islands) -> None:
        self.islands, self.flow = islands, islands.flow
        self._parents = list(range(len(self.flow.values)))
        self._apart = {op.id for op in islands.fused}
        for op in self.flow.ops:
            if not self._separates(op):
                self._join(self._values(op))
        for source, target in self.flow.passed:
            if NONE not in (source, target):
                self._join([source, target])
        self._quantized = self._marked(self._separates)
        self._low = self._marked(self._is_low_product)

    def is_quiet(self, op: Op) -> bool:
        """Whether no float beside an operator is in a part with a low product, and some part of it is quantized."""
        roots = {self._find(v) for v in self._values(op)}
        return bool(roots & self._quantized) and not roots & self._low

    def _separates(self, op: Op) -> bool:
        return op.id in self._apart or self.islands.traits.has(op.role, "quantized")

    def _is_low_product(self, op: Op) -> bool:
        low = any(self.islands.listed.is_low(unit) for unit in op.slots.values()) or not op.slots
        return self.islands.classes[op.id] == "white" and low and op.id not in self._apart

    def _marked(self, holds: Callable[[Op], bool]) -> set[int]:
        return {self._find(v) for op in self.flow.ops if holds(op) for v in self._values(op)}

    def _values(self, op: Op) -> list[int]:
        """What it reads and makes; a scale that is computed is no data."""
        traits, read = self.islands.traits, self.islands.floats(op)
        if traits.has(op.role, "quantizes") or traits.has(op.role, "dequantizes"):
            read = [v for v in read if v == op.inputs[0]]
        return [*read, *(v for v in op.outputs if v != NONE and self.flow.values[v].dtype == FLOAT32)]

    def _join(self, values: list[int]) -> None:
        roots = {self._find(v) for v in values}
        for root in roots:
            self._parents[root] = min(roots)

    def _find(self, value: int) -> int:
        parents = self._parents
        while parents[value] != value:
            parents[value] = value = parents[parents[value]]
        return value
