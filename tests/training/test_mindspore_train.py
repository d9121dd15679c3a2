"""Training from .mindir files, of a loss and of a whole step, is MindSpore's own training, to the last bit."""

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
from ampgraph.training.mindspore import MindirTrainer, TrainStep, train_step
from ampgraph.training.run.fitting import fit
from ampgraph.training.run.options import FitOptions
from ampgraph.training.step.loss_scale import DynamicLossScale, StaticLossScale
from mindir import training_nets as nets
from share import FULL

pytestmark = pytest.mark.mindspore
BAD_STEPS = (5, 20, 21)
DIGITS = ("mlp", "cnn", "transformer")
STARTS = [(name, 1e9) for name in (DIGITS if FULL else ("mlp",))] + [("cnn", 2**16)]
CommandOutput = tuple[list[list[float]], dict[str, np.ndarray]]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Graph mode, in a folder of its own: MindSpore's O1 writes source files into that in which it runs."""
    monkeypatch.chdir(tmp_path)
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The path of a network's file at a level, or of that of a whole step, made once."""
    folder = tmp_path_factory.mktemp("train")

    @functools.cache
    def path(name: str, level: str = "O0", kind: str = "loss") -> str:
        file = str(folder / f"{name}.{kind}.{level}.mindir")
        if level != "O0":
            ampgraph.convert(path(name), level, policy="mindspore", output=file)
        else:
            nets.export(nets.loss_net(name) if kind == "loss" else nets.step_cell(name, kind), file)
        return file

    return path


@functools.cache
def data(injected: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    batches = list(nets.batches())
    for index in BAD_STEPS if injected else ():
        batches[index] = np.full_like(batches[index][0], np.inf), batches[index][1]
    return batches


@functools.cache
def own(name: str, level: str, start: float, injected: bool) -> CommandOutput:
    """(loss, finite, scale) by step and the parameters after MindSpore's own training of the Cell."""
    scaler = amp.DynamicLossScaler(start, 2, 10)
    told, parameters = nets.own_training(nets.loss_net(name, level), nets.LOSSES[name][1], scaler, data(injected))
    return told, {_plain(key): value for key, value in parameters.items()}


def _plain(name: str) -> str:
    """A parameter's name without what MindSpore's wrappers add."""
    return name.replace("_backbone.", "")


def trained(step: TrainStep, batches: Any) -> list[list[float]]:
    return [[result.loss, float(result.finite), result.scale] for result in (step(x, y) for x, y in batches)]


def assert_same(got: CommandOutput, expected: CommandOutput) -> None:
    np.testing.assert_array_equal(got[0], expected[0])
    assert set(got[1]) == set(expected[1])
    for name, array in expected[1].items():
        np.testing.assert_array_equal(got[1][name], array, err_msg=name)


def after(step: TrainStep, told: list[list[float]]) -> CommandOutput:
    return told, {_plain(name): parameter.asnumpy() for name, parameter in step.parameters.items()}


# -- the same as MindSpore's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIGITS if FULL else ["cnn"])
def test_float32_trains_as_the_cell_does(exported: Any, name: str) -> None:
    """46 steps; three batches of infinities are skipped and halve the scale."""
    step = train_step(exported(name), nets.LOSSES[name][1], amp.DynamicLossScaler(2**16, 2, 10))
    got = trained(step, data(True))
    assert_same(after(step, got), own(name, "O0", 2**16, True))
    assert [index for index, told in enumerate(got) if not told[1]] == list(BAD_STEPS)
    assert got[-1][0] < got[0][0] / 2


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_o2_trains_as_mindspores_own_o2_does(exported: Any, name: str, start: float) -> None:
    """From 1e9 the first steps overflow in float16, and so do some later ones as the scale grows."""
    step = train_step(exported(name, "O2"), nets.LOSSES[name][1], amp.DynamicLossScaler(start, 2, 10))
    got = trained(step, data(False))
    assert_same(after(step, got), own(name, "O2", start, False))
    skipped = sum(not told[1] for told in got)
    assert 1 <= skipped < 23 and (start < 1e9 or not got[0][1])
    assert got[-1][0] < got[0][0] / 2


DYNAMIC = {
    "pytorch": lambda: DynamicLossScale.pytorch(2**16, interval=10),
    "manager": lambda: amp.DynamicLossScaleManager(2**16, 2, 10),
    "mindspore": lambda: DynamicLossScale.mindspore(2**16, 2, 10),
    "text": lambda: "dynamic:init=65536,interval=10,rule=mindspore",
}
STATIC = {
    "manager": lambda: amp.FixedLossScaleManager(8),
    "ours": lambda: StaticLossScale(8.0),
    "scaler": lambda: amp.StaticLossScaler(8.0),
}


@pytest.mark.parametrize("name", list(DYNAMIC)[: None if FULL else 2])
def test_every_dynamic_scaler_does_the_same(exported: Any, name: str) -> None:
    """Their rules differ only at the ends of float32."""
    step = train_step(exported("mlp"), nets.momentum, DYNAMIC[name]())
    assert_same(after(step, trained(step, data(True))), own("mlp", "O0", 2**16, True))


@pytest.mark.parametrize("name", list(STATIC)[: None if FULL else 2])
def test_a_static_scale_skips_too(exported: Any, name: str) -> None:
    step = train_step(exported("mlp"), nets.momentum, STATIC[name]())
    got = trained(step, data(True))
    expected = own("mlp", "O0", 2**16, True)
    assert_same(after(step, got), ([[loss, finite, 8.0] for loss, finite, _ in expected[0]], expected[1]))


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
        assert_same(after(step, got), (expected[0], {_plain(key): value for key, value in expected[1].items()}))
    assert got[-1][0] < got[0][0] and all(told[1] for told in got)


@pytest.mark.parametrize(
    "scaler",
    [
        lambda: amp.DynamicLossScaler(2**20, 3, 3),
        lambda: DynamicLossScale(2.0**20, hysteresis=2, interval=3),
        lambda: amp.DynamicLossScaleManager(2**20, 2, 3),
    ],
)
def test_a_checkpoint_takes_up_where_it_stood(exported: Any, tmp_path: Path, scaler: Any) -> None:
    path, file, batches = exported("mlp"), tmp_path / "kept" / "step.ckpt", data(False)
    file.parent.mkdir()
    step = train_step(path, nets.adam, scaler())
    trained(step, batches[:4])
    step.save(file)
    expected = trained(step, batches[4:8])
    other = train_step(path, nets.adam, scaler())
    trained(other, batches[:1])
    other.load(file)
    assert trained(other, batches[4:8]) == expected
    assert os.listdir(file.parent) == ["step.ckpt"]
    into = nets.loss_net("mlp")
    assert ms.load_param_into_net(into, step.parameters) == ([], [])  # nothing was left over


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_either_mode_and_either_feed(exported: Any, mode: int) -> None:
    ms.set_context(mode=mode)
    step = train_step(exported("mlp"), nets.momentum, amp.DynamicLossScaler(2**16, 2, 10))
    (x, y), (u, v) = data(False)[:2]
    got = [step(ms.Tensor(x), y=ms.Tensor(y)).loss, step(y=v, x=u).loss]
    assert ms.get_context("mode") == mode
    ms.set_context(mode=ms.GRAPH_MODE)
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


@pytest.mark.parametrize(
    ("optimizer", "scaler", "told"),
    [
        (None, None, "not a function of the parameters"),
        (lambda p: "adam", None, "gave a str"),
        (lambda p: nn.Momentum(p, 0.1, 0.9, loss_scale=128.0), None, "loss scale of its own"),
        (lambda p: nn.SGD(list(nets.loss_net("mlp").trainable_params())), None, "not a trainable parameter"),
        (nets.momentum, 1024, "a int is not a loss scaler"),
        (nets.momentum, "dynamic:rule=mindspre", "did you mean 'mindspore'"),
    ],
)
def test_what_does_not_fit_is_told(exported: Any, optimizer: Any, scaler: Any, told: str) -> None:
    with pytest.raises(AmpError, match="AMP32[02]") as caught:
        train_step(exported("mlp"), optimizer, scaler)
    assert told in str(caught.value) and caught.value.hint


class VectorLoss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.LOSSES["mlp"][0]()
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


LEVELS = [("O2", "ampgraph"), ("O3", "ampgraph"), *((level, "mindspore") for level in ("O1", "O2", "O3", "auto"))]
EVERY = [(name, *case) for name in nets.BACKBONES for case in LEVELS]
DEFAULT = [("layernorm", "O2", "ampgraph"), ("layernorm", "O1", "mindspore")]


def of_file(path: Path, data: Any) -> CommandOutput:
    return nets.trained(nn.GraphCell(ms.load(str(path))).set_train(), data)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level", "policy"), EVERY if FULL else DEFAULT)
def test_a_step_with_a_loss_scale_trains_as_the_cell_does(
    exported: Any, tmp_path: Path, name: str, level: str, policy: str
) -> None:
    """40 steps; one batch overflows, is skipped and halves the scale. The CPU's own finite check stands in the file."""
    data, low = nets.step_batches(overflow=True), tmp_path / "low.mindir"
    ampgraph.convert(exported(name, kind="scaled"), level, policy=policy, target="cpu", output=low)
    got = of_file(low, data)
    assert_same(got, nets.trained(nets.step_cell(name, "finite", level), data))
    skipped = [index for index, (_, overflow, _) in enumerate(got[0]) if overflow]
    assert skipped == [nets.OVERFLOW] and got[0][-1][0] < got[0][0][0] / 1.5


WITHOUT_SCALE = [(name, kind) for name in nets.BACKBONES for kind in ("plain", "amp", "model")]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"] if FULL else ["O2"])
@pytest.mark.parametrize(("name", "kind"), WITHOUT_SCALE if FULL else [("layernorm", "model")])
def test_a_step_without_a_loss_scale_trains_as_the_cell_does(
    exported: Any, tmp_path: Path, name: str, kind: str, level: str
) -> None:
    """What nn.TrainOneStepCell, amp.build_train_network and Model make, over 40 steps."""
    data, low = nets.step_batches(overflow=False), tmp_path / "low.mindir"
    ampgraph.convert(exported(name, kind=kind), level, policy="mindspore", target="cpu", output=low)
    assert_same(of_file(low, data), nets.trained(nets.step_cell(name, kind, level), data))


def test_o0_is_the_file_as_it_is(exported: Any, tmp_path: Path) -> None:
    step = exported("layernorm", kind="scaled")
    ampgraph.convert(step, "O0", output=tmp_path / "same.mindir")
    assert (tmp_path / "same.mindir").read_bytes() == Path(step).read_bytes()


BATCHES, EPOCHS = 3, 2


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step with a loss scale at O2, its check for overflow left as Ascend has it."""
    folder = tmp_path_factory.mktemp("step")
    nets.export(nets.step_cell("mlp", "scaled"), str(folder / "step.mindir"))
    ampgraph.convert(folder / "step.mindir", "O2", output=folder / "low.mindir")
    return folder / "low.mindir"


@pytest.fixture(scope="module")
def digits() -> dict[str, np.ndarray]:
    """Digits under the names of the inputs; the labels as numpy makes whole numbers."""
    rows = list(nets.batches(BATCHES))
    images, labels = (np.concatenate(part) for part in zip(*rows, strict=True))
    return {"inputs0": images, "inputs1": labels.astype(np.int64)}


def state(trainer: MindirTrainer) -> dict[str, np.ndarray]:
    return {name: np.asarray(late) for name, late in trainer.late_state().items()}


@pytest.mark.slow
def test_epochs_are_the_cells_and_go_on_from_a_checkpoint(
    step: Path, digits: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """One that is broken off behind an epoch ends in the bytes of one that ran through, which are the Cell's."""
    trainer = MindirTrainer(step, "cpu")
    whole = trainer.feeds.dataset(digits)
    order = [(b["inputs0"], b["inputs1"]) for epoch in range(EPOCHS) for b in whole.shuffled(64, 0, epoch)]
    told, expected = nets.trained(nets.step_cell("mlp", "finite", "O2"), order)
    first = fit(trainer, digits, None, FitOptions(1, 64, checkpoint=tmp_path / "run"))
    other = MindirTrainer(step, "cpu")
    history = fit(other, digits, None, FitOptions(EPOCHS, 64, checkpoint=tmp_path / "run", resume=True))
    assert history.resumed == len(first.losses) == BATCHES
    np.testing.assert_array_equal(history.losses, [loss for loss, _, _ in told])
    assert history.epochs[-1].scale == told[-1][2] and all(history.finite) and other.updates == BATCHES * EPOCHS
    for name, array in state(other).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    _rates_and_refusals(other, digits)


def _rates_and_refusals(trainer: MindirTrainer, digits: dict[str, np.ndarray]) -> None:
    """On a trainer that is there: opening one takes seconds."""
    done, batch = (
        trainer.updates,
        trainer.feeds.checked({name: array[:64] for name, array in digits.items()}),
    )
    trainer.set_rates({"*": np.array([0.5] * done + [0.25, 0.125], np.float32)})
    for expected in (0.25, 0.125, 0.125):
        trainer.step_checked(batch)
        assert trainer.learning_rate == expected
    for code, told, options, validate in (
        ("AMP503", "takes 64 samples at once, not 32", FitOptions(1, 32), None),
        ("AMP206", "no forward graph", FitOptions(1, 64), digits),
    ):
        with pytest.raises(AmpError, match=f"{code}.*{told}"):
            fit(trainer, digits, validate, options)
    wide: dict[str, np.ndarray] = {**digits, "inputs1": digits["inputs1"] + 2**40}
    with pytest.raises(AmpError, match=r"AMP503.*beyond int32"):
        trainer.feeds.dataset(dict(wide))
    before = state(trainer)
    with pytest.raises(AmpError, match=r"AMP405.*scale_sense"):
        trainer.load_state({**before, "scale_sense": np.zeros(3, np.float32)})
    assert all(np.array_equal(array, before[name]) for name, array in state(trainer).items())
