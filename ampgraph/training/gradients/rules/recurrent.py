"""What LSTM, GRU and RNN share: their directions, and gradients of weights that all steps share.

All gates are computed again, for all steps at once, from X and Y; what is left of the backward for each step is a
multiplication of a row by numbers that are known, and one by R. That goes through the steps backwards in one Scan, so
that the number of nodes does not depend on their number. The notation is that of ONNX: X [T, B, I], W [D, k H, I],
R [D, k H, H], B [D, 2 k H], Y [T, D, B, H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..builder import Builder
from ..registry import Unsupported, attribute, gradient, operand
from ..scans import scan

Value = ir.Value
Gradient = ir.Value | None

KEEP = "a recurrence: what one step rounds goes through all that are before it"


@dataclass(frozen=True)
class Direction:
    """One direction of a recurrent node, forwards in time or backwards, and the gradients of its outputs."""

    b: Builder
    node: ir.Node
    number: int
    backwards: bool
    gates: int  # k

    @property
    def hidden(self) -> int:
        return int(attribute(self.node, "hidden_size"))

    @property
    def x(self) -> Value:
        return operand(self.node)

    def part(self, index: int) -> Value | None:
        """Of an input that has one for each direction, that of this one; None where it is left out."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else self.own(value, 0)

    def own(self, value: Value, axis: int) -> Value:
        made = self.b.op("Gather", value, self.b.constant(np.array(self.number, np.int64)), axis=axis)
        dims = list(value.shape or ())
        return self.b.typed(made, value.dtype or self.kind, *dims[:axis], *dims[axis + 1 :]) if dims else made

    @property
    def kind(self) -> ir.DataType:
        return self.x.dtype or ir.DataType.FLOAT

    def zeros(self) -> Value:
        """[B, H]."""
        size = self.b.op("Concat", self.b.size(self.x, 1), self.b.ints(self.hidden), axis=0)
        made = self.b.op("Expand", self.b.number(0, self.x), size)
        return self.b.typed(made, self.kind, *self.row())

    def row(self) -> list[int | ir.SymbolicDim]:
        return [list(self.x.shape or ())[1], self.hidden]

    def rows(self, value: Value, gates: int = 1) -> Value:
        """The value, known as [T, B, gates H]."""
        return self.b.typed(value, self.kind, *list(self.x.shape or ())[:2], gates * self.hidden)

    def weight(self, index: int) -> Value:
        """W or R, which no node leaves out."""
        found = self.part(index)
        assert found is not None
        return found

    def state(self, index: int) -> Value:
        """An initial state, zeros where it is left out."""
        found = self.part(index)
        return self.zeros() if found is None else self.b.typed(found, self.kind, *self.row())

    def slopes(self, gradients: Sequence[Gradient], index: int) -> Value:
        """The gradient of an output: Y by step [T, B, H], a last state [B, H]; zeros where nothing flows back."""
        g = gradients[index] if index < len(gradients) else None
        if index:
            return self.zeros() if g is None else self.b.typed(self.own(g, 0), self.kind, *self.row())
        return self.rows(self.b.zeros(self.after()) if g is None else self.own(g, 1))

    def after(self) -> Value:
        """Y of this direction [T, B, H]."""
        dims = list(self.x.shape or ())
        sides = 2 if attribute(self.node, "direction", "forward") == "bidirectional" else 1
        whole = self.b.output(self.node, 0, self.kind, ir.Shape([dims[0], sides, dims[1], self.hidden]))
        return self.rows(self.own(whole, 1))

    def before(self, first: Value) -> Value:
        """What each step found as its state [T, B, H]: Y, one step later in the order of this direction."""
        b, start = self.b, self.b.op("Unsqueeze", first, self.b.ints(0))
        span = (b.ints(1), b.ints(2**62)) if self.backwards else (b.ints(0), b.ints(-1))
        others = b.op("Slice", self.after(), *span, b.ints(0))
        pair = (others, start) if self.backwards else (start, others)
        return self.rows(b.op("Concat", *pair, axis=0))

    def products(self, x: Value, weight: Value) -> Value:
        """x weight^T for all steps."""
        return self.b.op("MatMul", x, self.b.op("Transpose", weight, perm=[1, 0]))

    def sums(self, x: Value, weight: int, bias: int) -> Value:
        """What all gates get from x, and from one half of the biases: [T, B, k H]."""
        made, both = self.products(x, self.weight(weight)), self.biases()
        return self.rows(made if both is None else self.b.op("Add", made, both[bias]), self.gates)

    def biases(self) -> tuple[Value, Value] | None:
        """That of X and that of the state, each [k H]."""
        both = self.part(3)
        if both is None:
            return None
        half = self.gates * self.hidden
        one, other = self.b.ops("Split", 2, both, self.b.ints(half, half), axis=0)
        return one, other

    def shared(self, of_gates: Value, inputs: Value, gates: int = 0) -> Value:
        """The gradient of a weight, [1, k H, size of an input], from those of its gates [T, B, k H]."""
        b, size = self.b, self.b.ints(-1, (gates or self.gates) * self.hidden)
        flat = b.op("Transpose", b.op("Reshape", of_gates, size), perm=[1, 0])
        width = self.width(inputs)
        return b.op("Unsqueeze", b.op("MatMul", flat, b.op("Reshape", inputs, width)), b.ints(0))

    def width(self, value: Value) -> Value:
        """A shape with as many columns as the value's last axis has elements."""
        known = self.b.dim(value, 2)
        return (
            self.b.op("Concat", self.b.ints(-1), self.b.size(value, 2), axis=0)
            if known is None
            else self.b.ints(-1, known)
        )

    def added(self, of_x: Value, of_state: Value) -> Value:
        """The gradient of both biases, [1, 2 k H]."""
        with self.b.float32(KEEP):
            sums = [self.b.sum(value, (0, 1), keep=False) for value in (of_x, of_state)]
            return self.b.op("Unsqueeze", self.b.op("Concat", *sums, axis=0), self.b.ints(0))


@dataclass(frozen=True)
class SideGradients:
    """The gradients that one direction brings: of its gates, of R, and of its first states [B, H]."""

    of_x: Value  # the gates as they depend on X W^T and its bias [T, B, k H]
    of_state: Value  # the gates as they depend on the state [T, B, k H]
    recurrence: Value  # R [1, k H, H]
    states: list[Value]


Backward = Callable[[Direction, Sequence[Gradient]], SideGradients]


def recurrent(
    b: Builder, node: ir.Node, gradients: Sequence[Gradient], gates: int, backward: Backward
) -> list[Gradient]:
    """The gradients of X, W, R, B and the initial states, from those of each direction."""
    _refuse(node)
    way = attribute(node, "direction", "forward")
    sides = (False, True) if way == "bidirectional" else (way == "reverse",)
    x, parts = operand(node), list[list[Value]]()
    if x.shape is None:
        raise ValueError(f"the rank of '{x.name}' is not known")
    for number, backwards in enumerate(sides):
        side = Direction(b, node, number, backwards, gates)
        found = backward(side, gradients)
        made = [b.op("MatMul", found.of_x, side.weight(1)), side.shared(found.of_x, x), found.recurrence]
        made.append(side.added(found.of_x, found.of_state))
        parts.append(made + [b.op("Unsqueeze", state, b.ints(0)) for state in found.states])
    total = parts[0][0] if len(parts) == 1 else b.op("Add", parts[0][0], parts[1][0])
    joined = [b.op("Concat", *pair, axis=0) if len(parts) > 1 else pair[0] for pair in zip(*parts, strict=True)][1:]
    weights, bias, states = joined[:2], joined[2], joined[3:]
    slopes: list[Gradient] = [total, *weights, bias, None, *states]
    return [slope if value is not None else None for slope, value in zip(slopes, node.inputs, strict=False)]


def _refuse(node: ir.Node) -> None:
    kind, given = node.op_type, [value is not None for value in node.inputs]
    if len(given) > 4 and given[4]:
        raise Unsupported(f"{kind} with sequence_lens has no gradient here: mask what it gives, or pick the last step")
    if len(given) > 7 and given[7]:
        raise Unsupported(f"{kind} with peepholes has no gradient here")
    for name, usual in (("clip", None), ("layout", 0), ("input_forget", 0)):
        if attribute(node, name, usual) != usual:
            raise Unsupported(f"{kind} with {name} has no gradient here")
    if attribute(node, "activation_alpha") or attribute(node, "activation_beta"):
        raise Unsupported(f"{kind} whose activations have numbers of their own has no gradient here")


def activations(node: ir.Node, number: int, usual: Sequence[str]) -> list[str]:
    """Those of one direction, in small letters."""
    found = attribute(node, "activations") or list(usual) * 2
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in found]
    return [name.lower() for name in names[number * len(usual) : (number + 1) * len(usual)]]


def refuse_activations(node: ir.Node, number: int, usual: Sequence[str]) -> None:
    found = activations(node, number, usual)
    if found != [name.lower() for name in usual]:
        raise Unsupported(f"{node.op_type} with {', '.join(found)} has no gradient here, only with {', '.join(usual)}")


@gradient("RNN")
def rnn(b: Builder, node: ir.Node, *gradients: Gradient) -> list[Gradient]:
    return recurrent(b, node, gradients, 1, _rnn)


def _rnn(side: Direction, gradients: Sequence[Gradient]) -> SideGradients:
    """With d the gradient of h: that of its sum is d f', and R brings it to the step before."""
    b, [name] = side.b, activations(side.node, side.number, ("Tanh",))
    if name not in ("tanh", "relu"):
        raise Unsupported(f"RNN with {name} has no gradient here, only with Tanh and Relu")
    y, weight = side.after(), side.weight(2)
    with b.float32(KEEP):
        if name == "tanh":
            slope = side.rows(b.op("Sub", b.number(1, y), b.op("Mul", y, y)))
        else:
            slope = side.rows(b.op("Cast", b.op("Greater", y, b.number(0, y)), to=int(side.kind)))

    def step(inner: Builder, states: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        [dh], [dy, factor] = states, rows
        made = inner.typed(inner.op("Mul", inner.op("Add", dh, dy), factor), dh)
        return [inner.op("MatMul", made, weight)], [made]

    rows = [side.slopes(gradients, 0), slope]
    states, [made] = scan(b, step, [side.slopes(gradients, 1)], rows, backwards=not side.backwards, reason=KEEP)
    return SideGradients(made, made, side.shared(made, side.before(side.state(5))), states)
