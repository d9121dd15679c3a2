"""Buffers that a graph of torch updates beside its training: state of the step, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import ampgraph
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.trainer import Trainer
from onnx_text import parse
from present import present
from training.joint_graphs import build, refused

KEY = "pkg.torch.export.ExportedProgram.graph_signature"
JOINT = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[8,4] x, float seed) => (float loss, float[4] w_grad, float[4] new_mean, int64 new_count)
    <float[4] w = {1, 2, 3, 4}, float[4] mean = {0, 0, 0, 0}, int64 count = {5}, float k = {0.9}, float j = {0.1},
     int64[1] ax = {0}, float n = {32.0}, int64 one = {1}> {
      mu = ReduceMean <keepdims = 0> (x, ax)  a = Mul (mean, k)  b = Mul (mu, j)  new_mean = Add (a, b)
      new_count = Add (count, one)  c = Sub (x, mu)  y = Mul (c, w)  y2 = Mul (y, y)
      loss = ReduceMean <keepdims = 0> (y2)  two = Add (y, y)  d = Mul (two, c)  e = Div (d, n)  f = Mul (e, seed)
      w_grad = ReduceSum <keepdims = 0> (f, ax)
    }"""
SIGNATURE = """loss: LOSS_OUTPUT\nw_grad: GRADIENT_TO_PARAMETER target='w'\nnew_mean: BUFFER_MUTATION target='mean'
new_count: BUFFER_MUTATION target='count'\np: PARAMETER target='w'\nb: BUFFER target='mean'\nc: BUFFER target='count'"""


def joint(text=JOINT, told=SIGNATURE):
    model = parse(text)
    model.metadata_props.add(key=KEY, value=told)
    return model


def data(seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)}


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_running_values_of_a_joint_graph_are_state(level):
    step = build(joint(), level=level, optimizer="sgd:lr=0.1", clip_norm=None)
    assert step.parameters == ["w"] and [entry.name for entry in step.layout.of("running")] == ["mean", "count"]
    trainer, mean = Trainer(step, "cpu", strict=level != "O0"), np.zeros(4)
    for number in range(5):
        assert trainer.step(data(number)).finite
        mean = 0.9 * mean + 0.1 * data(number)["x"].astype(np.float64).mean(0)
    np.testing.assert_allclose(trainer.value("mean"), mean, rtol=1e-5 if level == "O0" else 2e-2, atol=1e-4)
    assert trainer.value("mean").dtype == np.float32 and trainer.value("count") == 10
    before, poisoned = trainer.state, data()
    poisoned["x"][0, 0] = np.inf
    assert not trainer.step(poisoned).finite
    for name in ("w", "mean", "count"):
        np.testing.assert_array_equal(trainer.value(name), before[name])
    assert np.isfinite(trainer.evaluate(data())["loss"])
    stored = trained_model(step, trainer.state).graph.initializers
    np.testing.assert_array_equal(present(stored["mean"].const_value).numpy(), trainer.value("mean"))


def test_what_a_step_adds_is_not_rounded_away():
    """Between 256 and 512 float16 has steps of 1/4: a mean would not move by less."""
    text = JOINT.replace("mean = {0, 0, 0, 0}", "mean = {300, 300, 300, 300}").replace("k = {0.9}", "k = {0.9999}")
    trainer = Trainer(build(joint(text), level="O2"), "cpu", strict=True)
    trainer.step(data())
    expected = 300 * 0.9999 + 0.1 * data()["x"].astype(np.float64).mean(0)
    np.testing.assert_allclose(trainer.value("mean"), expected, atol=2e-3)


def test_a_frozen_buffer_stays():
    step = build(joint(), freeze=["mean"])
    trainer = Trainer(step, "cpu")
    trainer.step(data())
    assert [entry.name for entry in step.layout.of("running")] == ["count"]
    assert not step.model.graph.initializers["mean"].const_value.numpy().any()


def test_buffers_that_cannot_be_state():
    assert "not in the graph" in refused("AMP215", joint(told=SIGNATURE.replace("target='mean'", "target='lost'")))
    assert "is no output" in refused("AMP215", joint(told=SIGNATURE.replace("new_mean:", "a:")))
    told = refused("AMP215", joint(JOINT.replace("float[4] mean = {0, 0, 0, 0}", "float mean = {0}")))
    assert "'new_mean' is FLOAT [4]" in told and "'mean' is FLOAT []" in told


def test_a_count_of_batches_that_nobody_reads_is_no_matter():
    told = SIGNATURE.replace("target='count'", "target='norm.num_batches_tracked'")
    assert [entry.name for entry in build(joint(told=told)).layout.of("running")] == ["mean"]


class Moving(nn.Module):
    average: torch.Tensor

    def __init__(self):
        super().__init__()
        self.last, self.norm = nn.Linear(4, 1), nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.last(self.norm(x - self.average))


@pytest.mark.slow
def test_a_module_that_moves_an_average_of_its_own(tmp_path):
    """It is state, as that of its BatchNorm is; unless it is frozen. The export leaves the module's own as it was."""
    torch.manual_seed(0)
    module, x = Moving(), torch.randn(4, 4)
    made = ampgraph.export_for_training(module, (x,), tmp_path / "forward.onnx")
    assert not module.average.any() and made.outputs == ["linear"]
    trainer = ampgraph.Trainer(build(made, loss="mse"))
    for _ in range(3):
        trainer.step({"x": x.numpy(), "labels": np.zeros((4, 1), np.float32)})
        module(x)
    np.testing.assert_allclose(trainer.state["average"], module.average.numpy(), rtol=1e-6)
    step = build(tmp_path / "forward.onnx", loss="mse", freeze=["average"])
    assert [entry.name for entry in step.layout.of("running")] == ["norm.running_mean", "norm.running_var"]
