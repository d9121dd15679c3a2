"""Two ranks over gloo: the update of the whole batch, one decision for all, and the same bits everywhere."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import onnx
import pytest
import torch

from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.forward.torch_export import export_for_training
from ampgraph.training.run.checkpoint import digest_of
from ampgraph.training.run.trainer import Trainer
from onnx_text import parse
from share import FULL
from training.ranks import all_right, on_ranks, opened
from training.small_steps import batches
from training.test_accumulation import FROZEN, built, worst
from training.test_cut import CNN, SCALE, bits

pytestmark = pytest.mark.slow  # gloo between two trainers


def trained(step, feeds, world=2, *, strict=False, **options):
    """Every rank is given the whole batch, as `fit` gives it: results of each step and the state of each rank."""

    def work(rank, group):
        trainer = opened(step, group, strict=strict, **options)
        made = [trainer.step_checked(trainer.feeds.checked(feed)) for feed in feeds]
        return [(r.loss, r.finite, r.scale, r.grad_norm) for r in made], trainer.state

    results = all_right(on_ranks(world, work))
    assert len({digest_of(state) for _, state in results}) == 1
    assert len({hashlib.sha256(repr(rows).encode()).hexdigest() for rows, _ in results}) == 1
    return results[0]


def alone(step, feeds, *, strict=False, accumulate=1):
    trainer = Trainer(step, "cpu", strict=strict, threads=1, accumulate=accumulate)
    made = [trainer.step(feed) for feed in feeds]
    return [(r.loss, r.finite, r.scale, r.grad_norm) for r in made], trainer.state


@pytest.mark.parametrize("scale", [None, SCALE])
def test_forty_steps_are_those_of_one_process(scale):
    step = built(optimizer="adamw", level="O0", loss_scale=scale, clip_norm=0.5)
    feeds = list(batches(40))
    (one, state), (other, shared) = alone(step, feeds), trained(step, feeds)
    assert max(abs(a[0] - b[0]) for a, b in zip(one, other, strict=True)) <= 1e-6
    assert [row[1:3] for row in one] == [row[1:3] for row in other]
    assert worst(state, shared) <= 2e-6


@pytest.mark.parametrize(("world", "parts"), [(2, 1), (2, 2), (3, 1)] if FULL else [(2, 1), (2, 2)])
@pytest.mark.parametrize(("level", "scale"), [("O0", None), ("O2", SCALE)] if FULL else [("O2", SCALE)])
def test_ranks_are_micro_batches_of_one_process(world, parts, level, scale):
    """The same shares, seeds and masks; only the order of the sum differs, and with two terms not even that."""
    step = built(optimizer="sgd:lr=0.1,momentum=0.9", level=level, loss_scale=scale)
    feeds, strict = list(batches(6)), level != "O0"
    if scale:
        feeds[2]["x"][-1] *= np.float32(1e30)  # an overflow on the last rank alone
    (one, state) = alone(step, feeds, strict=strict, accumulate=world * parts)
    (other, shared) = trained(step, feeds, world, strict=strict, accumulate=parts)
    assert [row[1:3] for row in one] == [row[1:3] for row in other]
    assert scale is None or not one[2][1]
    if scale and world * parts == 2:
        assert bits(state) == bits(shared)
    assert worst(state, shared) <= 2e-6


def without_dropout():
    model = onnx.load(CNN)
    for node in [node for node in model.graph.node if node.op_type == "Dropout"]:
        for reader in model.graph.node:
            reader.input[:] = [node.input[0] if name == node.output[0] else name for name in reader.input]
        model.graph.node.remove(node)
    return model


@cache
def digits_step(optimizer, level, scale):
    options = {"optimizer": optimizer, "level": level, "loss_scale": scale, "freeze": FROZEN}
    return built(without_dropout(), loss="cross_entropy", **options)


def digit_batches(count, size=64, seed=0):
    (image, labels), _ = digits.load_split()
    order = np.random.default_rng(seed)
    for _ in range(count):
        rows = order.permutation(len(image))[:size]
        yield {"image": image[rows], "labels": labels[rows]}


def losses(rows):
    return np.array([row[0] for row in rows])


def test_a_cnn_of_digits_in_float32():
    step = digits_step("adamw:lr=2e-3", "O0", None)
    feeds = list(digit_batches(40))
    (one, state), (other, shared) = alone(step, feeds), trained(step, feeds)
    assert np.abs(losses(one) - losses(other)).max() <= 1e-6 and worst(state, shared) <= 5e-6


FIRST_STEPS = ["sgd:lr=0.05,momentum=0.9", "adamw:lr=2e-3"]


@pytest.mark.parametrize("seed", range(4) if FULL else [0])
@pytest.mark.parametrize("optimizer", FIRST_STEPS if FULL else FIRST_STEPS[1:])
def test_a_cnn_of_digits_in_float16(optimizer, seed):
    """Its first steps. A gradient that is rounded on each rank would part AdamW's by 4e-6: it makes whole steps of the
    smallest. What is added up is not rounded before."""
    step = digits_step(optimizer, "O2", "dynamic:init=1024,interval=10")
    feeds = list(digit_batches(3, seed=seed))
    (one, _), (other, _) = alone(step, feeds, strict=True), trained(step, feeds, strict=True)
    assert np.abs(losses(one) - losses(other)).max() <= 2e-6
    assert [row[1:3] for row in one] == [row[1:3] for row in other]


def linear():
    return parse("g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }", w=np.ones((4, 3), np.float32))


@pytest.mark.parametrize("rest", [0, 3])
def test_own_batches_of_other_sizes(rest):
    """Each rank gives its own batch: the update is that of all of them, whatever their sizes and labels left out."""
    step = built(linear(), loss="cross_entropy", optimizer="sgd:lr=1", level="O0")
    x = np.random.default_rng(1).standard_normal((12, 4)).astype(np.float32)
    labels = np.array([0, 1, -100, 2, -100, 1, 0, 2, -100, -100, -100, -100])
    labels[8 : 8 + rest] = 1  # the second rank has none that counts, or some
    parts = [{"x": x[rows], "labels": labels[rows]} for rows in (slice(0, 8), slice(8, 12))]

    def work(rank, group):
        trainer = opened(step, group)
        return trainer.step(parts[rank]).loss, trainer.state

    (one, state), (other, same) = all_right(on_ranks(2, work))
    whole = Trainer(step, "cpu")
    assert abs(whole.step({"x": x, "labels": labels}).loss - one) <= 2.4e-7 and one == other
    assert bits(state) == bits(same) and worst(state, whole.state) <= 2.4e-7


def normed():
    return parse(
        """g (float[N,2,3] x) => (float[N,2] y) {
          z = BatchNormalization <training_mode = 0> (x, s, b, mean, variance)
          y = ReduceMean <keepdims = 0> (z, axis) }""",
        opset=20,
        ir=10,
        axis=np.array([2]),
        s=np.ones(2, np.float32),
        b=np.zeros(2, np.float32),
        mean=np.zeros(2, np.float32),
        variance=np.ones(2, np.float32),
    )


def test_running_statistics_are_averaged():
    step = built(normed(), loss="mse", optimizer="sgd:lr=0", level="O0")
    x = np.random.default_rng(2).standard_normal((10, 2, 3)).astype(np.float32)
    batch = {"x": x, "labels": np.zeros((10, 2), np.float32)}
    _, shared = trained(step, [batch])
    halves = [{name: array[rows] for name, array in batch.items()} for rows in (slice(0, 5), slice(5, 10))]
    one, other = (alone(step, [half])[1] for half in halves)
    for name in ("mean", "variance"):
        assert bits(one)[name] != bits(other)[name]
        np.testing.assert_allclose(shared[name], (one[name] + other[name]) / 2, rtol=1e-6)


def test_no_two_ranks_draw_one_mask():
    """The loss is the part that Dropout keeps: two ranks of equal rows keep different elements."""
    model = parse(
        """g (float[N,64] x) => (float loss) {
          y = Mul (x, w) r = Constant <value = float {0.5}> () on = Constant <value = bool {1}> ()
          d = Dropout (y, r, on) s = Mul (d, d) loss = ReduceMean <keepdims = 0> (s) }""",
        w=np.ones(64, np.float32),
    )
    step = built(model, optimizer="sgd:lr=1", level="O0")
    feeds = [{"x": np.ones((2, 64), np.float32)}] * 2
    _, state = trained(step, feeds[:1])
    moved = 1 - state["w"]
    assert len(np.unique(moved.round(6))) == 3  # kept in none, in one, in both
    assert int(state["step/iteration"]) == 1
    assert bits(alone(step, feeds[:1], accumulate=2)[1])["w"] == bits(state)["w"]


def test_a_rank_that_is_gone_is_one_error():
    step = built(optimizer="sgd", level="O0")
    [batch] = batches(1)

    def work(rank, group):
        trainer = opened(step, group)
        trainer.step(batch)
        before = trainer.state
        if rank == 0:
            with pytest.raises(AmpError, match="AMP509.*another process of this training is gone"):
                trainer.step(batch)
            assert bits(trainer.state) == bits(before)

    all_right(on_ranks(2, work))


@pytest.mark.parametrize("given", ["all", 2, True, np.ones(3), [1, 2]])
def test_no_group_of_processes(given):
    with pytest.raises(AmpError, match="AMP325.*is no process group"):
        Trainer(built(optimizer="sgd", level="O0"), "cpu", distributed=given)


def test_a_norm_that_is_synchronised_is_refused(tmp_path):
    """torch's exporter writes it as a plain one; one whose statistics are frozen is just that."""

    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(1, 2, 3), torch.nn.SyncBatchNorm(2)

        def forward(self, x):
            return self.norm(self.conv(x)).mean((2, 3))

    module, args = Normed(), (torch.zeros(4, 1, 5, 5),)
    with pytest.raises(AmpError, match="AMP214.*norm: is an nn.SyncBatchNorm"):
        export_for_training(module, args, tmp_path / "forward.onnx")
    model = normed()
    classes = "['M', 'torch.nn.modules.batchnorm.SyncBatchNorm', 'aten.batch_norm.default']"
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=classes)
    with pytest.raises(AmpError, match="AMP214.*mean: is an nn.SyncBatchNorm"):
        built(model, loss="cross_entropy", optimizer="sgd")
    assert built(model, loss="cross_entropy", optimizer="sgd", freeze=["mean", "variance"]).parameters


@pytest.mark.parametrize(("kind", "most"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_gradients_are_sent_in_a_low_type(kind, most):
    """Rounded once more, and what overflows in it is an overflow: here 2^20 times a gradient above 1/16."""
    step = built(optimizer="sgd:lr=0.1", level="O0", loss_scale="dynamic:init=2^20,interval=100")
    feeds = list(batches(8))
    (one, state), (other, low) = alone(step, feeds), trained(step, feeds, communicate=kind)
    skipped = [row[1] for row in other].count(False)
    assert skipped == 0 if kind == "bfloat16" else 0 < skipped < 8
    assert bits(state) != bits(low)
    if not skipped:
        assert np.abs(losses(one) - losses(other)).max() <= most


def test_float16_is_not_sent_where_nobody_looks_for_overflows():
    step = built(optimizer="sgd", level="O0", loss_scale=None)
    [error, _] = on_ranks(2, lambda rank, group: opened(step, group, communicate="float16"))
    assert "AMP325" in str(error) and "send bfloat16" in str(error)
    with pytest.raises(AmpError, match="(?s)AMP325.*did you mean 'float16'"):
        Trainer(step, "cpu", communicate="float6")
