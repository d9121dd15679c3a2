"""Low gradients and matrices side by side as rows of one width: fewer views, and the same numbers."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step import vectors
from ampgraph.training.step.cut import cut
from ampgraph.training.step.training_step import TrainingStep
from ampgraph.training.step.vectors import LAUNCH
from onnx_text import parse

WIDTH, MIDDLE = 8, 16


def built(layers=3, width=WIDTH, level="O2", **options) -> TrainingStep:
    """Weights as torch keeps them, the other way round: the gradient of each is behind a Transpose."""
    blocks = [
        f"t{n} = Transpose (u{n}) m{n} = MatMul (x{n}, t{n}) a{n} = Add (m{n}, b{n}) r{n} = Relu (a{n}) "
        f"s{n} = Transpose (v{n}) o{n} = MatMul (r{n}, s{n}) x{n + 1} = MatMul (o{n}, w{n})"
        for n in range(layers)
    ]
    text = f"""g (float[2,4,{width}] x0) => (float loss) {{ {" ".join(blocks)}
        p = Mul (x{layers}, x{layers}) loss = ReduceMean <keepdims = 0> (p) }}"""
    random = np.random.default_rng(0)
    sizes = {"u": (MIDDLE, width), "v": (width, MIDDLE), "w": (width, width), "b": (MIDDLE,)}
    arrays = {
        f"{name}{n}": (random.standard_normal(size) / 3).astype(np.float32)
        for n in range(layers)
        for name, size in sizes.items()
    }
    given = {"loss": "loss", "optimizer": "sgd:lr=0.1", "loss_scale": "static:64", **options}
    return build_training_step(parse(text, arrays, opset=20), level=level, **given)


def run(step: TrainingStep) -> dict[str, bytes]:
    """The state after two batches."""
    trainer, random = Trainer(step, "cpu", strict=True, threads=1), np.random.default_rng(1)
    for _ in range(2):
        trainer.step({"x0": random.standard_normal((2, 4, WIDTH)).astype(np.float32)})
    return {name: trainer.value(name).tobytes() for name in step.parameters}


def views(step: TrainingStep) -> int:
    return Counter(n.op_type for n in step.model.graph if (n.name or "").startswith("step/"))["Reshape"]


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("launch", [LAUNCH, 0])
def test_the_numbers_are_those_of_vectors(level, launch, monkeypatch):
    """Of products of low weights too, which are taken apart as rows where that pays."""
    monkeypatch.setattr(vectors, "LAUNCH", launch)
    rows = built(level=level)
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "_row_width", lambda *_: 0)
        patch.setattr(vectors, "_rows_pay", lambda *_: False)
        flat = built(level=level)
    assert views(rows) < views(flat)
    assert run(rows) == run(flat)


def test_a_gradient_whose_source_has_no_known_shape_can_be_cut():
    """What is behind the view is the result of a Loop; the gradient itself has the shape of its parameter."""
    text = f"""g (float[5,{WIDTH}] x) => (float loss) {{ m = MatMul (x, u) a = Add (m, b)
        y = Loop (n, go, a) <body = turn (int64 i, bool c0, float[5,{WIDTH}] h) => (bool c1, float[5,{WIDTH}] o) {{
          c1 = Identity (c0) k = MatMul (h, v) o = Tanh (k) }}>
        z = Mul (y, d) p = Mul (z, z) loss = ReduceMean <keepdims = 0> (p) }}"""
    arrays = {name: np.eye(WIDTH, dtype=np.float32) for name in "uv"}
    arrays |= {"b": np.ones(WIDTH, np.float32), "d": np.ones(WIDTH, np.float32)}
    arrays |= {"n": np.array(2), "go": np.array(True)}
    model = parse(text, arrays, opset=20)
    step = build_training_step(model, loss="loss", optimizer="adamw", level="O0", target="cuda", loss_scale="static:8")
    assert sum(math.prod(shape) for shape in cut(step).summed.values()) == 2 * WIDTH**2 + 2 * WIDTH
