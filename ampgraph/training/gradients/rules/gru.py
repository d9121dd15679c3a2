"""GRU backwards. Gates in ONNX's order: z, r, n.

h' = (1 - z) n + z h with n = tanh(x + r q), q = R h + its bias (linear_before_reset), or n = tanh(x + R (r h) + bias).
With d the gradient of h': dz = d (h - n) z (1 - z), dn = d (1 - z) (1 - n^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..builder import Builder
from ..registry import attribute, gradient
from ..scans import scan
from .recurrent import KEEP, Direction, Gradient, SideGradients, recurrent, refuse_activations

Value = ir.Value
USUAL = ("Sigmoid", "Tanh")


@gradient("GRU")
def gru(b: Builder, node: ir.Node, *gradients: Gradient) -> list[Gradient]:
    return recurrent(b, node, gradients, 3, _after if attribute(node, "linear_before_reset", 0) else _before)


@dataclass(frozen=True)
class GruGates:
    """All [T, B, H]: what stood before each step, the gates, and what d is multiplied by for z and n."""

    before: Value
    z: Value
    r: Value
    of_z: Value
    of_n: Value


def _after(side: Direction, gradients: Sequence[Gradient]) -> SideGradients:
    """The reset behind the product: everything that d is multiplied by is known before."""
    refuse_activations(side.node, side.number, USUAL)
    b, weight = side.b, side.weight(2)
    before = side.before(side.state(5))
    with b.float32(KEEP):
        pieces = _split(side, side.sums(side.x, 1, 0))
        own = _split(side, side.sums(before, 2, 1))
        z, r = (side.rows(b.op("Sigmoid", b.op("Add", x, h))) for x, h in zip(pieces[:2], own[:2], strict=True))
        n = b.op("Tanh", b.op("Add", pieces[2], b.op("Mul", r, own[2])))
        gates = _gates(side, before, z, r, n)
        of_r = b.op("Mul", b.op("Mul", gates.of_n, own[2]), _slope(b, r))
        factors = _joined(side, gates.of_z, of_r, b.op("Mul", gates.of_n, r))

    def step(inner: Builder, states: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        [dh], [dy, factor, kept] = states, rows
        whole = inner.typed(inner.op("Add", dh, dy), dh)
        made = inner.op("Mul", inner.op("Concat", whole, whole, whole, axis=1), factor)
        return [inner.op("Add", inner.op("Mul", whole, kept), inner.op("MatMul", made, weight))], [whole]

    rows = [side.slopes(gradients, 0), factors, gates.z]
    states, [whole] = scan(b, step, [side.slopes(gradients, 1)], rows, backwards=not side.backwards, reason=KEEP)
    with b.float32(KEEP):
        three = b.op("Concat", whole, whole, whole, axis=2)
        of_x = side.rows(b.op("Mul", three, _joined(side, gates.of_z, of_r, gates.of_n)), 3)
        of_state = side.rows(b.op("Mul", three, factors), 3)
    return SideGradients(of_x, of_state, side.shared(of_state, before), states)


def _before(side: Direction, gradients: Sequence[Gradient]) -> SideGradients:
    """The reset in front of the product: what R brings back is needed for r."""
    refuse_activations(side.node, side.number, USUAL)
    b, hidden = side.b, side.hidden
    before = side.before(side.state(5))
    first, last = b.ops("Split", 2, side.weight(2), b.ints(2 * hidden, hidden), axis=0)
    with b.float32(KEEP):
        pieces, both = _split(side, side.sums(side.x, 1, 0)), side.biases()
        if both is not None:
            others = b.ops("Split", 3, both[1], b.ints(*[hidden] * 3), axis=0)
            pieces = [b.op("Add", one, other) for one, other in zip(pieces, others, strict=True)]
        own = b.ops("Split", 2, side.products(before, first), b.ints(hidden, hidden), axis=2)
        z, r = (side.rows(b.op("Sigmoid", b.op("Add", x, h))) for x, h in zip(pieces[:2], own, strict=True))
        kept = side.rows(b.op("Mul", r, before))
        n = b.op("Tanh", b.op("Add", pieces[2], side.products(kept, last)))
        gates = _gates(side, before, z, r, n)
        of_r = side.rows(b.op("Mul", before, _slope(b, r)))

    def step(inner: Builder, states: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        [dh], [dy, of_z, of_n, reset, r, z] = states, rows
        whole = inner.op("Add", dh, dy)
        new = inner.op("Mul", whole, of_n)
        back = inner.op("MatMul", new, last)
        two = inner.op("Concat", inner.op("Mul", whole, of_z), inner.op("Mul", back, reset), axis=1)
        old = inner.op("Add", inner.op("Mul", whole, z), inner.op("Mul", back, r))
        dims = [*list(dh.shape or ())[:1], 3 * hidden]
        made = inner.typed(inner.op("Concat", two, new, axis=1), side.kind, *dims)
        return [inner.op("Add", old, inner.op("MatMul", two, first))], [made]

    rows = [side.slopes(gradients, 0), gates.of_z, gates.of_n, of_r, r, z]
    states, [made] = scan(b, step, [side.slopes(gradients, 1)], rows, backwards=not side.backwards, reason=KEEP)
    two, new = b.ops("Split", 2, made, b.ints(2 * hidden, hidden), axis=2)
    weights = b.op("Concat", side.shared(two, before, 2), side.shared(new, kept, 1), axis=1)
    return SideGradients(made, made, weights, states)


def _split(side: Direction, value: Value) -> list[Value]:
    return side.b.ops("Split", 3, value, side.b.ints(*[side.hidden] * 3), axis=2)


def _gates(side: Direction, before: Value, z: Value, r: Value, n: Value) -> GruGates:
    b = side.b
    of_z = side.rows(b.op("Mul", b.op("Sub", before, n), _slope(b, z)))
    flat = b.op("Sub", b.number(1, n), b.op("Mul", n, n))
    return GruGates(before, z, r, of_z, side.rows(b.op("Mul", b.op("Sub", b.number(1, z), z), flat)))


def _slope(b: Builder, gate: Value) -> Value:
    return b.op("Mul", gate, b.op("Sub", b.number(1, gate), gate))


def _joined(side: Direction, *parts: Value) -> Value:
    return side.rows(side.b.op("Concat", *parts, axis=2), len(parts))
