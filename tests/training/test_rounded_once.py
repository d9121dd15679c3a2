"""Gradients of a shared batch: float32 until they are added up, and rounded to the type of their product then."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.cut import cut
from ampgraph.training.step.rounded_once import rounded_once
from share import FULL
from training.small_steps import WEIGHTS, batches, regression
from training.test_accumulation import worst
from training.test_cut import CNN, SCALE

pytestmark = pytest.mark.slow  # steps of a CNN


def low_ends(graph, name):
    """What operators make of a gradient that are low, seen through what only moves, casts and puts together."""
    ends, waiting = [], [next(value for value in graph.outputs if value.name == name)]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if node is not None and node.op_type == "Concat":
            waiting += node.inputs
        elif node is not None and node.op_type in ("Identity", "Cast", "Reshape", "Transpose"):
            waiting.append(node.inputs[0])
        else:
            ends.append(value.dtype)
    return ends


@pytest.mark.parametrize(
    ("model", "level"), [("mlp", "O0"), ("mlp", "O2"), ("mlp", "O3"), ("cnn", "O2"), *[("cnn", "O3")] * FULL]
)
def test_no_low_product_reaches_the_sum(model, level):
    forward, loss = (CNN, "cross_entropy") if model == "cnn" else (regression(), "loss")
    step = build_training_step(forward, loss=loss, optimizer="adamw", level=level, loss_scale=SCALE)
    bare, made = cut(step), rounded_once(cut(step))
    assert made.summed == bare.summed
    ends = {end for name in made.summed for end in low_ends(made.gradients.model.graph, name)}
    assert ends == {ir.DataType.FLOAT}
    before = [low_ends(bare.gradients.model.graph, name) for name in bare.summed]
    assert sum(before, []).count(ir.DataType.FLOAT16) >= (level != "O0") * len(WEIGHTS) // 2
    rounded = [value for value in made.update.model.graph.inputs if value.name in made.summed and _is_rounded(value)]
    assert len(rounded) >= sum(ir.DataType.FLOAT16 in found for found in before)
    for part in (made.gradients, made.update):
        onnx.checker.check_model(ir.to_proto(part.model), full_check=True)


def _is_rounded(value):
    return [(node.op_type, node.outputs[0].dtype) for node, _ in value.uses()] == [("Cast", ir.DataType.FLOAT16)]


@pytest.mark.parametrize("accumulate", [2, 4])
def test_micro_batches_are_the_whole_batch_in_float16(accumulate):
    """To a few units of float32."""
    options = {"optimizer": "sgd:lr=0.1,momentum=0.9", "level": "O2", "loss_scale": "dynamic:init=2^10"}
    step = build_training_step(regression(), loss="loss", **options)
    whole, parts = (Trainer(step, "cpu", strict=True, threads=1, accumulate=count) for count in (1, accumulate))
    for feed in batches(4):
        assert abs(whole.step(feed).loss - parts.step(feed).loss) <= 2e-6
    assert worst(whole.state, parts.state) <= 2e-6
