"""Engines for open dimensions: --dim, a range of sizes, or samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe_values import Size, dims
from ampgraph.report.fusions import engine_sizes
from ampgraph.runtime.tensorrt_rtx import BuildJob, build_all
from cli_helpers import process
from onnx_text import parse

TEXT = """g (int64[batch,length] ids, float[batch,1,1,length] mask) => (float[batch,length,64] y) {
    x = Gather (table, ids)  q0 = MatMul (x, wq)  k0 = MatMul (x, wk)  v0 = MatMul (x, wv)
    q1 = Reshape (q0, split)  k1 = Reshape (k0, split)  v1 = Reshape (v0, split)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)  k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    s = MatMul (q, k)  a = Add (s, mask)  p = Softmax <axis = -1> (a)  c = MatMul (p, v)
    t = Transpose <perm = [0, 2, 1, 3]> (c)  j = Reshape (t, joined)  o = MatMul (j, wo)  r = Add (o, x)
    y = LayerNormalization <axis = -1> (r, g, b) }"""
WEIGHTS = {"table": (100, 64), "wq": (64, 64), "wk": (64, 64), "wv": (64, 64), "wo": (64, 64), "g": (64,), "b": (64,)}
SHAPES = {"split": np.array([0, 0, 4, 16]), "joined": np.array([0, 0, 64])}


@pytest.fixture
def text_model(tmp_path: Path) -> Path:
    onnx.save(parse(TEXT, {**WEIGHTS, **SHAPES}), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_range_is_a_size() -> None:
    (found,) = dims(["N=1:4:8"])
    assert found == ("N", 4) and isinstance(found[1], Size) and (found[1].least, found[1].largest) == (1, 8)
    assert dims({"N": "1:4:8"}) == dims({"N": 4}) == (("N", 4),)
    recipe = ampgraph.Recipe.of(dims=["N=1:4:8"])
    assert ampgraph.Recipe.of(recipe=str(recipe)) == recipe  # it decides as N=4 does
    for wrong in ("N=4:1:8", "N=1:4", "N=0:1:2", "N=1:2:3:4", "N=1::3"):
        with pytest.raises(AmpError, match=r"is not NAME=N\nhint: for example --dim batch=8, or batch=1:4:8"):
            dims([wrong])


def test_sizes_come_from_ranges_and_samples(text_model: Path) -> None:
    said = {"mask:1": (1, 1, 1), "mask:2": (1, 1, 1)}
    sizes, values = engine_sizes(str(text_model), dict(dims(["batch=1:2:8", "length=4:16:64"])))
    long, many = (4, 16, 64), (1, 2, 8)
    assert sizes == {"ids:0": many, "ids:1": long, "mask:0": many, "mask:3": long} | said and not values
    samples = [
        {"ids": np.zeros((n, m), np.int64), "mask": np.zeros((n, 1, 1, m), np.float32)} for n, m in ((4, 9), (2, 30))
    ]
    sizes, _ = engine_sizes(str(text_model), {}, samples)
    assert (sizes["ids:0"], sizes["ids:1"]) == ((2, 2, 4), (9, 30, 30))
    # an input that is a shape
    counted = parse("g (float[N] x, int64[1] n) => (float[M] y) { y = Expand (x, n) }")
    feeds = [{"x": np.zeros(1, np.float32), "n": np.array([n])} for n in (3, 9, 4)]
    onnx.save(counted, text_model.with_name("n.onnx"))
    assert engine_sizes(str(text_model.with_name("n.onnx")), {}, feeds)[1] == {"n": [[3], [4], [9]]}


def test_open_batch_and_length_are_built(text_model: Path, trt_python: str) -> None:
    made = text_model.with_name("m.trt.onnx")
    ways = ("--target", "tensorrt", "--runtime", trt_python, "--dim", "batch=1:2:8", "--dim", "length=4:16:64")
    ended = process("convert", text_model, "-o", made, *ways)
    assert ended.returncode == 0 and f"{made}: ok (reads, builds)" in ended.stdout, ended.stdout + ended.stderr
    ended = process("inspect", made, "--against", text_model, *ways)
    assert ended.returncode == 0 and "builds it" in ended.stdout


CACHED = """g (float[batch,1,64] x, float[batch,4,past,16] keys, float[batch,4,past,16] values)
    => (float[batch,1,64] y, float[batch,4,total,16] new_keys, float[batch,4,total,16] new_values) {
    q0 = MatMul (x, wq)  k0 = MatMul (x, wk)  v0 = MatMul (x, wv)
    q1 = Reshape (q0, split)  k1 = Reshape (k0, split)  v1 = Reshape (v0, split)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)  k = Transpose <perm = [0, 2, 1, 3]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    new_keys = Concat <axis = 2> (keys, k)  new_values = Concat <axis = 2> (values, v)
    t = Transpose <perm = [0, 1, 3, 2]> (new_keys)  s = MatMul (q, t)  p = Softmax <axis = -1> (s)
    c = MatMul (p, new_values)  j = Transpose <perm = [0, 2, 1, 3]> (c)  f = Reshape (j, joined)
    y = MatMul (f, wo) }"""


@pytest.mark.slow
@pytest.mark.parametrize("io", ["keep", "low"])
def test_a_decoder_with_its_cache_is_built(io: str, tmp_path: Path, trt_python: str) -> None:
    """The whole: benchmarks/tensorrt/open_models.py."""
    path, given = tmp_path / "m.onnx", {name: WEIGHTS[name] for name in ("wq", "wk", "wv", "wo")}
    onnx.save(parse(CACHED, {**given, **SHAPES}), path)
    sizes, values = engine_sizes(str(path), dict(dims(["batch=1:2:8", "past=1:32:128"])))
    ways = [("O1", "bfloat16"), ("O2", "float16")]
    models = [
        ampgraph.convert(onnx.load(path), level, dtype=dtype, target="tensorrt", io=io, check="off")
        for level, dtype in ways
    ]
    for answer in build_all([BuildJob(one, "", sizes, values) for one in models], python=trt_python):
        assert answer.ok and answer.engine is not None and answer.engine.attentions == 1, answer.why


def test_values_of_shapes_are_built(trt_python: str) -> None:
    model = parse("g (float[1] x, int64[1] n) => (float[M] y) { a = Expand (x, n)  y = Relu (a) }")
    jobs = [BuildJob(model, values={"n": values}) for values in ([4], [[3], [4], [9]])]
    assert [answer.ok for answer in build_all(jobs, python=trt_python)] == [True, True]


def test_verify_says_that_engines_are_not_run(text_model: Path) -> None:
    with pytest.raises(AmpError, match="built there, and not run") as caught:
        ampgraph.verify(text_model, text_model, target="tensorrt", runtime="python")
    assert caught.value.code == "AMP404" and "check with runtime=" in caught.value.hint
