"""The step in two graphs, and several micro-batches in one update: the numbers of the one graph."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.run.accumulation import AccumulatingBinding
from ampgraph.training.run.checkpoint import load
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.options import RunOptions
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.cut import _known_shape, cut, rounded_once
from ampgraph.training.step.training_step import Run
from cli_helpers import refused
from npz import write_npz
from onnx_text import parse
from present import present
from share import FULL
from training.nets import BATCH, WEIGHTS, batches, regression
from training.test_checkpoint import Killed, _kill_at

pytestmark = pytest.mark.slow

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


def test_names_of_nodes_say_nothing():
    """What belongs to the update is told by the values that the gradients hand over."""
    step = build_training_step(regression(), loss="loss", optimizer="sgd", level="O0")
    for number, node in enumerate(step.model.graph):
        node.name = f"step/{number}"
    same_bits(step, batches(2), strict=False)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"runs": ()}, "nothing says what its gradients are"),
        ({"runs": (Run(("w1",), (), (), ("gone",)),)}, "no node makes 'gone'"),
        ({"inputs": ("x", "t", "w1")}, "its update reads input 'w1'"),
    ],
)
def test_a_step_that_does_not_say_what_its_gradients_are_is_refused(told, said):
    """As one of an older version, which trains all the same; and one whose update reads the batch."""
    step = build_training_step(regression(), loss="loss", optimizer="sgd", level="O0")
    with pytest.raises(AmpError, match=f"AMP206.*cannot be cut into gradients and update: {said}"):
        cut(replace(step, layout=replace(step.layout, **told)))


@pytest.mark.parametrize(
    ("dtype", "shape", "said"),
    [
        (ir.DataType.FLOAT16, [2, 3], "FLOAT16 .2, 3."),
        (ir.DataType.FLOAT, ["N", 3], "FLOAT .*3."),
        (ir.DataType.FLOAT, None, "FLOAT None"),
    ],
)
def test_gradients_are_float32_of_a_known_shape(dtype, shape, said):
    value = ir.Value(name="v", type=ir.TensorType(dtype), shape=None if shape is None else ir.Shape(shape))
    with pytest.raises(AmpError, match=f"AMP206.*'v' is {said}"):
        _known_shape(value)


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


FROZEN = ("*running_mean", "*running_var")


def built(model=None, **options):
    return build_training_step(regression() if model is None else model, **{"loss": "loss", **options})


def worst(one, other):
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max(initial=0)) for name in one)


@pytest.mark.parametrize("scale", [None, "static:1024", SCALE])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_update_of_the_whole_batch(scale, parts):
    """16 samples in 3 micro-batches are 5, 5 and 6."""
    step = built(optimizer="sgd:lr=0.1,momentum=0.9", level="O0", loss_scale=scale, clip_norm=0.5)
    whole, shared = Trainer(step, "cpu", threads=1), Trainer(step, "cpu", threads=1, accumulate=parts)
    for batch in batches(8):
        one, other = whole.step(batch), shared.step(batch)
        assert abs(one.loss - other.loss) <= 2.4e-7 and abs(present(one.grad_norm) - present(other.grad_norm)) <= 1e-6
        assert (one.finite, one.scale) == (other.finite, other.scale)
    assert worst(whole.state, shared.state) <= 5e-7


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_an_overflow_in_one_micro_batch_skips_the_whole(bad):
    step = built(optimizer="adamw", level="O2", loss_scale=SCALE)
    trainer = Trainer(step, "cpu", strict=True, accumulate=4)
    first, second = batches(2)
    trainer.step(first)
    before = trainer.state
    second["x"][bad * BATCH // 4] *= np.float32(1e30)
    result = trainer.step(second)
    after = trainer.state
    assert (result.finite, result.scale) == (False, 512)
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"step/scale", "step/counter"}
    assert trainer.step(first).finite


def test_labels_that_are_left_out_weigh_nothing():
    """The mean is over the labels that count, whatever micro-batch they are in; one has none."""
    model = parse("g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }", w=np.ones((4, 3), np.float32))
    step = built(model, loss="cross_entropy", optimizer="sgd:lr=1", level="O0")
    x = np.random.default_rng(1).standard_normal((12, 4)).astype(np.float32)
    labels = np.array([0, 1, -100, 2, -100, -100, -100, -100, 1, 1, 2, -100])
    whole, shared = Trainer(step, "cpu"), Trainer(step, "cpu", accumulate=3)
    one, other = (trainer.step({"x": x, "labels": labels}) for trainer in (whole, shared))
    assert abs(one.loss - other.loss) <= 2.4e-7 and worst(whole.state, shared.state) <= 2.4e-7


def test_running_statistics_go_through_every_micro_batch():
    step = built(str(CNN), loss="cross_entropy", optimizer="sgd:lr=0", level="O0")
    (image, labels), _ = digits.load_split()
    whole, shared = Trainer(step, "cpu", threads=1), Trainer(step, "cpu", threads=1, accumulate=2)
    shared.step({"image": image[:32], "labels": labels[:32]})
    for rows in (slice(0, 16), slice(16, 32)):
        whole.step({"image": image[rows], "labels": labels[rows]})
    name = "features.1.running_mean"  # in front of any Dropout
    np.testing.assert_allclose(shared.value(name), whole.value(name), rtol=1e-6)


def test_a_step_of_a_fixed_batch_size_takes_it_in_each_part():
    model = parse("g (float[4,4] x) => (float[4,3] y) { y = MatMul (x, w) }", w=np.ones((4, 3), np.float32))
    trainer = Trainer(built(model, loss="mse", optimizer="sgd", level="O0"), "cpu", accumulate=2)
    trainer.step({"x": np.ones((8, 4), np.float32), "labels": np.ones((8, 3), np.float32)})
    assert trainer.feeds.check_batch_size(8) == 8
    with pytest.raises(AmpError, match="takes 8 samples at once, not 4"):
        trainer.feeds.check_batch_size(4)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "2"])
def test_no_number_of_micro_batches(given):
    with pytest.raises(AmpError, match="AMP325"):
        Trainer(built(optimizer="sgd"), "cpu", accumulate=given)


def test_a_batch_that_is_too_small_or_uneven():
    trainer = Trainer(built(optimizer="sgd", level="O0"), "cpu", accumulate=4)
    batch = {name: array[:3] for name, array in next(batches(1)).items()}
    before = bits(trainer.state)
    with pytest.raises(AmpError, match="AMP503.*a batch of 3 is too small for 4 micro-batches"):
        trainer.step(batch)
    with pytest.raises(AmpError, match="AMP503"):
        trainer.feeds.check_batch_size(3)
    assert bits(trainer.state) == before


def test_going_on_ends_in_the_same_bytes(tmp_path):
    step = built(optimizer="adamw", level="O2", loss_scale=SCALE)
    feeds = list(batches(3))
    data = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}

    def trainer(parts=2):
        return Trainer(step, "cpu", strict=True, threads=1, accumulate=parts)

    def fit(one, folder, **more):
        return one.fit(data, epochs=2, batch_size=16, checkpoint=tmp_path / folder, checkpoint_every=1, **more)

    fit(trainer(), "whole")
    with pytest.raises(Killed):
        fit(trainer(), "cut", on_step=_kill_at(4))
    with pytest.raises(AmpError, match="AMP405.*accumulate=2, not 1"):
        fit(trainer(1), "cut", resume=True)
    fit(trainer(), "cut", resume=True)
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()
    fit(trainer(1), "one")
    assert b"accumulate" not in (tmp_path / "one" / FILE).read_bytes()
    assert [load(tmp_path / name / FILE).position.accumulate for name in ("one", "cut")] == [1, 2]


def test_on_the_command_line(tmp_path, amp):
    built(optimizer="sgd", level="O0").save(tmp_path / "step.onnx")
    write_npz(tmp_path / "train.npz", next(batches(1)))
    words = ["train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--epochs", 1, "--batch-size", 16]
    status, out, _ = amp(*words, "--accumulate", 4, "--json")
    assert (status, json.loads(out)["steps"]) == (0, 1)
    refused(amp(*words, "--accumulate", 0), "AMP325", "accumulate=0")


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
