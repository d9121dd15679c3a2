"""Plans, ranges, recipes, converted files, steps and checkpoints of every released version are read by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.version import __version__
from ampgraph.training.run.fitting import FILE
from kept.make import EPOCHS, HOME, RECIPE, trained
from onnx_text import proto

VERSIONS = sorted(path for path in HOME.iterdir() if (path / "model.onnx").is_file())
every = pytest.mark.parametrize("folder", VERSIONS, ids=[path.name for path in VERSIONS])


def test_this_version_has_its_files() -> None:
    assert __version__.split(".dev")[0].rpartition(".")[0] in {path.name for path in VERSIONS}


@every
def test_plans_recipes_and_ranges(folder: Path) -> None:
    plan = ampgraph.Plan.from_json((folder / "plan.json").read_text(encoding="utf-8"))
    made = proto(ampgraph.apply(str(folder / "model.onnx"), plan))
    onnx.checker.check_model(made, full_check=True)
    assert [node.op_type for node in made.graph.node].count("Cast") == 4
    assert ampgraph.verify(str(folder / "model.onnx"), made, samples=2).ok
    # The product of the second layer is within 6: a margin that takes it past float16's limit holds it.
    model, ranges = str(folder / "model.onnx"), str(folder / "ranges.json")
    assert not [d for d in ampgraph.plan(model, ranges=ranges).decisions if d.why.rule == "range"]
    assert [d for d in ampgraph.plan(model, ranges=ranges, range_margin=1e5).decisions if d.why.rule == "range"]
    # As JSON and as text, which stand in scripts and in other files.
    expected = ampgraph.Recipe.of(**RECIPE)
    data = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert ampgraph.Recipe.from_dict(data) == expected
    assert ampgraph.Recipe.from_text((folder / "recipe.txt").read_text(encoding="utf-8").strip()) == expected


@every
def test_a_converted_file_says_what_it_keeps_and_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    kept = folder / "pinned.onnx"
    again = ampgraph.convert(str(kept), "O2", output=tmp_path / "again.onnx", check="off")
    assert Path(again).read_bytes() == kept.read_bytes()
    (tanh,) = (node for node in onnx.load(kept).graph.node if node.op_type == "Tanh")
    assert "is float32" in str(ampgraph.explain(str(kept), tanh.output[0]))


@every
def test_a_training_goes_on_where_it_stood(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(folder / FILE, tmp_path / "run" / FILE)
    history = trained(folder, tmp_path / "run", resume=True)
    expected = np.load(folder / "losses.npy")
    assert history.resumed == len(expected) // EPOCHS
    np.testing.assert_allclose(history.losses, expected, rtol=1e-4)
