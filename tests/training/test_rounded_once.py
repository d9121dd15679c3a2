"""Gradients of a shared batch: float32 until they are added up, and rounded to the type of their product then."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.cut import cut, rounded_once
from share import FULL
from training.small_steps import batches, regression
from training.test_accumulation import worst
from training.test_cut import CNN, SCALE

pytestmark = pytest.mark.slow  # steps of a CNN


def ends(graph, name):
    """Types of what makes a gradient, seen through what only moves and casts."""
    found, waiting = [], [next(value for value in graph.outputs if value.name == name)]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if node is None or node.op_type not in ("Identity", "Cast", "Reshape", "Transpose", "Concat"):
            found.append(value.dtype)
        else:
            waiting += node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return found


@pytest.mark.parametrize(
    ("model", "level"), [("mlp", "O0"), ("mlp", "O2"), ("mlp", "O3"), ("cnn", "O2"), *[("cnn", "O3")] * FULL]
)
def test_no_low_product_reaches_the_sum(model, level):
    forward, loss = (CNN, "cross_entropy") if model == "cnn" else (regression(), "loss")
    step = build_training_step(forward, loss=loss, optimizer="adamw", level=level, loss_scale=SCALE)
    bare, made = cut(step), rounded_once(cut(step))
    assert made.summed == bare.summed
    assert {kind for name in made.summed for kind in ends(made.gradients.model.graph, name)} == {ir.DataType.FLOAT}
    before = {name: ends(bare.gradients.model.graph, name) for name in bare.summed}
    low = {name for name, kinds in before.items() if ir.DataType.FLOAT16 in kinds}
    assert bool(low) == (level != "O0")
    rounded = {
        value.name for value in made.update.model.graph.inputs if value.name in made.summed and _is_rounded(value)
    }
    assert low <= rounded
    for part in (made.gradients, made.update):
        onnx.checker.check_model(ir.to_proto(part.model), full_check=True)


def _is_rounded(value):
    return [(node.op_type, node.outputs[0].dtype) for node, _ in value.uses()] == [("Cast", ir.DataType.FLOAT16)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("accumulate", [2, 4])
def test_micro_batches_are_the_whole_batch_in_a_low_type(accumulate, dtype):
    """To a few units of float32; at bfloat16 the loss that is told is of that type itself."""
    optimizer, scale = "sgd:lr=0.1,momentum=0.9", "dynamic:init=2^10"
    step = build_training_step(
        regression(), loss="loss", optimizer=optimizer, level="O2", loss_scale=scale, dtype=dtype
    )
    whole, parts = (Trainer(step, "cpu", strict=True, threads=1, accumulate=count) for count in (1, accumulate))
    for feed in batches(4):
        assert abs(whole.step(feed).loss - parts.step(feed).loss) <= (2e-6 if dtype == "float16" else 2e-3)
    assert worst(whole.state, parts.state) <= 2e-6
