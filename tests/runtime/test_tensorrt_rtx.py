"""What is asked of TensorRT and read of its answers, without TensorRT itself: tests/tensorrt builds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.runtime.tensorrt_rtx import BuildJob, Engine, Kernel, _read_answer, _written_job, sizes_of
from onnx_text import parse


def kernel(reads: str = "", makes: str = "", name: str = "k") -> Kernel:
    return Kernel(name, "kgen", frozenset(reads.split()), frozenset(makes.split()), ())


def test_types_of_kernels_and_what_an_engine_says() -> None:
    assert [kernel("float16", "float16").dtype, kernel("float16", "").dtype, kernel("", "float32").dtype] == [
        "float16", "float16", "float32",
    ]  # fmt: skip
    assert kernel().dtype == "" and kernel("float32 float16", "float16").dtype == "float16/float32->float16"
    engine = Engine((kernel("float16", "float16", "mha_1"), kernel("float32", "float16"), kernel()), 1_250_000)
    assert engine.said == "3 kernels (1 float16, 1 float32->float16), 1 attentions, 1.2 MB"


def test_sizes_of_samples() -> None:
    """Least, best (the last) and largest of every axis; numbers of what may be a shape, and of nothing else."""
    pairs = [(2, [3, 9]), (5, [4, 1]), (3, [2, 2])]
    samples = [{"x": np.zeros((rows, 4), np.float32), "shape": np.array(sizes)} for rows, sizes in pairs]
    sizes, values = sizes_of(samples)
    assert sizes == {"x:0": (2, 3, 5), "x:1": (4, 4, 4), "shape:0": (2, 2, 2)}
    assert values == {"shape": [[2, 1], [2, 2], [4, 9]]}


def test_refusals_name_a_node_where_the_words_do(tmp_path: Path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    job = _written_job(BuildJob(model, sizes={"n": (1, 2, 3)}), tmp_path / "0.onnx")
    (name,) = job["nodes"]
    assert job["nodes"][name] == ("Relu", "y") and job["sizes"] == {"n": [1, 2, 3]} and job["folder"] == ""
    words = {"by": "builder", "node": "", "operator": "", "words": f"no tactic for ({name}): none"}
    told = {"runtime": "1.5", "refused": [words, {**words, "words": "out of tactics"}], "layers": "", "bytes": 0}
    named, unnamed = _read_answer(told, job["nodes"], "").refused
    assert (named.node, named.operator, unnamed.node, unnamed.operator) == (name, "Relu", "", "")
    assert str(named).startswith(f"node '{name}' (Relu): no tactic") and str(unnamed) == "out of tactics"
    for answer, code in ({"error": "not installed"}, "AMP501"), ({"capability": "1", "known": ["89"]}, "AMP301"):
        with pytest.raises(AmpError) as caught:
            _read_answer(answer, {}, "")
        assert caught.value.code == code
