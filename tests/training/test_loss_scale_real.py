"""The traces of loss scales are those of the real implementations, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ampgraph.training.step.loss_scale import (
    MINDSPORE,
    DynamicLossScale,
)
from share import share
from training.scale_traces import STARTS, steps_of, trace


@pytest.mark.share(3)
@pytest.mark.parametrize("init", [*STARTS, 1e-44, 2.0**-149])
@pytest.mark.parametrize(("growth", "backoff"), [(2.0, 0.5), (1.7, 0.3), (1.001, 0.9)])
@pytest.mark.parametrize("interval", [1, 2, 7])
def test_the_trace_of_pytorch(init: float, growth: float, backoff: float, interval: int) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    real = torch.amp.GradScaler(
        "cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    steps = steps_of(interval, 300)
    scales = []
    for finite in steps:
        real.scale(weight)  # makes the scale, the first time
        weight.grad = torch.tensor(0.0 if finite else math.inf)
        real.step(optimizer)
        real.update()
        scales.append(real.get_scale())
    start = max(init, 2.0**-127)  # the smallest with a reciprocal; a scale may shrink below it
    ours = DynamicLossScale.pytorch(start, growth, backoff, interval)
    assert trace(ours, steps, replace(ours.start(), scale=float(np.float32(init)))) == scales


def mindspore() -> Any:
    return pytest.importorskip("mindspore")


def real_scaler(real: Any) -> Callable[[bool], float]:
    """A LossScaler of mindspore.amp, adjusted inside a compiled function as a training step does it."""
    ms = mindspore()

    @ms.jit
    def step(finite: Any) -> Any:
        real.adjust(finite)
        return real.scale_value * 1.0

    return lambda finite: float(step(ms.Tensor(finite, ms.bool_)).asnumpy())


def real_cell(cell: Any) -> Callable[[bool], float]:
    """An update cell inside a Cell that holds the scale, as TrainOneStepWithLossScaleCell holds it."""
    ms: Any = mindspore()

    class Holder(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.update = cell
            self.scale_sense = ms.Parameter(ms.Tensor(cell.get_loss_scale(), ms.float32), name="scale_sense")

        def construct(self, overflow: Any) -> Any:
            self.update(self.scale_sense, overflow)
            return self.scale_sense * 1.0

    holder = Holder()
    return lambda finite: float(holder(ms.Tensor(not finite, ms.bool_)).asnumpy())


def real_manager(manager: Any) -> Callable[[bool], float]:
    def step(finite: bool) -> float:
        manager.update_loss_scale(not finite)
        return float(manager.get_loss_scale())

    return step


FACTORS = ((2, 1), (2, 3), (3, 2), (7, 5))
MINDSPORE_CASES = [(init, *FACTORS[(i + j) % 4]) for i, init in enumerate(STARTS) for j in (0, 1)]


@pytest.mark.mindspore
@pytest.mark.parametrize("name", ["DynamicLossScaler", "DynamicLossScaleUpdateCell", "DynamicLossScaleManager"])
def test_the_traces_of_mindspore_dynamic(name: str) -> None:
    ms = mindspore()
    ms.set_context(mode=ms.GRAPH_MODE)
    for seed, case in enumerate(share(MINDSPORE_CASES, 6)):
        if name == "DynamicLossScaleUpdateCell":
            step = real_cell(ms.nn.DynamicLossScaleUpdateCell(*case))
        elif name == "DynamicLossScaler":
            step = real_scaler(ms.amp.DynamicLossScaler(*case))
        else:
            step = real_manager(ms.amp.DynamicLossScaleManager(*case))
        steps = steps_of(seed, 300)
        ours, scales = trace(MINDSPORE[name](*case), steps), [step(finite) for finite in steps]
        if name == "DynamicLossScaleManager" and case[1] != 2:
            np.testing.assert_allclose(ours, scales, rtol=1e-13)  # its scale may be a Python integer beyond 2**53
        else:
            assert ours == scales, case


@pytest.mark.mindspore
def test_the_scaler_adjusted_eagerly_does_the_same() -> None:
    ms = mindspore()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        real = ms.amp.DynamicLossScaler(1000003.0, 3, 2)
        steps, scales = steps_of(5, 300), []
        for finite in steps:
            real.adjust(ms.Tensor(finite, ms.bool_))
            scales.append(float(real.scale_value.asnumpy()))
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    assert trace(DynamicLossScale.mindspore(1000003.0, 3, 2), steps) == scales


@pytest.mark.mindspore
def test_the_managers_cell_and_its_end() -> None:
    """The manager's own cell is a DynamicLossScaleUpdateCell; the manager gives up after 1,000 overflows in a row."""
    ms = mindspore()
    manager, ours = ms.amp.DynamicLossScaleManager(), MINDSPORE["DynamicLossScaleManager"]()
    assert type(manager.get_update_cell()) is ms.nn.DynamicLossScaleUpdateCell
    state = ours.start()
    for _ in range(1000):
        manager.update_loss_scale(True)
        state = ours.update(state, False)
    assert not ours.exhausted(state)
    with pytest.raises(RuntimeError):
        manager.update_loss_scale(True)
    assert ours.exhausted(ours.update(state, False))


@pytest.mark.mindspore
def test_the_traces_of_mindspore_static() -> None:
    ms = mindspore()
    ms.set_context(mode=ms.GRAPH_MODE)
    steps = steps_of(3, 60)
    step = real_scaler(ms.amp.StaticLossScaler(1000.5))
    assert trace(MINDSPORE["StaticLossScaler"](1000.5), steps) == [step(finite) for finite in steps]
    manager = ms.amp.FixedLossScaleManager()
    by_cell, by_host = real_cell(manager.get_update_cell()), real_manager(manager)
    ours = trace(MINDSPORE["FixedLossScaleManager"](), steps)
    assert ours == [by_cell(finite) for finite in steps] == [by_host(finite) for finite in steps]
    assert ms.amp.FixedLossScaleManager(8, False).get_update_cell() is None
