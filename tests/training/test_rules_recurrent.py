"""LSTM, GRU and RNN nodes: their gradients against torch, by a Scan that does not grow with the length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ampgraph.core.errors import AmpError
from training.gradients import check, gradients, model_of, normal, with_gradients

T, B, SIZE, H = 4, 3, 5, 2
KINDS = {"LSTM": (nn.LSTM, 4, [0, 2, 3, 1]), "GRU": (nn.GRU, 3, [1, 0, 2]), "RNN": (nn.RNN, 1, [0])}
"""torch's module, the number of gates, and where torch's are in ONNX's order: torch has i f g o and r z n."""


def text(kind: str, way: str, *, states: bool, outputs: str = "y", length: int | str = T, more: str = "") -> str:
    gates, sides = KINDS[kind][1], 2 if way == "bidirectional" else 1
    operands = [
        f"float[{length},B,{SIZE}] x",
        f"float[{sides},{gates * H},{SIZE}] w",
        f"float[{sides},{gates * H},{H}] r",
    ]
    operands.append(f"float[{sides},{2 * gates * H}] b")
    read = "x, w, r, b"
    if states:
        names = ("h", "c") if kind == "LSTM" else ("h",)
        operands += [f"float[{sides},B,{H}] {name}" for name in names]
        read += ", , " + ", ".join(names)
    shape = f"{length},{sides},B,{H}" if outputs.startswith("y") else f"{sides},B,{H}"
    result = outputs.split(",")[-1].strip() if not outputs.startswith("y") else "y"
    more = f", {more}" if more else ""
    return (
        f"g ({', '.join(operands)}) => (float[{shape}] {result}) "
        f'{{ {outputs} = {kind} <hidden_size = {H}, direction = "{way}"{more}> ({read}) }}'
    )


def arrays(kind: str, way: str, states: bool, length: int = T) -> dict[str, np.ndarray]:
    gates, sides = KINDS[kind][1], 2 if way == "bidirectional" else 1
    found = {
        "x": normal(length, B, SIZE),
        "w": normal(sides, gates * H, SIZE, seed=1),
        "r": normal(sides, gates * H, H, seed=2),
    }
    found["b"] = normal(sides, 2 * gates * H, seed=3)
    if states:
        found["h"] = normal(sides, B, H, seed=4)
    if states and kind == "LSTM":
        found["c"] = normal(sides, B, H, seed=5)
    return found


def by_torch(kind: str, way: str, output: int):
    """A function of the arrays: torch's layer, by functional_call."""
    make, gates, order = KINDS[kind]
    layer = make(SIZE, H, bidirectional=way == "bidirectional").double()

    def function(x, w, r, b, *states):
        def moved(value):
            return torch.cat([value.chunk(gates)[place] for place in order])

        given = {}
        for side, tail in enumerate(["", "_reverse"][: len(w)]):
            half = b[side].chunk(2)
            for name, value in zip(
                ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (w[side], r[side], *half), strict=True
            ):
                given[f"{name}_l0{tail}"] = moved(value)
        x = x.flip(0) if way == "reverse" else x
        first = (states if kind == "LSTM" else states[0]) if states else None
        y, last = torch.func.functional_call(layer, given, (x, first) if states else (x,))
        if output:
            return last[output - 1] if kind == "LSTM" else last
        y = y.flip(0) if way == "reverse" else y
        return y.unflatten(2, (len(w), H)).transpose(1, 2)

    return function


MORE = {"LSTM": "", "GRU": "linear_before_reset = 1", "RNN": ""}


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_steps(kind, way, states):
    given = text(kind, way, states=states, more=MORE[kind])
    check(given, arrays(kind, way, states), by_torch(kind, way, 0), differences=False)


@pytest.mark.parametrize(
    ("kind", "outputs", "number"), [("LSTM", ", yh", 1), ("LSTM", ", , yc", 2), ("GRU", ", yh", 1), ("RNN", ", yh", 1)]
)
@pytest.mark.parametrize("way", ["reverse", "bidirectional"])
def test_the_last_state(kind, outputs, number, way):
    given = text(kind, way, states=True, outputs=outputs, more=MORE[kind])
    check(given, arrays(kind, way, True), by_torch(kind, way, number), differences=False)


@pytest.mark.parametrize("way", ["forward", "bidirectional"])
def test_the_reset_in_front_of_the_product(way):
    """Not torch's form: by numerical differences."""
    check(text("GRU", way, states=True), arrays("GRU", way, True), written_out(way))


def written_out(way: str):
    def function(x, w, r, b, h):
        sides = []
        for side in range(len(w)):
            state, steps = h[side], []
            (wz, wr, wn), (rz, rr, rn) = w[side].chunk(3), r[side].chunk(3)
            bias, other = (half.chunk(3) for half in b[side].chunk(2))
            for row in x.flip(0) if side else x:
                z = torch.sigmoid(row @ wz.T + state @ rz.T + bias[0] + other[0])
                reset = torch.sigmoid(row @ wr.T + state @ rr.T + bias[1] + other[1])
                n = torch.tanh(row @ wn.T + (reset * state) @ rn.T + bias[2] + other[2])
                state = (1 - z) * n + z * state
                steps.append(state)
            sides.append(torch.stack(steps[::-1] if side else steps))
        return torch.stack(sides, 1)

    return function


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_do_not_grow_with_the_length(kind):
    """And the length may be known when the graph runs only."""
    counts = []
    for length in (3, 300, "T"):
        made = with_gradients(model_of(text(kind, "forward", states=False, length=length)), ["x", "w", "r", "b"])
        counts.append(len(made.graph.node))
    assert counts[0] == counts[1] < 90 and counts[2] < counts[0] + 20
    found = arrays(kind, "forward", False, 7)
    free = model_of(text(kind, "forward", states=False, length="T"))
    seed = np.ones((7, 1, B, H), np.float32)
    one, other = (
        gradients(model, found, ["x", "r"], seed)
        for model in (free, model_of(text(kind, "forward", states=False, length=7)))
    )
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [("LSTM", "clip = 3.0", "clip"), ("LSTM", "input_forget = 1", "input_forget"),
     ("RNN", 'activations = ["Affine"]', "only with Tanh and Relu"),
     ("GRU", 'activations = ["Sigmoid", "Relu"]', "relu")],
)  # fmt: skip
def test_forms_that_are_refused(kind, more, told):
    with pytest.raises(AmpError, match=f"AMP210.*{told}"):
        with_gradients(model_of(text(kind, "forward", states=False, more=more)), ["x"])
