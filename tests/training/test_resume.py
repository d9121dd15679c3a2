"""Going on from a checkpoint: in the same bytes, or not at all; and trainings that are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import load

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.run import checkpoint as files
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale, StaticLossScale
from ampgraph.training.step.optimizers import SGD
from cli_helpers import MODELS
from training.steps import blobs, linear_step
from training.test_checkpoint import DATA, FIT, Killed, _kill_at, make_trainer, same

pytestmark = pytest.mark.slow  # a grid: many small cases


def test_after_an_earlier_fit(tmp_path):
    """The learning rates count from the first update of the state, and a resumed training knows where it began."""

    def begun():
        trainer = make_trainer()
        trainer.fit(DATA, epochs=2, batch_size=16, seed=1)
        assert trainer.updates > 5
        return trainer

    whole, cut, again, other = begun(), begun(), make_trainer(), begun()
    whole.fit(DATA, **FIT, checkpoint=tmp_path / "whole")
    with pytest.raises(Killed):
        cut.fit(DATA, **FIT, checkpoint=tmp_path / "cut", on_step=_kill_at(8))
    again.fit(DATA, **FIT, checkpoint=tmp_path / "cut", resume=True)
    other.fit(DATA, **FIT, checkpoint=tmp_path / "other", resume=True)  # nothing is there yet
    assert same(whole.state, again.state) and same(whole.state, other.state)
    names = ("whole", "cut", "other")
    assert len({(tmp_path / name / FILE).read_bytes() for name in names}) == 1


OTHER = {name: array.copy() for name, array in DATA.items()}
OTHER["x"][50, 2] += 1


@pytest.mark.parametrize(
    "change, told",
    [
        ({"seed": 6}, "seed=5, not 6"),
        ({"batch_size": 8}, "batch_size=16, not 8"),
        ({"data": blobs(99)}, "samples=100, not 99"),
        ({"data": OTHER}, "other data"),
        ({"data": {**DATA, "labels": DATA["labels"][::-1]}}, "other data"),
        ({"lr_schedule": "cosine:warmup=3"}, "lr_schedule=cosine:warmup=2,end=0.0, not cosine:warmup=3,end=0.0"),
        ({"lr_schedule": "step:every=5"}, "not step:"),
        ({"lr_schedule": None}, "not none"),
        ({"lr_schedule": [0.1, 0.2]}, "not a table of 2"),
        ({"epochs": 4}, "epochs=3, not 4"),
        ({"epochs": 2}, "epochs=3, not 2"),
    ],
)
def test_going_on_with_another_training_is_refused(tmp_path, change, told):
    given = {"data": DATA, **FIT, "checkpoint": tmp_path}
    with pytest.raises(Killed):
        make_trainer().fit(**given, on_step=_kill_at(8))
    trainer, kept = make_trainer(), (tmp_path / FILE).read_bytes()
    before = trainer.state
    with pytest.raises(AmpError, match="AMP405.*is from a training with") as found:
        trainer.fit(**{**given, **change}, resume=True)
    assert told in str(found.value) and "another folder" in found.value.hint
    assert same(before, trainer.state) and (tmp_path / FILE).read_bytes() == kept


@pytest.mark.parametrize("schedule", [None, "constant:warmup=2", "step:every=4,gamma=0.5", [0.3, 0.2, 0.1]])
def test_going_on_for_longer(tmp_path, schedule):
    """Where no rate depends on the number of epochs, it ends as if it had been that number from the start."""
    more = {"batch_size": 16, "lr_schedule": schedule}
    whole, again = make_trainer(), make_trainer()
    whole.fit(DATA, epochs=4, **more, checkpoint=tmp_path / "whole")
    make_trainer().fit(DATA, epochs=2, **more, checkpoint=tmp_path / "cut")
    again.fit(DATA, epochs=4, **more, checkpoint=tmp_path / "cut", resume=True)
    assert same(whole.state, again.state)
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()


def test_the_digest_of_data():
    def digest(arrays):
        return Trainer(linear_step()).feeds.dataset(arrays).digest()

    turned = {"labels": DATA["labels"].astype(np.uint8), "x": np.asfortranarray(DATA["x"])}
    assert digest(DATA) == digest(turned) != digest(OTHER)


def test_a_place_that_is_none(tmp_path):
    make_trainer().save(tmp_path / "a")
    found = files.load(tmp_path / "a")
    files.save(tmp_path / "a", files.Checkpoint(found.digest, found.state, files.Position(seed="x")))  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP108"):
        make_trainer().load(tmp_path / "a")


@pytest.mark.slow
def test_a_network_with_batch_norm_and_dropout(tmp_path):
    """Killed in mid-epoch, with overflows before and after: running statistics and random numbers go on too."""
    images, labels = digits.load_split()[0]
    data = {"image": images[:192], "labels": labels[:192]}
    step = ampgraph.build_training_step(
        load(MODELS / "digits_cnn_forward.onnx"),
        loss="cross_entropy",
        optimizer="adamw:lr=2e-3",
        clip_norm=1.0,
        loss_scale="dynamic:init=4294967296,interval=3,backoff=0.0625",
    )
    assert step.layout.of("running") and step.layout.find("counter", "step/iteration")
    given: dict[str, Any] = {"epochs": 2, "batch_size": 32, "lr_schedule": "cosine:warmup=2", "checkpoint_every": 2}
    whole, cut, again = (Trainer(step, strict=True, threads=1) for _ in range(3))
    history = whole.fit(data, **given, checkpoint=tmp_path / "whole")
    with pytest.raises(Killed):
        cut.fit(data, **given, checkpoint=tmp_path / "cut", on_step=_kill_at(9))
    resumed = again.fit(data, **given, checkpoint=tmp_path / "cut", resume=True)
    assert resumed.resumed == 8 and not history.finite.all() and history.finite.any()
    assert same(whole.state, again.state) and history.losses.tobytes() == resumed.losses.tobytes()
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()


# -- trainings that are lost ------------------------------------------------------------------------------------------


def test_a_scale_that_has_no_inverse_is_told_before_the_first_step():
    trainer = Trainer(linear_step(scale=StaticLossScale(1.0)))
    trainer.load_state({**trainer.state, "step/scale": np.array(1e-39, np.float32)})
    with pytest.raises(AmpError, match="AMP504.*loss scale.*1e-39") as found:
        trainer.fit(DATA, epochs=1, batch_size=16)
    assert found.value.hint and trainer.updates == 0
    Trainer(linear_step(scale=StaticLossScale(3e38))).fit(DATA, epochs=1, batch_size=16)


@pytest.mark.parametrize("policy", [DynamicLossScale(init=1e-30), DynamicLossScale.preset("apex", init=1e-30)])
def test_a_scale_that_vanishes_ends_the_training(tmp_path, policy):
    """The checkpoint of before stays; none is written of weights that an infinite inverse has made infinite."""
    trainer = Trainer(linear_step(SGD(0.1), policy))
    bad = {**DATA, "x": np.where(np.arange(100)[:, None] < 3, np.inf, DATA["x"]).astype(np.float32)}
    with pytest.raises(AmpError, match="AMP504.*training is lost") as found:
        trainer.fit(bad, epochs=90, batch_size=20, checkpoint=tmp_path)
    assert "--loss-scale dynamic:floor=1" in found.value.hint
    kept = files.load(tmp_path / FILE).state
    assert 0 < kept["step/scale"] < 1e-30 and np.isfinite(kept["weight"]).all()


def test_an_epoch_that_overflows_throughout_ends_the_training(tmp_path):
    """Unless the scale is on its way down from a first value that was too great."""
    bad = {**DATA, "x": np.full_like(DATA["x"], np.inf)}
    with pytest.raises(AmpError, match=r"AMP504.*no step of epoch 3 was finite.*down to 0\.5: training is lost"):
        Trainer(linear_step(SGD(0.1), DynamicLossScale(init=2.0**14))).fit(
            bad, epochs=9, batch_size=20, checkpoint=tmp_path
        )
    assert files.load(tmp_path / FILE).state["step/scale"] == 2.0**4


def test_a_loss_that_is_no_number_ends_a_training_without_a_scale(tmp_path):
    bad = {**DATA, "x": np.full_like(DATA["x"], np.inf)}
    with pytest.raises(AmpError, match="AMP504.*the loss is nan.*weights are lost"):
        Trainer(linear_step(SGD(0.1), None)).fit(bad, epochs=1, batch_size=20, checkpoint=tmp_path)
    assert not (tmp_path / FILE).exists()


def test_a_scale_that_grows_beyond_all_numbers_ends_the_training():
    grows = DynamicLossScale.preset("mindspore-cell", init=2.0**120, interval=1)
    with pytest.raises(AmpError, match="AMP504.*inf: training is lost"):
        Trainer(linear_step(SGD(0.0), grows)).fit(DATA, epochs=20, batch_size=16)


def test_a_scale_that_recovers_goes_on():
    """Apex without a bound: beyond float32 a step overflows, is skipped, and the scale shrinks."""
    grows = DynamicLossScale.preset("apex", init=2.0**125, interval=1, cap=None)
    trainer = Trainer(linear_step(SGD(0.0), grows))
    scales = []
    history = trainer.fit(DATA, epochs=20, batch_size=16, on_step=lambda done, total, r: scales.append(r.scale))
    assert max(scales) == 2.0**128 and 0 < (~history.finite).sum() < 100


def test_the_scale_costs_no_copy_per_step(monkeypatch):
    trainer, reads = Trainer(linear_step(scale=DynamicLossScale())), []
    binding: Any = trainer._binding
    real = type(binding._scale).numpy

    def numpy(self):
        reads.append(tuple(self.shape()))
        return real(self)

    monkeypatch.setattr(type(binding._scale), "numpy", numpy)
    trainer.fit(blobs(16 * 200), epochs=1, batch_size=16)
    assert len(reads) <= 2 * 200 + 10  # loss and finite of every step, and the scale at every 64th
