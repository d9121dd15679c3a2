"""What a pattern is: a small graph with names for its parts; some operators may be computed in several ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from .errors import AmpError

DEPTH = 16  # functions within functions: more is a circle
CLOSE = 0.01  # how far from a number "~" lets it be


@dataclass(frozen=True)
class Number:
    """A constant of one element: exactly ``value``, close to it (``~``), or more than it (``>``). ``unchecked``: or
    anything else, which a runtime does not look at."""

    value: float
    relation: str = ""
    unchecked: bool = False

    def admits(self, number: float) -> bool:
        """Whether a number fits ``value`` by ``relation``; ``unchecked`` is the matcher's to look at."""
        if self.relation == ">":
            return number > self.value
        return number == self.value if not self.relation else math.isclose(number, self.value, rel_tol=CLOSE)


STORED = ("vector", "row", "any")
"""Stored tensors: of at most one dimension, of which one dimension is not 1, any."""


@dataclass(frozen=True)
class Attribute:
    """``<name = value>``, or a reference ``@value``: the same wherever it stands in the pattern."""

    name: str
    value: object
    reference: bool = False


@dataclass(frozen=True)
class Call:
    """One operator on named operands. Without operands, any are right."""

    role: str
    operands: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True)
class Node:
    """A value and the calls any of which may compute it."""

    output: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Function:
    """A way to compute what patterns name like an operator."""

    parameters: tuple[str, ...]
    output: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Conventions:
    """What holds for all patterns: operators seen through, operands that swap, attributes that are operands, and the
    attributes that two nodes must share to compute the same."""

    through: frozenset[str] = frozenset()
    commutative: frozenset[str] = frozenset()
    operand_attributes: Mapping[str, int] = field(default_factory=dict)
    identity: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pattern:
    """A way to write a region. ``kind`` is the operator that the region stands for."""

    kind: str
    variant: str
    nodes: tuple[Node, ...]
    anchors: tuple[str, ...]
    ends: tuple[str, ...]
    numbers: Mapping[str, Number]
    stored: Mapping[str, str]  # name -> one of STORED
    private: frozenset[str] = frozenset()  # read by the region alone, as all is that comes after the anchor
    since: int = 0  # the opset from which a region can be written as the operator that it stands for, 0 for never
    fused_only: bool = False  # whether it is a region only where a target makes one kernel of it

    @cached_property
    def writers(self) -> Mapping[str, Node]:
        """The node of every value that the pattern of the search computes."""
        return {node.output: node for node in self.nodes}

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """Values of nodes that have to agree in an attribute, such as the axes of two means."""
        return tuple(n.output for n in self.nodes if any(a.reference for call in n.calls for a in call.attributes))

    @cached_property
    def _sources(self) -> Mapping[str, frozenset[str]]:
        """For the search: the names that each node of the pattern is computed from, itself included."""
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes:
            operands = {name for call in node.calls for name in call.operands}
            found[node.output] = frozenset((node.output, *operands)).union(*(found.get(o, ()) for o in operands))
        return found

    @property
    def anchor(self) -> Node | None:
        """The node at which the search starts: the last one that may, as an earlier Pow could be a square or a root."""
        found = (node for node in reversed(self.nodes) if any(call.role in self.anchors for call in node.calls))
        return next(found, None)

    @property
    def anchor_roles(self) -> tuple[str, ...]:
        """The operators at which the search starts, in this pattern."""
        calls = self.anchor.calls if self.anchor else ()
        return tuple(dict.fromkeys(call.role for call in calls if call.role in self.anchors))

    def above(self, name: str) -> frozenset[str]:
        """For the search: the values that ``name`` is computed from in the pattern, itself included."""
        return self._sources.get(name) or frozenset((name,))


Functions = Mapping[str, tuple[Function, ...]]


def expand(pattern: Pattern, functions: Functions) -> Iterator[Pattern]:
    """A pattern with every function replaced, for matching: ways of one node become calls of it, others patterns."""
    for nodes in _expansions(pattern.nodes, functions, 0):
        yield replace(pattern, nodes=nodes)


def _expansions(nodes: tuple[Node, ...], functions: Functions, depth: int) -> Iterator[tuple[Node, ...]]:
    """For `expand`: all patterns that follow from a choice of the functions' variants; AMP301 where they do not end.
    ``depth``: in how many calls these nodes are."""
    if depth > DEPTH:
        raise AmpError("AMP301", "a function of the patterns calls itself")
    for chosen in product(*(tuple(_nodes_for(node, functions, depth)) for node in nodes)):
        yield tuple(node for part in chosen for node in part)


def _nodes_for(node: Node, functions: Functions, depth: int) -> Iterator[tuple[Node, ...]]:
    """For `expand`: the nodes that may stand for one node of a pattern: itself, unless it calls a function."""
    (call,) = node.calls if len(node.calls) == 1 else (None,)
    if call is None or call.role not in functions:
        yield (node,)
        return
    ways = [
        way
        for function in functions[call.role]
        for way in _expansions(_renamed(function, call, node.output), functions, depth + 1)
    ]
    single = tuple(call for way in ways if len(way) == 1 for call in way[0].calls)
    if single:
        yield (Node(node.output, single),)
    yield from (way for way in ways if len(way) > 1)


def _renamed(function: Function, call: Call, output: str) -> tuple[Node, ...]:
    """For `expand`: a function's nodes under the caller's names; its own values are called after the caller's."""
    names = {**dict(zip(function.parameters, call.operands, strict=True)), function.output: output}
    inner = {node.output for node in function.nodes} - names.keys()
    names |= {name: f"{output}.{name}" for name in inner}
    return tuple(
        Node(
            names[node.output],
            tuple(replace(c, operands=tuple(names.get(o, o) for o in c.operands)) for c in node.calls),
        )
        for node in function.nodes
    )
