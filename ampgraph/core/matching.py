"""Finds patterns in a dataflow, looking through what changes nothing. A pattern becomes instructions, each of which
goes from a value that is *bound* (to a name of the pattern) to an operator that reads or makes it, and binds the rest.

A *register* is the number of a name of the pattern, in the order in which names are bound; 0 is the anchor's result,
at which the search starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile
from typing import NamedTuple

from .dataflow import FLOAT32, NONE, Dataflow, Op
from .patterns import Attribute, Call, Conventions, Node, Number, Pattern
from .walk import sole_readers

ANY = 0  # in the place of a number of uses: any number
TWICE = 4  # how many nodes in a row may stand twice in a model that computes the same value twice


@dataclass(frozen=True)
class Expected:
    """What must stand in one operand of a call: a number, a value that is bound already (``known``), or any value,
    which is bound then; a tensor of the sort ``stored`` (one of STORED) if that is not ""."""

    register: int  # of the operand's name; -1 for a number
    known: bool = False
    number: Number | None = None
    label: str = ""  # a number's name in the pattern
    stored: str = ""


@dataclass(frozen=True)
class Alternative:
    """One call that an instruction allows, with what its operands must be."""

    role: str  # an operator, or the name that patterns have for a class of operators
    operands: tuple[Expected, ...]
    attributes: tuple[Attribute, ...]
    swaps: bool = False  # the operands in the other order are as good


Choices = Sequence[tuple[Alternative, tuple[Expected, ...]]]
"""Calls to try, each with its operands in the order to try."""


@dataclass(frozen=True)
class Instruction:
    """A step of a search: from the value in ``register`` to the operator that makes it, or where ``result`` is another
    register, to one that reads it, whose result goes there. It binds the operator's operands.

    ``readers``: how many uses the value must have where the step goes to a reader, or ANY.
    """

    register: int
    result: int
    alternatives: tuple[Alternative, ...]
    readers: int = ANY

    @cached_property
    def choices(self) -> Mapping[str, Choices]:
        """Of the search for a pattern: by operator the calls to try, one whose operands swap in both orders."""
        found: dict[str, list[tuple[Alternative, tuple[Expected, ...]]]] = {}
        for alternative in self.alternatives:
            orders = found.setdefault(alternative.role, [])
            orders.append((alternative, alternative.operands))
            if alternative.swaps:
                orders.append((alternative, alternative.operands[::-1]))
        return found


@dataclass
class Branch:
    """A place in a tree of instructions: those that go on, the preferred ones first, else what is ``found``."""

    instructions: dict[Instruction, Branch] = field(default_factory=dict)
    found: Found | None = None


@dataclass(frozen=True)
class Found:
    """What a finished row of instructions is a match of: ``pattern`` up to its value ``end``, one of its ends.
    ``names``: the names that are bound then, in the order of their registers."""

    pattern: Pattern
    end: str
    names: tuple[str, ...]


def pattern_tree(patterns: Iterable[Pattern], conventions: Conventions) -> Branch:
    """For matching: the instructions of patterns that start at one operator as a tree; of equal ones the first
    counts."""
    tree = Branch()
    for pattern in patterns:
        branch = tree
        for instruction, found in _PatternCompiler(pattern, conventions).run():
            branch = branch.instructions.setdefault(instruction, Branch())
            branch.found = branch.found or found
    return tree


class _PatternCompiler:
    """Orders the nodes of one pattern as instructions, from its anchor to each end: what can fail early comes first. It
    is run once, as it keeps what is bound so far: ``registers`` of names, and ``done``, the nodes found."""

    def __init__(self, pattern: Pattern, conventions: Conventions) -> None:
        self.pattern, self.writers, self.commutative = pattern, pattern.writers, conventions.commutative
        self.anchor = pattern.anchor.output if pattern.anchor else ""
        self.registers = {self.anchor: 0}
        self.done = {self.anchor}

    def run(self) -> Iterator[tuple[Instruction, Found | None]]:
        """A pattern as the instructions of its search in a dataflow, each with what is found once it is carried out:
        the pattern up to an end, or None."""
        instructions = [self._writer_step(self.writers[self.anchor])]
        for end in (end for end in self.pattern.ends if end in self.writers):
            instructions += self._steps_to(end)
            yield from ((instruction, None) for instruction in instructions[:-1])
            yield instructions[-1], Found(self.pattern, end, tuple(self.registers))
            instructions = []

    def _steps_to(self, end: str) -> Iterator[Instruction]:
        """For matching: instructions that lead from the nodes found so far to one end of the region; of those that can
        be next the one with most constants, then one that reads what is found."""
        needed = self.pattern.ancestors(end)
        waiting = [node for node in self.pattern.nodes if node.output in needed - self.done]
        while waiting:
            reachable = [n for n in waiting if n.output in self.registers or self._found_operand(n)]
            node = max(reachable, key=lambda n: (self._constant_count(n), n.output not in self.registers))
            self.done.add(node.output)
            waiting.remove(node)
            yield self._writer_step(node) if node.output in self.registers else self._reader_step(node, end)

    def _constant_count(self, node: Node) -> int:
        """For the order of a search, to fail early: how many constants, which are rare, a node reads at least."""
        return min(sum(name in self.pattern.numbers for name in call.operands) for call in node.calls)

    def _writer_step(self, node: Node) -> Instruction:
        """For matching: the instruction that goes to a node whose result is bound already."""
        register = self.registers[node.output]
        return Instruction(register, register, self._alternatives(node))

    def _reader_step(self, node: Node, end: str) -> Instruction:
        """For matching: the instruction that goes to a node from an operand, on the way to ``end``; binds its
        result."""
        operand, alternatives = self._found_operand(node), self._alternatives(node)
        result = self.registers.setdefault(node.output, len(self.registers))
        return Instruction(self.registers[operand], result, alternatives, self._expected_uses(operand, end))

    def _found_operand(self, node: Node) -> str:
        """For matching: an operand of the node that is found already, at or behind the anchor; "" for none."""
        for name in chain.from_iterable(call.operands for call in node.calls):
            if name in self.done and self.anchor in self.pattern.ancestors(name):
                return name
        return ""

    def _expected_uses(self, name: str, end: str) -> int:
        """For matching: how many uses a value must have, that none is outside of the region: as many as the region has
        of it on its way to ``end``. ANY for the anchor's result, unless that is private to the region."""
        if name == self.anchor and name not in self.pattern.private:
            return ANY
        nodes = (self.writers[n] for n in self.pattern.ancestors(end) if n in self.writers)
        return sum(max(call.operands.count(name) for call in node.calls) for node in nodes)

    def _alternatives(self, node: Node) -> tuple[Alternative, ...]:
        """For matching: the calls any of which may compute a node; each binds names by itself."""
        known = frozenset(self.registers)
        return tuple(self._alternative(call, set(known)) for call in node.calls)

    def _alternative(self, call: Call, known: set[str]) -> Alternative:
        """One call of an operator as the search in a dataflow tries it; two operands of one that is commutative are
        tried in both orders. ``known``: names that are bound before; the operands' names are added."""
        operands = tuple(self._operand(name, known) for name in call.operands)
        swaps = len(operands) == 2 and call.role in self.commutative and call.operands[0] != call.operands[1]
        return Alternative(call.role, operands, call.attributes, swaps)

    def _operand(self, name: str, known: set[str]) -> Expected:
        """For matching: what an operand must be: a number, a ``known`` name's value, or anything, which binds the
        name."""
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
    """A pattern that was found. ``result`` is the operator that makes the region's result; ``parts`` are the values and
    ``nodes`` the operators by the pattern's names; ``ops`` has those operators in the pattern's order, then casts that
    were looked through and second copies; ``numbers`` are by name, None where something else stands in the place of one
    that is not checked; ``attributes`` are by the names of references."""

    pattern: Pattern
    result: Op
    parts: Mapping[str, int]
    nodes: Mapping[str, Op]
    ops: tuple[Op, ...]
    numbers: Mapping[str, float | None]
    attributes: Mapping[str, object]


class PatternSet:
    """Patterns that are searched together in a dataflow, the preferred ones first. ``overridable``: as in a `View`."""

    def __init__(self, patterns: Sequence[Pattern], conventions: Conventions, *, overridable: bool = True) -> None:
        self.patterns, self.conventions, self.overridable = tuple(patterns), conventions, overridable
        self.roles = frozenset(call.role for p in patterns for node in p.nodes for call in node.calls)
        self._by_anchor: dict[str, list[Pattern]] = {}
        for pattern in patterns:
            for role in pattern.anchor_roles:
                self._by_anchor.setdefault(role, []).append(pattern)
        self._trees: dict[str, Branch] = {}

    def find(self, flow: Dataflow, classes: Classes | None = None) -> Iterator[Match]:
        """Every match in a dataflow, in the order of the anchors' nodes; of several at one anchor the first pattern's.

        ``classes``: the operators that patterns call by the name of a class."""
        classes = classes or {}
        matcher = Matcher(flow, self, classes)
        anchors = self._anchors(classes)
        required: dict[str, frozenset[str]] = {}  # of anchors that the model has: their trees are made when asked for
        for op in flow.with_roles(anchors):
            if not op.slots:
                continue
            anchor = anchors[op.role]
            if anchor not in required:
                required[anchor] = self._required_readers(anchor, classes)
            readers = [reader.role for reader in flow.readers(op.outputs[0])]
            if required[anchor] and required[anchor].isdisjoint(readers):
                continue
            match = matcher.match_at(op, self._tree(anchor))
            if match is not None:
                yield match

    def _tree(self, anchor: str) -> Branch:
        """The instructions of all patterns with this anchor as one tree: what they share at first is tried once."""
        if anchor not in self._trees:
            self._trees[anchor] = pattern_tree(self._by_anchor[anchor], self.conventions)
        return self._trees[anchor]

    def _required_readers(self, anchor: str, classes: Classes) -> frozenset[str]:
        """The operators one of which must read the anchor's result for any pattern to match. Empty where that cannot be
        said: a pattern ends there, its second step goes elsewhere, or to a class."""
        roles = set(self.conventions.through)
        for after in self._tree(anchor).instructions.values():
            if after.found is not None or any(step.register or not step.result for step in after.instructions):
                return frozenset()
            roles |= {alternative.role for step in after.instructions for alternative in step.alternatives}
        return frozenset() if not roles.isdisjoint(classes) else frozenset(roles)

    def _anchors(self, classes: Classes) -> dict[str, str]:
        """Operator at which a search starts -> the name that patterns have for it: its own, or its class's."""
        named = {role: name for name in classes for role in classes[name] if name in self._by_anchor}
        return {role: role for role in self._by_anchor if role not in classes} | named


class View:
    """Reads a dataflow by the conventions of patterns. ``roles``: the operators that patterns speak of;
    ``overridable``: whether an input with a stored default counts as stored too."""

    def __init__(
        self, flow: Dataflow, conventions: Conventions, roles: Collection[str], *, overridable: bool = True
    ) -> None:
        self.flow, self.conventions, self.roles, self.through = flow, conventions, roles, conventions.through
        self.overridable = overridable

    def look_through(self, value: int) -> tuple[int, tuple[Op, ...]]:
        """For matching: (the value before Casts and identities that change nothing, these, the last first)."""
        passed: tuple[Op, ...] = ()
        values, ops, through = self.flow.values, self.flow.ops, self.through
        producer = values[value].producer
        while producer != NONE and ops[producer].role in through and self.changes_nothing(ops[producer]):
            passed += (ops[producer],)
            value = ops[producer].inputs[0]
            producer = values[value].producer
        return value, passed

    def changes_nothing(self, op: Op) -> bool:
        """For matching: whether an operator hands its float32 operand on as it is (Identity, a Cast to float32)."""
        values = self.flow.values
        if op.role not in self.through:
            return False
        return values[op.inputs[0]].dtype == values[op.outputs[0]].dtype == FLOAT32

    def casts_behind(self, op: Op) -> Iterator[Op]:
        """For matching: Casts and identities behind an operator, one after the other, as long as each alone reads."""
        readers = (reader for _, reader in sole_readers(self.flow, op))
        return takewhile(self.changes_nothing, readers)

    def number(self, value: int) -> float | None:
        """For matching: the number in a stored tensor of one element; None for any other value."""
        return self.flow.scalar(value, overridable=self.overridable)

    def is_stored(self, sort: str, value: int) -> bool:
        """For matching: whether a value is a stored tensor of a sort (STORED); if ``overridable``, a default too."""
        item = self.flow.values[value]
        if not (item.weight or (self.overridable and item.default)):
            return False
        shape = self.flow.shape(value) or ()
        if sort == "vector":
            return len(shape) <= 1
        return sort == "any" or sum(dim != 1 for dim in shape) <= 1

    def attribute(self, op: Op, name: str) -> object:
        """For matching: an attribute, or the numbers in the stored operand that later versions have in its place; a
        list as a tuple. None where there is neither; ("computed", value) for an operand that is not stored."""
        value: object = self.flow.attribute(op, name)
        place = self.conventions.operand_attributes.get(name, NONE)
        if value is None and NONE < place < len(op.inputs) and op.inputs[place] != NONE:
            item = self.flow.values[op.inputs[place]]
            array = self.flow.weights.array(item) if item.weight else None
            value = ("computed", item.id) if array is None else array.reshape(-1).tolist()
        return tuple(value) if isinstance(value, (list, tuple)) else value

    def axes_from_front(self, op: Op, axes: object) -> object:
        """For matching: a tuple of axes counted from the front where the first operand's rank is known; else
        ``axes``."""
        if not isinstance(axes, tuple) or not all(isinstance(axis, int) for axis in axes):
            return axes
        shape = self.flow.shape(op.inputs[0])
        return axes if shape is None else tuple(axis % max(len(shape), 1) for axis in axes)

    def same_computation(self, value: int, other: int, depth: int = 0) -> tuple[Op, ...] | None:
        """For matching: the operators that compute two values alike (both copies of each; none for one and the same
        value), or None where the values may differ. ``depth``: how many in a row stand twice so far."""
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
            if a != b:
                before = self.same_computation(self.look_through(a)[0], self.look_through(b)[0], depth + 1)
                if before is None:
                    return None
                copies += before
        return copies


Candidate = tuple[Op, tuple[Op, ...]]
"""An operator to try, and the Casts and identities that were looked through on the way to it."""


class Matcher:
    """Walks through trees of instructions, one anchor after the other. Lists only grow, so going back to an earlier
    choice is cutting them; ``values`` keeps what failed tries bound, but is written before it is read."""

    def __init__(self, flow: Dataflow, patterns: PatternSet, classes: Classes) -> None:
        """``classes``: operators by the name that patterns have for their class."""
        self.flow = flow
        self.view = View(flow, patterns.conventions, patterns.roles, overridable=patterns.overridable)
        self.named: dict[str, list[str]] = {}  # operator -> what patterns call it
        for name, roles in classes.items():
            for role in roles:
                self.named.setdefault(role, []).append(name)
        self.values: dict[int, int] = {}  # register -> value
        self.ops: list[tuple[int, Op]] = []  # (register, the operator that makes its value)
        self.passed: list[Op] = []  # looked through, or a second copy
        self.numbers: list[tuple[str, float | None]] = []  # (name, number)
        self.attributes: list[tuple[object, object]] = []  # (name of a reference, attribute)

    def match_at(self, anchor: Op, tree: Branch) -> Match | None:
        """The match in a dataflow that starts at an operator, or None. ``tree``: of the patterns that start there."""
        self.values = {0: anchor.outputs[0]}
        self._forget_since((0, 0, 0, 0))
        return self._follow(tree)

    def _follow(self, branch: Branch) -> Match | None:
        """The first match in a dataflow along a branch: by its instructions, else of what is found at it, or None."""
        for instruction, after in branch.instructions.items():
            match = self._carry_out(instruction, after)
            if match is not None:
                return match
        return self._match(branch.found) if branch.found is not None else None

    def _match(self, found: Found) -> Match:
        """The match of what is bound now: its operators in the pattern's order, then what was passed on the way, and
        behind an end that is not the pattern's last the casts that follow."""
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

    def _carry_out(self, instruction: Instruction, after: Branch) -> Match | None:
        """The first match in a dataflow that carrying out an instruction and then following ``after`` leads to; None,
        and all forgotten that was bound for it, where every operator and call fails."""
        mark = len(self.ops), len(self.passed), len(self.numbers), len(self.attributes)
        for op, passed in self._candidates(instruction):
            choices = instruction.choices.get(op.role) or self._choices_by_class(instruction, op)
            for alternative, operands in choices if len(op.outputs) == 1 else ():
                self.passed += passed
                if self._bind(op, alternative, operands):
                    if instruction.result != instruction.register:
                        self.values[instruction.result] = op.outputs[0]
                    self.ops.append((instruction.result, op))
                    match = self._follow(after)
                    if match is not None:
                        return match
                self._forget_since(mark)
        return None

    def _candidates(self, instruction: Instruction) -> list[Candidate]:
        """The operators of the dataflow to look at next, each with the casts on the way to it."""
        start = self.values[instruction.register]
        if instruction.result != instruction.register:
            return self._readers(instruction, start)
        value, passed = self.view.look_through(start)
        op = self.flow.writer(value)
        return [] if op is None else [(op, passed)]

    def _choices_by_class(self, instruction: Instruction, op: Op) -> Choices:
        """The calls to try for an operator that patterns call by the name of a class ("product"), not by its own."""
        return [choice for name in self.named.get(op.role, ()) for choice in instruction.choices.get(name, ())]

    def _bind(self, op: Op, alternative: Alternative, operands: tuple[Expected, ...]) -> bool:
        """Whether an operator of the dataflow is the call that a pattern expects, with ``operands`` in this order;
        binds them. A try that fails may have bound some, which `_forget_since` takes back."""
        if len(op.inputs) < len(operands):
            return False
        for operand, value in zip(operands, op.inputs, strict=False):
            if value == NONE or not self._fits(operand, value):
                return False
        return all(self._fits_attribute(op, attribute) for attribute in alternative.attributes)

    def _fits(self, operand: Expected, value: int) -> bool:
        """Whether a value of the dataflow is what a pattern's operand has to be; binds it, notes numbers and casts."""
        origin, passed = self.view.look_through(value)
        self.passed += passed
        if operand.number is not None:
            number = self.view.number(origin)
            admitted = number is not None and operand.number.admits(number)
            self.numbers.append((operand.label, number if admitted else None))
            return admitted or operand.number.unchecked
        if operand.known:
            copies = self.view.same_computation(origin, self.values[operand.register])
            self.passed += copies or ()
            return copies is not None
        if operand.stored and not self.view.is_stored(operand.stored, origin):
            return False
        self.values[operand.register] = origin
        return True

    def _fits_attribute(self, op: Op, attribute: Attribute) -> bool:
        """Whether an attribute of an operator has the value that a pattern expects, axes also counted from the front.
        The first one that a reference's name stands for fits, and is bound to it."""
        value = self.view.attribute(op, attribute.name)
        expected = attribute.value
        if attribute.reference:
            known = dict(self.attributes)
            if attribute.value not in known:
                self.attributes.append((attribute.value, value))
                return True
            expected = known[attribute.value]
        return value == expected or self.view.axes_from_front(op, value) == self.view.axes_from_front(op, expected)

    def _readers(self, instruction: Instruction, value: int) -> list[Candidate]:
        """Where the search for a pattern may go on from a value: the operators that read it, directly or through casts
        that change nothing; without those of a value that others than the region use too."""
        work, found = self._direct_readers(instruction, value, ()), list[Candidate]()
        while work:
            op, passed = work.pop()
            if self.view.changes_nothing(op):
                work += self._direct_readers(instruction, op.outputs[0], (*passed, op))
            else:
                found.append((op, passed))
        return found

    def _direct_readers(self, instruction: Instruction, value: int, passed: tuple[Op, ...]) -> list[Candidate]:
        """The operators that read a value directly, the last first, each with ``passed``, the casts on the way to the
        value; none where it has not the uses that the instruction expects, an output of the graph being one."""
        uses, all_ops = self.flow.uses[value], self.flow.ops
        ops = [all_ops[use.op] for use in reversed(uses) if use.op != NONE]
        fits = instruction.readers == ANY or len(uses) == len(ops) == instruction.readers
        return [(op, passed) for op in ops] if fits else []

    def _forget_since(self, mark: tuple[int, int, int, int]) -> None:
        """Goes back to an earlier choice of the search in a dataflow: forgets what was bound since. ``mark``: how long
        ``ops``, ``passed``, ``numbers`` and ``attributes`` were then."""
        ops, passed, numbers, attributes = mark
        del self.ops[ops:], self.passed[passed:], self.numbers[numbers:], self.attributes[attributes:]
