"""Finds patterns in a dataflow, and says of a pattern that is not there at which part the search ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .dataflow import FLOAT32, NONE, Dataflow, Op
from .pattern_steps import ANY, Branch, Choices, Found, Operand, Option, Step, merge
from .patterns import STORED, Attribute, Conventions, Pattern

Classes = Mapping[str, Collection[str]]
"""What a pattern calls by one name -> the operators that are meant, which only the caller knows."""


TWICE = 4  # how many nodes in a row may stand twice


@dataclass(frozen=True)
class Match:
    """A pattern that is there. ``result`` is the last node; ``parts`` are the values and ``nodes`` the operators by the
    pattern's names; ``ops`` has them in the pattern's order, then casts and second copies that were seen through."""

    pattern: Pattern
    result: Op
    parts: Mapping[str, int]
    nodes: Mapping[str, Op]
    ops: tuple[Op, ...]
    numbers: Mapping[str, float]
    attributes: Mapping[str, object]


@dataclass(frozen=True)
class Mismatch:
    """How far a pattern was followed: the part that is not there, what was expected of it and what stands there."""

    kind: str
    variant: str
    part: str
    expected: str
    found: str
    depth: int = 0  # nodes that were right

    def __str__(self) -> str:
        return f"{self.kind}, {self.variant}: {self.part}: expected {self.expected}, found {self.found}"


class PatternSet:
    """Patterns that are searched together, in order of preference."""

    def __init__(self, patterns: Sequence[Pattern], conventions: Conventions) -> None:
        self.patterns, self.conventions = tuple(patterns), conventions
        self.roles = frozenset(call.role for p in patterns for node in p.nodes for call in node.calls)
        self._by_anchor: dict[str, list[Pattern]] = {}
        for pattern in patterns:
            for role in pattern.anchor_roles:
                self._by_anchor.setdefault(role, []).append(pattern)
        self._trees: dict[str, Branch] = {}

    def find(self, flow: Dataflow, classes: Classes | None = None) -> Iterator[Match]:
        """Every match, in the order of the anchors' nodes; of several at one anchor the first."""
        search = Search(flow, self, classes or {})
        anchors = self._anchors(classes or {})
        for op in flow.ops:
            if op.role in anchors and op.slots and (match := search.at(op, self._tree(anchors[op.role]))) is not None:
                yield match

    def mismatches(self, flow: Dataflow, op: Op, classes: Classes | None = None) -> list[Mismatch]:
        """Why the patterns that start at such an operator are not there, the nearest to a match first. Empty when the
        operator starts no search, or one is there."""
        anchor = self._anchors(classes or {}).get(op.role, "")
        reasons = []
        for pattern in self._by_anchor.get(anchor, ()):
            search = Search(flow, self, classes or {}, pattern)
            if search.at(op, merge([pattern], self.conventions)) is not None:
                return []
            reasons.append(search.farthest)
        return sorted((r for r in reasons if r is not None), key=lambda reason: -reason.depth)

    def _tree(self, anchor: str) -> Branch:
        if anchor not in self._trees:
            self._trees[anchor] = merge(self._by_anchor[anchor], self.conventions)
        return self._trees[anchor]

    def _anchors(self, classes: Classes) -> dict[str, str]:
        """Operator -> what the patterns that start there call it."""
        named = {role: name for name in classes for role in classes[name] if name in self._by_anchor}
        return {role: role for role in self._by_anchor if role not in classes} | named


class Search:
    """One walk through a tree of steps. Lists only grow, so going back to an earlier choice is cutting them."""

    def __init__(
        self, flow: Dataflow, patterns: PatternSet, classes: Classes, explained: Pattern | None = None
    ) -> None:
        self.flow, self.conventions, self.roles = flow, patterns.conventions, patterns.roles
        self.classes, self.explained = classes, explained
        self.farthest: Mismatch | None = None
        self.values: dict[int, int] = {}  # by register
        self.ops: list[tuple[int, Op]] = []  # (register, its writer)
        self.passed: list[Op] = []  # seen through, or a second copy
        self.numbers: list[tuple[str, float]] = []
        self.read: dict[int, float | None] = {}  # numbers by value
        self.attributes: list[tuple[object, object]] = []

    def at(self, anchor: Op, tree: Branch) -> Match | None:
        """The match whose search starts at an operator."""
        self.values = {0: anchor.outputs[0]}
        self._cut((0, 0, 0, 0))
        return self._follow(tree)

    def _follow(self, branch: Branch) -> Match | None:
        for step, after in branch.steps.items():
            for _ in self._ways(step):
                if (match := self._follow(after)) is not None:
                    return match
        return self._match(branch.found) if branch.found is not None else None

    def _match(self, found: Found) -> Match:
        pattern = found.pattern
        nodes = {found.names[register]: op for register, op in self.ops}
        ordered = [nodes[node.output] for node in pattern.nodes if node.output in nodes]
        behind = self._casts_behind(nodes[found.end]) if found.end != pattern.ends[-1] else ()
        return Match(
            pattern,
            nodes[found.end],
            {name: self.values[register] for register, name in enumerate(found.names)},
            nodes,
            tuple({op.id: op for op in (*ordered, *self.passed, *behind)}.values()),
            dict(self.numbers),
            {str(name): value for name, value in self.attributes},
        )

    # -- one step -----------------------------------------------------------------------------------------------------

    def _ways(self, step: Step) -> Iterator[None]:
        """Each way to take a step, bound while the caller looks on from there."""
        mark = len(self.ops), len(self.passed), len(self.numbers), len(self.attributes)
        candidates = self._candidates(step)
        for op, chain in candidates:
            choices = step.choices.get(op.role) or self._by_class(step, op)
            if not choices or len(op.outputs) != 1:
                self._miss(step, op)
                continue
            for option, operands in choices:
                self.passed += chain
                if self._bind(step, op, option, operands):
                    if step.result != step.register:
                        self.values[step.result] = op.outputs[0]
                    self.ops.append((step.result, op))
                    yield
                self._cut(mark)
        if not candidates:
            self._miss(step, None)

    def _candidates(self, step: Step) -> list[tuple[Op, tuple[Op, ...]]]:
        """The operators to look at, each with the casts on the way to it."""
        start = self.values[step.register]
        if step.result != step.register:
            return list(self._readers(step, start, ()))
        value, chain = self._seen_through(start)
        op = self.flow.writer(value)
        return [] if op is None else [(op, chain)]

    def _by_class(self, step: Step, op: Op) -> Choices:
        return [c for name, roles in self.classes.items() if op.role in roles for c in step.choices.get(name, ())]

    def _bind(self, step: Step, op: Op, option: Option, operands: tuple[Operand, ...]) -> bool:
        if len(op.inputs) < len(operands):
            return False
        for operand, value in zip(operands, op.inputs, strict=False):
            if value == NONE or not self._fits(operand, value):
                self._miss_operand(step, operand, value)
                return False
        return not option.attributes or all(self._attribute(step, op, attribute) for attribute in option.attributes)

    def _fits(self, operand: Operand, value: int) -> bool:
        origin, chain = self._seen_through(value)
        self.passed += chain
        if operand.number is not None:
            number = self._number(origin)
            if number is None or not operand.number.admits(number):
                return False
            self.numbers.append((operand.label, number))
            return True
        if operand.known:
            return self._same(origin, self.values[operand.register])
        if operand.stored and not self._stored(operand.stored, origin):
            return False
        self.values[operand.register] = origin
        return True

    def _number(self, value: int) -> float | None:
        """The number in a stored tensor of one element; many nodes share one, and reading takes time."""
        if not self.flow.values[value].weight:
            return None
        if value not in self.read:
            self.read[value] = self.flow.scalar(value)
        return self.read[value]

    def _stored(self, sort: str, value: int) -> bool:
        if not self.flow.values[value].weight:
            return False
        shape = self.flow.shape(value) or ()
        return sort == "any" or (len(shape) if sort == "vector" else sum(dim != 1 for dim in shape)) <= 1

    def _attribute(self, step: Step, op: Op, attribute: Attribute) -> bool:
        value = self._read(op, attribute.name)
        expected = attribute.value
        if attribute.reference:
            known = [v for name, v in self.attributes if name == attribute.value]
            if not known:
                self.attributes.append((attribute.value, value))
                return True
            expected = known[0]
        if value == expected or self._counted(op, value) == self._counted(op, expected):
            return True
        self._note(step, f"{attribute.name} = {expected}", f"{attribute.name} = {value}")
        return False

    def _read(self, op: Op, name: str) -> object:
        """An attribute, or the stored operand that later versions have in its place."""
        value = self.flow.attribute(op, name)
        place = self.conventions.operand_attributes.get(name, NONE)
        if value is None and NONE < place < len(op.inputs) and op.inputs[place] != NONE:
            item = self.flow.values[op.inputs[place]]
            array = self.flow.weights.array(item) if item.weight else None
            value = ("computed", item.id) if array is None else array.reshape(-1).tolist()
        return tuple(value) if isinstance(value, (list, tuple)) else value

    def _counted(self, op: Op, axes: object) -> object:
        """Axes counted from the front, where that is known."""
        if not isinstance(axes, tuple) or not all(isinstance(axis, int) for axis in axes):
            return axes
        shape = self.flow.shape(op.inputs[0])
        return axes if shape is None else tuple(axis % max(len(shape), 1) for axis in axes)

    # -- the dataflow, seen through what changes nothing --------------------------------------------------------------

    def _seen_through(self, value: int) -> tuple[int, tuple[Op, ...]]:
        """The value before no-op casts and identities, and these."""
        chain: tuple[Op, ...] = ()
        values, ops, through = self.flow.values, self.flow.ops, self.conventions.through
        while (producer := values[value].producer) != NONE and ops[producer].role in through:
            if not self._same_type(ops[producer]):
                break
            chain += (ops[producer],)
            value = ops[producer].inputs[0]
        return value, chain

    def _readers(self, step: Step, value: int, chain: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
        """The operators that may come next: all, or none where the value has other uses than the region's."""
        uses = self.flow.uses[value]
        if step.readers != ANY and (len(uses) != step.readers or any(use.op == NONE for use in uses)):
            self._note(step, f"'{self.flow.values[value].name}' read by the region alone", f"{len(uses)} uses")
            return
        for op in self.flow.readers(value):
            if op.role in self.conventions.through and self._same_type(op):
                yield from self._readers(step, op.outputs[0], (*chain, op))
            else:
                yield op, chain

    def _same_type(self, op: Op) -> bool:
        values = self.flow.values
        return values[op.inputs[0]].dtype == values[op.outputs[0]].dtype == FLOAT32

    def _same(self, value: int, other: int, depth: int = 0) -> bool:
        """Whether two values are one, or one node computed twice."""
        if value == other:
            return True
        one, two = self.flow.writer(value), self.flow.writer(other)
        if one is None or two is None or one.role != two.role or one.role not in self.roles or depth == TWICE:
            return False
        same = (
            len(one.inputs) == len(two.inputs)
            and all(self._read(one, name) == self._read(two, name) for name in self.conventions.identity)
            and all(self._same_operand(a, b, depth + 1) for a, b in zip(one.inputs, two.inputs, strict=True))
        )
        if same:
            self.passed += [one, two]
        return same

    def _same_operand(self, one: int, other: int, depth: int) -> bool:
        if one == other or NONE in (one, other):
            return one == other
        return self._same(self._seen_through(one)[0], self._seen_through(other)[0], depth)

    def _casts_behind(self, op: Op) -> Iterator[Op]:
        """No-op casts that alone read what might have gone on: they are the region's."""
        uses = self.flow.uses[op.outputs[0]]
        if len(uses) == 1 and uses[0].op != NONE:
            reader = self.flow.ops[uses[0].op]
            if reader.role in self.conventions.through and self._same_type(reader):
                yield reader
                yield from self._casts_behind(reader)

    # -- going back, and what to say of it ----------------------------------------------------------------------------

    def _cut(self, mark: tuple[int, int, int, int]) -> None:
        ops, passed, numbers, attributes = mark
        del self.ops[ops:], self.passed[passed:], self.numbers[numbers:], self.attributes[attributes:]

    def _miss(self, step: Step, op: Op | None) -> None:
        if self.explained is not None:
            expected = " or ".join(dict.fromkeys(option.role for option in step.options))
            self._note(step, expected, "nothing" if op is None else _described(self.flow, op))

    def _miss_operand(self, step: Step, operand: Operand, value: int) -> None:
        if self.explained is None:
            return
        expected = str(operand.number or STORED.get(operand.stored, "")) or f"'{operand.name}', which is bound"
        name = "nothing" if value == NONE else f"'{self.flow.values[value].name}'"
        self._note(step, f"{operand.name}: {expected}", name)

    def _note(self, step: Step, expected: str, found: str) -> None:
        depth = len(self.ops)
        if self.explained is not None and (self.farthest is None or depth > self.farthest.depth):
            kind, variant = self.explained.kind, self.explained.variant
            self.farthest = Mismatch(kind, variant, step.part, expected, found, depth)


def _described(flow: Dataflow, op: Op) -> str:
    return f"{op.role} '{op.name or flow.values[op.outputs[0]].name}'" if op.outputs else op.role
