"""What CUDA's ONNX Runtime takes into a neighbour's kernel is taken of our files too."""

from __future__ import annotations

import pytest

import ampgraph
from ampgraph.runtime.optimizing import optimized
from planner.test_target_fusions import AFFINE, BLOCK, LAST, affine, classifier, normed, on_the_cpu


@pytest.mark.parametrize("given", [normed(BLOCK), affine(AFFINE, (4, 1, 1))], ids=["batch norm", "scale and shift"])
def test_what_is_behind_a_convolution_goes_into_its_weights(gpu_python, given):
    found = optimized(ampgraph.convert(given, "O1"), python=gpu_python)
    assert [n.kind for n in found.nodes if not n.casts] == ["Conv", "Relu", "Conv"] and len(found.nodes) == 5


def test_what_is_taken_without_casts(gpu_python):
    found = optimized(ampgraph.convert(classifier(LAST), "O2"), python=gpu_python)
    assert [n.kind for n in found.nodes] == ["Cast", "MatMul", "Cast", "com.microsoft::BiasSoftmax"]
    # no cast runs on the cpu beside what runs there alone
    found = optimized(ampgraph.convert(on_the_cpu(), "O2"), python=gpu_python)
    assert [n.kind for n in found.nodes if n.provider == "CPU"] == ["Atan"]
