"""A sample of ONNX's backend suite, converted every way, opens with all of ONNX Runtime's optimisations."""

from __future__ import annotations

import sys

import pytest

from placement.environment import ROOT

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
