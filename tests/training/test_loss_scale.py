"""Loss scales keep their bounds, and their traces are those of the real implementations, to the last bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampgraph.core.errors import AmpError
from ampgraph.training.step.loss_scale import (
    MINDSPORE,
    RULES,
    DynamicLossScale,
    LossScale,
    LossScaleState,
    StaticLossScale,
    parse_loss_scale,
)
from share import share

FLOAT32_MAX = float(np.finfo(np.float32).max)
RATES = (0.0, 0.02, 0.2, 0.5, 0.9)
positive = st.floats(2.0**-60, 2.0**100, width=32)


@st.composite
def policies(draw: st.DrawFn) -> DynamicLossScale:
    init = draw(positive)
    return DynamicLossScale(
        init=init,
        growth=draw(st.floats(1, 1e6)),
        backoff=draw(st.floats(1e-6, 1)),
        interval=draw(st.integers(1, 5)),
        rule=draw(st.sampled_from(sorted(RULES))),
        floor=draw(st.none() | st.floats(2.0**-60, init)),
        cap=draw(st.none() | st.floats(init, 2.0**120)),
        hysteresis=draw(st.integers(1, 4)),
        refill=draw(st.sampled_from(["growth", "finite"])),
        patience=draw(st.none() | st.integers(1, 5)),
    )


def trace(policy: LossScale, steps: Iterable[bool], start: LossScaleState | None = None) -> list[float]:
    """The scale after every step."""
    state, scales = start or policy.start(), []
    for finite in steps:
        state = policy.update(state, finite)
        scales.append(state.scale)
    return scales


def steps_of(seed: int, count: int) -> list[bool]:
    """Random steps: stretches in which overflows are never, seldom, often or nearly always met."""
    dice = random.Random(seed)
    steps: list[bool] = []
    while len(steps) < count:
        rate = dice.choice(RATES)
        steps += [dice.random() >= rate for _ in range(dice.randint(5, 60))]
    return steps[:count]


def decided(state: LossScaleState) -> float:
    """The scale that the last step decided: in force at once, or one step late."""
    return state.pending or state.scale


# -- properties -------------------------------------------------------------------------------------------------------


@given(policies(), st.lists(st.booleans(), max_size=60))
@settings(deadline=None)
def test_a_scale_keeps_its_bounds_and_is_never_nan(policy: DynamicLossScale, steps: list[bool]) -> None:
    state = policy.start()
    for finite in steps:
        before, state = state, policy.update(state, finite)
        assert not math.isnan(state.scale)
        assert state.scale >= (policy.floor or 0)
        assert state.scale <= (math.inf if policy.cap is None else policy.cap)
        assert decided(state) >= decided(before) if finite else decided(state) <= decided(before)
        assert 0 <= state.counter < policy.interval
        assert 1 <= state.credit <= policy.hysteresis
        if RULES[policy.rule].finite_only:
            assert math.isfinite(state.scale)
        if RULES[policy.rule].number == "float32" and policy.floor is None and policy.cap is None:
            assert float(np.float32(state.scale)) == state.scale


@given(policies(), st.lists(st.booleans(), max_size=40))
@settings(deadline=None)
def test_finite_steps_change_the_scale_at_the_interval_only(policy: DynamicLossScale, steps: list[bool]) -> None:
    state, run = policy.start(), 0
    for finite in steps:
        before, state = state, policy.update(state, finite)
        run = run + 1 if finite else 0
        assert state.overflows == (0 if finite else before.overflows + 1)
        if finite and run % policy.interval:
            assert decided(state) == decided(before)
        assert not RULES[policy.rule].late or state.scale == before.pending
        assert policy.exhausted(state) == (policy.patience is not None and state.overflows > policy.patience)


@given(policies())
def test_what_a_policy_says_is_read_back_as_itself(policy: DynamicLossScale) -> None:
    assert parse_loss_scale(str(policy)) == policy


@given(positive, st.booleans())
def test_a_static_scale_stays(scale: float, skip: bool) -> None:
    policy = StaticLossScale(scale, skip)
    assert set(trace(policy, [True, False] * 3)) == {scale}
    assert parse_loss_scale(str(policy)) == policy


def deepspeed(steps: list[bool], shift: int, consecutive: bool) -> list[float]:
    """DeepSpeed's DynamicLossScaler.update_scale (runtime/fp16/loss_scaler.py): 2**16, window 3, floor 1."""
    scale, hysteresis, last, scales = 2.0**16, shift, -1, []
    for iteration, finite in enumerate(steps):
        if not finite:
            if shift == 1 or hysteresis == 1:
                scale = max(scale / 2, 1)
            else:
                hysteresis -= 1
            last = iteration
        else:
            if consecutive:
                hysteresis = shift
            if (iteration - last) % 3 == 0:
                hysteresis = hysteresis if consecutive else shift
                scale *= 2
        scales.append(scale)
    return scales


@pytest.mark.parametrize("shift", [1, 2, 4])
@pytest.mark.parametrize("refill", ["growth", "finite"])
def test_hysteresis_is_that_of_deepspeed(shift: int, refill: str) -> None:
    policy = DynamicLossScale.preset("apex", interval=3, floor=1.0, cap=None, hysteresis=shift, refill=refill)
    steps = steps_of(7, 400)
    assert trace(policy, steps) == deepspeed(steps, shift, refill == "finite")


def test_presets_carry_the_real_defaults() -> None:
    assert DynamicLossScale.pytorch() == DynamicLossScale(65536.0, 2.0, 0.5, 2000)
    assert DynamicLossScale.apex().cap == 2.0**24 and DynamicLossScale.apex(init=2.0**32).init == 2.0**24
    assert DynamicLossScale.tensorflow().init == 32768 and DynamicLossScale.tensorflow().floor == 1
    assert DynamicLossScale.keras().init == 32768 and DynamicLossScale.keras().floor is None
    assert DynamicLossScale.mxnet().cap == 2.0**24 and DynamicLossScale.mxnet().init == 65536
    assert DynamicLossScale.mindspore(1024, 4).backoff == 0.25
    manager = MINDSPORE["DynamicLossScaleManager"]()
    assert isinstance(manager, DynamicLossScale) and (manager.init, manager.patience) == (2.0**24, 1000)
    assert MINDSPORE["FixedLossScaleManager"]() == StaticLossScale(128.0, skip=True)


def test_facts_small_traces() -> None:
    """Traces (4, 2, 2) run on MindSpore 2.10."""
    scaler = [bool(int(c)) for c in "11000111"]
    assert trace(MINDSPORE["DynamicLossScaler"](4, 2, 2), scaler) == [4, 8, 4, 2, 1, 1, 2, 2]
    cell = [not bool(int(c)) for c in "001000111"]
    for name in ("DynamicLossScaleUpdateCell", "DynamicLossScaleManager"):
        assert trace(MINDSPORE[name](4, 2, 2), cell) == [4, 8, 4, 4, 8, 8, 4, 2, 1]


# -- the command-line form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", None),
        ("static:1024", StaticLossScale(1024.0)),
        ("static:2^10,skip=no", StaticLossScale(1024.0, skip=False)),
        ("dynamic", DynamicLossScale.pytorch()),
        ("dynamic:rule=mindspore", DynamicLossScale.mindspore()),
        ("dynamic:init=2^16, growth=4, rule=mindspore", DynamicLossScale.mindspore(65536, 4)),
        ("dynamic:init=1024,growth=2,backoff=0.25,interval=7,rule=pytorch", DynamicLossScale(1024.0, 2.0, 0.25, 7)),
        ("dynamic:rule=apex,cap=none", DynamicLossScale.preset("apex", cap=None)),
        ("dynamic:floor=1,hysteresis=2", DynamicLossScale(floor=1.0, hysteresis=2)),
    ],
)
def test_the_command_line_form(text: str, policy: LossScale | None) -> None:
    assert parse_loss_scale(text) == policy


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "static:1024"),
        ("dynamik", "did you mean 'dynamic'?"),
        ("dynamic:", "static:1024"),
        ("none:1", "static:1024"),
        ("1024", "static:1024"),
        ("static", "static:1024"),
        ("static:lots", "scale=lots is not a number"),
        ("static:-1", "not a positive float32 number"),
        ("static:1e39", "not a positive float32 number"),
        ("static:1e-39", "scale=1e-39 has no reciprocal in float32"),
        ("dynamic:init=1e-39", "init=1e-39 has no reciprocal in float32"),
        ("dynamic:init=1e-39,rule=apex", "init=1e-39 has no reciprocal in float32"),
        ("static:8,drop=no", "unknown 'drop=no'"),
        ("dynamic:init", "'init' is not KEY=VALUE"),
        ("dynamic:int=4", "did you mean 'init'?"),
        ("dynamic:init=4,init=5", "given twice"),
        ("dynamic:init=2^9999", "not a number"),
        ("dynamic:init=nan", "not a number"),
        ("dynamic:rule=mindspre", "did you mean 'mindspore'?"),
        ("dynamic:growth=0.5", "growth is at least 1"),
        ("dynamic:backoff=2", "growth is at least 1"),
        ("dynamic:backoff=1e-39", "growth is at least 1"),
        ("dynamic:interval=0", "whole number"),
        ("dynamic:interval=2.5", "whole number"),
        ("dynamic:init=0.5,rule=mindspore", "between floor and cap"),
        ("dynamic:cap=1", "between floor and cap"),
        ("dynamic:refill=never", "unknown refill"),
    ],
)
def test_a_mistake_is_told_with_a_hint(text: str, told: str) -> None:
    with pytest.raises(AmpError) as caught:
        parse_loss_scale(text)
    assert caught.value.code == "AMP320" and caught.value.hint
    assert told in str(caught.value)


@pytest.mark.parametrize("value", [True, None, "8", 0, -1.0, math.inf, math.nan, 1e39, 10**400, 1e-60])
def test_a_program_may_not_give_nonsense_either(value: Any) -> None:
    if value != "8":
        with pytest.raises(AmpError, match="AMP320"):
            StaticLossScale(value)
    with pytest.raises(AmpError, match="AMP320"):
        DynamicLossScale(interval=value)


# -- traces of the real ones ------------------------------------------------------------------------------------------

STARTS = (65536.0, 1.0, 1.25, 3e38, FLOAT32_MAX, 1000003.0)


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
    for seed, case in enumerate(share(MINDSPORE_CASES, 2)):
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
