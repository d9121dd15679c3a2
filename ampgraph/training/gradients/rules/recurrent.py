"""LSTM, GRU and RNN backwards.

All gates are computed again, for all steps at once, from X and Y; what is left of the backward for each step is a
multiplication of a row by numbers that are known, and one by R. That goes through the steps backwards in one Scan, so
that the number of nodes does not depend on their number. The notation is that of ONNX: X [T, B, I], W [D, k H, I],
R [D, k H, H], B [D, 2 k H], Y [T, D, B, H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import FLOAT, Builder, Term
from ..registry import Unsupported, gradient

Value = ir.Value
Gradient = ir.Value | None
Step = Callable[[Builder, list[Term], list[Term]], tuple[list[Term], list[Term]]]

KEEP = "a recurrence: what one step rounds goes through all that are before it"


def scan(
    b: Builder, step: Step, states: Sequence[Value], rows: Sequence[Value], *, backwards: bool
) -> tuple[list[Value], list[Value]]:
    """Adds a Scan of ``step``: the last states, and what every step gives out, stacked in the order of the rows.

    Args:
        step: writes one step with the builder of the body, from the states and one row of each of ``rows``, and returns
            the next states and what is given out. Values of the graph around may be read.
        states: the first ones; rank and type known.
        rows: at least one; their first axis is gone through, from the end if ``backwards``; rank and type known.
    """
    inner = b.body_builder("body")
    olds = [inner.input(value) for value in states]
    each = [inner.input(value, list(value.shape or ())[1:]) for value in rows]
    with inner.float32(KEEP):
        news, outs = step(inner, inner.terms(*olds), inner.terms(*each))
        for value in (one.value for one in (*news, *outs)):
            end = inner.op("Identity", value)  # what is read from around, or twice, gets another name
            inner.graph.outputs.append(end if value.dtype is None else inner.typed(end, value))
    for end, old in zip(inner.graph.outputs, olds, strict=False):
        inner.typed(end, old)
    with b.float32(KEEP):
        found = b.ops(
            "Scan",
            len(news) + len(outs),
            *states,
            *rows,
            body=inner.graph,
            num_scan_inputs=len(rows),
            scan_input_directions=[int(backwards)] * len(rows),
            scan_output_directions=[int(backwards)] * len(outs) or None,
        )
    for value, like in zip(found, states, strict=False):
        b.typed(value, like)
    stacked = found[len(news) :]
    for value, row in zip(stacked, (one.value for one in outs), strict=True):
        if row.dtype is not None and row.shape is not None and rows[0].shape is not None:
            b.typed(value, row.dtype, rows[0].shape[0], *row.shape)
    return found[: len(news)], stacked


@dataclass(frozen=True)
class Direction:
    """One direction of a recurrent node, forwards in time or backwards, and the gradients of its outputs."""

    b: Builder
    node: ir.Node
    number: int
    backwards: bool
    gates: int  # k
    gradients: Sequence[Gradient]

    @property
    def hidden(self) -> int:
        """H, by the attribute that ONNX Runtime demands, though ONNX lets it be left out."""
        return int(attribute(self.node, "hidden_size"))

    @property
    def x(self) -> Value:
        """Gradient of one direction of an LSTM, GRU or RNN: the input, [T, B, I]."""
        return operand(self.node)

    @property
    def kind(self) -> ir.DataType:
        """The type that the node computes in."""
        return self.x.dtype or FLOAT

    def part(self, index: int) -> Value | None:
        """This direction's part of an optional input; None where it is left out."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else self.own(value, 0)

    def own(self, value: Value, axis: int) -> Value:
        """This direction's part of a tensor, whose axis of directions is dropped."""
        made = self.b.op("Gather", value, self.b.int64(self.number), axis=axis)
        dims = list(value.shape or ())
        return self.b.typed(made, value.dtype or self.kind, *dims[:axis], *dims[axis + 1 :]) if dims else made

    def state(self, index: int, found: Value | None = None) -> Value:
        """An initial state, or one that is given, [B, H]; zeros where it is left out."""
        found = self.part(index) if found is None and index else found
        if found is None:
            size = self.b.op("Concat", self.b.size(self.x, 1), self.b.ints(self.hidden), axis=0)
            found = self.b.op("Expand", self.b.number(0, self.x), size)
        return self.b.typed(found, self.kind, list(self.x.shape or ())[1], self.hidden)

    def rows(self, value: Value | Term, gates: int = 1) -> Term:
        """Declares a value as rows of all steps, [T, B, gates H]."""
        value = value.value if isinstance(value, Term) else value
        self.b.typed(value, self.kind, *list(self.x.shape or ())[:2], gates * self.hidden)
        return Term(self.b, value, value)

    def weight(self, index: int) -> Value:
        """W or R, which no node leaves out."""
        found = self.part(index)
        assert found is not None
        return found

    def slopes(self, index: int) -> Value:
        """The gradient of an output: Y by step [T, B, H], a last state [B, H]; zeros where nothing flows back."""
        g = self.gradients[index] if index < len(self.gradients) else None
        if index:
            return self.state(0, None if g is None else self.own(g, 0))
        return self.rows(self.b.zeros(self.after().value) if g is None else self.own(g, 1)).value

    def after(self) -> Term:
        """Y of this direction [T, B, H]."""
        dims = list(self.x.shape or ())
        sides = 2 if attribute(self.node, "direction", "forward") == "bidirectional" else 1
        whole = self.b.output(self.node, 0, self.kind, ir.Shape([dims[0], sides, dims[1], self.hidden]))
        return self.rows(self.own(whole, 1))

    def before(self) -> Term:
        """What each step found as its state [T, B, H]: Y, one step later in the order of this direction."""
        b, start = self.b, self.b.op("Unsqueeze", self.state(5), self.b.ints(0))
        span = (b.ints(1), b.ints(2**62)) if self.backwards else (b.ints(0), b.ints(-1))
        others = b.op("Slice", self.after(), *span, b.ints(0))
        pair = (others, start) if self.backwards else (start, others)
        return self.rows(b.op("Concat", *pair, axis=0))

    def split(self, value: Value | Term, parts: int, axis: int = 2) -> list[Term]:
        """Splits a value of all gates into parts of H elements, one a gate."""
        return self.b.terms(*self.b.ops("Split", parts, value, self.b.ints(*[self.hidden] * parts), axis=axis))

    def joined(self, *parts: Term) -> Term:
        """The gradients of some gates side by side, as rows [T B, k H]."""
        return self.rows(self.b.op("Concat", *parts, axis=2), len(parts))

    def products(self, x: Value | Term, weight: Value) -> Term:
        """The products x weight^T for all steps."""
        made = self.b.op("MatMul", x, self.b.op("Transpose", weight, perm=[1, 0]))
        return Term(self.b, made, self.x)

    def sums(self, x: Value | Term, weight: int, bias: int) -> Term:
        """What X and half of the biases give to all gates: [T, B, k H]."""
        made, both = self.products(x, self.weight(weight)), self.biases()
        return self.rows(made if both is None else made + both[bias], self.gates)

    def biases(self) -> list[Value] | None:
        """The bias of X and that of the state, each [k H]; None where the node has none."""
        both, half = self.part(3), self.gates * self.hidden
        return None if both is None else self.b.ops("Split", 2, both, self.b.ints(half, half), axis=0)

    def shared(self, of_gates: Value | Term, inputs: Value | Term, gates: int = 0) -> Value:
        """The gradient of a weight, [1, k H, size of an input], from those of its gates [T, B, k H]."""
        b, size = self.b, self.b.ints(-1, (gates or self.gates) * self.hidden)
        inputs = inputs.value if isinstance(inputs, Term) else inputs
        flat = b.op("Transpose", b.op("Reshape", of_gates, size), perm=[1, 0])
        known = b.dim(inputs, 2)
        columns = b.op("Concat", b.ints(-1), b.size(inputs, 2), axis=0) if known is None else b.ints(-1, known)
        return b.op("Unsqueeze", b.op("MatMul", flat, b.op("Reshape", inputs, columns)), b.ints(0))

    def added(self, *parts: Value) -> Value:
        """The gradient of both biases, which are only added: [1, 2 k H]."""
        with self.b.float32(KEEP):
            sums = [self.b.sum(value, (0, 1), keep=False) for value in parts]
            return self.b.op("Unsqueeze", self.b.op("Concat", *sums, axis=0), self.b.ints(0))

    def scan(self, step: Step, last: Sequence[Value], rows: Sequence[Value | Term]) -> tuple[list[Value], list[Value]]:
        """Adds a Scan that goes through the steps against this direction, as gradients do."""
        given = [row.value if isinstance(row, Term) else row for row in rows]
        return scan(self.b, step, last, given, backwards=not self.backwards)

    def activations(self, *usual: str, others: bool = False) -> list[str]:
        """The activations of this direction, in lower case. Raises Unsupported for ``others`` than the usual ones."""
        found = attribute(self.node, "activations") or list(usual) * 2
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in found]
        own = [name.lower() for name in names[self.number * len(usual) : (self.number + 1) * len(usual)]]
        if not others and own != [name.lower() for name in usual]:
            kind, only = self.node.op_type, ", ".join(usual)
            raise Unsupported(f"{kind} with {', '.join(own)} has no gradient here, only with {only}")
        return own


@dataclass(frozen=True)
class SideGradients:
    """The gradients that one direction brings: of its gates, of R, and of its first states [B, H]."""

    of_x: Value  # the gates as they depend on X W^T and its bias [T, B, k H]
    of_state: Value  # the gates as they depend on the state [T, B, k H]
    recurrence: Value  # R [1, k H, H]
    states: list[Value]


def recurrent(
    b: Builder,
    node: ir.Node,
    gradients: Sequence[Gradient],
    gates: int,
    backward: Callable[[Direction], SideGradients],
) -> list[Gradient]:
    """The gradients of X, W, R, B and the initial states, from those of each direction."""
    _refuse_forms(node)
    way = attribute(node, "direction", "forward")
    sides = (False, True) if way == "bidirectional" else (way == "reverse",)
    x, parts = operand(node), list[list[Value]]()
    if x.shape is None:
        raise ValueError(f"the rank of '{x.name}' is not known")
    for number, backwards in enumerate(sides):
        side = Direction(b, node, number, backwards, gates, gradients)
        found = backward(side)
        made = [b.op("MatMul", found.of_x, side.weight(1)), side.shared(found.of_x, x), found.recurrence]
        made.append(side.added(found.of_x, found.of_state))
        parts.append(made + [b.op("Unsqueeze", state, b.ints(0)) for state in found.states])
    total = parts[0][0] if len(parts) == 1 else b.op("Add", parts[0][0], parts[1][0])
    joined = [b.op("Concat", *pair, axis=0) if len(parts) > 1 else pair[0] for pair in zip(*parts, strict=True)][1:]
    slopes: list[Gradient] = [total, *joined[:3], None, *joined[3:]]
    return [slope if value is not None else None for slope, value in zip(slopes, node.inputs, strict=False)]


def _refuse_forms(node: ir.Node) -> None:
    """Raises Unsupported for forms of LSTM, GRU and RNN that have no gradient."""
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


def _sigmoid_slope(gate: Term) -> Term:
    """The derivative of a sigmoid, from its value: s (1 - s)."""
    return gate * (1 - gate)


def _tanh_slope(value: Term) -> Term:
    """The derivative of a tanh, from its value: 1 - t^2."""
    return 1 - value * value


def _rnn(side: Direction) -> SideGradients:
    """The backward of one direction of an RNN. With d the gradient of h: that of its sum is d f', and R brings it to
    the step before."""
    b, [name] = side.b, side.activations("Tanh", others=True)
    if name not in ("tanh", "relu"):
        raise Unsupported(f"RNN with {name} has no gradient here, only with Tanh and Relu")
    y, weight = side.after(), side.weight(2)
    with b.float32(KEEP):
        slope = side.rows(_tanh_slope(y) if name == "tanh" else (y > 0).op("Cast", to=int(side.kind)))

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        [dh], [dy, factor] = states, rows
        made = (dh + dy) * factor
        inner.typed(made.value, dh.value)
        return [made.op("MatMul", weight)], [made]

    states, [made] = side.scan(step, [side.slopes(1)], [side.slopes(0), slope])
    return SideGradients(made, made, side.shared(made, side.before()), states)


def _lstm(side: Direction) -> SideGradients:
    """The gradients of one direction of an LSTM; gates in ONNX's order: i, o, f, c. With h' = o tanh(c'), c' = f c + i
    g, and dh, dc what came from the step behind: dc' = dc + dh o (1 - tanh(c')^2); di = dc' g, df = dc' c, dg = dc' i,
    do = dh tanh(c'), each times the slope of its gate."""
    side.activations("Sigmoid", "Tanh", "Tanh")
    b, weight, inputs = side.b, side.weight(2), side.before()
    with b.float32(KEEP):
        sums = side.sums(side.x, 1, 0) + side.sums(inputs, 2, 1)
        *gates, g = side.split(sums, 4)
        i, o, f = (side.rows(part.op("Sigmoid")) for part in gates)
        g = side.rows(g.op("Tanh"))
        brought = side.rows(i * g)
        before = _cell_states(side, f, brought)
        tanh = side.rows((f * before + brought).op("Tanh"))
        new = i * _tanh_slope(g)
        factors = side.joined(_sigmoid_slope(i) * g, _sigmoid_slope(o) * tanh, _sigmoid_slope(f) * before, new)
        through = side.rows(o * _tanh_slope(tanh))

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        (dh, dc), (dy, factor, out, forget) = states, rows
        whole = dh + dy
        cell = whole * out + dc
        made = cell.op("Concat", whole, cell, cell, axis=1) * factor
        inner.typed(made.value, factor.value)
        return [made.op("MatMul", weight), cell * forget], [made]

    last = [side.slopes(1), side.slopes(2)]
    states, [made] = side.scan(step, last, [side.slopes(0), factors, through, f])
    return SideGradients(made, made, side.shared(made, inputs), states)


def _cell_states(side: Direction, forget: Term, brought: Term) -> Term:
    """The cell state that each step found [T, B, H], computed again by an elementwise Scan."""

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        [cell], [kept, new] = states, rows
        return [cell * kept + new], [cell]

    _, [before] = scan(side.b, step, [side.state(6)], [forget.value, brought.value], backwards=side.backwards)
    return side.rows(before)


def _gru(side: Direction) -> SideGradients:
    """The gradients of one direction of a GRU; gates in ONNX's order: z, r, n. h' = (1 - z) n + z h with n =
    tanh(x + r q), q = R h + its bias (linear_before_reset), or n = tanh(x + R (r h) + bias). With d the gradient of
    h': dz = d (h - n) z (1 - z), dn = d (1 - z) (1 - n^2)."""
    return (_gru_reset_after if attribute(side.node, "linear_before_reset", 0) else _gru_reset_before)(side)


def _gru_factors(side: Direction, before: Term, z: Term, n: Term) -> tuple[Term, Term]:
    """What d is multiplied by for the gradients of z and n."""
    of_z = side.rows((before - n) * _sigmoid_slope(z))
    return of_z, side.rows((1 - z) * _tanh_slope(n))


def _gru_reset_after(side: Direction) -> SideGradients:
    """The gradients of a GRU whose reset gate comes behind the product: all factors are known before the Scan."""
    side.activations("Sigmoid", "Tanh")
    b, weight, before = side.b, side.weight(2), side.before()
    with b.float32(KEEP):
        pieces = side.split(side.sums(side.x, 1, 0), 3)
        own = side.split(side.sums(before, 2, 1), 3)
        z, r = (side.rows((x + h).op("Sigmoid")) for x, h in zip(pieces[:2], own[:2], strict=True))
        n = (pieces[2] + r * own[2]).op("Tanh")
        of_z, of_n = _gru_factors(side, before, z, n)
        of_r = of_n * own[2] * _sigmoid_slope(r)
        factors = side.joined(of_z, of_r, of_n * r)

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        [dh], [dy, factor, kept] = states, rows
        whole = dh + dy
        inner.typed(whole.value, dh.value)
        made = whole.op("Concat", whole, whole, axis=1) * factor
        return [whole * kept + made.op("MatMul", weight)], [whole]

    states, [whole] = side.scan(step, [side.slopes(1)], [side.slopes(0), factors, z])
    with b.float32(KEEP):
        [three] = b.terms(b.op("Concat", whole, whole, whole, axis=2))
        of_x = side.rows(three * side.joined(of_z, of_r, of_n), 3).value
        of_state = side.rows(three * factors, 3).value
    return SideGradients(of_x, of_state, side.shared(of_state, before), states)


def _gru_reset_before(side: Direction) -> SideGradients:
    """The gradients of a GRU whose reset gate comes in front of the product: the Scan has to compute what R brings back
    for r."""
    side.activations("Sigmoid", "Tanh")
    b, hidden, before = side.b, side.hidden, side.before()
    first, last = b.ops("Split", 2, side.weight(2), b.ints(2 * hidden, hidden), axis=0)
    with b.float32(KEEP):
        pieces, both = side.split(side.sums(side.x, 1, 0), 3), side.biases()
        if both is not None:
            pieces = [one + other for one, other in zip(pieces, side.split(both[1], 3, axis=0), strict=True)]
        own = side.split(side.products(before, first), 2)
        z, r = (side.rows((x + h).op("Sigmoid")) for x, h in zip(pieces[:2], own, strict=True))
        kept = side.rows(r * before)
        n = (pieces[2] + side.products(kept, last)).op("Tanh")
        of_z, of_n = _gru_factors(side, before, z, n)
        of_r = side.rows(before * _sigmoid_slope(r))

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        [dh], [dy, of_z, of_n, reset, r, z] = states, rows
        whole = dh + dy
        new = whole * of_n
        back = new.op("MatMul", last)
        two = (whole * of_z).op("Concat", back * reset, axis=1)
        old = whole * z + back * r
        made = two.op("Concat", new, axis=1)
        inner.typed(made.value, side.kind, *list(dh.value.shape or ())[:1], 3 * hidden)
        return [old + two.op("MatMul", first)], [made]

    states, [made] = side.scan(step, [side.slopes(1)], [side.slopes(0), of_z, of_n, of_r, r, z])
    two, new = b.ops("Split", 2, made, b.ints(2 * hidden, hidden), axis=2)
    weights = b.op("Concat", side.shared(two, before, 2), side.shared(new, kept, 1), axis=1)
    return SideGradients(made, made, weights, states)


gradient("RNN")(lambda b, node, *gradients: recurrent(b, node, gradients, 1, _rnn))
gradient("LSTM")(lambda b, node, *gradients: recurrent(b, node, gradients, 4, _lstm))
gradient("GRU")(lambda b, node, *gradients: recurrent(b, node, gradients, 3, _gru))
