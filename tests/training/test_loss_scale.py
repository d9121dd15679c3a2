"""Loss scales: bounds, the command line's form, the traces of the real implementations, and the scale in the graph."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.gradients.builder import Builder, Term
from ampgraph.training.step.loss_scale import (
    RULES,
    DynamicLossScale,
    LossScale,
    LossScaleState,
    StaticLossScale,
    next_state,
    parse_loss_scale,
)
from oracles import scalers
from share import share
from training.nets import Runner, batches, regression, torch_loss, weights

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
    manager = DynamicLossScale.preset("mindspore-manager")
    assert (manager.init, manager.patience) == (2.0**24, 1000)


RULE_OF = {
    "DynamicLossScaler": "mindspore",
    "DynamicLossScaleUpdateCell": "mindspore-cell",
    "DynamicLossScaleManager": "mindspore-manager",
}


def like(name: str, init: float, growth: float, interval: int) -> DynamicLossScale:
    """The policy of MindSpore's class."""
    return DynamicLossScale.preset(RULE_OF[name], init=init, growth=growth, interval=interval)


def test_facts_small_traces() -> None:
    """Traces (4, 2, 2) run on MindSpore 2.10."""
    scaler = [bool(int(c)) for c in "11000111"]
    assert trace(like("DynamicLossScaler", 4, 2, 2), scaler) == [4, 8, 4, 2, 1, 1, 2, 2]
    cell = [not bool(int(c)) for c in "001000111"]
    for name in ("DynamicLossScaleUpdateCell", "DynamicLossScaleManager"):
        assert trace(like(name, 4, 2, 2), cell) == [4, 8, 4, 4, 8, 8, 4, 2, 1]


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
        ("static:8,drop=no", "unknown option 'drop'"),
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


FLOAT32_MAX = float(np.finfo(np.float32).max)
RATES = (0.0, 0.02, 0.2, 0.5, 0.9)


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
@pytest.mark.parametrize("name", RULE_OF)
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
        ours, scales = trace(like(name, *case), steps), [step(finite) for finite in steps]
        if name == "DynamicLossScaleManager" and case[1] != 2:
            np.testing.assert_allclose(ours, scales, rtol=1e-13)  # its scale may be a Python integer beyond 2**53
        else:
            assert ours == scales, case


@pytest.mark.mindspore
def test_the_managers_cell_and_its_end() -> None:
    """The manager's own cell is a DynamicLossScaleUpdateCell; the manager gives up after 1,000 overflows in a row."""
    ms = mindspore()
    manager, ours = ms.amp.DynamicLossScaleManager(), DynamicLossScale.preset("mindspore-manager")
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
    assert trace(StaticLossScale(1000.5), steps) == [step(finite) for finite in steps]
    manager = ms.amp.FixedLossScaleManager()
    by_cell, by_host = real_cell(manager.get_update_cell()), real_manager(manager)
    ours = trace(StaticLossScale(128.0, skip=True), steps)
    assert ours == [by_cell(finite) for finite in steps] == [by_host(finite) for finite in steps]
    assert ms.amp.FixedLossScaleManager(8, False).get_update_cell() is None


RECORDED = [("torch", "pytorch"), ("apex", "apex"), ("tf_keras", "tensorflow"), ("keras", "keras"), ("mxnet", "mxnet")]


@pytest.mark.parametrize(("framework", "rule"), RECORDED)
def test_the_recorded_traces_of_the_real_ones(framework: str, rule: str) -> None:
    """300 steps in each of five cases, as `oracles/scalers.py` ran them in the framework's own environment."""
    recorded = json.loads(scalers.ANSWERS.read_text())[framework]
    assert len(recorded["traces"]) == len(scalers.CASES)
    for (seed, init, interval), runs in zip(scalers.CASES, recorded["traces"], strict=True):
        real = [scale for scale, times in runs for _ in range(times)]
        steps = scalers.finite_steps(seed)
        assert len(real) == len(steps) == 300
        assert trace(DynamicLossScale.preset(rule, init=init, interval=interval), steps) == real, seed


STEPS = 300
POLICIES = [
    *(DynamicLossScale.preset(rule, interval=4) for rule in RULES),
    DynamicLossScale(init=2.0**100, interval=1),
    DynamicLossScale(init=3 * 2.0**100, interval=1),
    DynamicLossScale(init=2.0**120, interval=1, growth=4),
    DynamicLossScale(init=2.0**-120, interval=9),
    DynamicLossScale(interval=9000),
    DynamicLossScale(init=8, interval=3, floor=2, cap=64),
    DynamicLossScale(interval=5, hysteresis=3),
    DynamicLossScale(interval=5, hysteresis=2, refill="finite"),
    DynamicLossScale(growth=1.7, backoff=0.3, interval=3),
]


def scale_session(policy: DynamicLossScale) -> onnxruntime.InferenceSession:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="scale")
    number = ir.DataType.from_numpy(np.dtype(RULES[policy.rule].number))
    types = {"scale": number, "counter": ir.DataType.INT32, "credit": ir.DataType.INT32, "overflows": ir.DataType.INT32}
    types |= {"pending": number} if RULES[policy.rule].late else {}
    values = {n: ir.Value(name=n, type=ir.TensorType(t), shape=ir.Shape([])) for n, t in types.items()}
    finite = ir.Value(name="finite", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    graph.inputs.extend([*values.values(), finite])
    b = Builder(graph)
    after = next_state(policy, {name: Term(b, value, value) for name, value in values.items()}, Term(b, finite, finite))
    for name, value in values.items():
        made = after[name].value
        made.type, made.shape = value.type, value.shape
        graph.outputs.append(made)
    model = ir.to_proto(ir.Model(graph, ir_version=9))
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString())


def after(session, policy: DynamicLossScale, state: LossScaleState, finite: bool) -> LossScaleState:
    """The next state as the graph has it."""
    feeds = {name: np.array(getattr(state, name), np.int32) for name in ("counter", "credit", "overflows")}
    feeds["finite"] = np.array(finite)
    for name in ("scale", "pending") if RULES[policy.rule].late else ("scale",):
        feeds[name] = np.array(getattr(state, name), RULES[policy.rule].number)
    found = session.run(None, feeds)
    return LossScaleState(float(found[0]), *map(int, found[1:4]), *map(float, found[4:]))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_the_graph_does_what_the_policy_says(policy, share):
    session, state = scale_session(policy), policy.start()
    for finite in np.random.default_rng(5).random(STEPS) >= share:
        made = after(session, policy, state, bool(finite))
        state = policy.update(state, bool(finite))
        assert made == state


def overflowing(count: int, kinds=(np.inf, -np.inf, np.nan)):
    """Batches of which some hold what makes gradients infinite or no numbers."""
    random = np.random.default_rng(11)
    for number, batch in enumerate(batches(count)):
        broken = random.random() < 0.2
        if broken:
            batch["t"][random.integers(16), random.integers(3)] = kinds[number % len(kinds)]
        yield batch, broken


def test_three_hundred_steps_of_torchs_grad_scaler():
    """Scale, counter and weights, with random overflows."""
    policy = DynamicLossScale.pytorch(init=4096.0, interval=7)
    run = Runner(build_training_step(regression(), loss="loss", optimizer="sgd:lr=0.05", level="O0", loss_scale=policy))
    parameters = {name: torch.tensor(array).requires_grad_() for name, array in weights().items()}
    optimizer = torch.optim.SGD(list(parameters.values()), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=7)
    skipped = 0
    for batch, broken in overflowing(STEPS):
        optimizer.zero_grad()
        scaler.scale(torch_loss(parameters, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        made = run(batch)
        assert bool(made["finite"]) != broken
        skipped += broken
        assert float(run.state["step/scale"]) == scaler.get_scale()
        assert int(run.state["step/counter"]) == scaler._get_growth_tracker()
    assert skipped > 30 and int(run.state["step/count"]) == STEPS - skipped
    for name, parameter in parameters.items():
        np.testing.assert_allclose(run.state[name], parameter.detach().numpy(), rtol=2e-4, atol=2e-5)


def test_a_norm_beyond_float32_is_an_overflow():
    """It would clip every gradient, all of which are finite, to 0."""
    [batch] = batches(1)
    batch["t"][3, 1] = 1e25
    for clip, finite in ((None, True), (1.0, False)):
        step = build_training_step(
            regression(), loss="loss", optimizer="sgd", level="O0", loss_scale="dynamic:init=1024", clip_norm=clip
        )
        run = Runner(step)
        assert bool(run(batch)["finite"]) == finite


def test_a_scale_that_is_late():
    """MXNet: the step after an overflow still runs at the old scale."""
    scale = "dynamic:rule=mxnet,init=1024"
    run = Runner(build_training_step(regression(), loss="loss", optimizer="sgd", level="O0", loss_scale=scale))
    good, bad = batches(2)
    bad["t"][3, 1] = np.inf
    scales = []
    for batch in (good, bad, good, good):
        run(batch)
        scales.append((float(run.state["step/scale"]), float(run.state["step/pending_scale"])))
    assert scales == [(1024, 1024), (1024, 512), (512, 512), (512, 512)]


def test_a_static_scale():
    for policy, kept in ((StaticLossScale(128), True), (StaticLossScale(128, skip=False), False)):
        run = Runner(build_training_step(regression(), loss="loss", optimizer="sgd", level="O0", loss_scale=policy))
        [batch] = batches(1)
        batch["t"][0, 0] = np.nan
        made = run(batch)
        assert not made["finite"] and np.isfinite(run.state["w1"]).all() == kept
        assert float(run.state["step/scale"]) == 128


def test_without_a_scale_nothing_is_checked():
    step = build_training_step(regression(), loss="loss", optimizer="sgd", level="O0", loss_scale=None)
    assert step.layout.finite == "" and not step.layout.of("scale")


def test_one_element_among_many_is_found():
    """At every place of a tensor: a largest magnitude would not find a NaN."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="check")
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([33]))
    graph.inputs.append(x)
    from ampgraph.training.step.update import all_finite

    made = all_finite(Builder(graph), [x])
    made.type, made.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    graph.outputs.append(made)
    session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString())
    huge = np.full(33, 3e38, np.float32)  # whose sum overflows, and is finite all the same
    assert session.run(None, {"x": huge})[0]
    for place in range(33):
        for kind in (np.inf, -np.inf, np.nan):
            broken = huge.copy()
            broken[place] = kind
            assert not session.run(None, {"x": broken})[0]
