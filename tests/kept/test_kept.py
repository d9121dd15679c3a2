"""Plans, ranges, steps and checkpoints of every released version are read by this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.version import __version__
from ampgraph.training.run.fitting import FILE
from kept.make import EPOCHS, HOME, trained
from onnx_text import proto

VERSIONS = sorted(path for path in HOME.iterdir() if (path / "model.onnx").is_file())
every = pytest.mark.parametrize("folder", VERSIONS, ids=[path.name for path in VERSIONS])


def test_this_version_has_its_files() -> None:
    assert __version__.split(".dev")[0].rpartition(".")[0] in {path.name for path in VERSIONS}


@every
def test_a_plan_is_followed(folder: Path) -> None:
    plan = ampgraph.Plan.from_json((folder / "plan.json").read_text(encoding="utf-8"))
    made = proto(ampgraph.apply(str(folder / "model.onnx"), plan))
    onnx.checker.check_model(made, full_check=True)
    assert [node.op_type for node in made.graph.node].count("Cast") == 4
    assert ampgraph.verify(str(folder / "model.onnx"), made, samples=2).ok


@every
def test_ranges_steer(folder: Path) -> None:
    """The product of the second layer is within 6: a margin that takes it past float16's limit holds it."""
    model, ranges = str(folder / "model.onnx"), str(folder / "ranges.json")
    assert not [d for d in ampgraph.plan(model, ranges=ranges).decisions if d.why.rule == "range"]
    assert [d for d in ampgraph.plan(model, ranges=ranges, range_margin=1e5).decisions if d.why.rule == "range"]


@every
def test_a_training_goes_on_where_it_stood(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(folder / FILE, tmp_path / "run" / FILE)
    history = trained(folder, tmp_path / "run", resume=True)
    expected = np.load(folder / "losses.npy")
    assert history.resumed == len(expected) // EPOCHS
    np.testing.assert_allclose(history.losses, expected, rtol=1e-4)
