"""Gradients of LSTM, GRU and RNN.

All gates are computed again, for all steps at once, from X and Y. What remains for each step of the backward is a
product of a row by known factors, and one by R. One Scan does these from the last step to the first, so that the number
of nodes does not depend on the number of steps. The notation is ONNX's: X [T, B, I], W [D, k H, I], R [D, k H, H],
B [D, 2 k H], Y [T, D, B, H], with T steps, a batch of B, D directions, k gates and H hidden units. A value "of all
steps" is [T, B, k H] or [T, B, H]; "the state" is Y of a step, which an LSTM has beside its cell state.
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
"""Writes one step of a Scan: builder of the body, states and rows -> the next states, and what the step gives out."""

KEEP = "a recurrence: what one step rounds goes through all that are before it"


def scan(
    b: Builder, step: Step, states: Sequence[Value], rows: Sequence[Value], *, backwards: bool
) -> tuple[list[Value], list[Value]]:
    """Gradient of a recurrence: adds a Scan of ``step``, and returns the last states, and what all steps give out, each
    stacked in the order of the rows.

    Args:
        step: may read values of the graph around the Scan.
        states: the first ones, with rank and type.
        rows: at least one, with rank and type; the Scan goes along their first axis, from its end if ``backwards``.
    """
    body = b.body_builder("body")
    olds = [body.input(value) for value in states]
    each = [body.input(value, list(value.shape or ())[1:]) for value in rows]
    with body.float32(KEEP):
        news, outs = step(body, body.terms(*olds), body.terms(*each))
        for value in (one.value for one in (*news, *outs)):
            end = body.op("Identity", value)  # an output needs a name of its own: a value may be one twice, or outer
            body.graph.outputs.append(end if value.dtype is None else body.typed(end, value))
    for end, old in zip(body.graph.outputs, olds, strict=False):
        body.typed(end, old)
    with b.float32(KEEP):
        found = b.ops(
            "Scan",
            len(news) + len(outs),
            *states,
            *rows,
            body=body.graph,
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
    """One direction of an LSTM, GRU or RNN whose gradients are written, ``number`` on the axis of directions;
    ``backwards``: it goes from the last step to the first. ``gradients``: of Y, Y_h and Y_c."""

    b: Builder
    node: ir.Node
    number: int
    backwards: bool
    gates: int  # k
    gradients: Sequence[Gradient]  # None, or none at the end, for an output that nothing flows back to

    @property
    def hidden(self) -> int:
        """Gradient of a recurrence: H, by the attribute, which ONNX Runtime demands though ONNX does not."""
        return int(attribute(self.node, "hidden_size"))

    @property
    def x(self) -> Value:
        """Gradient of a recurrence: the input, [T, B, I]."""
        return operand(self.node)

    @property
    def kind(self) -> ir.DataType:
        """Gradient of a recurrence: the type that the node computes in."""
        return self.x.dtype or FLOAT

    def part(self, index: int) -> Value | None:
        """Gradient of a recurrence: its part of the node's input ``index``, without the axis of directions; None where
        the input is left out."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else self.own(value, 0)

    def own(self, value: Value, axis: int) -> Value:
        """Gradient of a recurrence: its part of a tensor whose axis of directions is ``axis``, without that axis."""
        made = self.b.op("Gather", value, self.b.int64(self.number), axis=axis)
        dims = list(value.shape or ())
        return self.b.typed(made, value.dtype or self.kind, *dims[:axis], *dims[axis + 1 :]) if dims else made

    def initial_state(self, index: int) -> Value:
        """Gradient of a recurrence: its initial state [B, H], the node's input ``index`` (5 the state, 6 an LSTM's
        cell); zeros where it is left out."""
        return _state_or_zeros(self, self.part(index))

    def rows(self, value: Value | Term, gates: int = 1) -> Term:
        """Gradient of a recurrence: a value of all steps as a term, with its shape declared: [T, B, gates H]."""
        value = value.value if isinstance(value, Term) else value
        self.b.typed(value, self.kind, *list(self.x.shape or ())[:2], gates * self.hidden)
        return Term(self.b, value, value)

    def weight(self, index: int) -> Value:
        """Gradient of a recurrence: its W [k H, I] (input 1) or R [k H, H] (input 2), which no node leaves out."""
        found = self.part(index)
        assert found is not None
        return found

    def output_gradient(self, index: int) -> Value:
        """Gradient of a recurrence: that of the node's output ``index``: of Y (0) [T, B, H], of a last state (1, or 2:
        the cell) [B, H]; zeros where nothing flows back."""
        g = self.gradients[index] if index < len(self.gradients) else None
        if index:
            return _state_or_zeros(self, None if g is None else self.own(g, 0))
        return self.rows(self.b.zeros(self.states_after().value) if g is None else self.own(g, 1)).value

    def states_after(self) -> Term:
        """Gradient of a recurrence: the state that each step makes, its part of Y, [T, B, H]; Y becomes an output of
        the node where that left it out."""
        dims = list(self.x.shape or ())
        directions = 2 if attribute(self.node, "direction", "forward") == "bidirectional" else 1
        whole = self.b.output(self.node, 0, self.kind, ir.Shape([dims[0], directions, dims[1], self.hidden]))
        return self.rows(self.own(whole, 1))

    def states_before(self) -> Term:
        """Gradient of a recurrence: the state that each step starts from, [T, B, H]: the initial state, then Y without
        its last step, in the order of this direction."""
        b, start = self.b, self.b.op("Unsqueeze", self.initial_state(5), self.b.ints(0))
        span = (b.ints(1), b.ints(2**62)) if self.backwards else (b.ints(0), b.ints(-1))
        others = b.op("Slice", self.states_after(), *span, b.ints(0))
        pair = (others, start) if self.backwards else (start, others)
        return self.rows(b.op("Concat", *pair, axis=0))

    def split(self, value: Value | Term, parts: int, axis: int = 2) -> list[Term]:
        """Gradient of a recurrence: a value of several gates split into ``parts`` along an axis, H elements each."""
        return self.b.terms(*self.b.ops("Split", parts, value, self.b.ints(*[self.hidden] * parts), axis=axis))

    def joined(self, *parts: Term) -> Term:
        """Gradient of a recurrence: values of single gates [T, B, H] concatenated, to [T, B, gates H]."""
        return self.rows(self.b.op("Concat", *parts, axis=2), len(parts))

    def products(self, x: Value | Term, weight: Value) -> Term:
        """Gradient of a recurrence: the product x weight^T for all steps; ``weight`` is [gates H, size of x]."""
        return Term(self.b, self.b.op("MatMul", x, self.b.op("Transpose", weight, perm=[1, 0])), self.x)

    def preactivations(self, x: Value | Term, weight: int, bias: int) -> Term:
        """Gradient of a recurrence: what ``x`` gives to the sums before the activations of all gates, [T, B, k H]: its
        product with W or R (``weight`` 1 or 2), plus the bias of X or of the state (``bias`` 0 or 1)."""
        product, both = self.products(x, self.weight(weight)), self.biases()
        return self.rows(product if both is None else product + both[bias], self.gates)

    def biases(self) -> list[Value] | None:
        """Gradient of a recurrence: the bias of X and that of the state, each [k H]; None where the node has none."""
        both, half = self.part(3), self.gates * self.hidden
        return None if both is None else self.b.ops("Split", 2, both, self.b.ints(half, half), axis=0)

    def weight_gradient(self, of_gates: Value | Term, inputs: Value | Term, gates: int = 0) -> Value:
        """Gradient of a recurrence: that of W or R, [1, k H, size of an input], from the gradients of the gates [T, B,
        k H] and the ``inputs`` that the weight was multiplied by, [T, B, size]. ``gates`` is k where only some gates
        are meant; 0: all."""
        b, size = self.b, self.b.ints(-1, (gates or self.gates) * self.hidden)
        inputs = inputs.value if isinstance(inputs, Term) else inputs
        flat = b.op("Transpose", b.op("Reshape", of_gates, size), perm=[1, 0])
        known = b.dim(inputs, 2)
        columns = b.op("Concat", b.ints(-1), b.size(inputs, 2), axis=0) if known is None else b.ints(-1, known)
        return b.op("Unsqueeze", b.op("MatMul", flat, b.op("Reshape", inputs, columns)), b.ints(0))

    def bias_gradient(self, *parts: Value) -> Value:
        """Gradient of a recurrence: that of both biases, [1, 2 k H], from the gradients of the gates [T, B, k H] as
        they depend on X and on the state, summed over steps and batch."""
        with self.b.float32(KEEP):
            sums = [self.b.sum(value, (0, 1), keep=False) for value in parts]
            return self.b.op("Unsqueeze", self.b.op("Concat", *sums, axis=0), self.b.ints(0))

    def scan(self, step: Step, last: Sequence[Value], rows: Sequence[Value | Term]) -> tuple[list[Value], list[Value]]:
        """Gradient of a recurrence: `scan` against this direction, as gradients flow; ``last``: the gradients of the
        last states, which it starts from."""
        given = [row.value if isinstance(row, Term) else row for row in rows]
        return scan(self.b, step, last, given, backwards=not self.backwards)

    def activations(self, *usual: str, others: bool = False) -> list[str]:
        """Gradient of a recurrence: its activations, in lower case. Raises Unsupported for others than the ``usual``
        ones, unless ``others`` are taken."""
        found = attribute(self.node, "activations") or list(usual) * 2
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in found]
        own = [name.lower() for name in names[self.number * len(usual) : (self.number + 1) * len(usual)]]
        if not others and own != [name.lower() for name in usual]:
            kind, only = self.node.op_type, ", ".join(usual)
            raise Unsupported(f"{kind} with {', '.join(own)} has no gradient here, only with {only}")
        return own


def _state_or_zeros(side: Direction, state: Value | None) -> Value:
    """Gradient of a recurrence: a value of the shape of a state, [B, H], with that shape declared; zeros for None."""
    if state is None:
        size = side.b.op("Concat", side.b.size(side.x, 1), side.b.ints(side.hidden), axis=0)
        state = side.b.op("Expand", side.b.number(0, side.x), size)
    return side.b.typed(state, side.kind, list(side.x.shape or ())[1], side.hidden)


@dataclass(frozen=True)
class SideGradients:
    """The gradients of one direction of an LSTM, GRU or RNN, from which those of the node are made. ``of_x`` and
    ``of_state`` [T, B, k H]: of the sums before the activations, where X and where the state enters (they differ in a
    GRU); ``recurrence`` [1, k H, H]: of R; ``states``: of the initial states, each [B, H]."""

    of_x: Value
    of_state: Value
    recurrence: Value
    states: list[Value]


def recurrent(
    b: Builder,
    node: ir.Node,
    gradients: Sequence[Gradient],
    gates: int,
    backward: Callable[[Direction], SideGradients],
) -> list[Gradient]:
    """The gradients of an LSTM, GRU or RNN with ``gates`` gates: of X, W, R, B, None (sequence_lens) and the initial
    states; ``backward`` writes those of one direction. Raises Unsupported, ValueError without the rank of X."""
    _refuse_forms(node)
    direction = attribute(node, "direction", "forward")
    directions = (False, True) if direction == "bidirectional" else (direction == "reverse",)
    x, rows = operand(node), list[list[Value]]()
    if x.shape is None:
        raise ValueError(f"the rank of '{x.name}' is not known")
    for number, backwards in enumerate(directions):
        side = Direction(b, node, number, backwards, gates, gradients)
        found = backward(side)
        row = [b.op("MatMul", found.of_x, side.weight(1)), side.weight_gradient(found.of_x, x), found.recurrence]
        row.append(side.bias_gradient(found.of_x, found.of_state))
        rows.append(row + [b.op("Unsqueeze", state, b.ints(0)) for state in found.states])
    of_x = b.op("Add", rows[0][0], rows[1][0]) if len(rows) > 1 else rows[0][0]
    of_others = [b.joined(parts) for parts in zip(*(row[1:] for row in rows), strict=True)]
    by_input: list[Gradient] = [of_x, *of_others[:3], None, *of_others[3:]]
    return [None if value is None else found for found, value in zip(by_input, node.inputs, strict=False)]


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
    """The gradients of one direction of an RNN, h' = f(x + R h): with d the gradient of h', that of the sum is d f',
    which times R is that of h. Raises Unsupported for an activation other than Tanh and Relu."""
    b, [name] = side.b, side.activations("Tanh", others=True)
    if name not in ("tanh", "relu"):
        raise Unsupported(f"RNN with {name} has no gradient here, only with Tanh and Relu")
    y, weight = side.states_after(), side.weight(2)
    with b.float32(KEEP):
        slope = side.rows(_tanh_slope(y) if name == "tanh" else (y > 0).op("Cast", to=int(side.kind)))

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        [dh], [dy, factor] = states, rows
        made = (dh + dy) * factor
        inner.typed(made.value, dh.value)
        return [made.op("MatMul", weight)], [made]

    states, [made] = side.scan(step, [side.output_gradient(1)], [side.output_gradient(0), slope])
    return SideGradients(made, made, side.weight_gradient(made, side.states_before()), states)


def _lstm(side: Direction) -> SideGradients:
    """The gradients of one direction of an LSTM; gates in ONNX's order: i, o, f, c (called g here). With h' = o
    tanh(c') and c' = f c + i g, and dh, dc the gradients of h', c' from the step behind: dc' = dc + dh o (1 -
    tanh(c')^2); di = dc' g, df = dc' c, dg = dc' i, do = dh tanh(c'), each times the derivative of its gate."""
    side.activations("Sigmoid", "Tanh", "Tanh")
    b, weight, inputs = side.b, side.weight(2), side.states_before()
    with b.float32(KEEP):
        sums = side.preactivations(side.x, 1, 0) + side.preactivations(inputs, 2, 1)
        *gates, g = side.split(sums, 4)
        i, o, f = (side.rows(part.op("Sigmoid")) for part in gates)
        g = side.rows(g.op("Tanh"))
        brought = side.rows(i * g)
        before = _cell_states(side, f, brought)
        tanh = side.rows((f * before + brought).op("Tanh"))
        of_g = i * _tanh_slope(g)
        factors = side.joined(_sigmoid_slope(i) * g, _sigmoid_slope(o) * tanh, _sigmoid_slope(f) * before, of_g)
        through = side.rows(o * _tanh_slope(tanh))

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        (dh, dc), (dy, factor, out, forget) = states, rows
        whole = dh + dy
        cell = whole * out + dc
        made = cell.op("Concat", whole, cell, cell, axis=1) * factor
        inner.typed(made.value, factor.value)
        return [made.op("MatMul", weight), cell * forget], [made]

    last = [side.output_gradient(1), side.output_gradient(2)]
    states, [made] = side.scan(step, last, [side.output_gradient(0), factors, through, f])
    return SideGradients(made, made, side.weight_gradient(made, inputs), states)


def _cell_states(side: Direction, forget: Term, brought: Term) -> Term:
    """Gradient of an LSTM: the cell state that each step starts from, [T, B, H], computed again by an elementwise Scan
    from the gates ``forget`` and ``brought`` (i g)."""

    def step(inner: Builder, states: list[Term], rows: list[Term]) -> tuple[list[Term], list[Term]]:
        [cell], [kept, new] = states, rows
        return [cell * kept + new], [cell]

    first = side.initial_state(6)
    _, [before] = scan(side.b, step, [first], [forget.value, brought.value], backwards=side.backwards)
    return side.rows(before)


def _gru(side: Direction) -> SideGradients:
    """The gradients of one direction of a GRU; gates in ONNX's order: z, r, n. h' = (1 - z) n + z h with n = tanh(x + r
    q), q = R h + its bias (linear_before_reset), or n = tanh(x + R (r h) + bias). With d the gradient of h': dz = d (h
    - n) z (1 - z), dn = d (1 - z) (1 - n^2)."""
    return (_gru_reset_after if attribute(side.node, "linear_before_reset", 0) else _gru_reset_before)(side)


def _gru_factors(side: Direction, before: Term, z: Term, n: Term) -> tuple[Term, Term]:
    """Gradient of a GRU: the factors of d for the sums of z and of n (see `_gru`); ``before`` is h."""
    of_z = side.rows((before - n) * _sigmoid_slope(z))
    return of_z, side.rows((1 - z) * _tanh_slope(n))


def _gru_reset_after(side: Direction) -> SideGradients:
    """The gradients of one direction of a GRU whose reset gate comes after the product (linear_before_reset): all
    factors of d are known before the Scan."""
    side.activations("Sigmoid", "Tanh")
    b, weight, before = side.b, side.weight(2), side.states_before()
    with b.float32(KEEP):
        pieces = side.split(side.preactivations(side.x, 1, 0), 3)
        own = side.split(side.preactivations(before, 2, 1), 3)
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

    states, [whole] = side.scan(step, [side.output_gradient(1)], [side.output_gradient(0), factors, z])
    with b.float32(KEEP):
        [three] = b.terms(b.op("Concat", whole, whole, whole, axis=2))
        of_x = side.rows(three * side.joined(of_z, of_r, of_n), 3).value
        of_state = side.rows(three * factors, 3).value
    return SideGradients(of_x, of_state, side.weight_gradient(of_state, before), states)


def _gru_reset_before(side: Direction) -> SideGradients:
    """The gradients of one direction of a GRU whose reset gate comes before the product, R (r h): that of r depends on
    what R brings back from n, so the Scan computes it step by step."""
    side.activations("Sigmoid", "Tanh")
    b, hidden, before = side.b, side.hidden, side.states_before()
    first, last = b.ops("Split", 2, side.weight(2), b.ints(2 * hidden, hidden), axis=0)
    with b.float32(KEEP):
        pieces, both = side.split(side.preactivations(side.x, 1, 0), 3), side.biases()
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

    states, [made] = side.scan(step, [side.output_gradient(1)], [side.output_gradient(0), of_z, of_n, of_r, r, z])
    two, new = b.ops("Split", 2, made, b.ints(2 * hidden, hidden), axis=2)
    weights = b.op("Concat", side.weight_gradient(two, before, 2), side.weight_gradient(new, kept, 1), axis=1)
    return SideGradients(made, made, weights, states)


gradient("RNN")(lambda b, node, *gradients: recurrent(b, node, gradients, 1, _rnn))
gradient("LSTM")(lambda b, node, *gradients: recurrent(b, node, gradients, 4, _lstm))
gradient("GRU")(lambda b, node, *gradients: recurrent(b, node, gradients, 3, _gru))
