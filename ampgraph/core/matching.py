"""Finds patterns in a dataflow, looking through what changes nothing. A pattern becomes instructions, each of which
goes from a value that is *bound* (to a name of the pattern) to an operator that reads or makes it, and binds the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from .dataflow import FLOAT32, NONE, Dataflow, Op
from .patterns import Attribute, Call, Conventions, Node, Number, Pattern
from .walk import sole_readers

ANY = 0  # read by whoever wants
TWICE = 4  # how many nodes in a row may stand twice


@dataclass(frozen=True)
class Expected:
    """What must stand in one place of a call. ``register``: where its value is kept, new or known; -1 for a number,
    which is kept under its ``label``."""

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

    register: int
    result: int
    alternatives: tuple[Alternative, ...]
    readers: int = ANY

    @cached_property
    def choices(self) -> Mapping[str, Choices]:
        """Of the search for a pattern: the alternatives by operator, with their operands in each order that may be."""
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
    """For matching: the tree of patterns that start at one operator."""
    tree = Branch()
    for pattern in patterns:
        branch = tree
        for instruction, found in _PatternCompiler(pattern, conventions).run():
            branch = branch.instructions.setdefault(instruction, Branch())
            branch.found = branch.found or found
    return tree


class _PatternCompiler:
    """Orders the nodes of one pattern from its anchor to each end: what can fail early comes first."""

    def __init__(self, pattern: Pattern, conventions: Conventions) -> None:
        self.pattern, self.writers, self.commutative = pattern, pattern.writers, conventions.commutative
        self.anchor = pattern.anchor.output if pattern.anchor else ""
        self.registers = {self.anchor: 0}
        self.done = {self.anchor}

    def run(self) -> Iterator[tuple[Instruction, Found | None]]:
        """A pattern as the instructions of its search in a dataflow, with what is found once each is carried out."""
        instructions = [self._back(self.writers[self.anchor])]
        for end in (end for end in self.pattern.ends if end in self.writers):
            instructions += self._towards(end)
            yield from ((instruction, None) for instruction in instructions[:-1])
            yield instructions[-1], Found(self.pattern, end, tuple(self.registers))
            instructions = []

    def _towards(self, end: str) -> Iterator[Instruction]:
        """For matching: instructions that lead from the values found so far to one end of the region."""
        needed = self.pattern.above(end)
        while waiting := [node for node in self.pattern.nodes if node.output in needed - self.done]:
            reachable = [n for n in waiting if n.output in self.registers or self._source(n)]
            node = max(reachable, key=lambda n: (self._numbers(n), n.output not in self.registers))
            self.done.add(node.output)
            yield self._back(node) if node.output in self.registers else self._forward(node, end)

    def _numbers(self, node: Node) -> int:
        """For the order of a search: how many constants a node of the pattern reads; one with some is rarer, so that a
        search which begins there fails early."""
        return min(sum(name in self.pattern.numbers for name in call.operands) for call in node.calls)

    def _back(self, node: Node) -> Instruction:
        """For matching: the instruction that finds the operator which makes a value that is bound."""
        register = self.registers[node.output]
        return Instruction(register, register, self._alternatives(node))

    def _forward(self, node: Node, end: str) -> Instruction:
        """For matching: the instruction that finds an operator which reads a value that is bound."""
        source, alternatives = self._source(node), self._alternatives(node)
        result = self.registers.setdefault(node.output, len(self.registers))
        return Instruction(self.registers[source], result, alternatives, self._readers(source, end))

    def _source(self, node: Node) -> str:
        """For matching: an operand of the node that is found already: the anchor's result, or what follows from it."""
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
        """For matching: the ways in which a node may be computed; each binds names by itself."""
        known = frozenset(self.registers)
        return tuple(self._alternative(call, set(known)) for call in node.calls)

    def _alternative(self, call: Call, known: set[str]) -> Alternative:
        """One call of an operator as the search in a dataflow tries it; two operands of one that is commutative are
        tried in both orders."""
        operands = tuple(self._operand(name, known) for name in call.operands)
        swaps = len(operands) == 2 and call.role in self.commutative and call.operands[0] != call.operands[1]
        return Alternative(call.role, operands, call.attributes, swaps)

    def _operand(self, name: str, known: set[str]) -> Expected:
        """What the search in a dataflow expects of an operand: a number, a name that is bound already, or anything,
        which binds the name."""
        number = self.pattern.numbers.get(name)
        if number is not None:
            return Expected(-1, number=number, label=name)
        register = self.registers.setdefault(name, len(self.registers))
        if name in known:
            return Expected(register, True)
        known.add(name)
        return Expected(register, stored=self.pattern.stored.get(name, ""))


Classes = Mapping[str, Collection[str]]
"""What a pattern calls by one name -> the operators that are meant, which only the caller knows."""


class Match(NamedTuple):
    """A pattern that is there. ``result`` is the last node; ``parts`` are the values and ``nodes`` the operators by the
    pattern's names; ``ops`` has them in the pattern's order, then casts and second copies that were seen through;
    ``numbers`` are None where something else stands, which is not checked."""

    pattern: Pattern
    result: Op
    parts: Mapping[str, int]
    nodes: Mapping[str, Op]
    ops: tuple[Op, ...]
    numbers: Mapping[str, float | None]
    attributes: Mapping[str, object]


class PatternSet:
    """Patterns that are searched together in a dataflow, by preference. ``overridable``: as a View has it."""

    def __init__(self, patterns: Sequence[Pattern], conventions: Conventions, *, overridable: bool = True) -> None:
        self.patterns, self.conventions, self.overridable = tuple(patterns), conventions, overridable
        self.roles = frozenset(call.role for p in patterns for node in p.nodes for call in node.calls)
        self._by_anchor: dict[str, list[Pattern]] = {}
        for pattern in patterns:
            for role in pattern.anchor_roles:
                self._by_anchor.setdefault(role, []).append(pattern)
        self._trees: dict[str, Branch] = {}

    def find(self, flow: Dataflow, classes: Classes | None = None) -> Iterator[Match]:
        """Every match in a dataflow, in the order of the anchors' nodes; of several at one anchor the first."""
        matcher, ops, uses = Matcher(flow, self, classes or {}), flow.ops, flow.uses
        anchors = self._anchors(classes or {})
        behind: dict[str, frozenset[str]] = {}  # of those that the model has: a tree is made once one is asked for
        for op in flow.with_roles(anchors):
            if not op.slots:
                continue
            if (anchor := anchors[op.role]) not in behind:
                behind[anchor] = self._behind(anchor, classes or {})
            read = [ops[use.op].role for use in uses[op.outputs[0]] if use.op != NONE]
            if (roles := behind[anchor]) and roles.isdisjoint(read):
                continue
            if (match := matcher.at(op, self._tree(anchor))) is not None:
                yield match

    def _tree(self, anchor: str) -> Branch:
        """The instructions of all patterns with this anchor in one tree: what they share at the beginning is tried
        once."""
        if anchor not in self._trees:
            self._trees[anchor] = merge(self._by_anchor[anchor], self.conventions)
        return self._trees[anchor]

    def _behind(self, anchor: str, classes: Classes) -> frozenset[str]:
        """The operators one of which must read an anchor's result for any pattern to match; empty where a search does
        not go on there."""
        roles = set(self.conventions.through)
        for after in self._tree(anchor).instructions.values():
            if after.found is not None or any(step.register or not step.result for step in after.instructions):
                return frozenset()
            roles |= {alternative.role for step in after.instructions for alternative in step.alternatives}
        return frozenset() if not roles.isdisjoint(classes) else frozenset(roles)

    def _anchors(self, classes: Classes) -> dict[str, str]:
        """The name that patterns have for each operator at which a search starts: its own, or that of its class."""
        named = {role: name for name in classes for role in classes[name] if name in self._by_anchor}
        return {role: role for role in self._by_anchor if role not in classes} | named


class View:
    """Reads a dataflow by the conventions of patterns. ``roles``: the operators that patterns speak of;
    ``overridable``: whether an input that has a stored tensor by default is a stored one too."""

    def __init__(
        self, flow: Dataflow, conventions: Conventions, roles: Collection[str], *, overridable: bool = True
    ) -> None:
        self.flow, self.conventions, self.roles, self.through = flow, conventions, roles, conventions.through
        self.overridable = overridable

    def seen_through(self, value: int) -> tuple[int, tuple[Op, ...]]:
        """As matching sees it: the value before Casts and identities that change nothing, with those operators."""
        chain: tuple[Op, ...] = ()
        values, ops, through = self.flow.values, self.flow.ops, self.through
        while (producer := values[value].producer) != NONE and ops[producer].role in through:
            if not self.changes_nothing(ops[producer]):
                break
            chain += (ops[producer],)
            value = ops[producer].inputs[0]
        return value, chain

    def changes_nothing(self, op: Op) -> bool:
        """For matching: whether an operator hands its float32 operand on as it is (Identity, a Cast to float32)."""
        values = self.flow.values
        if op.role not in self.through:
            return False
        return values[op.inputs[0]].dtype == values[op.outputs[0]].dtype == FLOAT32

    def casts_behind(self, op: Op) -> Iterator[Op]:
        """For matching: casts and identities behind an operator, one after the other, as long as each is the only
        reader."""
        readers = (reader for _, reader in sole_readers(self.flow, op))
        return takewhile(self.changes_nothing, readers)

    def number(self, value: int) -> float | None:
        """For matching: the number in a stored tensor of one element."""
        return self.flow.scalar(value, overridable=self.overridable)

    def stored(self, sort: str, value: int) -> bool:
        """For matching: whether a value is a stored tensor of a sort, one of STORED."""
        if not self._is_stored(value):
            return False
        shape = self.flow.shape(value) or ()
        return sort == "any" or (len(shape) if sort == "vector" else sum(dim != 1 for dim in shape)) <= 1

    def _is_stored(self, value: int) -> bool:
        """For matching: whether a value is stored; where ``overridable``, also an input that has a default."""
        item = self.flow.values[value]
        return item.weight or (self.overridable and item.default)

    def attribute(self, op: Op, name: str) -> object:
        """For matching: an attribute, or the stored operand that later versions have in its place."""
        value: object = self.flow.attribute(op, name)
        place = self.conventions.operand_attributes.get(name, NONE)
        if value is None and NONE < place < len(op.inputs) and op.inputs[place] != NONE:
            item = self.flow.values[op.inputs[place]]
            array = self.flow.weights.array(item) if item.weight else None
            value = ("computed", item.id) if array is None else array.reshape(-1).tolist()
        return tuple(value) if isinstance(value, (list, tuple)) else value

    def from_the_front(self, op: Op, axes: object) -> object:
        """For matching: axes as numbers from the front where the rank is known; anything else as it is."""
        if not isinstance(axes, tuple) or not all(isinstance(axis, int) for axis in axes):
            return axes
        shape = self.flow.shape(op.inputs[0])
        return axes if shape is None else tuple(axis % max(len(shape), 1) for axis in axes)

    def same(self, value: int, other: int, depth: int = 0) -> tuple[Op, ...] | None:
        """For matching: the nodes that compute two values alike, none for one value; None where they may differ, or
        where more than `TWICE` nodes in a row stand twice (``depth``: how many do so far)."""
        if value == other:
            return ()
        one, two = self.flow.writer(value), self.flow.writer(other)
        if one is None or two is None or one.role != two.role or one.role not in self.roles or depth == TWICE:
            return None
        if len(one.inputs) != len(two.inputs):
            return None
        if any(self.attribute(one, name) != self.attribute(two, name) for name in self.conventions.identity):
            return None
        copies: tuple[Op, ...] = (one, two)
        for a, b in zip(one.inputs, two.inputs, strict=True):
            if NONE in (a, b) and a != b:
                return None
            found = self.same(self.seen_through(a)[0], self.seen_through(b)[0], depth + 1) if a != b else ()
            if found is None:
                return None
            copies += found
        return copies


class Matcher:
    """One walk through a tree of instructions. Lists only grow, so going back to an earlier choice is cutting them."""

    def __init__(self, flow: Dataflow, patterns: PatternSet, classes: Classes) -> None:
        """``classes``: operators by the class name that patterns have for them."""
        self.flow = flow
        self.view = View(flow, patterns.conventions, patterns.roles, overridable=patterns.overridable)
        self.named: dict[str, list[str]] = {}  # operator -> what patterns call it
        for name, roles in classes.items():
            for role in roles:
                self.named.setdefault(role, []).append(name)
        self.values: dict[int, int] = {}  # by register
        self.ops: list[tuple[int, Op]] = []  # (register, its writer)
        self.passed: list[Op] = []  # seen through, or a second copy
        self.numbers: list[tuple[str, float | None]] = []
        self.attributes: list[tuple[object, object]] = []

    def at(self, anchor: Op, tree: Branch) -> Match | None:
        """The match whose search starts at an operator."""
        self.values = {0: anchor.outputs[0]}
        self._cut((0, 0, 0, 0))
        return self._follow(tree)

    def _follow(self, branch: Branch) -> Match | None:
        """The first match in a dataflow along a branch, preferred instructions first; None where all of them fail."""
        for instruction, after in branch.instructions.items():
            if (match := self._carried_out(instruction, after)) is not None:
                return match
        return self._match(branch.found) if branch.found is not None else None

    def _match(self, found: Found) -> Match:
        """The match with its operators in the pattern's order, and what was passed on the way."""
        pattern = found.pattern
        nodes = {found.names[register]: op for register, op in self.ops}
        ordered = [nodes[node.output] for node in pattern.nodes if node.output in nodes]
        behind = self.view.casts_behind(nodes[found.end]) if found.end != pattern.ends[-1] else ()
        return Match(
            pattern,
            nodes[found.end],
            {name: self.values[register] for register, name in enumerate(found.names)},
            nodes,
            tuple({op.id: op for op in (*ordered, *self.passed, *behind)}.values()),
            dict(self.numbers),
            {str(name): value for name, value in self.attributes},
        )

    # -- one instruction ----------------------------------------------------------------------------------------------

    def _carried_out(self, instruction: Instruction, after: Branch) -> Match | None:
        """The match that one of the ways to carry out an instruction leads to."""
        mark = len(self.ops), len(self.passed), len(self.numbers), len(self.attributes)
        for op, chain in self._candidates(instruction):
            choices = instruction.choices.get(op.role) or self._by_class(instruction, op)
            for alternative, operands in choices if len(op.outputs) == 1 else ():
                self.passed += chain
                if self._bind(op, alternative, operands):
                    if instruction.result != instruction.register:
                        self.values[instruction.result] = op.outputs[0]
                    self.ops.append((instruction.result, op))
                    if (match := self._follow(after)) is not None:
                        return match
                self._cut(mark)
        return None

    def _candidates(self, instruction: Instruction) -> list[tuple[Op, tuple[Op, ...]]]:
        """The operators of the dataflow to look at next, each with the casts on the way to it."""
        start = self.values[instruction.register]
        if instruction.result != instruction.register:
            return self._readers(instruction, start, ())
        value, chain = self.view.seen_through(start)
        op = self.flow.writer(value)
        return [] if op is None else [(op, chain)]

    def _by_class(self, instruction: Instruction, op: Op) -> Choices:
        """The next instructions for an operator that patterns call by its list's class ("product"), not by its kind."""
        return [choice for name in self.named.get(op.role, ()) for choice in instruction.choices.get(name, ())]

    def _bind(self, op: Op, alternative: Alternative, operands: tuple[Expected, ...]) -> bool:
        """Whether an operator is the call that a pattern expects; binds its operands."""
        if len(op.inputs) < len(operands):
            return False
        for operand, value in zip(operands, op.inputs, strict=False):
            if value == NONE or not self._fits(operand, value):
                return False
        return not alternative.attributes or all(self._attribute(op, attribute) for attribute in alternative.attributes)

    def _fits(self, operand: Expected, value: int) -> bool:
        """Whether a value of the dataflow is what a pattern's operand has to be; binds the name where it is new."""
        origin, chain = self.view.seen_through(value)
        self.passed += chain
        if operand.number is not None:
            number = self.view.number(origin)
            admitted = number is not None and operand.number.admits(number)
            self.numbers.append((operand.label, number if admitted else None))
            return admitted or operand.number.unchecked
        if operand.known:
            copies = self.view.same(origin, self.values[operand.register])
            self.passed += copies or ()
            return copies is not None
        if operand.stored and not self.view.stored(operand.stored, origin):
            return False
        self.values[operand.register] = origin
        return True

    def _attribute(self, op: Op, attribute: Attribute) -> bool:
        """Whether an attribute has the value that a pattern expects, or that its name has; axes also from the front."""
        value = self.view.attribute(op, attribute.name)
        expected = attribute.value
        if attribute.reference:
            known = [v for name, v in self.attributes if name == attribute.value]
            if not known:
                self.attributes.append((attribute.value, value))
                return True
            expected = known[0]
        return value == expected or self.view.from_the_front(op, value) == self.view.from_the_front(op, expected)

    def _readers(self, instruction: Instruction, value: int, chain: tuple[Op, ...]) -> list[tuple[Op, tuple[Op, ...]]]:
        """Where the search for a pattern may go on: all readers, or none where others than the region use the value."""
        work, found = self._uses(instruction, value, chain), list[tuple[Op, tuple[Op, ...]]]()
        while work:
            op, chain = work.pop()
            if op.role in self.view.through and self.view.changes_nothing(op):
                work += self._uses(instruction, op.outputs[0], (*chain, op))
            else:
                found.append((op, chain))
        return found

    def _uses(self, instruction: Instruction, value: int, chain: tuple[Op, ...]) -> list[tuple[Op, tuple[Op, ...]]]:
        """The operators that read a value, the last first, each with the ``chain`` before it."""
        uses, all_ops = self.flow.uses[value], self.flow.ops
        ops = [all_ops[use.op] for use in reversed(uses) if use.op != NONE]
        fits = instruction.readers == ANY or len(uses) == len(ops) == instruction.readers
        return [(op, chain) for op in ops] if fits else []

    def _cut(self, mark: tuple[int, int, int, int]) -> None:
        """Goes back to an earlier choice of the search in a dataflow: forgets what was bound since."""
        ops, passed, numbers, attributes = mark
        del self.ops[ops:], self.passed[passed:], self.numbers[numbers:], self.attributes[attributes:]
