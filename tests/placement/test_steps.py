"""Training steps as CUDA would run them: O2 with its loss scale beside O0 without one, a batch of 64."""

from __future__ import annotations

import runpy
from pathlib import Path

import onnx_ir as ir
import pytest

import ampgraph
from ampgraph.runtime.optimized import Optimized
from ampgraph.runtime.optimizing import optimized
from cli_helpers import MODELS
from placement.environment import ROOT

MORE = {"digits CNN": 21, "encoder, 2 layers": 15, "encoder, 4 layers": 7}
"""How many nodes O2 has more, at most: benchmarks/cuda_placement/README.md says which."""


@pytest.fixture(scope="module")
def forward_graphs(tmp_path_factory) -> dict[str, Path]:
    """Those of benchmarks/cuda_placement/steps.py, by name."""
    pytest.importorskip("torch")
    models = runpy.run_path(str(ROOT / "benchmarks" / "cuda_placement" / "steps.py"))["models"]
    return dict(models(tmp_path_factory.mktemp("steps")))


def step(path: Path, level: str, python: str, **options) -> Optimized:
    given = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "batch": 64, **options}
    return optimized(ir.to_proto(ampgraph.build_training_step(path, level=level, **given).model), python=python)


@pytest.mark.parametrize("scale", ["default", "dynamic:rule=keras", "dynamic:interval=9000"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_node_of_a_step_is_on_cuda(gpu_python, scale, dtype):
    found = step(MODELS / "digits_transformer.onnx", "O2", gpu_python, loss_scale=scale, dtype=dtype)
    assert set(found.providers()) == {"CUDA"} and not found.copied()


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_nodes_that_o2_has_more(gpu_python, forward_graphs, name):
    wide, low = (step(forward_graphs[name], level, gpu_python) for level in ("O0", "O2"))
    assert set(low.providers()) == {"CUDA"} and not low.copied()
    assert len(low.nodes) - len(wide.nodes) <= MORE[name]
    assert len(low.nodes) <= 1.05 * len(wide.nodes)
