"""Gradient penalties against torch.autograd.grad(create_graph=True), and what they refuse."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from ampgraph import AmpError, GradientPenalty
from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.penalty import parse_penalty
from onnx_text import parse
from training.small_steps import BATCH, HIDDEN, INPUTS, batches, regression, torch_loss, weights

CRITIC = {name: array for name, array in weights(1).items() if name != "b2"}


def critic() -> onnx.ModelProto:
    """A critic of real and mixed samples, as a Wasserstein GAN trains it: the loss, and the scores of the mixed."""
    model = parse(
        f"""g (float[N,{INPUTS}] x, float[N,{INPUTS}] mixed) => (float loss, float[N,3] score) {{
          m1 = MatMul (x, w1)  a1 = Add (m1, b1)  h1 = Softplus (a1)  real = MatMul (h1, w2)
          m2 = MatMul (mixed, w1)  a2 = Add (m2, b1)  h2 = Softplus (a2)  score = MatMul (h2, w2)
          loss = ReduceMean <keepdims = 0> (real)
        }}""",
        opset=20,
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in CRITIC.items())
    return model


def batch_of(names, seed=3):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((BATCH, INPUTS)).astype(np.float32) for name in names}


def moved(step, batch):
    """The loss, its parts, and the gradients: what SGD with a rate of 1 takes off."""
    trainer = Trainer(step, threads=1, strict=True)
    before = trainer.state
    result = trainer.step(batch)
    assert result.finite
    return result, {name: before[name] - trainer.value(name) for name in step.parameters}


def assert_gradients(ours, total, parameters, bound):
    found = torch.autograd.grad(total, list(parameters.values()))
    largest = max(float(gradient.abs().max()) for gradient in found)
    for name, gradient in zip(parameters, found, strict=True):
        assert np.abs(ours[name] - gradient.numpy()).max() <= bound * largest, name


def distance(norms, given):
    return (norms - given.target).abs() ** given.power


def of_regression(given, parameters, batch):
    loss = torch_loss(parameters, batch)
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    return loss, distance(torch.linalg.vector_norm(whole, given.norm), given)


REGRESSION = [
    GradientPenalty(of="parameters", power=1),
    GradientPenalty(weight=0.5),
    GradientPenalty(weight=0.02, norm=1, power=1),
    GradientPenalty(weight=2, target=1),
]


@pytest.mark.parametrize("loss_scale", [None, "static:1024"])
@pytest.mark.parametrize("given", REGRESSION, ids=str)
def test_of_parameters_as_torch(given, loss_scale):
    step = build_training_step(
        regression(), loss="loss", optimizer="sgd:lr=1", level="O0", penalty=given, loss_scale=loss_scale
    )
    [batch] = batches(1)
    result, ours = moved(step, batch)
    parameters = {name: torch.tensor(array).requires_grad_() for name, array in weights().items()}
    loss, penalty = of_regression(given, parameters, batch)
    assert result.parts == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-5)
    assert result.loss == pytest.approx(loss.item() + given.weight * penalty.item(), rel=1e-5)
    assert_gradients(ours, loss + given.weight * penalty, parameters, 1e-5)


def of_critic(given, parameters, batch):
    """As Gulrajani et al.: a norm for each mixed sample."""
    mixed = torch.tensor(batch["mixed"]).requires_grad_()

    def score(x):
        return torch.nn.functional.softplus(x @ parameters["w1"] + parameters["b1"]) @ parameters["w2"]

    [gradient] = torch.autograd.grad(score(mixed).sum(), [mixed], create_graph=True)
    return score(torch.tensor(batch["x"])).mean(), distance(gradient.norm(given.norm, dim=1), given).mean()


SCORES = [
    GradientPenalty(weight=10, of="mixed", output="score", target=1),
    GradientPenalty(weight=5, of="mixed", output="score"),
    GradientPenalty(weight=5, of="inputs", output="score", norm=1, power=1),
]


@pytest.mark.parametrize("loss_scale", [None, "static:1024"])
@pytest.mark.parametrize("given", SCORES, ids=str)
def test_of_inputs_as_torch(given, loss_scale):
    step = build_training_step(
        critic(), loss="loss", optimizer="sgd:lr=1", level="O0", penalty=given, loss_scale=loss_scale
    )
    batch = batch_of(("x", "mixed"))
    result, ours = moved(step, batch)
    parameters = {name: torch.tensor(array).requires_grad_() for name, array in CRITIC.items()}
    loss, penalty = of_critic(given, parameters, batch)
    assert result.parts == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-5)
    assert_gradients(ours, loss + given.weight * penalty, parameters, 1e-5)


@pytest.mark.parametrize(("model", "given", "reference", "inputs"), [
    (regression, REGRESSION[0], of_regression, None), (critic, SCORES[0], of_critic, ("x", "mixed")),
])  # fmt: skip
def test_low_precision_under_a_loss_scale(model, given, reference, inputs):
    """float16 of inner gradients that float16 alone would lose: the loss scale holds for them too."""
    step = build_training_step(
        model(),
        loss="loss",
        optimizer="sgd:lr=1",
        level="O2",
        target="cuda",
        penalty=given,
        loss_scale="dynamic:init=1024",
    )
    kinds = {node.op_type for node in step.model.graph if str(node.outputs[0].dtype) == "FLOAT16"}
    batch = next(batches(1)) if inputs is None else batch_of(inputs)
    result, ours = moved(step, batch)
    parameters = {
        name: torch.tensor(a).requires_grad_() for name, a in (weights() if inputs is None else CRITIC).items()
    }
    loss, penalty = reference(given, parameters, batch)
    assert kinds & {"MatMul", "Gemm"}
    assert result.parts == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=5e-3)
    assert_gradients(ours, loss + given.weight * penalty, parameters, 5e-3)


def test_an_inner_gradient_that_overflows_skips_the_step():
    step = build_training_step(
        regression(), loss="loss", optimizer="sgd", level="O2", target="cuda", penalty=REGRESSION[0],
        loss_scale="dynamic:init=2^40",
    )  # fmt: skip
    trainer = Trainer(step, strict=True, threads=1)
    before = trainer.state
    [batch] = batches(1)
    assert not trainer.step(batch).finite and trainer.scale == 2.0**39
    assert all(np.array_equal(before[name], trainer.value(name)) for name in step.parameters)


def test_a_gradient_of_zero_has_a_norm_that_can_be_differentiated():
    """As torch.norm, unlike pow(2).sum().sqrt()."""
    given = GradientPenalty(weight=10, of="mixed", output="score", target=1)
    step = build_training_step(critic(), loss="loss", optimizer="sgd:lr=1", level="O0", penalty=given)
    batch = batch_of(("x", "mixed"))
    batch["mixed"][3] = -1e4 * np.sign(CRITIC["w1"][:, 0])  # softplus of a column is 0 there
    model = {**CRITIC, "w1": np.repeat(CRITIC["w1"][:, :1], HIDDEN, 1)}
    trainer = Trainer(step, threads=1)
    trainer.load_state({**trainer.state, "w1": model["w1"]})
    trainer.step(batch)
    assert all(np.isfinite(trainer.value(name)).all() for name in step.parameters)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("weight=0", "weight=0.0 is not a positive number"),
        ("weight=big", "weight=big is not a number"),
        ("norm=3", "norm=3 is neither 1 nor 2"),
        ("of=x,target=1", "target=1 for the gradients of a mean loss"),
        ("scale=2", "unknown 'scale=2'"),
        ("of=y", "the loss depends on no float input 'y'"),
        ("of=inputs", "of=inputs may be x or t"),
        ("of=x,output=scores", "there is no output 'scores'"),
    ],
)
def test_penalties_that_make_no_sense(text, told):
    with pytest.raises(AmpError, match=f"AMP213.*{told}") as caught:
        build_training_step(regression(), loss="loss", optimizer="sgd", penalty=text)
    assert caught.value.hint


def test_micro_batches_share_only_what_is_a_mean_over_samples():
    options: dict[str, Any] = {"loss": "loss", "optimizer": "sgd:lr=1", "level": "O0"}
    with pytest.raises(AmpError, match="AMP325.*penalty is of the whole batch"):
        Trainer(build_training_step(regression(), **options, penalty="power=1"), accumulate=2)
    step = build_training_step(critic(), **options, penalty=SCORES[0])
    batch, whole, shared = batch_of(("x", "mixed")), Trainer(step, threads=1), Trainer(step, threads=1, accumulate=2)
    assert shared.step(batch).loss == pytest.approx(whole.step(batch).loss, rel=1e-6)
    np.testing.assert_allclose(shared.value("w1"), whole.value("w1"), atol=1e-6)


def test_the_spelled_form_reads_back():
    for given in (*REGRESSION, *SCORES):
        assert parse_penalty(str(given)) == given
