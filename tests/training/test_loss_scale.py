"""Loss scales keep their bounds, read what the command line says, and refuse nonsense."""

from __future__ import annotations

import math
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
from training.scale_traces import steps_of, trace

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
        floor=draw(st.none() | st.floats(2.0**-60, init, width=32)),
        cap=draw(st.none() | st.floats(init, 2.0**120, width=32)),
        hysteresis=draw(st.integers(1, 4)),
        refill=draw(st.sampled_from(["growth", "finite"])),
        patience=draw(st.none() | st.integers(1, 5)),
    )


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
        assert state.overflows == (0 if finite or policy.patience is None else before.overflows + 1)
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
