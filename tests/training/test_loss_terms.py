"""Several losses in one step: their weighted sum is differentiated, and each is reported."""

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from ampgraph import AmpError
from ampgraph.api.build_step import build_training_step
from ampgraph.report.training import epoch_line
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss import loss_terms, parse_losses
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse
from training.small_steps import INPUTS, WEIGHTS, batches, weights


def two_heads():
    """Logits, and two losses that are computed in the graph."""
    model = parse(
        f"""g (float[N,{INPUTS}] x, float[N,3] t) => (float[N,3] y, float near, float[1] small) {{
          m1 = MatMul (x, w1)  a1 = Add (m1, b1)  h = Tanh (a1)  m2 = MatMul (h, w2)  y = Add (m2, b2)
          d = Sub (y, t)  s = Mul (d, d)  near = ReduceMean <keepdims = 0> (s)
          q = Mul (w1, w1)  f = ReduceMean <keepdims = 0> (q)  k = Constant <value_ints = [1]> ()
          small = Reshape (f, k)
        }}""",
        opset=20,
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights().items())
    return model


def build(loss, **options):
    return build_training_step(two_heads(), loss=loss, optimizer="sgd:lr=0.5", **{"level": "O0", **options})


def labelled():
    [batch] = batches(1)
    return {**batch, "labels": np.arange(len(batch["x"])) % 3}


def by_torch(batch, terms):
    p = {name: torch.tensor(array).requires_grad_() for name, array in weights().items()}
    y = torch.tanh(torch.tensor(batch["x"]) @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    parts = {
        "near": ((y - torch.tensor(batch["t"])) ** 2).mean(),
        "small": (p["w1"] ** 2).mean(),
        "cross_entropy": torch.nn.functional.cross_entropy(y, torch.tensor(batch["labels"])),
    }
    total = sum(weight * parts[name] for name, weight in terms.items())
    found = torch.autograd.grad(total, list(p.values()))
    after = {name: (p[name] - 0.5 * gradient).detach().numpy() for name, gradient in zip(p, found, strict=True)}
    return total.item(), {name: parts[name].item() for name in terms}, after


@pytest.mark.parametrize(
    "given",
    [["near=1.0", "small=0.5"], {"small": 2, "near": -0.25}, ["cross_entropy", "small=0.1", "near=3"], ["near=2"]],
)
def test_the_weighted_sum_and_its_parts(given, tmp_path):
    build(given, output=tmp_path / "step.onnx")
    step, terms, batch = TrainingStep.load(tmp_path / "step.onnx"), present_terms(given), labelled()
    trainer = Trainer(step, threads=1)
    result = trainer.step({name: batch[name] for name in step.layout.inputs})
    total, parts, after = by_torch(batch, terms)
    assert result.loss == pytest.approx(total, rel=1e-5) and result.parts == pytest.approx(parts, rel=1e-5)
    for name in WEIGHTS:
        np.testing.assert_allclose(trainer.value(name), after[name], atol=1e-6)


def present_terms(given):
    found = loss_terms(given)
    assert found is not None
    return found


def test_parts_are_float32_under_a_loss_scale():
    trainer = Trainer(build(["near", "small=0.5"], level="O2", target="cuda", loss_scale="static:1024"), strict=True)
    batch = labelled()
    result = trainer.step({"x": batch["x"], "t": batch["t"]})
    _, parts, _ = by_torch(batch, {"near": 1, "small": 0.5})
    assert result.parts == pytest.approx(parts, rel=2e-3)


def test_one_loss_has_no_parts():
    step = build("near")
    assert step.layout.parts == () and step.layout.options["loss"] == "near"
    assert build(["near", "small=0.5"]).layout.options["loss"] == "near=1.0, small=0.5"


def test_micro_batches_report_no_parts():
    trainer = Trainer(build({"near": 1, "small": 0.5}), threads=1, accumulate=2)
    whole = Trainer(build({"near": 1, "small": 0.5}), threads=1)
    batch = {name: array for name, array in labelled().items() if name != "labels"}
    result = trainer.step(batch)
    assert result.parts == {} and result.loss == pytest.approx(whole.step(batch).loss, rel=1e-6)


def test_an_epoch_tells_the_mean_of_every_part():
    trainer = Trainer(build({"near": 1, "small": 0.5}), threads=1)
    rows = list(batches(3))
    data = {name: np.concatenate([batch[name] for batch in rows]) for name in ("x", "t")}
    [epoch] = trainer.fit(data, epochs=1, batch_size=16).epochs
    assert epoch.loss == pytest.approx(epoch.parts["near"] + 0.5 * epoch.parts["small"], rel=1e-5)
    assert "small 0." in epoch_line(epoch, 1)


def test_the_validation_measures_the_sum():
    trainer = Trainer(build({"near": 1, "small": 0.5}), threads=1)
    batch = {name: array for name, array in labelled().items() if name != "labels"}
    measured = trainer.evaluate(batch)
    assert measured["loss"] == pytest.approx(trainer.step(batch).loss, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"near": 0}, "the weight of loss 'near' is 0"),
        (["near", "near=2"], "'near' is given twice"),
        ({"cross_entropy": 1, "mse": 1}, "would read the same labels"),
        ([], "is no name"),
        (["near", "far=2"], "--loss far is neither a loss nor an output"),
    ],
)
def test_terms_that_make_no_sense(given, told):
    with pytest.raises(AmpError, match=f"AMP213.*{told}") as caught:
        build(given)
    assert caught.value.hint


def test_the_words_of_the_command_line():
    assert parse_losses([]) is None and parse_losses(["mse", "near"]) == "near"
    assert parse_losses(["near", "small=0.5"]) == ["near", "small=0.5"]


def test_labels_that_count_for_nothing_are_not_shared_with_other_losses():
    trainer = Trainer(build(["cross_entropy", "near=1"]), threads=1, accumulate=2)
    batch = labelled()
    batch["labels"][0] = -100
    with pytest.raises(AmpError, match="AMP503.*other parts"):
        trainer.step(batch)
    with pytest.raises(AmpError, match="AMP325.*cross_entropy alone"):
        trainer.fit(labelled(), epochs=1, batch_size=10, last_batch="pad")
