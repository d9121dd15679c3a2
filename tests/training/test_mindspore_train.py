"""Training from a .mindir file is MindSpore's own training of the Cell, to the last bit, skipped steps included."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore as ms
from mindspore import amp, nn

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.mindspore import TrainStep, train_step
from ampgraph.training.step.loss_scale import DynamicLossScale, StaticLossScale
from mindir import training_nets as nets
from share import FULL

pytestmark = pytest.mark.mindspore
BAD_STEPS = (5, 20, 21)
DIGITS = ("mlp", "cnn", "transformer")
STARTS = [(name, 1e9) for name in (DIGITS if FULL else ("mlp", "transformer"))] + [("cnn", 2**16)]
Told = tuple[list[list[float]], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def exported(folder: Path) -> Callable[[str, str], str]:
    """The path of a network's file at a level, made once."""

    @functools.cache
    def path(name: str, level: str = "O0") -> str:
        file = str(folder / f"{name}.{level}.mindir")
        if level == "O0":
            nets.export(nets.loss_net(name), file)
        else:
            ampgraph.convert(path(name), level, policy="mindspore", output=file)
        return file

    return path


@functools.cache
def data(injected: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    batches = list(nets.batches())
    for index in BAD_STEPS if injected else ():
        batches[index] = np.full_like(batches[index][0], np.inf), batches[index][1]
    return batches


@functools.cache
def own(name: str, level: str, start: float, injected: bool) -> Told:
    """(loss, finite, scale) by step and the parameters after MindSpore's own training of the Cell."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        scaler = amp.DynamicLossScaler(start, 2, 10)
        told, parameters = nets.own_training(nets.loss_net(name, level), nets.LOSSES[name][1], scaler, data(injected))
    finally:
        ms.set_context(mode=before)
    return told, {_plain(key): value for key, value in parameters.items()}


def _plain(name: str) -> str:
    """A parameter's name without what MindSpore's wrappers add."""
    return name.replace("_backbone.", "")


def trained(step: TrainStep, batches: Any) -> list[list[float]]:
    return [[result.loss, float(result.finite), result.scale] for result in (step(x, y) for x, y in batches)]


def assert_same(step: TrainStep, got: list[list[float]], expected: Told) -> None:
    np.testing.assert_array_equal(got, expected[0])
    assert {_plain(name) for name in step.parameters} == set(expected[1])
    for name, parameter in step.parameters.items():
        np.testing.assert_array_equal(parameter.asnumpy(), expected[1][_plain(name)], err_msg=name)


# -- the same as MindSpore's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIGITS if FULL else ["cnn"])
def test_float32_trains_as_the_cell_does(exported: Any, name: str) -> None:
    """46 steps; three batches of infinities are skipped and halve the scale."""
    step = train_step(exported(name), nets.LOSSES[name][1], amp.DynamicLossScaler(2**16, 2, 10))
    got = trained(step, data(True))
    assert_same(step, got, own(name, "O0", 2**16, True))
    assert [index for index, told in enumerate(got) if not told[1]] == list(BAD_STEPS)
    assert got[-1][0] < got[0][0] / 2


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "start"), STARTS)
def test_o2_trains_as_mindspores_own_o2_does(exported: Any, name: str, start: float) -> None:
    """From 1e9 the first steps overflow in float16, and so do some later ones as the scale grows."""
    step = train_step(exported(name, "O2"), nets.LOSSES[name][1], amp.DynamicLossScaler(start, 2, 10))
    got = trained(step, data(False))
    assert_same(step, got, own(name, "O2", start, False))
    skipped = sum(not told[1] for told in got)
    assert 1 <= skipped < 23 and (start < 1e9 or not got[0][1])
    assert got[-1][0] < got[0][0] / 2


@pytest.mark.parametrize(
    "scaler",
    [
        lambda: DynamicLossScale.mindspore(2**16, 2, 10),
        lambda: DynamicLossScale.pytorch(2**16, interval=10),
        lambda: "dynamic:init=65536,interval=10,rule=mindspore",
        lambda: amp.DynamicLossScaleManager(2**16, 2, 10),
    ],
    ids=["mindspore", "pytorch", "text", "manager"],
)
def test_every_dynamic_scaler_does_the_same(exported: Any, scaler: Any) -> None:
    """Their rules differ only at the ends of float32."""
    step = train_step(exported("mlp"), nets.momentum, scaler())
    assert_same(step, trained(step, data(True)), own("mlp", "O0", 2**16, True))


@pytest.mark.parametrize(
    "scaler", [lambda: amp.StaticLossScaler(8.0), lambda: amp.FixedLossScaleManager(8), lambda: StaticLossScale(8.0)]
)
def test_a_static_scale_skips_too(exported: Any, scaler: Any) -> None:
    step = train_step(exported("mlp"), nets.momentum, scaler())
    got = trained(step, data(True))
    expected = own("mlp", "O0", 2**16, True)
    assert_same(step, got, ([[loss, finite, 8.0] for loss, finite, _ in expected[0]], expected[1]))


@pytest.mark.parametrize("scaler", [lambda: None, lambda: amp.FixedLossScaleManager(8, drop_overflow_update=False)])
def test_without_skipping_an_overflow_is_told_and_taken(exported: Any, scaler: Any) -> None:
    step = train_step(exported("transformer"), nets.adam, scaler())
    got = trained(step, data(True)[:7])
    assert [told[1] for told in got] == [1, 1, 1, 1, 1, 0, 0]
    assert not all(np.isfinite(p.asnumpy()).all() for p in step.parameters.values())


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["branches", "strided", "conditional"])
def test_graphs_that_are_cut_have_the_gradients_of_the_cell(exported: Any, name: str) -> None:
    """Five steps each; MindSpore 2.10 alone cannot differentiate these from a file."""
    batches = data(False)[:5]
    path, net = exported(name), nets.loss_net(name)
    ms.set_seed(9)
    expected = nets.own_training(net, nets.momentum, amp.DynamicLossScaler(1024, 2, 10), batches)
    ms.set_seed(9)
    step = train_step(path, nets.momentum, amp.DynamicLossScaler(1024, 2, 10))
    got = trained(step, batches)
    if name != "strided":  # its dropout draws other numbers in another graph
        assert_same(step, got, (expected[0], {_plain(key): value for key, value in expected[1].items()}))
    assert got[-1][0] < got[0][0] and all(told[1] for told in got)


# -- state, modes, feeds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scaler",
    [
        lambda: amp.DynamicLossScaler(2**20, 3, 3),
        lambda: DynamicLossScale(2.0**20, hysteresis=2, interval=3),
        lambda: amp.DynamicLossScaleManager(2**20, 2, 3),
    ],
)
def test_a_checkpoint_takes_up_where_it_stood(exported: Any, tmp_path: Path, scaler: Any) -> None:
    path, file, batches = exported("transformer"), tmp_path / "step.ckpt", data(False)
    step = train_step(path, nets.adam, scaler())
    trained(step, batches[:4])
    step.save(file)
    expected = trained(step, batches[4:8])
    other = train_step(path, nets.adam, scaler())
    trained(other, batches[:1])
    other.load(file)
    assert trained(other, batches[4:8]) == expected
    assert os.listdir(tmp_path) == ["step.ckpt"]
    into = nets.loss_net("transformer")
    assert ms.load_param_into_net(into, step.parameters) == ([], [])  # nothing was left over


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_either_mode_and_either_feed(exported: Any, mode: int) -> None:
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        step = train_step(exported("mlp"), nets.momentum, amp.DynamicLossScaler(2**16, 2, 10))
        (x, y), (u, v) = data(False)[:2]
        got = [step(ms.Tensor(x), y=ms.Tensor(y)).loss, step(y=v, x=u).loss]
        assert ms.get_context("mode") == mode
    finally:
        ms.set_context(mode=before)
    assert got == [told[0] for told in own("mlp", "O0", 2**16, True)[0][:2]]


def test_the_optimizer_gets_what_is_trained(exported: Any) -> None:
    seen: list[str] = []

    def head_only(parameters: Any) -> Any:
        seen.extend(parameter.name for parameter in parameters)
        return nn.SGD([{"params": [p for p in parameters if "head" in p.name], "lr": 0.1}], 0.05)

    step = train_step(exported("cnn"), head_only, amp.StaticLossScaler(8.0))
    assert not [name for name in seen if "moving" in name]
    before = {name: parameter.asnumpy().copy() for name, parameter in step.parameters.items()}
    step(*data(False)[0])
    changed = {name for name, p in step.parameters.items() if not np.array_equal(p.asnumpy(), before[name])}
    statistics = {name for name in before if "moving" in name}
    assert changed == statistics | {"_backbone.head.weight", "_backbone.head.bias"}


def test_a_scale_that_only_falls_ends_training(exported: Any) -> None:
    step = train_step(exported("mlp"), nets.momentum, DynamicLossScale(patience=2))
    x, y = data(True)[BAD_STEPS[0]]
    assert [step(x, y).scale for _ in range(2)] == [2**15, 2**14]
    with pytest.raises(AmpError, match="AMP506.*3 steps in a row"):
        step(x, y)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "scaler", "told"),
    [
        (None, None, "not a function of the parameters"),
        (lambda p: "adam", None, "gave a str"),
        (lambda p: nn.Momentum(p, 0.1, 0.9, loss_scale=128.0), None, "loss scale of its own"),
        (lambda p: nn.SGD(list(nets.loss_net("mlp").trainable_params())), None, "not a trainable parameter"),
        (nets.momentum, 1024, "a int is no loss scaler"),
        (nets.momentum, "dynamic:rule=mindspre", "did you mean 'mindspore'"),
    ],
)
def test_what_does_not_fit_is_told(exported: Any, optimizer: Any, scaler: Any, told: str) -> None:
    with pytest.raises(AmpError, match="AMP32[02]") as caught:
        train_step(exported("mlp"), optimizer, scaler)
    assert told in str(caught.value) and caught.value.hint


def test_an_optimizer_of_other_parameters_is_refused_as_it_is(exported: Any) -> None:
    made = nn.SGD(list(nets.loss_net("mlp").trainable_params()))
    with pytest.raises(AmpError, match="AMP322.*not a function"):
        train_step(exported("mlp"), made)


class VectorLoss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.MLP()
        self.loss = nn.CrossEntropyLoss(reduction="none")

    def construct(self, x: Any, y: Any) -> Any:
        return self.loss(self.net(x), y)


class LowLoss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.loss_net("mlp")

    def construct(self, x: Any, y: Any) -> Any:
        return self.net(x, y).astype(ms.float16)


class NoWeights(nn.Cell):
    def construct(self, x: Any, y: Any) -> Any:
        return x.mean() + y.astype(ms.float32).mean()


def whole_step() -> Any:
    net = nets.loss_net("mlp")
    return nn.TrainOneStepCell(net, nets.momentum(net.trainable_params())).set_train()


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (VectorLoss, r"one scalar loss, but float32 \[64\]"),
        (LowLoss, "loss in float16"),
        (NoWeights, "no parameters to train"),
        (whole_step, r"whole training step \(Momentum\)"),
        (lambda: nets.loss_net("conditional_convolution"), "Conv2D stands in a branch"),
    ],
)
def test_files_that_cannot_be_trained_are_told(tmp_path: Path, make: Any, told: str) -> None:
    path = str(tmp_path / "loss.mindir")
    nets.export(make(), path)
    with pytest.raises(AmpError, match=f"AMP205.*{told}") as caught:
        train_step(path, nets.momentum)
    assert caught.value.hint


def test_feeds_that_do_not_fit_are_told(exported: Any) -> None:
    step = train_step(exported("mlp"), nets.momentum)
    x, y = data(False)[0]
    for arguments, told in (
        ((x,), "no value for input 'y'"),
        ((x, y, y), "3 arrays for 2 inputs"),
        ((x[:8], y), r"has shape \[8, 1, 8, 8\]"),
        ((x, y.astype(np.int64)), "takes int32 .64. but int64"),
        ((ms.Tensor(x, ms.float16), y), "but float16 was fed"),
    ):
        with pytest.raises(AmpError, match=f"AMP503.*{told}"):
            step(*arguments)
    with pytest.raises(AmpError, match="AMP503.*'x' is given twice"):
        step(x, x=x)


def test_checkpoints_that_do_not_fit_are_told(exported: Any, tmp_path: Path) -> None:
    step = train_step(exported("mlp"), nets.momentum, amp.DynamicLossScaler(8, 2, 10))
    other = train_step(exported("mlp"), nets.adam, amp.DynamicLossScaler(8, 2, 10))
    other.save(tmp_path / "adam.ckpt")
    before = {name: parameter.asnumpy().copy() for name, parameter in step.parameters.items()}
    (tmp_path / "bad.ckpt").write_bytes(b"no checkpoint")
    for name, code in (("adam.ckpt", "AMP109"), ("bad.ckpt", "AMP109"), ("no.ckpt", "AMP101"), ("x.bin", "AMP105")):
        with pytest.raises(AmpError, match=code):
            step.load(tmp_path / name)
    with pytest.raises(AmpError, match="AMP105"):
        step.save(tmp_path / "no" / "x.ckpt")
    for name, parameter in step.parameters.items():
        np.testing.assert_array_equal(parameter.asnumpy(), before[name])
