"""Learning-rate schedules against torch's schedulers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ampgraph.core.errors import AmpError
from ampgraph.training.run.schedules import Schedule, described, parse_schedule, rates

STEPS, RATE = 50, 0.3


def _torch_rates(make, steps=STEPS):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def _after_warmup(make, warmup):
    """torch's way to put one schedule behind another."""
    lr = torch.optim.lr_scheduler

    def build(optimizer):
        first = lr.LambdaLR(optimizer, lambda t: (t + 1) / warmup)
        return lr.SequentialLR(optimizer, [first, make(optimizer)], [warmup])

    return build


SCHEDULERS = {
    "constant": lambda o, n: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1.0),
    "linear": lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n),
    "linear:end=0.25": lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.25, n),
    "cosine": lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n),
    "cosine:end=0.1": lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n, eta_min=0.1 * RATE),
    "step:every=7,gamma=0.5": lambda o, n: torch.optim.lr_scheduler.StepLR(o, 7, 0.5),
}


@pytest.mark.parametrize("text", SCHEDULERS)
@pytest.mark.parametrize("warmup", [0, 8])
def test_the_table_is_that_of_torch(text, warmup):
    make = SCHEDULERS[text]
    left = STEPS - warmup
    built = (lambda o: make(o, left)) if not warmup else _after_warmup(lambda o: make(o, left), warmup)
    spelled = text if not warmup else f"{text}{',' if ':' in text else ':'}warmup={warmup}"
    table = rates(spelled, RATE, STEPS)
    assert table.dtype == np.float32 and table.shape == (STEPS,)
    np.testing.assert_allclose(table, _torch_rates(built), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("text", [*SCHEDULERS, "cosine:warmup=3,end=0.5", "step"])
def test_a_schedule_reads_what_it_writes(text):
    schedule = parse_schedule(text)
    assert parse_schedule(str(schedule)) == schedule


def test_numbers_are_the_table_itself():
    assert rates([0.1, 0.2], RATE, STEPS).tolist() == [np.float32(0.1), np.float32(0.2)]


@pytest.mark.parametrize(
    "text, word",
    [
        ("cosin", "did you mean 'cosine'"),
        ("cosine:", "one of"),
        ("cosine:warmup", "unknown 'warmup'"),
        ("cosine:warmup=x", "not a number"),
        ("cosine:warmup=-1", "whole number from 0"),
        ("cosine:gamma=2", "unknown 'gamma=2'"),
        ("cosine:end=1,end=2", "given twice"),
        ("linear:end=inf", "not a number from 0"),
        ("step:every=0", "whole number from 1"),
        ("cosine:warmup=50", "takes all 50 updates"),
        ("step:every=1,gamma=10", "update 41 is beyond what float32 holds"),
        ("step:every=1,gamma=1e30", "update 3 is beyond"),
        ("linear:end=1e300", "update 2 is beyond"),
    ],
)
def test_what_makes_no_sense_is_told(text, word):
    with pytest.raises(AmpError, match="AMP324") as found:
        rates(text, RATE, STEPS)
    assert word in str(found.value) and found.value.hint


def test_powers_beyond_float64():
    """10 to the 400th, which Python itself refuses."""
    with pytest.raises(AmpError, match="AMP324.*update 41 is beyond") as found:
        rates("step:every=1,gamma=10", 0.1, 400)
    assert found.value.hint


@pytest.mark.parametrize(
    "table", [[], [[0.1]], [float("nan")], [-0.1], [1e39], [10**400], ["a"], [None], [[0.1], [0.1, 0.2]], {"a": 1}, 0.1]
)
def test_a_table_that_is_none_is_told(table):
    with pytest.raises(AmpError, match="AMP324"):
        rates(table, RATE, STEPS)


def test_a_schedule_object_is_checked_too():
    with pytest.raises(AmpError, match="AMP324"):
        Schedule("cosine", warmup=1.5)  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP324"):
        Schedule("step", gamma="0.1")  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP324"):
        Schedule(["cosine"])  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers():
    of_numpy: dict[str, Any] = {"warmup": np.int64(3), "every": np.int32(5), "gamma": np.float64(0.5)}
    made = Schedule("step", **of_numpy)
    assert made == Schedule("step", warmup=3, every=5, gamma=0.5) and str(made) == "step:warmup=3,every=5,gamma=0.5"


def test_a_schedule_in_a_word():
    """The same for the same rates, whatever form they come in."""
    assert described("cosine") == described("cosine:end=0") == described(Schedule("cosine")) != described("linear")
    assert described([0.1, 0.2]) == described(np.array([0.1, 0.2], np.float32)) != described([0.1, 0.3])
    assert described(None) == "none"
