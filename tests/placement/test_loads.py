"""A sample of ONNX's backend suite, converted every way, opens with all of ONNX Runtime's optimisations."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ampgraph
from planner.form_models import WRITTEN_OUT, embeddings
from set_up import ROOT

sys.path.append(str(ROOT / "benchmarks" / "cuda_placement"))
loads = pytest.importorskip("loads")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_sample_opens_on_cuda_and_on_the_cpu(gpu_python):
    """The whole: benchmarks/cuda_placement/loads.py."""
    ways = [(target, level, dtype) for target in loads.PROVIDERS for level in loads.LEVELS for dtype in loads.DTYPES]
    models = loads.suite(5, 200)
    counts, found = loads.faults(models, ways, gpu_python)
    assert found == [] and len(models) >= 4
    assert all(counts[target] >= 20 for target in loads.PROVIDERS)


def test_embeddings_before_an_attention_open_in_both_types(gpu_python: str, tmp_path: Path) -> None:
    """ONNX Runtime makes one operator of them, which its own schema refuses in bfloat16."""
    files: list[Path] = []
    for model in (embeddings(), embeddings(WRITTEN_OUT)):
        for level in loads.LEVELS:
            for dtype in loads.DTYPES:
                file = tmp_path / f"{len(files)}.onnx"
                files.append(ampgraph.convert(model, level, dtype=dtype, check="off", output=file))
    told = loads.opened(files, gpu_python, loads.PROVIDERS["cuda"])
    assert len(told) == 16 and not any(told.values())
