"""What a pattern is: a small graph with names for its parts; some operators may be computed in several ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product

from .errors import AmpError

DEPTH = 16  # functions within functions: more is a circle
CLOSE = 0.01  # how far from a number "~" lets it be


@dataclass(frozen=True)
class Number:
    """A constant of one element in a pattern. ``relation``: "" for exactly ``value``, ``~`` for close to it, ``>`` for
    more than it. ``unchecked``: any other constant, or what is none, fits too, as a runtime does not look at it."""

    value: float
    relation: str = ""
    unchecked: bool = False

    def admits(self, number: float) -> bool:
        """Whether a number fits ``value`` by ``relation``. The matcher looks at ``unchecked`` itself."""
        if self.relation == ">":
            return number > self.value
        return number == self.value if not self.relation else math.isclose(number, self.value, rel_tol=CLOSE)


STORED = ("vector", "row", "any")
"""What a stored tensor may have to be: of at most one dimension; of at most one dimension that is not 1; any."""


@dataclass(frozen=True)
class Attribute:
    """``<name = value>`` of a call, or a ``reference`` ``@value``: the same wherever that stands in the pattern."""

    name: str
    value: object
    reference: bool = False


@dataclass(frozen=True)
class Call:
    """One operator (``role``) on named operands. A call without operands fits any."""

    role: str
    operands: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True)
class Node:
    """A value of a pattern, by its name ``output``, and the calls any one of which may compute it."""

    output: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Function:
    """One way to compute what patterns call like an operator: nodes that compute ``output`` from ``parameters``."""

    parameters: tuple[str, ...]
    output: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Conventions:
    """What holds for all patterns: operators that matching looks ``through``, those whose two operands swap
    (``commutative``), attributes that are operands in later versions (name -> place), and the attributes that two nodes
    must share to compute the same (``identity``)."""

    through: frozenset[str] = frozenset()
    commutative: frozenset[str] = frozenset()
    operand_attributes: Mapping[str, int] = field(default_factory=dict)
    identity: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pattern:
    """One way (``variant``) to write a region. ``kind`` is the operator that the region stands for."""

    kind: str
    variant: str
    nodes: tuple[Node, ...]  # in an order in which each reads earlier ones
    anchors: tuple[str, ...]  # operators at which the search may start
    ends: tuple[str, ...]  # values any of which may be the region's result; a later one is preferred
    numbers: Mapping[str, Number]  # name -> the constant that it must be
    stored: Mapping[str, str]  # name -> one of STORED
    private: frozenset[str] = frozenset()  # read by the region alone, as all is that comes after the anchor
    since: int = 0  # the opset from which a region can be written as the operator that it stands for, 0 for never
    fused_only: bool = False  # whether it is a region only where a target makes one kernel of it

    @cached_property
    def writers(self) -> Mapping[str, Node]:
        """The node of every value that the pattern computes, by the value's name."""
        return {node.output: node for node in self.nodes}

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The values of the pattern's nodes that have to agree in an attribute, such as the axes of two means."""
        return tuple(n.output for n in self.nodes if any(a.reference for call in n.calls for a in call.attributes))

    @cached_property
    def _ancestors(self) -> Mapping[str, frozenset[str]]:
        """By name of a node of the pattern, the names of all that it is computed from, itself included."""
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes:
            operands = {name for call in node.calls for name in call.operands}
            found[node.output] = frozenset((node.output, *operands)).union(*(found.get(o, ()) for o in operands))
        return found

    @property
    def anchor(self) -> Node | None:
        """The node where the search starts, or None: the last of an anchor's kind, as an earlier Pow may be a
        square."""
        for node in reversed(self.nodes):
            if any(call.role in self.anchors for call in node.calls):
                return node
        return None

    @property
    def anchor_roles(self) -> tuple[str, ...]:
        """The operators that may stand at the `anchor` of this pattern; none where it has no anchor."""
        calls = self.anchor.calls if self.anchor else ()
        return tuple(dict.fromkeys(call.role for call in calls if call.role in self.anchors))

    def ancestors(self, name: str) -> frozenset[str]:
        """The names of all that a value is computed from in the pattern, itself included."""
        return self._ancestors.get(name) or frozenset((name,))


Functions = Mapping[str, tuple[Function, ...]]
"""The name by which patterns call a function -> the ways to compute it."""


def expand(pattern: Pattern, functions: Functions) -> Iterator[Pattern]:
    """For matching: the patterns without function calls that a pattern stands for. Ways to compute a function by one
    node become alternative calls of that node; each way of several nodes makes a pattern of its own.

    Raises AmpError AMP301 for functions that call themselves."""
    for nodes in _expansions(pattern.nodes, functions, 0):
        yield replace(pattern, nodes=nodes)


def _expansions(nodes: tuple[Node, ...], functions: Functions, depth: int) -> Iterator[tuple[Node, ...]]:
    """For `expand`: the nodes without function calls that a pattern's nodes may become, one tuple for each choice of
    ways to compute the functions. ``depth``: in how many calls they are; AmpError AMP301 beyond `DEPTH`."""
    if depth > DEPTH:
        raise AmpError("AMP301", "a function of the patterns calls itself")
    ways = [tuple(_ways_to_compute(node, functions, depth)) for node in nodes]
    for chosen in product(*ways):
        yield tuple(chain.from_iterable(chosen))


def _ways_to_compute(node: Node, functions: Functions, depth: int) -> Iterator[tuple[Node, ...]]:
    """For `expand`: the rows of nodes that may stand for one node of a pattern. That is the node itself, unless it is
    one call of a function: then one node with all the ways that take a single one as its calls, and each longer way."""
    if len(node.calls) != 1 or node.calls[0].role not in functions:
        yield (node,)
        return
    call = node.calls[0]
    single: list[Call] = []
    longer: list[tuple[Node, ...]] = []
    for function in functions[call.role]:
        for way in _expansions(_inlined_nodes(function, call, node.output), functions, depth + 1):
            if len(way) == 1:
                single += way[0].calls
            else:
                longer.append(way)
    if single:
        yield (Node(node.output, tuple(single)),)
    yield from longer


def _inlined_nodes(function: Function, call: Call, output: str) -> tuple[Node, ...]:
    """For `expand`: a function's nodes for a call of it whose result is ``output``: parameters have the names of the
    call's operands, and values between them the names ``output.NAME``."""
    names = {**dict(zip(function.parameters, call.operands, strict=True)), function.output: output}
    for node in function.nodes:
        names.setdefault(node.output, f"{output}.{node.output}")

    def renamed(call: Call) -> Call:
        return replace(call, operands=tuple(names.get(operand, operand) for operand in call.operands))

    return tuple(Node(names[node.output], tuple(map(renamed, node.calls))) for node in function.nodes)
