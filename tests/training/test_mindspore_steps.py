"""A converted file of a whole training step trains as MindSpore's own AMP trains the Cell, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore as ms
from mindspore import nn

import ampgraph
from mindir import step_nets, training_nets
from share import FULL

pytestmark = pytest.mark.mindspore
LEVELS = [("O2", "ampgraph"), ("O3", "ampgraph"), *((level, "mindspore") for level in ("O1", "O2", "O3", "auto"))]
EVERY = [(name, *case) for name in step_nets.BACKBONES for case in LEVELS]
DEFAULT = [("layernorm", "O2", "ampgraph"), ("layernorm", "O1", "mindspore")]
Trained = tuple[list[Any], dict[str, np.ndarray]]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore's O1 writes source files into the folder that it runs in."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def graph_mode() -> Any:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The path of a step's file in float32, made once."""
    folder = tmp_path_factory.mktemp("steps")

    def path(name: str, kind: str) -> Path:
        file = folder / f"{name}.{kind}.mindir"
        if not file.is_file():
            training_nets.export(step_nets.step_cell(name, kind), str(file))
        return file

    return path


def of_file(path: Path, data: Any) -> Trained:
    return step_nets.trained(nn.GraphCell(ms.load(str(path))).set_train(), data)


def assert_same(got: Trained, expected: Trained) -> None:
    np.testing.assert_array_equal(got[0], expected[0])
    assert set(got[1]) == set(expected[1])
    for name, array in expected[1].items():
        np.testing.assert_array_equal(got[1][name], array, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level", "policy"), EVERY if FULL else DEFAULT)
def test_a_step_with_a_loss_scale_trains_as_the_cell_does(
    exported: Any, tmp_path: Path, name: str, level: str, policy: str
) -> None:
    """40 steps; one batch overflows, is skipped and halves the scale. The CPU's own finite check stands in the file."""
    data, low = step_nets.batches(overflow=True), tmp_path / "low.mindir"
    ampgraph.convert(exported(name, "scaled"), level, policy=policy, target="cpu", output=low)
    got = of_file(low, data)
    assert_same(got, step_nets.trained(step_nets.step_cell(name, "finite", level), data))
    skipped = [index for index, (_, overflow, _) in enumerate(got[0]) if overflow]
    assert skipped == [step_nets.OVERFLOW] and got[0][-1][0] < got[0][0][0] / 1.5


WITHOUT_SCALE = [(name, kind) for name in step_nets.BACKBONES for kind in ("plain", "amp", "model")]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"] if FULL else ["O2"])
@pytest.mark.parametrize(("name", "kind"), WITHOUT_SCALE if FULL else [("layernorm", "model")])
def test_a_step_without_a_loss_scale_trains_as_the_cell_does(
    exported: Any, tmp_path: Path, name: str, kind: str, level: str
) -> None:
    """What nn.TrainOneStepCell, amp.build_train_network and Model make, over 40 steps."""
    data, low = step_nets.batches(overflow=False), tmp_path / "low.mindir"
    ampgraph.convert(exported(name, kind), level, policy="mindspore", target="cpu", output=low)
    assert_same(of_file(low, data), step_nets.trained(step_nets.step_cell(name, kind, level), data))


def test_o0_is_the_file_as_it_is(exported: Any, tmp_path: Path) -> None:
    step = exported("layernorm", "scaled")
    ampgraph.convert(step, "O0", output=tmp_path / "same.mindir")
    assert (tmp_path / "same.mindir").read_bytes() == step.read_bytes()
