"""Norms that a backward runs again by one node: fewer launches, the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.training.step import gradient_graph, norms_together
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse

WIDTH, FROZEN = 8, 8


def normed(layers, rows=4):
    """A residual stream with a norm behind each block, and its mean square."""
    blocks = [
        f"m{n} = MatMul (h{n}, w{n}) a{n} = Add (h{n}, m{n}) "
        f"h{n + 1} = LayerNormalization <axis = -1> (a{n}, s{n}, b{n})"
        for n in range(layers)
    ]
    text = f"g (float[N,{rows},{WIDTH}] h0) => (float loss) {{ {' '.join(blocks)}" + (
        f" p = Mul (h{layers}, target) loss = ReduceMean <keepdims = 0> (p) }}"
    )
    random = np.random.default_rng(0)
    arrays = {f"w{n}": random.standard_normal((WIDTH, WIDTH)) / 3 for n in range(layers)}
    arrays |= {f"s{n}": random.random(WIDTH) + 0.5 for n in range(layers)}
    arrays |= {f"b{n}": random.standard_normal(WIDTH) / 4 for n in range(layers)}
    arrays["target"] = random.standard_normal((rows, WIDTH))
    return parse(text, {name: array.astype(np.float32) for name, array in arrays.items()}, opset=20)


def built(layers, batch=2, level="O2", **options) -> TrainingStep:
    given = {"loss": "loss", "optimizer": "adamw", "level": level, "freeze": ["target"], "batch": batch, **options}
    return build_training_step(normed(layers), **given)


def kinds(step: TrainingStep, kind: str) -> list[ir.Node]:
    return [node for node in step.model.graph if node.op_type == kind]


@pytest.mark.parametrize(("level", "nodes"), [("O0", 1), ("O2", 2)])
def test_a_backward_runs_them_by_one_node(level, nodes):
    """Whatever their number; forward norms are one by one. At O2 the first has float32 data, and its own node."""
    few, many = built(4, level=level), built(8, level=level)
    assert [len(kinds(step, "LayerNormalization")) for step in (few, many)] == [4 + nodes, 8 + nodes]
    assert sum(node.name == "grad/norms/LayerNormalization" for node in many.model.graph) == 1


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_numbers_are_the_same(level, dtype, monkeypatch):
    scale = "static:64"
    together = built(4, level=level, dtype=dtype, loss_scale=scale)
    monkeypatch.setattr(gradient_graph, "run_norms_together", lambda *_: None)
    apart = built(4, level=level, dtype=dtype, loss_scale=scale)
    assert len(apart.model.graph) > len(together.model.graph)
    x = np.random.default_rng(1).standard_normal((2, 4, WIDTH)).astype(np.float32)
    one, two = (StrictSession(ir.to_proto(step.model), threads=1).run({"h0": x}) for step in (together, apart))
    assert {name: array.tobytes() for name, array in one.items()} == {n: array.tobytes() for n, array in two.items()}


def test_not_where_bytes_cost_more_or_sizes_are_not_known(monkeypatch):
    for batch, target in ((None, "cuda"), (2, "cpu")):
        assert len(kinds(built(4, batch=batch, target=target), "LayerNormalization")) == 8
    monkeypatch.setattr(norms_together, "LAUNCH", 1 << 8)
    assert len(kinds(built(4), "LayerNormalization")) == 8
    assert len(kinds(built(2), "LayerNormalization")) == 4


def of_frozen_data(shape):
    """Norms of the input times a constant, which no gradient passes, all with one scale of ``shape``."""
    data = " ".join(f"f{n} = Mul (h0, k{n})" for n in range(FROZEN))
    norms = " ".join(f"n{n} = LayerNormalization (f{n}, ones)" for n in range(FROZEN))
    names = ", ".join(f"n{n}" for n in range(FROZEN))
    text = f"g (float[N,4,{WIDTH}] h0) => (float loss) {{ {data} {norms} m = MatMul (h0, w) " + (
        f"y = Sum (m, {names}) p = Mul (y, y) loss = ReduceMean <keepdims = 0> (p) }}"
    )
    random = np.random.default_rng(0)
    arrays = {f"k{n}": random.random(WIDTH) + 0.5 for n in range(FROZEN)}
    arrays |= {"w": random.random((WIDTH, WIDTH)), "ones": random.random(shape)}
    return text, {name: array.astype(np.float32) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("shape", "given", "other"),
    [
        ((WIDTH,), "", ""),
        ((2, 1, 1), "", ""),  # a scale for each row
        ((WIDTH,), "n7 = LayerNormalization (f7, ones)", "n7 = LayerNormalization (n6, ones)"),  # of another's result
        ((WIDTH,), "n7 = LayerNormalization (f7, ones)", "c = Cast <to = 1> (f7) n7 = LayerNormalization (c, ones)"),
    ],
)
def test_norms_of_the_forward_that_one_node_may_not_compute(shape, given, other, monkeypatch):
    graph, arrays = of_frozen_data(shape)
    model = parse(graph.replace(given, other), arrays, opset=20)
    freeze = [name for name in arrays if name != "w"]
    steps = []
    for _ in range(2):
        steps.append(build_training_step(model, loss="loss", optimizer="sgd", level="O0", freeze=freeze, batch=2))
        monkeypatch.setattr(gradient_graph, "run_norms_together", lambda *_: None)
    x = np.random.default_rng(1).standard_normal((2, 4, WIDTH)).astype(np.float32)
    one, two = (StrictSession(ir.to_proto(step.model), threads=1).run({"h0": x}) for step in steps)
    assert {name: array.tobytes() for name, array in one.items()} == {n: array.tobytes() for n, array in two.items()}
