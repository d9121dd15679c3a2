"""LSTM backwards. Gates in ONNX's order: i, o, f, c.

With h' = o tanh(c'), c' = f c + i g, and dh, dc what came from the step behind:
dc' = dc + dh o (1 - tanh(c')^2); di = dc' g, df = dc' c, dg = dc' i, do = dh tanh(c'), each times the slope of its
gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..builder import Builder
from ..registry import gradient
from ..scans import scan
from .recurrent import KEEP, Direction, Gradient, SideGradients, recurrent, refuse_activations

Value = ir.Value
USUAL = ("Sigmoid", "Tanh", "Tanh")


@gradient("LSTM")
def lstm(b: Builder, node: ir.Node, *gradients: Gradient) -> list[Gradient]:
    return recurrent(b, node, gradients, 4, _lstm)


@dataclass(frozen=True)
class LstmGates:
    """All of them [T, B, H]; ``before`` is the cell that each step found."""

    i: Value
    o: Value
    f: Value
    g: Value
    before: Value
    tanh: Value  # of the cell that it made


def _lstm(side: Direction, gradients: Sequence[Gradient]) -> SideGradients:
    refuse_activations(side.node, side.number, USUAL)
    b, weight = side.b, side.weight(2)
    inputs = side.before(side.state(5))
    with b.float32(KEEP):
        gates = _gates(side, inputs)
        factors, through = _factors(side, gates)

    def step(inner: Builder, states: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        (dh, dc), (dy, factor, out, forget) = states, rows
        whole = inner.op("Add", dh, dy)
        cell = inner.op("Add", inner.op("Mul", whole, out), dc)
        made = inner.op("Mul", inner.op("Concat", cell, whole, cell, cell, axis=1), factor)
        made = inner.typed(made, factor)
        return [inner.op("MatMul", made, weight), inner.op("Mul", cell, forget)], [made]

    rows = [side.slopes(gradients, 0), factors, through, gates.f]
    last = [side.slopes(gradients, 1), side.slopes(gradients, 2)]
    states, [made] = scan(b, step, last, rows, backwards=not side.backwards, reason=KEEP)
    return SideGradients(made, made, side.shared(made, inputs), states)


def _gates(side: Direction, inputs: Value) -> LstmGates:
    """Computed again; the cells in a Scan of their own, elementwise."""
    b = side.b
    sums = b.op("Add", side.sums(side.x, 1, 0), side.sums(inputs, 2, 1))
    i, o, f, g = b.ops("Split", 4, sums, b.ints(*[side.hidden] * 4), axis=2)
    i, o, f = (side.rows(b.op("Sigmoid", part)) for part in (i, o, f))
    g = side.rows(b.op("Tanh", g))
    brought = side.rows(b.op("Mul", i, g))

    def step(inner: Builder, states: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        [cell], [forget, new] = states, rows
        return [inner.op("Add", inner.op("Mul", cell, forget), new)], [cell]

    _, [before] = scan(b, step, [side.state(6)], [f, brought], backwards=side.backwards, reason=KEEP)
    tanh = side.rows(b.op("Tanh", b.op("Add", b.op("Mul", f, before), brought)))
    return LstmGates(i, o, f, g, before, tanh)


def _factors(side: Direction, gates: LstmGates) -> tuple[Value, Value]:
    """What dc' (and dh for o) is multiplied by: [T, B, 4 H]; and o (1 - tanh(c')^2), which brings dh to dc'."""
    b = side.b

    def sloped(gate: Value, other: Value) -> Value:
        return b.op("Mul", b.op("Mul", gate, b.op("Sub", b.number(1, gate), gate)), other)

    def tanh_slope(value: Value) -> Value:
        return b.op("Sub", b.number(1, value), b.op("Mul", value, value))

    new = b.op("Mul", gates.i, tanh_slope(gates.g))
    parts = [sloped(gates.i, gates.g), sloped(gates.o, gates.tanh), sloped(gates.f, gates.before), new]
    factors = side.rows(b.op("Concat", *parts, axis=2), 4)
    return factors, side.rows(b.op("Mul", gates.o, tanh_slope(gates.tanh)))
