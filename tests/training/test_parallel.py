"""Two ranks over gloo: the update of the whole batch, one decision for all, and the same bits everywhere."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ampgraph.training.run.checkpoint import digest_of
from ampgraph.training.run.trainer import Trainer
from training.ranks import all_right, on_ranks, opened
from training.small_steps import batches
from training.test_accumulation import built, worst
from training.test_cut import SCALE, bits

pytestmark = pytest.mark.slow  # gloo between two trainers


def trained(step, feeds, world=2, *, strict=False, accumulate=1):
    """Every rank is given the whole batch, as `fit` gives it: results of each step and the state of each rank."""

    def work(rank, group):
        trainer = opened(step, group, strict=strict, accumulate=accumulate)
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


@pytest.mark.parametrize(("world", "parts"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize(("level", "scale"), [("O0", None), ("O2", SCALE)])
def test_ranks_are_micro_batches_of_one_process(world, parts, level, scale):
    """The same shares, seeds and masks; only the order of the sum differs, and with two terms not even that."""
    step = built(optimizer="sgd:lr=0.1,momentum=0.9", level=level, loss_scale=scale)
    feeds, strict = list(batches(6)), level != "O0"
    feeds[2]["x"][-1] *= np.float32(1e30)  # an overflow on the last rank alone
    (one, state) = alone(step, feeds, strict=strict, accumulate=world * parts)
    (other, shared) = trained(step, feeds, world, strict=strict, accumulate=parts)
    assert [row[1:3] for row in one] == [row[1:3] for row in other]
    if scale and world * parts == 2:
        assert bits(state) == bits(shared) and not one[2][1]
    elif level != "O0":
        assert worst(state, shared) <= 2e-6
