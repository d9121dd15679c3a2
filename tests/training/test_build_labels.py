"""Labels that are no class, through build-step: told, skipped, and known to the step."""

from __future__ import annotations

import numpy as np
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.training_step import ClassInput, StepLayout
from onnx_text import parse

WEIGHT = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


def model(body, labels="int64[N] y", result="float loss"):
    return parse(f"g (float[N,4] x, {labels}) => ({result}) {{ {body} }}", opset=20, w=WEIGHT)


OWN = "a = MatMul (x, w)  loss = SoftmaxCrossEntropyLoss (a, y)"


def trained(step, feeds):
    trainer = Trainer(step, "cpu", strict=step.layout.options["level"] != "O0")
    before = trainer.state
    result = trainer.step_checked(feeds)
    return result, [name for name, array in trainer.state.items() if array.tobytes() != before[name].tobytes()]


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("added", [False, True])
def test_a_step_with_a_label_that_is_no_class_is_skipped(level, added):
    source = model("p = MatMul (x, w)  u = Identity (y)", result="float[N,3] p") if added else model(OWN)
    loss = "cross_entropy" if added else "loss"
    step = build_training_step(source, loss=loss, optimizer="sgd:lr=0.1", level=level, loss_scale="dynamic:init=1024")
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    labels = np.array([0, 1, 2, 7, 0, 1, 2, 0])
    feeds = {"x": x, "y": labels} | ({"labels": labels} if added else {})
    result, moved = trained(step, feeds)
    assert np.isnan(result.loss) and not result.finite and result.scale == 512
    assert moved == ["step/scale"]
    right = {name: np.clip(array, 0, 2) if name != "x" else array for name, array in feeds.items()}
    result, moved = trained(step, right)
    assert result.finite and "w" in moved


def test_labels_of_a_loss_of_the_graph_are_refused_before_the_step_runs():
    """At O0 there is no scale, and nothing would leave out the step."""
    trainer = Trainer(build_training_step(model(OWN), loss="loss", optimizer="sgd:lr=0.1", level="O0"), "cpu")
    x = np.ones((3, 4), np.float32)
    with pytest.raises(AmpError, match=r"AMP503.*label 3 at \[1\] of 'y' is no class"):
        trainer.step({"x": x, "y": np.array([0, 3, 1])})
    assert np.isfinite(trainer.step({"x": x, "y": np.array([0, 2, 1])}).loss)


# -- what the step knows of its inputs -----------------------------------------------------------------------------


def read(source, **options):
    layout = build_training_step(source, **{"loss": "loss", "optimizer": "sgd", "level": "O0", **options}).layout
    assert StepLayout.from_json(layout.to_json()) == layout
    return layout.class_inputs


def test_the_labels_of_a_loss_of_the_graph():
    assert read(model(OWN)) == (ClassInput("y", 3, None),)
    ignoring = "a = MatMul (x, w)  l = LogSoftmax (a)  loss = NegativeLogLikelihoodLoss <ignore_index = -1> (l, y)"
    assert read(model(ignoring, "int32[N] y")) == (ClassInput("y", 3, -1),)


def test_labels_that_are_reshaped_on_their_way():
    body = """one = Constant <value_ints = [-1]> ()  c = Cast <to = 7> (y)  r = Reshape (c, one)
        a = MatMul (x, w)  loss = SoftmaxCrossEntropyLoss (a, r)"""
    assert read(model(body, "int32[N,1] y")) == (ClassInput("y", 3, None),)


@pytest.mark.parametrize("made", ["Add (y, one)", "Slice (y, one, two)", "Cast <to = 7> (z)"])
def test_labels_that_are_computed_or_read_in_part_are_not_known(made):
    body = f"""one = Constant <value_ints = [0]> ()  two = Constant <value_ints = [8]> ()  r = {made}
        a = MatMul (x, w)  loss = SoftmaxCrossEntropyLoss (a, r)"""
    assert read(model(body, "int64[N] y, float[N] z")) == ()


def test_another_loss_of_the_graph_says_nothing_of_its_labels():
    body = OWN.replace("loss =", "other =") + "  s = Mul (a, a)  loss = ReduceMean <keepdims = 0> (s)"
    both = model(body, result="float loss, float other")
    assert read(both) == ()
    assert read(both, loss="other") == (ClassInput("y", 3, None),)


def test_an_added_loss_has_its_own_words():
    source = model("p = MatMul (x, w)  u = Identity (y)", result="float[N,3] p")
    layout = build_training_step(source, loss="cross_entropy", optimizer="sgd", level="O0").layout
    assert (layout.labels, layout.classes, layout.class_inputs) == ("labels", 3, ())
