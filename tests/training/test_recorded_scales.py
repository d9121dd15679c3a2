"""Loss scales beside the recorded traces of the frameworks' own."""

from __future__ import annotations

import json

import pytest

from ampgraph.training.step.loss_scale import DynamicLossScale
from oracles import scalers
from training.test_loss_scale import trace

RECORDED = [("torch", "pytorch"), ("apex", "apex"), ("tf_keras", "tensorflow"), ("keras", "keras"), ("mxnet", "mxnet")]


@pytest.mark.parametrize(("framework", "rule"), RECORDED)
def test_the_recorded_traces_of_the_real_ones(framework: str, rule: str) -> None:
    """300 steps in each of five cases, as `oracles/scalers.py` ran them in the framework's own environment."""
    recorded = json.loads(scalers.ANSWERS.read_text())[framework]
    assert len(recorded["traces"]) == len(scalers.CASES)
    for (seed, init, interval), runs in zip(scalers.CASES, recorded["traces"], strict=True):
        real = [scale for scale, times in runs for _ in range(times)]
        steps = scalers.finite_steps(seed)
        assert len(real) == len(steps) == 300
        assert trace(DynamicLossScale.preset(rule, init=init, interval=interval), steps) == real, seed
