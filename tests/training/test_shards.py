"""Ranks that share out the optimizer's state, cut anywhere between two elements: the bits of ranks that keep all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ampgraph.training.run.parallel import ShardedBinding
from ampgraph.training.run.shards import SHARED_OUT, shares
from ampgraph.training.step import flat_update
from ampgraph.training.step.cut import cut
from onnx_text import parse
from share import FULL
from training.ranks import all_right, on_ranks, opened
from training.small_steps import batches
from training.test_accumulation import built
from training.test_cut import SCALE, bits
from training.test_groups import GROUPS
from training.test_parallel import alone, digit_batches, digits_step, trained

pytestmark = pytest.mark.slow  # gloo between two trainers


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


def linear(size):
    body = f"g (float[N,{size}] x) => (float[N,{size}] y) {{ y = MatMul (x, w) }}"
    return parse(body, w=np.eye(size, dtype=np.float32))


def _subsets(sizes):
    return [[]] if not sizes else [part + more for part in _subsets(sizes[1:]) for more in ([], [sizes[0]])]


def test_more_ranks_than_there_is_to_share_out():
    step = built(linear(2), loss="cross_entropy", optimizer="adamw", level="O0", loss_scale=None)
    feeds = [{"x": np.ones((6, 2), np.float32), "labels": np.arange(6) % 2}] * 2
    assert bits(trained(step, feeds, 3)[1]) == bits(trained(step, feeds, 3, shard_optimizer=True)[1])
    assert sorted(held(step, 3)[0]) == [0, 0, 8]
