"""Small products beside the loss or an input stay float32, with their gradients, where that takes fewer Casts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.forward.read import infer
from ampgraph.training.step import gradient_graph, planner_marks
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse

CLASSES = 10


def normed(width=32, classes=CLASSES, batch=8):
    """Three convolutions with norms behind them, and a head of two products."""
    blocks = [
        f"[conv{n}] c{n} = Conv <pads = [1, 1, 1, 1]> (x{n}, w{n}) "
        f"n{n} = BatchNormalization (c{n}, s{n}, b{n}, m{n}, v{n}) x{n + 1} = Relu (n{n})"
        for n in range(3)
    ]
    text = f"""g (float[{batch},1,8,8] x0) => (float[{batch},{classes}] logits) {{ {" ".join(blocks)}
        pooled = ReduceMean <keepdims = 0> (x3, axes) [body] hidden = MatMul (pooled, u) active = Relu (hidden)
        [head] logits = MatMul (active, h) }}"""
    random = np.random.default_rng(0)
    arrays = {f"{name}{n}": random.random(width) + 0.5 for n in range(3) for name in "sbmv"}
    arrays |= {f"w{n}": random.standard_normal((width, width if n else 1, 3, 3)) / 9 for n in range(3)}
    arrays |= {"u": random.standard_normal((width, 16)), "h": random.standard_normal((16, classes))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return parse(text, arrays | {"axes": np.array([2, 3])}, opset=20)


def built(model, level="O2", **options) -> TrainingStep:
    return build_training_step(model, loss="cross_entropy", optimizer="sgd", level=level, **options)


def types(step: TrainingStep) -> dict[str, set[str]]:
    """The types that products of a parameter compute in, forward and backward, by the forward node."""
    found: dict[str, set[str]] = {}
    for node in step.model.graph:
        if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm") and node.inputs[0] is not None:
            name = next(part for part in (node.name or "").split("/") if part != "grad")
            found.setdefault(name, set()).add(str(node.inputs[0].dtype))
    return found


def casts(step: TrainingStep) -> int:
    return Counter(node.op_type for node in step.model.graph)["Cast"]


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_first_and_last_products_stay_float32(level, monkeypatch):
    step = built(normed(), level)
    wide, low = {"FLOAT"}, {"FLOAT16"}
    assert types(step) == {"conv0": wide, "conv1": low, "conv2": low, "body": wide, "head": wide}
    monkeypatch.setattr(gradient_graph, "hold_border_products", lambda *_: None)
    assert casts(step) <= casts(built(normed(), level)) - 7


@pytest.mark.parametrize(
    ("level", "shape"),
    [("O2", {"classes": 40_000}), ("O2", {"batch": "N"}), ("O3", {})],
)
def test_large_ones_and_those_of_unknown_size_are_low(level, shape):
    assert types(built(normed(**shape), level))["head"] == {"FLOAT16"}


def test_the_user_has_the_last_word():
    """On what is low, of whatever nodes."""
    step = built(normed(), low=["conv0"])
    assert types(step)["conv0"] == types(step)["head"] == {"FLOAT16"}


def test_most_multiplications_stay_low():
    """A sixth of them is too many to stay float32."""
    found = types(built(normed(width=2)))
    assert found["conv0"] == {"FLOAT16"} and found["head"] == {"FLOAT"}


def test_a_head_behind_a_norm_that_is_low(monkeypatch):
    """Nothing comes in then but one Cast, which would come out else; a stream that begins with the input stays low."""
    text = """g (float[4,6,8] x) => (float[4,3] logits) {
        [one] m = MatMul (x, w) a = Add (x, m) n = LayerNormalization <axis = -1> (a, s, b)
        [two] o = MatMul (n, y) p = Add (n, o) q = LayerNormalization <axis = -1> (p, s, b)
        mean = ReduceMean <keepdims = 0> (q, axes) [head] logits = MatMul (mean, h) }"""
    sizes = {"w": (8, 8), "y": (8, 8), "s": (8,), "b": (8,), "h": (8, 3)}
    arrays = {name: np.random.default_rng(0).random(size).astype(np.float32) for name, size in sizes.items()}
    model = parse(text, arrays | {"axes": np.array([1])}, opset=20)
    step = built(model)
    assert types(step) == {"one": {"FLOAT16"}, "two": {"FLOAT16"}, "head": {"FLOAT"}}
    monkeypatch.setattr(gradient_graph, "hold_border_products", lambda *_: None)
    assert casts(step) == casts(built(model)) - 2


@pytest.mark.parametrize(
    ("text", "arrays", "count"),
    [
        ("y = Conv <pads = [1, 1, 1, 1], group = 2> (x, w)", {"w": (6, 2, 3, 3)}, 2 * 6 * 25 * 2 * 9),
        ("y = ConvTranspose <strides = [2, 2]> (x, w)", {"w": (4, 3, 2, 2)}, 2 * 4 * 25 * 3 * 4),
        ("y = MatMul (x, w)", {"w": (5, 7)}, 2 * 4 * 5 * 5 * 7),
    ],
)
def test_multiplications(text, arrays, count):
    given = {name: np.zeros(size, np.float32) for name, size in arrays.items()}
    model = ir.from_proto(parse(f"g (float[2,4,5,5] x) => (float[N,C,H,W] y) {{ {text} }}", given, opset=20))
    infer(model)
    [node] = model.graph
    assert planner_marks._multiplications(node) == count
