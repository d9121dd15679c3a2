"""A step file trains over data and epochs as the Cell does, goes on from its checkpoint, and says what it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore as ms

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.mindspore import MindirTrainer
from ampgraph.training.run.fitting import fit
from ampgraph.training.run.options import FitOptions
from mindir import step_nets, training_nets

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]
Arrays = dict[str, np.ndarray]
BATCHES, EPOCHS = 3, 2


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A step with a loss scale at O2, its check for overflow left as Ascend has it."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    folder = tmp_path_factory.mktemp("step")
    training_nets.export(step_nets.step_cell("mlp", "scaled"), str(folder / "step.mindir"))
    ampgraph.convert(folder / "step.mindir", "O2", output=folder / "low.mindir")
    yield folder / "low.mindir"
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def data() -> Arrays:
    """Digits under the names of the inputs; the labels as numpy makes whole numbers."""
    rows = list(training_nets.batches(BATCHES))
    images, labels = (np.concatenate(part) for part in zip(*rows, strict=True))
    return {"inputs0": images, "inputs1": labels.astype(np.int64)}


def state(trainer: MindirTrainer) -> Arrays:
    return {name: np.asarray(late) for name, late in trainer.late_state().items()}


def test_epochs_are_the_cells_and_go_on_from_a_checkpoint(step: Path, data: Arrays, tmp_path: Path) -> None:
    """One that is broken off behind an epoch ends in the bytes of one that ran through, which are the Cell's."""
    trainer = MindirTrainer(step, "cpu")
    whole = trainer.feeds.dataset(data)
    order = [(b["inputs0"], b["inputs1"]) for epoch in range(EPOCHS) for b in whole.shuffled(64, 0, epoch)]
    told, expected = step_nets.trained(step_nets.step_cell("mlp", "finite", "O2"), order)
    first = fit(trainer, data, None, FitOptions(1, 64, checkpoint=tmp_path / "run"))
    other = MindirTrainer(step, "cpu")
    history = fit(other, data, None, FitOptions(EPOCHS, 64, checkpoint=tmp_path / "run", resume=True))
    assert history.resumed == len(first.losses) == BATCHES
    np.testing.assert_array_equal(history.losses, [loss for loss, _, _ in told])
    assert history.epochs[-1].scale == told[-1][2] and all(history.finite) and other.updates == BATCHES * EPOCHS
    for name, array in state(other).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    _rates_and_refusals(other, data)


def _rates_and_refusals(trainer: MindirTrainer, data: Arrays) -> None:
    """On a trainer that is there: opening one takes seconds."""
    done, batch = trainer.updates, trainer.feeds.checked({name: array[:64] for name, array in data.items()})
    trainer.set_rates({"*": np.array([0.5] * done + [0.25, 0.125], np.float32)})
    for expected in (0.25, 0.125, 0.125):
        trainer.step_checked(batch)
        assert trainer.learning_rate == expected
    for code, told, options, validate in (
        ("AMP503", "takes 64 samples at once, not 32", FitOptions(1, 32), None),
        ("AMP206", "no forward graph", FitOptions(1, 64), data),
    ):
        with pytest.raises(AmpError, match=f"{code}.*{told}"):
            fit(trainer, data, validate, options)
    wide: Arrays = {**data, "inputs1": data["inputs1"] + 2**40}
    with pytest.raises(AmpError, match=r"AMP503.*beyond int32"):
        trainer.feeds.dataset(dict(wide))
    before = state(trainer)
    with pytest.raises(AmpError, match=r"AMP405.*scale_sense"):
        trainer.load_state({**before, "scale_sense": np.zeros(3, np.float32)})
    assert all(np.array_equal(array, before[name]) for name, array in state(trainer).items())
