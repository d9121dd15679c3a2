"""What TensorRT says of a model, in words and in kernels."""

from __future__ import annotations

import sys

import onnx
import pytest
from onnx.parser import parse_model

from ampgraph.core.errors import AmpError
from ampgraph.runtime import tensorrt_rtx
from ampgraph.runtime.tensorrt_rtx import BuildJob, build, build_all, read_kernels, shown

HEAD = '<ir_version: 10, opset_import: ["" : 22]>'
PLAIN = parse_model(HEAD + "g (float16[2, 8] x) => (float16[2, 8] y) { y = Relu(x) }")
MIXED = parse_model(
    HEAD
    + "g (float16[1, 1, 4, 4] x, float[1, 2, 2, 2] grid) => (float16[1, 1, 2, 2] y) {[sampled] y = GridSample(x, grid)}"
)
TRANSPOSED = parse_model(
    HEAD
    + "g (bfloat16[1, 1, 4, 4] x, bfloat16[1, 1, 2, 2] w) => (bfloat16[1, 1, 5, 5] y) {[up] y = ConvTranspose(x, w)}"
)
OPEN = parse_model(HEAD + "g (float16[N, 8] x, float16[8, M] w) => (float16[N, M] y) { y = MatMul(x, w) }")


def _tensor(name: str, shape: str, dtype: str) -> str:
    return f"{{ Name: {name}, Dimensions: [{shape}], Strides: [1], Datatype: {dtype}, Format: (Linear) any }}"


def _layer(name: str, given: str, made: str, nodes: str, constants: str = "") -> str:
    lists = f"Inputs: [ {given}], Constants: [{constants}], Outputs: [ {made}]"
    return f"Name: {name}, LayerType: gemm, {lists}, TacticName: t, StreamId: 0, Metadata: {nodes}"


X, Y, Z = _tensor("x", "2,8", "Float"), _tensor("y", "2,8", "Half"), _tensor("z", "2,8", "Float")
LIST = "\n".join(
    [
        "Layers:",
        _layer("cast_it_myl0_0", X, Y, "[ONNX Layer: one, two][ONNX Layer: three]"),
        _layer("__myl_CastCast_myl0_1", Y, Z, ""),
        _layer("gemm_mha_v2_myl0_2", Y, Y, "[ONNX Layer: four]", _tensor("alpha", "1", "Float")),
        "",
        "I/O Tensors:",
        " Name: x, IOMode: Input",
    ]
)


def test_kernels_are_read_from_the_builders_list() -> None:
    first, cast, product = read_kernels(LIST)
    assert first.nodes == ("one, two", "three") and first.dtype == "float32->float16" and not first.casts
    assert cast.casts and cast.dtype == "float16->float32"
    assert product.attends and product.kind == "gemm" and product.dtype == "float16"


def test_words_are_one_line_without_what_any_refusal_says() -> None:
    said = (
        "Invalid Node - n\nITensor::getDimensions: Error Code 4: API Usage Error (types\n differ)\n"
        "[x.cpp::catch::250] Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient)"
    )
    assert shown(said) == "API Usage Error (types differ)"


def test_an_environment_without_tensorrt_is_one_line_with_a_hint() -> None:
    with pytest.raises(AmpError, match="TensorRT for RTX is not installed") as caught:
        build(BuildJob(PLAIN), python=sys.executable)
    assert caught.value.code == "AMP501" and "tensorrt-rtx-cu13-libs" in caught.value.hint


def test_a_python_that_is_none_is_said() -> None:
    with pytest.raises(AmpError, match="cannot be started") as caught:
        build(BuildJob(PLAIN), python="/nowhere/python")
    assert caught.value.code == "AMP508"


def test_a_process_that_dies_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Of three models the second kills the first process, and the third is asked of another."""
    script = tmp_path / "dies.py"
    script.write_text(
        "import json, os, sys\n"
        "for model in json.load(open(sys.argv[1]))['models']:\n"
        "    if model['folder'] == '/dies': os.abort()\n"
        "    told = {'runtime': '1', 'refused': [], 'layers': '', 'bytes': 0}\n"
        "    print(json.dumps(told), file=open(sys.argv[2], 'a'), flush=True)\n"
    )
    monkeypatch.setattr(tensorrt_rtx.tensorrt_one, "__file__", str(script))
    answers = list(
        build_all([BuildJob(PLAIN), BuildJob(PLAIN, folder="/dies"), BuildJob(PLAIN)], python=sys.executable)
    )
    assert [answer.ok for answer in answers] == [True, False, True]
    assert "TensorRT dies of it: Aborted" in answers[1].why


def test_what_is_refused_has_node_operator_and_words(trt_python: str) -> None:
    plain, mixed, transposed = build_all([BuildJob(PLAIN), BuildJob(MIXED), BuildJob(TRANSPOSED)], python=trt_python)
    assert plain.ok and plain.engine is not None and plain.engine.types == {"float16": 1} and plain.engine.size > 0
    (refused,) = mixed.refused
    assert (refused.by, refused.node, refused.operator) == ("parser", "sampled", "GridSample")
    assert "`input` type is Half and `grid` type is Float" in refused.words and "cudaError" not in mixed.why
    (refused,) = transposed.refused
    assert (refused.by, refused.node, refused.operator) == ("builder", "up", "ConvTranspose")


def test_open_dimensions_get_a_profile(trt_python: str) -> None:
    sizes = {"N": (1, 4, 16), "w:1": (8, 8, 8)}
    answer = build(BuildJob(OPEN, sizes=sizes), python=trt_python)
    assert answer.ok and answer.engine is not None and answer.engine.types["float16"] >= 1


def test_external_data_is_found(trt_python: str, tmp_path) -> None:
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 64], [0.5] * 4096)
    model = parse_model(HEAD + "g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert build(BuildJob(tmp_path / "m.onnx"), python=trt_python).ok
