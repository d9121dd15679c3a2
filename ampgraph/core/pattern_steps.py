"""Patterns made ready for the search: each a row of steps from its anchor; rows that begin alike are one tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .patterns import Attribute, Call, Conventions, Node, Number, Pattern

ANY = 0  # read by whoever wants


@dataclass(frozen=True)
class Operand:
    """What must stand in one place of a call. ``register``: where its value is kept, new or known; -1 for a number,
    which is kept under its ``label``."""

    name: str = field(compare=False)
    register: int
    known: bool = False
    number: Number | None = None
    label: str = ""
    stored: str = ""


@dataclass(frozen=True)
class Option:
    """One call that a step allows."""

    role: str
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    swaps: bool = False  # the operands in the other order are as good


Choices = Sequence[tuple[Option, tuple[Operand, ...]]]


@dataclass(frozen=True)
class Step:
    """Looks at what writes the value of ``register`` or, where ``result`` is another one, at what reads it: binds the
    operands, and the result.

    ``readers``: how many uses the value may have when it is walked from, ANY for no matter.
    """

    part: str = field(compare=False)
    register: int
    result: int
    options: tuple[Option, ...]
    readers: int = ANY

    @cached_property
    def choices(self) -> Mapping[str, Choices]:
        """By operator: the options, with their operands in each order."""
        found: dict[str, list[tuple[Option, tuple[Operand, ...]]]] = {}
        for option in self.options:
            orders = found.setdefault(option.role, [])
            orders.append((option, option.operands))
            if option.swaps:
                orders.append((option, option.operands[::-1]))
        return found


@dataclass
class Branch:
    """A place in the tree: the steps from here, and the pattern that ends here with its names in register order."""

    steps: dict[Step, Branch] = field(default_factory=dict)
    found: Found | None = None


@dataclass(frozen=True)
class Found:
    """What a finished row of steps is a match of."""

    pattern: Pattern
    end: str
    names: tuple[str, ...]


def merge(patterns: Iterable[Pattern], conventions: Conventions) -> Branch:
    """The tree of patterns that start at one operator."""
    tree = Branch()
    for pattern in patterns:
        branch = tree
        for step, found in _Compiler(pattern, conventions).run():
            branch = branch.steps.setdefault(step, Branch())
            branch.found = branch.found or found
    return tree


class _Compiler:
    """Orders the nodes of one pattern from its anchor to each end: what can fail early comes first."""

    def __init__(self, pattern: Pattern, conventions: Conventions) -> None:
        self.pattern, self.writers, self.commutative = pattern, pattern.writers, conventions.commutative
        self.anchor = pattern.anchor.output if pattern.anchor else ""
        self.registers = {self.anchor: 0}
        self.done = {self.anchor}

    def run(self) -> Iterator[tuple[Step, Found | None]]:
        """The steps, with what is found once each is taken."""
        steps = [self._back(self.writers[self.anchor])]
        for end in (end for end in self.pattern.ends if end in self.writers):
            steps += self._towards(end)
            yield from ((step, None) for step in steps[:-1])
            yield steps[-1], Found(self.pattern, end, tuple(self.registers))
            steps = []

    def _towards(self, end: str) -> Iterator[Step]:
        """Node after node from the values that are there to an end of the region."""
        needed = self.pattern.above(end)
        while waiting := [node for node in self.pattern.nodes if node.output in needed - self.done]:
            reachable = [n for n in waiting if n.output in self.registers or self._source(n)]
            node = max(reachable, key=lambda n: (self._numbers(n), n.output not in self.registers))
            self.done.add(node.output)
            yield self._back(node) if node.output in self.registers else self._forward(node, end)

    def _numbers(self, node: Node) -> int:
        """How many constants make the node a rare one."""
        return min(sum(name in self.pattern.numbers for name in call.operands) for call in node.calls)

    def _back(self, node: Node) -> Step:
        """The writer of a value that is bound."""
        register = self.registers[node.output]
        return Step(node.output, register, register, self._options(node))

    def _forward(self, node: Node, end: str) -> Step:
        """A reader of a value that is bound."""
        source, options = self._source(node), self._options(node)
        result = self.registers.setdefault(node.output, len(self.registers))
        return Step(node.output, self.registers[source], result, options, self._readers(source, end))

    def _source(self, node: Node) -> str:
        """An operand that is found already and lies behind the anchor, or is the anchor."""
        for name in (o for call in node.calls for o in call.operands):
            if name in self.done and self.anchor in self.pattern.above(name):
                return name
        return ""

    def _readers(self, name: str, end: str) -> int:
        """How often the region reads a value behind the anchor on its way to ``end``."""
        if name == self.anchor and name not in self.pattern.private:
            return ANY
        nodes = (self.writers[n] for n in self.pattern.above(end) if n in self.writers)
        return sum(max(call.operands.count(name) for call in node.calls) for node in nodes)

    def _options(self, node: Node) -> tuple[Option, ...]:
        known = frozenset(self.registers)
        return tuple(self._option(call, set(known)) for call in node.calls)

    def _option(self, call: Call, known: set[str]) -> Option:
        operands = tuple(self._operand(name, known) for name in call.operands)
        swaps = len(operands) == 2 and call.role in self.commutative and call.operands[0] != call.operands[1]
        return Option(call.role, operands, call.attributes, swaps)

    def _operand(self, name: str, known: set[str]) -> Operand:
        number = self.pattern.numbers.get(name)
        if number is not None:
            return Operand(name, -1, number=number, label=name)
        register = self.registers.setdefault(name, len(self.registers))
        if name in known:
            return Operand(name, register, True)
        known.add(name)
        return Operand(name, register, stored=self.pattern.stored.get(name, ""))
