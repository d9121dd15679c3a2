"""Running statistics in the update: side by side, whatever their number, and the same numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.gradients.builder import Builder
from ampgraph.training.step import running_state
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse
from training.small_steps import Runner

FEATURES = 3
SAME = (0.9, 0.9, 0.9)


def normed(momenta):
    """A product, and norms one behind the other."""
    norms = [
        f"x{n + 1} = BatchNormalization <momentum = {momentum}> (x{n}, s{n}, b{n}, m{n}, v{n})"
        for n, momentum in enumerate(momenta)
    ]
    text = f"""g (float[N,{FEATURES}] x) => (float loss) {{
        x0 = MatMul (x, w) {" ".join(norms)} p = Mul (x{len(momenta)}, x) loss = ReduceMean <keepdims = 0> (p) }}"""
    random = np.random.default_rng(0)
    arrays = {f"{name}{n}": random.random(FEATURES) + 0.5 for n in range(len(momenta)) for name in "sbmv"}
    arrays["w"] = random.standard_normal((FEATURES, FEATURES))
    return parse(text, {name: array.astype(np.float32) for name, array in arrays.items()}, opset=20)


def built(momenta, **options) -> TrainingStep:
    return build_training_step(normed(momenta), loss="loss", optimizer="sgd", level="O0", **options)


def update(step: TrainingStep) -> Counter[str]:
    return Counter(node.op_type for node in step.model.graph if (node.name or "").startswith("step/"))


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("scale", [None, "dynamic"])
def test_nodes_do_not_grow_with_the_number_of_norms(scale, target):
    few, many = (
        update(built((0.9,) * count, loss_scale=scale, target=target, freeze=["s*", "b*"])) for count in (1, 4)
    )
    assert few == many and many["Split"] == 1


def run(step: TrainingStep):
    """The state after three batches."""
    runner, random = Runner(step), np.random.default_rng(1)
    for _ in range(3):
        runner({"x": random.standard_normal((8, FEATURES)).astype(np.float32)})
    return {name: array.tobytes() for name, array in runner.state.items()}


@pytest.mark.parametrize("momenta", [SAME, (0.9, 0.5, 0.9)])
@pytest.mark.parametrize("scale", [None, "dynamic:init=8"])
def test_the_numbers_are_those_of_each_by_itself(momenta, scale, monkeypatch):
    """Of several momenta too, which stay apart."""
    together = built(momenta, loss_scale=scale)
    monkeypatch.setattr(running_state, "_moved", lambda *_: None)
    apart = built(momenta, loss_scale=scale)
    assert run(together) == run(apart)
    names = [node.name or "" for node in together.model.graph if node.op_type == "Sub"]
    assert sum(name.startswith("train/") for name in names) == (0 if momenta == SAME else 6) + 6


@pytest.mark.parametrize("shape", [(), (FEATURES,)])
def test_a_rate_for_each_number_is_another_form(shape):
    """As a graph may have that was given with its buffers."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="averages")
    b, rows = Builder(graph), []
    rate = b.constant(np.full(shape, 0.5, np.float32))
    for name in "ab":
        old, batch = (ir.Value(name=f"{kind}/{name}") for kind in ("old", "batch"))
        old, batch = (b.typed(value, ir.DataType.FLOAT, FEATURES) for value in (old, batch))
        step = b.op("Mul", b.op("Sub", batch, old), rate)
        rows.append((old, b.typed(b.op("Add", old, step), old)))
    running_state.running_moves(b, rows, skips=False)
    kinds = Counter(node.op_type for node in graph)
    together = {"Concat": 2, "Sub": 1, "Mul": 1, "Add": 1}
    assert kinds == (together if shape == () else {"Sub": 2, "Mul": 2, "Add": 2})


@pytest.mark.parametrize("reader", ["Sign", "Ceil"])
def test_a_norm_without_a_gradient_tells_nothing_by_a_scale_that_it_shares(reader):
    """What its statistics overflow to is seen all the same."""
    text = f"""g (float[N,{FEATURES}] x, float[N,{FEATURES}] z) => (float loss) {{ x0 = MatMul (x, w)
        x1 = BatchNormalization (x0, s, b, m0, v0) x2 = BatchNormalization (z, s, b, m1, v1)
        d = {reader} (x2) p = Mul (x1, d) loss = ReduceMean <keepdims = 0> (p) }}"""
    arrays = {name: np.ones(FEATURES, np.float32) for name in ("s", "b", "m0", "v0", "m1", "v1")}
    model = parse(text, arrays | {"w": np.eye(FEATURES, dtype=np.float32)}, opset=20)
    runner = Runner(build_training_step(model, loss="loss", optimizer="sgd", level="O0", loss_scale="dynamic:init=8"))
    start, x = dict(runner.state), np.random.default_rng(1).standard_normal((4, FEATURES)).astype(np.float32)
    runner({"x": x, "z": np.where(x == x[1, 1], np.float32(1e30), x)})
    assert runner.state["step/scale"] == 4
    assert all(np.array_equal(runner.state[name], start[name]) for name in (*arrays, "w"))


@pytest.mark.parametrize("scale", [None, "static:8,skip=no", "static:8", "dynamic:init=8"])
def test_an_infinite_variance_spoils_no_parameter(scale):
    """Where nothing is skipped its gradient is 0; elsewhere the step is."""
    step = built(SAME[:2], loss_scale=scale)
    runner, x = Runner(step), np.random.default_rng(1).standard_normal((8, FEATURES)).astype(np.float32)
    runner.state["w"] = runner.state["w"] * np.float32(1e30)
    runner({"x": x})
    assert all(np.isfinite(runner.state[name]).all() for name in step.parameters)
