"""BatchNormalization through build-step: skipped steps, what is frozen, modules without running statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.trainer import Trainer
from onnx_text import parse
from present import present

VECTORS = {"scale": [1.0, 0.5, 2.0], "shift": [0.1, 0, -0.1], "mean": [0.2, 0, -0.2], "variance": [1.0, 2.0, 0.5]}


def normed(mode=0):
    outputs = "n, new_mean, new_variance" if mode else "n"
    model = parse(
        f"""g (float[N,4] x, float[N,3] t) => (float loss) {{
          a = MatMul (x, w)  {outputs} = BatchNormalization <training_mode = {mode}> (a, scale, shift, mean, variance)
          d = Sub (n, t)  s = Mul (d, d)  loss = ReduceMean <keepdims = 0> (s)
        }}""",
        opset=20,
    )
    arrays = {"w": np.random.default_rng(2).standard_normal((4, 3)), **VECTORS}
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


def batch(seed=0):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((8, size)).astype(np.float32) for name, size in (("x", 4), ("t", 3))}


def build(model, level="O0", **options):
    given = {"loss": "loss", "optimizer": "sgd:lr=0.1,momentum=0.9", "loss_scale": "dynamic:init=1024"}
    return build_training_step(model, level=level, **{**given, **options})


def bits(trainer):
    return {name: array.tobytes() for name, array in trainer.state.items() if not name.startswith("step/")}


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("freeze", [[], ["w"], ["w", "scale"]])
def test_a_step_that_overflows_leaves_all_as_it_was(level, bad, freeze):
    """1e30: only the new variance overflows where the product is float32."""
    trainer = Trainer(build(normed(), level, freeze=freeze), "cpu", strict=level != "O0")
    trainer.step(batch())
    before, poisoned = bits(trainer), batch(1)
    poisoned["x"][2, 1] = bad
    result = trainer.step(poisoned)
    assert not result.finite and result.scale == 512 and bits(trainer) == before
    assert trainer.step(batch(2)).finite
    now = bits(trainer)
    assert {"mean", "variance", "shift"} <= {name for name in now if now[name] != before[name]}


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("freeze", ["mean", "variance", "*"])
def test_frozen_statistics_stay_and_are_computed_with(mode, freeze):
    freeze = [*VECTORS] if freeze == "*" else freeze
    step = build(normed(mode), optimizer="sgd:lr=0.1", freeze=freeze)
    trainer = Trainer(step, "cpu")
    assert not step.layout.of("running")
    feeds, stored = batch(), {v.name: v.const_value.numpy() for v in step.model.graph.initializers.values()}
    stored |= step.initial_state
    tensors = {name: torch.tensor(stored[name]).double() for name in ("w", *VECTORS)}
    tensors["w"].requires_grad_()
    x, t = (torch.tensor(feeds[name]).double() for name in "xt")
    scale, shift, mean, variance = (tensors[name] for name in VECTORS)
    made = ((x @ tensors["w"] - mean) / torch.sqrt(variance + 1e-5) * scale + shift - t) ** 2
    made.mean().backward()
    assert trainer.step(feeds).loss == pytest.approx(made.mean().item(), rel=1e-5)
    expected = tensors["w"].detach() - 0.1 * present(tensors["w"].grad)
    np.testing.assert_allclose(trainer.value("w"), expected, rtol=1e-4, atol=1e-6)
    exported = trained_model(step, trainer.state).graph.initializers
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(present(exported[name].const_value).numpy(), np.array(VECTORS[name], np.float32))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_module_without_running_statistics(level, tmp_path):
    """It normalizes by its batch, in the training and after it."""
    torch.manual_seed(0)
    module, path = Plain(), tmp_path / "forward.onnx"
    x = torch.randn(8, 1, 6, 6)
    ampgraph.export_for_training(module, (x,), path)
    step = build(path, level, loss="mse", optimizer="sgd:lr=0.1")
    assert not step.layout.of("running") and set(step.parameters) == set(dict(module.named_parameters()))
    trainer, optimizer = Trainer(step, "cpu", strict=level != "O0"), torch.optim.SGD(module.parameters(), 0.1)
    labels = torch.randn(8, 1)
    feeds = {"x": x.numpy(), "labels": labels.numpy()}
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), labels)
        loss.backward()
        optimizer.step()
        assert trainer.step(feeds).loss == pytest.approx(loss.item(), rel=1e-5 if level == "O0" else 1e-2)
    evaluated = nn.functional.mse_loss(module.eval()(x), labels).item()
    assert trainer.evaluate(feeds)["loss"] == pytest.approx(evaluated, rel=1e-4 if level == "O0" else 1e-2)
