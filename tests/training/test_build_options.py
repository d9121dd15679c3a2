"""What may be given to build_training_step, and what is refused before anything is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.step.optimizers import SGD
from training.small_steps import Runner, batches, regression


def build(**options):
    given = {"optimizer": "sgd:lr=0.5", "level": "O0", "loss": "loss", **options}
    return build_training_step(regression(), **given)


def refused(code, **options):
    with pytest.raises(AmpError) as caught:
        build(**options)
    assert caught.value.code == code and caught.value.hint, caught.value
    return str(caught.value)


def run(step):
    runner = Runner(step)
    return [float(runner(batch)["loss"]) for batch in batches(3)]


class Plain(SGD):
    """An optimizer of the user."""


def test_an_optimizer_of_the_user():
    step = build(optimizer=Plain(0.5))
    assert step.layout.options["optimizer"] == "Plain:lr=0.5,momentum=0.0,nesterov=no,weight_decay=0.0"
    assert run(step) == run(build())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD([torch.ones(2)], 0.1), SGD, None, 0.1])
def test_what_is_no_optimizer(optimizer):
    assert "is no optimizer" in refused("AMP322", optimizer=optimizer)


@pytest.mark.parametrize("scale", [1024, 2.0**16, True, [1]])
def test_what_is_no_loss_scale(scale):
    assert "neither a policy nor" in refused("AMP320", loss_scale=scale)


@pytest.mark.parametrize("norm", ["1", True, -1, float("nan"), 1e-50, [1.0]])
def test_what_is_no_norm(norm):
    assert "not a positive number" in refused("AMP322", clip_norm=norm)


def test_numbers_of_numpy_and_one_pattern_alone():
    rate: Any = np.float32(0.5)
    ours = build(optimizer=SGD(rate), clip_norm=np.float32(2), freeze="w*")
    theirs = build(optimizer=SGD(0.5), clip_norm=2, freeze=["w*"])
    assert ours.parameters == theirs.parameters == ["b1", "b2"] and ours.layout == theirs.layout


@pytest.mark.parametrize("loss", [[1], 1, {1: 2.0}])
def test_what_is_no_name_of_a_loss(loss):
    assert "is no name" in refused("AMP213", loss=loss)


@pytest.mark.parametrize("rate", [1e39, "0.1", True, float("inf"), -0.1])
def test_what_is_no_learning_rate(rate):
    with pytest.raises(AmpError, match="AMP322.*lr="):
        SGD(rate)
