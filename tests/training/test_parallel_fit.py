"""Ranks that train over epochs: one of them writes, and all go on from what it wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.run.checkpoint import load
from ampgraph.training.run.dataset import Dataset
from ampgraph.training.run.fitting import FILE
from ampgraph.training.step import flat_update
from share import FULL
from training.ranks import all_right, on_ranks, opened
from training.small_steps import batches
from training.test_accumulation import built, worst
from training.test_checkpoint import Killed, _kill_at
from training.test_cut import CNN, SCALE

pytestmark = pytest.mark.slow  # gloo between two trainers

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
