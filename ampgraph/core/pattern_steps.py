"""Patterns made ready for the search: each a row of steps from its anchor; rows that begin alike are one tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .patterns import Attribute, Call, Node, Number, Pattern

ANY = 0  # read by whoever wants


@dataclass(frozen=True)
class Twin:
    """How a value of the pattern is computed, so that the same computed twice is seen as one."""

    calls: tuple[tuple[Call, tuple[Twin | None, ...]], ...]


@dataclass(frozen=True)
class Operand:
    """What must stand in one place of a call. ``register``: where its value is kept, new or known; -1 for a number."""

    name: str = field(compare=False)
    register: int
    known: bool = False
    number: Number | None = None
    label: str = ""  # of a number
    stored: str = ""
    twin: Twin | None = None


@dataclass(frozen=True)
class Option:
    """One call that a step allows."""

    role: str
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]


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

    @property
    def forward(self) -> bool:
        return self.result != self.register


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


def steps_of(pattern: Pattern) -> Iterator[tuple[Step, Found | None]]:
    """The steps in order, with what is found once each is taken."""
    return _Compiler(pattern).run()


def merge(patterns: Iterable[Pattern]) -> dict[str, Branch]:
    """The trees by the operator at which their search starts."""
    trees: dict[str, Branch] = {}
    for pattern in patterns:
        steps = list(steps_of(pattern))
        for role in dict.fromkeys(call.role for call in pattern.anchor().calls if call.role in pattern.anchors):
            branch = trees.setdefault(role, Branch())
            for step, found in steps:
                branch = branch.steps.setdefault(step, Branch())
                branch.found = branch.found or found
    return trees


class _Compiler:
    """Orders the nodes of one pattern: all before the anchor, then on to each end."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern, self.writers = pattern, pattern.writers
        self.anchor = pattern.anchor().output
        self.registers = {self.anchor: 0}
        self.done: set[str] = set()
        self.ends = [end for end in pattern.ends if end in self.writers]
        self.twins: dict[str, Twin | None] = {}

    def run(self) -> Iterator[tuple[Step, Found | None]]:
        steps = list(self._back(self.anchor))
        for end in self.ends:
            steps += self._towards(end)
            yield from ((step, None) for step in steps[:-1])
            yield steps[-1], Found(self.pattern, end, tuple(self.registers))
            steps = []

    def _back(self, name: str) -> Iterator[Step]:
        """A known value's writer, and then what writes its operands."""
        self.done.add(name)
        node = self.writers[name]
        yield Step(name, self.registers[name], self.registers[name], self._options(node))
        yield from self._operands(node)

    def _operands(self, node: Node) -> Iterator[Step]:
        for name in dict.fromkeys(o for call in node.calls for o in call.operands):
            if name in self.writers and name not in self.done:
                yield from self._back(name)

    def _towards(self, end: str) -> Iterator[Step]:
        """Node after node from the values that are there to an end of the region."""
        needed = self.pattern.above(end)
        while waiting := [n for n in self.pattern.nodes if n.output in needed and n.output not in self.done]:
            node, source = next((n, s) for n in waiting if (s := self._source(n)))
            options = self._options(node)
            result = self.registers.setdefault(node.output, len(self.registers))
            self.done.add(node.output)
            yield Step(node.output, self.registers[source], result, options, self._readers(source, end))
            yield from self._operands(node)

    def _source(self, node: Node) -> str:
        """An operand that is known and lies behind the anchor, or is the anchor."""
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
        return tuple(Option(c.role, self._call(c, set(known)), c.attributes) for c in node.calls)

    def _call(self, call: Call, known: set[str]) -> tuple[Operand, ...]:
        return tuple(self._operand(name, known) for name in call.operands)

    def _operand(self, name: str, known: set[str]) -> Operand:
        number = self.pattern.numbers.get(name)
        if number is not None:
            return Operand(name, -1, number=number, label=name)
        register = self.registers.setdefault(name, len(self.registers))
        old = name in known
        known.add(name)
        return Operand(name, register, old, stored=self.pattern.stored.get(name, ""), twin=self._twin(name))

    def _twin(self, name: str) -> Twin | None:
        if name not in self.twins:
            node = self.writers.get(name)
            self.twins[name] = node and Twin(
                tuple((call, tuple(self._twin(o) for o in call.operands)) for call in node.calls)
            )
        return self.twins[name]
