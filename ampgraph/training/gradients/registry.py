"""Gradient rules by operator: one declaration each, as in autograd's ``defvjp``.

    @gradient("Mul", broadcasts=True)
    def mul(b, node, g):
        x, y = node.inputs
        return b.op("Mul", g, y), b.op("Mul", g, x)

`gradient` says what a rule gets and returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...core.errors import AmpError
from ...formats.onnx.nodes import attribute, kind_of, place_of
from .builder import Builder, Term

Gradients = Sequence[ir.Value | Term | None] | ir.Value | Term | None
RuleFunction = Callable[..., Gradients]

ALL = range(sys.maxsize)
DETACHED = "ampgraph.detached"
"""The metadata of a node through which nothing flows back, as torch's detach() wants it."""
PADDING = "ampgraph.padding"
"""The metadata of a Gather that names the row that gets no gradient from it: torch's padding_idx."""


class Unsupported(Exception):
    """A form of an operator that its rule has no gradient for; `driver` makes an AmpError AMP210 of it."""


@dataclass(frozen=True)
class GradientRule:
    """The gradient rule of one operator, as `gradient` declares it."""

    kind: str
    function: RuleFunction
    broadcasts: bool = False  # the driver sums its results to the shapes of the inputs
    constant: Container[int] = ()  # inputs that change the outputs in steps only: their gradient is 0 where it exists

    def __call__(self, b: Builder, node: ir.Node, gradients: Sequence[ir.Value | None]) -> list[ir.Value | None]:
        """The gradient of every input of a node by this rule, from those of its outputs; None for none. Raises AmpError
        AMP210 for a rule that returns something else."""
        found = self.function(b, node, *gradients)
        given = list(found) if isinstance(found, (list, tuple)) else [found]
        rows: list[Any] = [row.value if isinstance(row, Term) else row for row in given]
        wrong = next((row for row in rows if row is not None and not isinstance(row, ir.Value)), None)
        if wrong is not None or len(rows) > len(node.inputs):
            message = f"{type(wrong).__name__}" if wrong is not None else f"{len(rows)} for {len(node.inputs)} inputs"
            hint = "a rule returns for each input what b.op(...) returned, or None"
            raise AmpError("AMP210", f"the rule for {self.kind} returned {message}", where=place_of(node), hint=hint)
        return rows + [None] * (len(node.inputs) - len(rows))


_RULES: dict[str, GradientRule] = {}


def gradient(
    *kinds: str, broadcasts: bool = False, constant: Container[int] = ()
) -> Callable[[RuleFunction], RuleFunction]:
    """Declares a rule for operators: ``Mul``, or ``my.domain::Name``. A later declaration replaces an earlier one.

        @ampgraph.gradient("my.domain::Cube")
        def cube(b, node, g):
            [x] = node.inputs
            with b.float32("x * x leaves the range of float16"):
                return b.op("Mul", g, b.op("Mul", b.op("Mul", x, x), b.number(3, x)))

    The function gets a `Builder`, the forward node (an ``onnx_ir.Node``: ``inputs``, ``outputs``, ``attributes``), and
    the gradient of each output, None for one that nothing flows back to. It returns the gradient of each input (one
    value, or a list; None for an input that has none), each of the shape of its input. A None for a float input that a
    trained value reaches is refused when the graph is differentiated.

    ``b.op(kind, *inputs, **attributes)`` adds a node and returns its output; ``b.number``, ``b.ints`` and
    ``b.constant`` make constants, ``b.shape`` and ``b.dim`` give sizes, ``b.sum`` and ``b.reshaped`` do what they say.

    Args:
        broadcasts: the gradients have the shape of the output, and are summed down to that of their input.
        constant: the positions of inputs that change the output in steps only, as a threshold does: None is right.

    Raises:
        AmpError: AMP210 for no operator, or one that is not named.
    """
    for kind in kinds or (None,):
        if not isinstance(kind, str) or not kind or kind.startswith("ai.onnx::"):
            hint = '@ampgraph.gradient("Mul"), or "my.domain::Name"'
            raise AmpError("AMP210", f"a gradient rule is for an operator, not for {kind!r}", hint=hint)

    def declare(function: RuleFunction) -> RuleFunction:
        for kind in kinds:
            _RULES[kind] = GradientRule(kind, function, broadcasts, constant)
        return function

    return declare


def formula_gradient(
    kind: str, formula: Callable[..., Gradients], reason: str = "", *, broadcasts: bool = False, **attributes: float
) -> None:
    """Declares the gradients of an operator by a formula: of the gradient g, the result y and the operands, each a
    `Term`, to the gradient of each operand. ``reason``: why it is computed in float32; "": as the level has it;
    ``attributes``: the node's that the formula takes by name, with their defaults; ``broadcasts`` as in `gradient`."""

    def rule(b: Builder, node: ir.Node, g: ir.Value) -> Gradients:
        given = {name: float(attribute(node, name, default)) for name, default in attributes.items()}
        with b.float32(reason):
            return formula(*b.terms(g, node.outputs[0], *node.inputs), **given)

    gradient(kind, broadcasts=broadcasts)(rule)


def no_gradient(*kinds: str) -> None:
    """Declares operators through which no gradient flows back: comparisons, roundings, shapes."""
    for kind in kinds:
        _RULES[kind] = GradientRule(kind, lambda b, node, *gradients: None, constant=ALL)


def rule_of(node: ir.Node) -> GradientRule | None:
    """The gradient rule of a node's operator, None where it has none."""
    return _RULES.get(kind_of(node))


def kinds() -> Iterator[str]:
    """All operators with a gradient rule by which something flows back, sorted."""
    yield from sorted(kind for kind, rule in _RULES.items() if rule.constant is not ALL)
