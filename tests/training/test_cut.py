"""The step in two graphs: one process through the cut computes what the one graph computes, to the bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.run.accumulation import AccumulatingBinding
from ampgraph.training.run.options import RunOptions
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.cut import cut
from ampgraph.training.step.training_step import Run
from onnx_text import parse
from share import FULL
from training.small_steps import WEIGHTS, batches, regression

pytestmark = pytest.mark.slow  # a grid: many small cases

MODELS = Path(__file__).resolve().parents[2] / "models"
CNN = MODELS / "digits_cnn_forward.onnx"
SCALE = "dynamic:init=2^10,interval=3"


class CutTrainer(Trainer):
    """A trainer that runs the two graphs with nothing between them."""

    def __init__(self, step, device, **options):
        super().__init__(step, device, **options)
        self._binding = AccumulatingBinding(step, RunOptions(device, **options))
        self._binding.put(step.initial_state)


def bits(state):
    return {name: array.tobytes() for name, array in state.items()}


def same_bits(step, feeds, strict):
    """Losses, skips, norms and the whole state are equal to the bit. Returns how many were skipped."""
    whole, parts = Trainer(step, "cpu", strict=strict, threads=1), CutTrainer(step, "cpu", strict=strict, threads=1)
    skipped = 0
    for feed in feeds:
        one, other = whole.step(feed), parts.step(feed)
        assert np.float32(one.loss).tobytes() == np.float32(other.loss).tobytes()
        assert (one.finite, one.scale, one.grad_norm) == (other.finite, other.scale, other.grad_norm)
        skipped += not one.finite
    assert bits(whole.state) == bits(parts.state)
    return skipped


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1", "sgd:lr=0.1,momentum=0.9,weight_decay=0.01", "adamw"])
@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
@pytest.mark.parametrize("more", [{"loss_scale": None}, {"loss_scale": SCALE, "clip_norm": 0.5}], ids=["bare", "all"])
def test_the_cut_changes_no_bit(optimizer, level, more):
    step = build_training_step(regression(), loss="loss", optimizer=optimizer, level=level, **more)
    same_bits(step, batches(6), strict=level != "O0")


def test_an_update_with_nodes_that_nothing_reads_is_cut():
    """What a step that overflows would leave of a weight, where no weight decays."""
    step = build_training_step(regression(), loss="loss", optimizer="adamw:weight_decay=0", loss_scale=SCALE)
    same_bits(step, batches(2), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_forty_steps_of_a_cnn_with_dropout_and_batch_statistics(level):
    """An overflow among them. A full run takes all 40 steps."""
    step = build_training_step(CNN, loss="cross_entropy", optimizer="adamw:lr=2e-3", level=level, loss_scale=SCALE)
    (image, labels), _ = digits.load_split()
    feeds = []
    for number in range(40 if FULL else 9):
        rows = slice(16 * number, 16 * number + 16)
        feeds.append({"image": image[rows] * np.float32(1e30 if number == 7 else 1), "labels": labels[rows]})
    assert same_bits(step, feeds, strict=level == "O2") >= 1


def test_a_saved_step_is_cut_and_holds_no_state(tmp_path):
    build_training_step(regression(), loss="loss", optimizer="adam", level="O2").save(tmp_path / "step.onnx")
    step = Trainer(tmp_path / "step.onnx", "cpu").training_step
    found = cut(step)
    low = sum(math.prod(shape) for shape in WEIGHTS.values() if len(shape) > 1)
    assert sorted(found.summed.values()) == sorted([(low,), WEIGHTS["b1"], WEIGHTS["b2"]])  # cast together
    for part in (found.gradients, found.update):
        onnx.checker.check_model(ir.to_proto(part.model), full_check=True)
        assert not set(part.model.graph.initializers) & {entry.name for entry in step.layout.states}
    assert not [node for node in found.update.model.graph if node.op_type in ("MatMul", "Tanh")]
    assert not [node for node in found.gradients.model.graph if node.op_type == "Sqrt"]
    first, second = len(found.gradients.model.graph), len(found.update.model.graph)
    assert max(first, second) < first + second <= len(step.model.graph) + 2  # only the loss passes through both
    assert len(cut(step).update.model.graph) == len(found.update.model.graph)  # the step itself is as it was


def test_one_gradient_of_two_parameters():
    """Both are the same value, and each has its place in the sum."""
    model = parse(
        "g (float[N,3] x) => (float loss) { a = Add (w, v) y = Mul (x, a) loss = ReduceMean<keepdims=0> (y) }"
    )
    for name in ("w", "v"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), name))
    step = build_training_step(model, loss="loss", optimizer="sgd", level="O0")
    assert len(cut(step).summed) == 2
    same_bits(step, [{"x": np.ones((4, 3), np.float32)}], strict=False)


def test_torch_shares_the_gradients():
    """A reduction by torch writes where the update reads."""
    step = build_training_step(regression(), loss="loss", optimizer="sgd:lr=1", level="O0")
    trainer = CutTrainer(step, "cpu")
    trainer.step(next(batches(1)))
    assert isinstance(trainer._binding, AccumulatingBinding)
    shared = torch.from_dlpack(trainer._binding.total.value)
    assert float(shared.abs().sum()) > 0
    shared.zero_()
    assert not any(trainer._binding.total.value.numpy())


def test_names_of_nodes_say_nothing():
    """What belongs to the update is told by the values that the gradients hand over."""
    step = build_training_step(regression(), loss="loss", optimizer="sgd", level="O0")
    for number, node in enumerate(step.model.graph):
        node.name = f"step/{number}"
    same_bits(step, batches(2), strict=False)


@pytest.mark.parametrize("runs", [(), (Run(("w1",), (), (), ("gone",)),)])
def test_a_step_that_does_not_say_what_its_gradients_are_is_refused(runs):
    """As one of an older version, which trains all the same."""
    step = build_training_step(regression(), loss="loss", optimizer="sgd", level="O0")
    with pytest.raises(AmpError, match="AMP206.*cannot be cut"):
        cut(replace(step, layout=replace(step.layout, runs=runs)))


def test_what_only_bodies_of_nodes_that_go_read_goes_too():
    """The gradient of an If reads the data in its bodies, and is no part of the update."""
    text = """g (float[5,2] x) => (float loss) {
        most = ReduceMax <keepdims = 0> (x) c = Greater (most, zero)
        y = If (c) <then_branch = t () => (float[5,2] y1) { y1 = MatMul (x, p) },
                    else_branch = e () => (float[5,2] y2) { y2 = MatMul (x, q) }>
        z = Mul (y, y) loss = ReduceMean <keepdims = 0> (z) }"""
    model = parse(text, {"p": np.eye(2, dtype=np.float32), "q": np.eye(2, dtype=np.float32), "zero": np.float32(0)})
    both = cut(build_training_step(model, loss="loss", optimizer="sgd", level="O0", loss_scale="static:8"))
    assert sum(map(math.prod, both.summed.values())) == 2 * 2 * 2
    assert not any(node.op_type == "If" for node in both.update.model.graph)
