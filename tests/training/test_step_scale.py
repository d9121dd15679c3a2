"""The loss scale in the graph: its trace, the finite check, and steps that are left out."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from ampgraph.api.build_step import build_training_step
from ampgraph.training.gradients.builder import Builder, Term
from ampgraph.training.step.loss_scale import (
    MINDSPORE,
    RULES,
    DynamicLossScale,
    LossScaleState,
    StaticLossScale,
    next_state,
)
from training.scale_traces import steps_of
from training.small_steps import Runner, batches, regression, torch_loss, weights
from training.test_loss_scale_real import real_cell, real_scaler

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


@pytest.mark.mindspore
@pytest.mark.parametrize("name", ["DynamicLossScaler", "DynamicLossScaleUpdateCell"])
def test_three_hundred_steps_of_mindspores_own(name):
    ms = pytest.importorskip("mindspore")
    ms.set_context(mode=ms.GRAPH_MODE)
    numbers = (4096.0, 2, 7)
    if name == "DynamicLossScaler":
        real = real_scaler(ms.amp.DynamicLossScaler(*numbers))
    else:
        real = real_cell(ms.nn.DynamicLossScaleUpdateCell(*numbers))
    policy = MINDSPORE[name](*numbers)
    assert isinstance(policy, DynamicLossScale)
    session, state = scale_session(policy), policy.start()
    for finite in steps_of(3, STEPS):
        state = after(session, policy, state, finite)
        assert state.scale == real(finite)


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


@pytest.mark.parametrize("kind", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1,momentum=0.9", "adamw:lr=0.01"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_scale(kind, optimizer):
    step = build_training_step(
        regression(), loss="loss", optimizer=optimizer, level="O0", loss_scale="dynamic:init=1024", clip_norm=1.0
    )
    run = Runner(step)
    for batch in batches(3):
        run(batch)
    before = {name: array.tobytes() for name, array in run.state.items()}
    [batch] = batches(1)
    batch["t"][3, 1] = kind
    made = run(batch)
    changed = {name for name, array in run.state.items() if array.tobytes() != before[name]}
    assert not made["finite"] and float(run.state["step/scale"]) == 512
    assert changed == {"step/scale", "step/counter"}


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
