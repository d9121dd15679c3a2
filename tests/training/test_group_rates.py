"""Schedules of parameter groups in a whole training, and going on from a checkpoint of one."""

import numpy as np
import pytest

from ampgraph import AmpError
from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.schedules import described, parse_schedules, rates, stretches
from ampgraph.training.run.trainer import Trainer
from training.small_steps import batches, regression

GROUPS = ["b*=adamw:lr=0.02,weight_decay=0", "*=sgd:lr=0.01,momentum=0.9"]
DATA = {name: np.concatenate([batch[name] for batch in batches(4)]) for name in ("x", "t")}
FIT = {"batch_size": 16, "seed": 5}


def make_trainer(optimizer=GROUPS, **options):
    step = build_training_step(regression(), loss="loss", optimizer=optimizer, level="O0", ema=0.9, **options)
    return Trainer(step, threads=1, strict=True)


def tables(trainer):
    rows, found = trainer.layout.groups, trainer.layout.rate_tables
    return {p: trainer.value(table) for (p, _), (table, _) in zip(rows, found, strict=True)}


def test_one_schedule_moves_each_group_by_its_own_rate():
    trainer = make_trainer()
    trainer.fit(DATA, epochs=2, lr_schedule="cosine:warmup=2", **FIT)
    found = tables(trainer)
    for pattern, rate in (("b*", 0.02), ("*", 0.01)):
        np.testing.assert_array_equal(found[pattern], rates("cosine:warmup=2", rate, 8))


def test_a_schedule_for_one_group_and_another_training_behind_it():
    trainer = make_trainer()
    for _ in range(2):
        trainer.fit(DATA, epochs=1, lr_schedule={"b*": "linear:end=0.5"}, **FIT)
    table = rates("linear:end=0.5", 0.02, 4)
    np.testing.assert_array_equal(tables(trainer)["b*"], np.concatenate([np.repeat(table[:1], 4), table]))
    np.testing.assert_array_equal(tables(trainer)["*"], np.full(8, 0.01, np.float32))


def test_going_on_from_a_checkpoint_ends_in_the_same_bytes(tmp_path):
    schedule = {"b*": "step:every=3,gamma=0.5", "*": "constant:warmup=3"}
    whole, first, second = make_trainer(), make_trainer(), make_trainer()
    whole.fit(DATA, epochs=3, lr_schedule=schedule, **FIT)
    first.fit(DATA, epochs=2, lr_schedule=schedule, checkpoint=tmp_path, **FIT)
    with pytest.raises(AmpError, match="AMP405.*is from a training with lr_schedule"):
        second.fit(DATA, epochs=3, lr_schedule="constant", checkpoint=tmp_path, resume=True, **FIT)
    second.fit(DATA, epochs=3, lr_schedule=schedule, checkpoint=tmp_path, resume=True, **FIT)
    for name, array in whole.state.items():
        np.testing.assert_array_equal(array, second.state[name], err_msg=name)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"c*": "cosine"}, "no group of parameters 'c\\*'"),
        ([0.1, 0.2], "one row of learning rates for a step with 2 groups"),
    ],
)
def test_schedules_that_fit_no_group(given, told):
    with pytest.raises(AmpError, match=f"AMP324.*{told}") as caught:
        make_trainer().fit(DATA, epochs=1, lr_schedule=given, **FIT)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], None),
        (["linear", "cosine:warmup=100"], "cosine:warmup=100"),
        (["head.*=cosine:warmup=2", "*=constant"], {"head.*": "cosine:warmup=2", "*": "constant"}),
        (["kernel:0=step:every=2"], {"kernel:0": "step:every=2"}),
    ],
)
def test_the_words_of_the_command_line(words, found):
    assert parse_schedules(words) == found


@pytest.mark.parametrize("words", [["a=cosine", "a=linear"], ["a=cosine", "linear"]])
def test_words_that_make_no_sense(words):
    with pytest.raises(AmpError, match="AMP324"):
        parse_schedules(words)


def test_what_a_checkpoint_says_of_schedules():
    text = described({"b*": "linear:end=0.5", "*": [0.1, 0.2]})
    assert text.startswith("*=a table of 2") and stretches(text) == "linear"
    assert not stretches(described({"*": "step:every=2"})) and not stretches("none")
