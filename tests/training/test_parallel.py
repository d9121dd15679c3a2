"""Ranks over gloo: the update of the whole batch, one decision for all, the same bits, and what is shared out."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
import torch
import torch.distributed as dist

from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.forward.torch_export import export_for_training
from ampgraph.training.run import ranks
from ampgraph.training.run.checkpoint import digest_of, load
from ampgraph.training.run.dataset import Dataset
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.parallel import ShardedBinding
from ampgraph.training.run.shards import SHARED_OUT, shares
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step import flat_update
from ampgraph.training.step.cut import cut
from onnx_text import parse
from share import FULL
from training.nets import batches
from training.test_checkpoint import Killed, _kill_at
from training.test_cut import CNN, FROZEN, SCALE, bits, built, worst
from training.test_optimizers import GROUPS

pytestmark = pytest.mark.slow

T = TypeVar("T")
WAIT = timedelta(seconds=20)
OPENING = threading.Lock()  # a step in memory is made a session from by one thread at a time


def opened(step, group, **options) -> Trainer:
    with OPENING:
        return Trainer(step, "cpu", threads=1, distributed=group, **options)


def on_ranks(count: int, work: Callable[[int, dist.ProcessGroup], T], wait: timedelta = WAIT) -> list[T | Exception]:
    """What ``work(rank, group)`` returns or raises on every rank. A rank that ends closes its connections."""
    store = dist.HashStore()
    found: dict[int, T | Exception] = {}

    def run(rank: int) -> None:
        try:
            group: Any = dist.ProcessGroupGloo(store, rank, count, wait)
            found[rank] = work(rank, group)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [found[rank] for rank in range(count)]


def all_right(results: list[T | Exception]) -> list[T]:
    """Raises the first error; one that tells of another rank only where nothing else went wrong."""
    wrong = [result for result in results if isinstance(result, Exception)]
    for error in sorted(wrong, key=lambda error: "AMP509" in str(error)):
        raise error
    return [result for result in results if not isinstance(result, Exception)]


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


def linear(rows=4, columns=3):
    text = f"g (float[N,{rows}] x) => (float[N,{columns}] y) {{ y = MatMul (x, w) }}"
    return parse(text, w=np.eye(rows, columns, dtype=np.float32))


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
    with pytest.raises(AmpError, match="AMP325.*is not a process group"):
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
    with pytest.raises(AmpError, match="(?s)AMP325.*hint: communicate='float16'"):
        Trainer(step, "cpu", communicate="int8")


FEEDS = list(batches(3))
DATA = {name: np.concatenate([feed[name] for feed in FEEDS]) for name in FEEDS[0]}


@pytest.fixture
def step(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_update, "ELSEWHERE", 0)  # small parameters one by one: ranks can share them out
    built(optimizer="adamw", level="O0", loss_scale=SCALE).save(tmp_path / "step.onnx")
    return str(tmp_path / "step.onnx")


def fit(step, folder, world=2, seeds=(0, 0, 0, 0), shard=False, **more):
    """The histories of all ranks."""

    def work(rank, group):
        trainer = opened(step, group if world > 1 else None, shard_optimizer=shard)
        options = {"epochs": 2, "batch_size": 16, "checkpoint_every": 1, "validate": DATA, "seed": seeds[rank]}
        return trainer.fit(DATA, checkpoint=folder, **options | more)

    return on_ranks(world, work)


def test_a_checkpoint_goes_on_with_any_number_of_ranks(step, tmp_path):
    whole = all_right(fit(step, tmp_path / "whole"))
    assert whole[0].epochs == whole[1].epochs and whole[0].losses.tobytes() == whole[1].losses.tobytes()
    for world in (2, 1, 4):
        folder = tmp_path / str(world)
        assert {type(error) for error in fit(step, folder, on_step=_kill_at(4))} == {Killed}
        [history, *_] = all_right(fit(step, folder, world, resume=True))
        assert history.resumed == 3
        one, other = load(tmp_path / "whole" / FILE), load(folder / FILE)
        assert worst(one.state, other.state) <= 2e-6 and one.position == other.position
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "2" / FILE).read_bytes()


def test_ranks_that_keep_a_part_of_the_slots_save_all(step, tmp_path):
    whole = all_right(fit(step, tmp_path / "whole"))
    assert {type(error) for error in fit(step, tmp_path / "parts", on_step=_kill_at(4), shard=True)} == {Killed}
    parts = all_right(fit(step, tmp_path / "parts", resume=True, shard=True))
    assert whole[0].losses.tobytes() == parts[0].losses.tobytes()
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "parts" / FILE).read_bytes()


def test_a_checkpoint_that_cannot_be_gone_on_from_ends_all(step, tmp_path):
    all_right(fit(step, tmp_path / "there"))
    assert all("AMP325" in str(error) for error in fit(step, tmp_path / "there"))


class Recorded:
    """An array that says how many rows were asked for at a time."""

    def __init__(self, array):
        self.array, self.asked = array, []

    def __getitem__(self, rows):
        self.asked.append(len(rows))
        return self.array[rows]


def test_each_rank_reads_its_own_rows(step):
    """But for one batch of every epoch, which ranks compare, and for a row that tells the types."""
    whole = all_right(fit(step, None, checkpoint_every=0, epochs=1))

    def work(rank, group):
        kept: dict[str, Any] = {name: Recorded(array) for name, array in DATA.items()}
        made = opened(step, group).fit(Dataset(kept, 48), epochs=1, batch_size=16)
        return made.losses.tobytes(), [[count for count in one.asked if count > 1] for one in kept.values()]

    for losses, asked in all_right(on_ranks(2, work)):
        assert losses == whole[0].losses.tobytes()
        assert asked == [[16, 8, 8, 8]] * len(DATA)


def test_ranks_with_other_options(step, tmp_path):
    errors = fit(step, None, seeds=(0, 1), checkpoint_every=0)
    assert all("AMP509" in str(error) and "rank 1 has another step" in str(error) for error in errors)


def test_ranks_with_other_state(step):
    def work(rank, group):
        trainer = opened(step, group)
        state = trainer.state
        state["w1"][0, 0] += np.float32(rank)
        trainer.load_state(state)
        with pytest.raises(AmpError, match="AMP509.*rank 1 has other bits in its state than rank 0"):
            trainer.fit(DATA, epochs=1, batch_size=16)

    all_right(on_ranks(2, work))


def test_ranks_with_other_samples(step):
    """What a DataLoader gives that is shuffled without a seed."""

    def work(rank, group):
        trainer = opened(step, group)
        with pytest.raises(AmpError, match="(?s)AMP509.*rank 1 has another batch than rank 0.*same order on all ranks"):
            trainer.fit(FEEDS[:: 1 - 2 * rank], epochs=1, batch_size=16)

    all_right(on_ranks(2, work))


def test_a_batch_that_is_too_small_for_all_ranks(step):
    errors = fit(step, None, batch_size=1, checkpoint_every=0)
    assert all("a batch of 1 is too small for 2 micro-batches" in str(error) for error in errors)


@pytest.mark.skipif(not FULL, reason="some 60 s of CPU: ./test full")
def test_two_ranks_end_as_good_as_one_process(tmp_path):
    """A CNN with Dropout and BatchNormalization in float16: other masks and statistics, and the same quality."""
    step = tmp_path / "step.onnx"
    built(CNN, loss="cross_entropy", optimizer="adamw:lr=2e-3", level="O2", loss_scale="dynamic").save(step)
    train, kept = ({"image": image, "labels": labels} for image, labels in digits.load_split())

    def work(rank, group):
        trainer = opened(step, group, strict=True)
        trainer.fit(train, epochs=10, batch_size=64)
        return trainer.evaluate(kept)["accuracy"]

    found, one = all_right(on_ranks(2, work)), work(0, None)
    assert found[0] == found[1] >= 0.97 and abs(found[0] - one) <= 0.01


def held(step, world):
    """How many numbers of slots each rank holds, and how many there are; and what every rank holds of each state."""
    made, first = cut(step), step.initial_state
    sizes = {entry.name: first[entry.name].size for entry in step.layout.of(*SHARED_OUT)}
    spans = shares(made.update, sizes, world).spans
    slots = [entry.name for entry in step.layout.of("slot")]
    found = [sum(spans[name][rank][1] - spans[name][rank][0] for name in slots) for rank in range(world)]
    assert sum(found) == sum(sizes[name] for name in slots)
    for name, parts in spans.items():
        assert [parts[0][0], *(end for _, end in parts)] == [0, *(start for start, _ in parts[1:]), sizes[name]]
    return found, sum(found)


def in_sessions(step, world):
    """The same, as the session of each rank has it."""

    def work(rank, group):
        trainer = opened(step, group, shard_optimizer=True)
        assert isinstance(trainer._binding, ShardedBinding)
        update = trainer._binding
        return sum(math.prod(update.shape(entry.name)) for entry in update.layout.of("slot"))

    return all_right(on_ranks(world, work))


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "together": ({"optimizer": "adamw"}, flat_update.ELSEWHERE),
    "one by one": ({"optimizer": "adamw", "ema": 0.9}, 0),
    "some together": ({"optimizer": "sgd:lr=0.1,momentum=0.9,weight_decay=0.01"}, 20),
    "groups": ({"optimizer": GROUPS, "ema": 0.9}, flat_update.ELSEWHERE),
    "for the CPU": ({"optimizer": "adam:weight_decay=0.01", "target": "cpu"}, 0),
    "no slots": ({"optimizer": "sgd:lr=0.1"}, flat_update.ELSEWHERE),
}


@pytest.mark.parametrize("world", [2, 3] if FULL else [2])
@pytest.mark.parametrize("case", CASES if FULL else ["together", "groups", "for the CPU"])
def test_each_rank_keeps_its_part_of_the_slots(case, world, monkeypatch):
    """Over an overflow too."""
    more, longest = CASES[case]
    monkeypatch.setattr(flat_update, "ELSEWHERE", longest)
    step = built(level="O2", loss_scale=SCALE, clip_norm=0.5, **more)
    feeds = list(batches(5))
    feeds[2]["x"][-1] *= np.float32(1e30)
    whole = trained(step, feeds, world, strict=True)
    parts = trained(step, feeds, world, strict=True, shard_optimizer=True)
    assert repr(whole[0]) == repr(parts[0]) and bits(whole[1]) == bits(parts[1])
    found, total = held(step, world)
    assert max(found) <= total / world + 32 * bool(total)  # cuts lie at multiples of 16
    if case == "groups":
        assert in_sessions(step, world) == found


def test_the_slots_of_a_cnn_of_digits_are_halved():
    step = digits_step("adamw:lr=2e-3", "O2", "dynamic:init=1024,interval=10")
    feeds = list(digit_batches(2))
    whole = alone(step, feeds, accumulate=2)  # the bits of two ranks, as test_parallel.py shows
    assert bits(whole[1]) == bits(trained(step, feeds, shard_optimizer=True)[1])
    found, total = held(step, 2)
    assert total == 63732 and max(found) <= 0.505 * total


@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_a_larger_network_is_shared_out_evenly(world, monkeypatch):
    """700,000 numbers, most of them in one parameter, which is cut; nothing is trained here."""
    sizes = {"table": (1 << 17, 4), "w": (4, 1 << 15), "b": (1 << 15,)}
    rows: dict[str, Any] = {name: np.ones(shape, np.float32) for name, shape in sizes.items()}
    model = parse(
        """g (int64[N] i) => (float loss) {
          x = Gather (table, i) y = MatMul (x, w) z = Add (y, b)
          loss = ReduceMean <keepdims = 0> (z) }""",
        **rows,
    )
    monkeypatch.setattr(flat_update, "ELSEWHERE", 1 << 16)
    step = built(model, optimizer="adamw", level="O0")
    found, total = held(step, world)
    assert total == 2 * sum(step.initial_state[name].size for name in rows) and max(found) <= 1.01 * total / world


@dataclass(frozen=True)
class Normed:
    """A step of one length, whatever the gradient's: it reads a parameter and its gradient as wholes."""

    lr: float = 0.1
    slots = ("mean",)

    def begin(self, b, lr, count):
        return (lr,)

    def update(self, b, parameter, gradient, slots, begun):
        mean = b.op("Add", b.op("Mul", slots[0], b.number(0.5)), gradient)
        length = b.op("Sqrt", b.op("ReduceSumSquare", mean, keepdims=0))
        return b.op("Sub", parameter, b.op("Div", b.op("Mul", mean, begun[0]), length)), [mean]


def test_what_an_optimizer_reads_together_is_not_cut():
    step = built(optimizer=Normed(), level="O0", loss_scale=None)
    feeds = list(batches(3))
    assert bits(trained(step, feeds)[1]) == bits(trained(step, feeds, shard_optimizer=True)[1])
    found, _ = held(step, 2)
    assert found == in_sessions(step, 2) and set(found) <= {sum(part) for part in _subsets([48, 8, 24, 3])}


def _subsets(sizes):
    return [[]] if not sizes else [part + more for part in _subsets(sizes[1:]) for more in ([], [sizes[0]])]


def test_more_ranks_than_there_is_to_share_out():
    step = built(linear(2, 2), loss="cross_entropy", optimizer="adamw", level="O0", loss_scale=None)
    feeds = [{"x": np.ones((6, 2), np.float32), "labels": np.arange(6) % 2}] * 2
    assert bits(trained(step, feeds, 3)[1]) == bits(trained(step, feeds, 3, shard_optimizer=True)[1])
    assert sorted(held(step, 3)[0]) == [0, 0, 8]


def test_what_a_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, world, said in ((None, None, (0, 1)), ("2", "4", (2, 4)), ("x", "4", (0, 1)), ("0", "0", (0, 1))):
        for name, given in (("RANK", rank), ("WORLD_SIZE", world)):
            monkeypatch.delenv(name, raising=False) if given is None else monkeypatch.setenv(name, given)
        assert ranks.rank_and_world() == said


def test_ranks_share_the_threads_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    for local, given, threads in (("1", 0, 0), ("2", 0, 3), ("2", 5, 5), ("8", 0, 1), ("?", 0, 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        assert ranks.threads_of_rank(given) == threads
