"""Patterns made ready for the search: each a row of instructions from its anchor; rows that begin alike are a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .patterns import Attribute, Call, Conventions, Node, Number, Pattern

ANY = 0  # read by whoever wants


@dataclass(frozen=True)
class Expected:
    """What must stand in one place of a call. ``register``: where its value is kept, new or known; -1 for a number,
    which is kept under its ``label``."""

    name: str = field(compare=False)
    register: int
    known: bool = False
    number: Number | None = None
    label: str = ""
    stored: str = ""


@dataclass(frozen=True)
class Alternative:
    """One call that an instruction allows."""

    role: str
    operands: tuple[Expected, ...]
    attributes: tuple[Attribute, ...]
    swaps: bool = False  # the operands in the other order are as good


Choices = Sequence[tuple[Alternative, tuple[Expected, ...]]]


@dataclass(frozen=True)
class Instruction:
    """Looks at what writes the value of ``register`` or, where ``result`` is another one, at what reads it: binds the
    operands, and the result.

    ``readers``: how many uses the value may have when it is walked from, ANY for no matter.
    """

    part: str = field(compare=False)
    register: int
    result: int
    alternatives: tuple[Alternative, ...]
    readers: int = ANY

    @cached_property
    def choices(self) -> Mapping[str, Choices]:
        """By operator: the alternatives, with their operands in each order."""
        found: dict[str, list[tuple[Alternative, tuple[Expected, ...]]]] = {}
        for alternative in self.alternatives:
            orders = found.setdefault(alternative.role, [])
            orders.append((alternative, alternative.operands))
            if alternative.swaps:
                orders.append((alternative, alternative.operands[::-1]))
        return found


@dataclass
class Branch:
    """A place in the tree: the instructions from here, and the pattern that ends here."""

    instructions: dict[Instruction, Branch] = field(default_factory=dict)
    found: Found | None = None


@dataclass(frozen=True)
class Found:
    """What a finished row of instructions is a match of. ``names``: in the order of their registers."""

    pattern: Pattern
    end: str
    names: tuple[str, ...]


def merge(patterns: Iterable[Pattern], conventions: Conventions) -> Branch:
    """The tree of patterns that start at one operator."""
    tree = Branch()
    for pattern in patterns:
        branch = tree
        for instruction, found in _Compiler(pattern, conventions).run():
            branch = branch.instructions.setdefault(instruction, Branch())
            branch.found = branch.found or found
    return tree


class _Compiler:
    """Orders the nodes of one pattern from its anchor to each end: what can fail early comes first."""

    def __init__(self, pattern: Pattern, conventions: Conventions) -> None:
        self.pattern, self.writers, self.commutative = pattern, pattern.writers, conventions.commutative
        self.anchor = pattern.anchor.output if pattern.anchor else ""
        self.registers = {self.anchor: 0}
        self.done = {self.anchor}

    def run(self) -> Iterator[tuple[Instruction, Found | None]]:
        """The instructions, with what is found once each is carried out."""
        instructions = [self._back(self.writers[self.anchor])]
        for end in (end for end in self.pattern.ends if end in self.writers):
            instructions += self._towards(end)
            yield from ((instruction, None) for instruction in instructions[:-1])
            yield instructions[-1], Found(self.pattern, end, tuple(self.registers))
            instructions = []

    def _towards(self, end: str) -> Iterator[Instruction]:
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

    def _back(self, node: Node) -> Instruction:
        """The writer of a value that is bound."""
        register = self.registers[node.output]
        return Instruction(node.output, register, register, self._alternatives(node))

    def _forward(self, node: Node, end: str) -> Instruction:
        """A reader of a value that is bound."""
        source, alternatives = self._source(node), self._alternatives(node)
        result = self.registers.setdefault(node.output, len(self.registers))
        return Instruction(node.output, self.registers[source], result, alternatives, self._readers(source, end))

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

    def _alternatives(self, node: Node) -> tuple[Alternative, ...]:
        known = frozenset(self.registers)
        return tuple(self._alternative(call, set(known)) for call in node.calls)

    def _alternative(self, call: Call, known: set[str]) -> Alternative:
        operands = tuple(self._operand(name, known) for name in call.operands)
        swaps = len(operands) == 2 and call.role in self.commutative and call.operands[0] != call.operands[1]
        return Alternative(call.role, operands, call.attributes, swaps)

    def _operand(self, name: str, known: set[str]) -> Expected:
        number = self.pattern.numbers.get(name)
        if number is not None:
            return Expected(name, -1, number=number, label=name)
        register = self.registers.setdefault(name, len(self.registers))
        if name in known:
            return Expected(name, register, True)
        known.add(name)
        return Expected(name, register, stored=self.pattern.stored.get(name, ""))
