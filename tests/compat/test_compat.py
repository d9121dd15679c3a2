"""`ampgraph.compat`: arguments of the original functions mean what they meant, or a warning says otherwise."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.compat import onnxconverter_common, onnxruntime_float16
from ampgraph.compat.float16 import CompatWarning
from onnx_text import parse

DIGITS = Path(__file__).resolve().parents[2] / "models/digits_cnn.onnx"
BOTH = pytest.mark.parametrize("module", [onnxconverter_common, onnxruntime_float16])


def products(weight: list[float], hidden: float = 1.0) -> onnx.ModelProto:
    """x @ w, scaled by a constant of a node, then an Abs named last."""
    size = len(weight)
    text = f"""g (float[2, {size}] x) => (float[2, {size}] y) {{
        [product] a = MatMul (x, w)  c = Constant <value = float {{{hidden}}}> ()
        [scale] b = Mul (a, c)  [last] y = Abs (b) }}"""
    return parse(text, w=np.diag(np.array(weight, np.float32)), ir=10)


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of the inputs, outputs and weights."""
    ports = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    return ports | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def weight(model: onnx.ModelProto) -> Any:
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name.startswith("w")))


@BOTH
def test_io_types(module: Any) -> None:
    model = products([1, 2])
    before = model.SerializeToString()
    low = types(module.convert_float_to_float16(model))
    assert (low["x"], low["w"], low["y"]) == (TensorProto.FLOAT16,) * 3
    kept = types(module.convert_float_to_float16(model, keep_io_types=True))
    assert (kept["x"], kept["y"]) == (TensorProto.FLOAT,) * 2
    one = types(module.convert_float_to_float16(model, keep_io_types=["y"]))
    assert (one["x"], one["y"]) == (TensorProto.FLOAT16, TensorProto.FLOAT)
    assert model.SerializeToString() == before
    assert kept["w"] == TensorProto.FLOAT16 and weight(module.convert_float_to_float16(model)).dtype == np.float16


@BOTH
def test_blocked(module: Any) -> None:
    model = products([1, 2])
    listed = [*module.DEFAULT_OP_BLOCK_LIST, "MatMul", "NotThere"]
    assert types(module.convert_float_to_float16(model, op_block_list=listed))["w"] == TensorProto.FLOAT
    assert types(module.convert_float_to_float16(model, node_block_list=["product"]))["w"] == TensorProto.FLOAT
    with pytest.warns(CompatWarning, match="no node nobody"):
        found = module.convert_float_to_float16(model, node_block_list=["nobody", "product"])
    assert types(found)["w"] == TensorProto.FLOAT


@BOTH
def test_blocked_in_any_domain_and_without_floats(module: Any) -> None:
    model = products([1, 2])
    model.graph.node[0].op_type, model.graph.node[0].domain = "FusedMatMul", "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node.extend(
        [helper.make_node("Shape", ["y"], ["s"], "size"), helper.make_node("Neg", ["s"], ["n"], "less")]
    )
    model.graph.output.append(helper.make_tensor_value_info("n", TensorProto.INT64, [2]))
    found = module.convert_float_to_float16(model, op_block_list=["FusedMatMul", "Neg"], node_block_list=["less"])
    assert types(found)["w"] == TensorProto.FLOAT
    onnx.checker.check_model(found)


@BOTH
def test_clamps_in_those_words_alone(module: Any) -> None:
    model = products([1e6, -1e-9, 2])
    assert weight(module.convert_float_to_float16(model)).dtype == np.float32, "float16 cannot hold it"
    asked = weight(module.convert_float_to_float16(model, min_positive_val=1e-3, max_finite_val=1e4))
    assert asked.dtype == np.float16
    assert np.array_equal(np.diag(asked), np.array([1e4, -1e-3, 2], np.float16))
    assert asked[0, 1] == 0, "zeros stay"
    blocked = module.convert_float_to_float16(model, 1e-3, 1e4, op_block_list=["MatMul"])
    assert np.diag(weight(blocked))[0] == np.float32(1e6)


@BOTH
def test_clamps_constants(module: Any) -> None:
    found = module.convert_float_to_float16(products([1, 2], hidden=1e9), max_finite_val=100.0, keep_io_types=True)
    assert np.allclose(
        list(ampgraph.run(found, {"x": np.ones((2, 2), np.float32)}, strict=True).values()), [[100, 200]]
    )


@BOTH
def test_bodies_and_functions_count_as_the_graph(module: Any) -> None:
    """Their nodes can be blocked by name and their constants clamped, as those of the main graph."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
        g (float[2] x, bool go) => (float[2] y) {
            a = If (go) <
                then_branch = t () => (float[2] b) { c = Constant <value = float {300}> ()  [inner] b = Mul (x, c) },
                else_branch = e () => (float[2] d) { [other] d = Neg (x) }
            >
            y = own.scaled (a)
        }
        <domain: "own", opset_import: ["" : 18]> scaled (v) => (w) {
            k = Constant <value = float {300}> ()
            [within] w = Mul (v, k)
        }""")
    feeds = {"x": np.ones(2, np.float32), "go": np.array(True)}

    def result(**words: Any) -> float:
        found = module.convert_float_to_float16(model, keep_io_types=True, **words)
        return float(ampgraph.run(found, feeds, strict=True)["y"][0])

    assert result() == math.inf and result(max_finite_val=100.0) == 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompatWarning)  # no name is unknown
        assert result(node_block_list=["inner", "other", "within"]) == 9e4


@BOTH
def test_arrays_and_tensors(module: Any) -> None:
    given = np.array([0, 1e-10, -1e-10, 1e9, -1e9, np.inf, -np.inf, np.nan, 1])
    with pytest.warns(UserWarning, match="4 of 9 numbers are clamped"):
        found = module.convert_np_to_float16(given, 1e-4, 100.0)
    expected = np.array([0, 1e-4, -1e-4, 100, -100, np.inf, -np.inf, np.nan, 1], np.float16)
    assert found.dtype == np.float16 and np.array_equal(found, expected, equal_nan=True)
    tensor = numpy_helper.from_array(np.array([1, 2], np.float32), "t")
    assert module.convert_tensor_float_to_float16(tensor) is tensor and tensor.data_type == TensorProto.FLOAT16
    assert tensor.name == "t" and np.array_equal(numpy_helper.to_array(tensor), [1, 2])
    with pytest.raises(ValueError, match="AMP301"):
        module.convert_tensor_float_to_float16("t")
    with pytest.raises(ValueError, match="AMP301"):
        module.convert_float_to_float16(3)


@BOTH
@pytest.mark.parametrize(
    "words",
    [
        {"op_block_list": "MatMul"},
        {"node_block_list": "a"},
        {"max_finite_val": -1.0},
        {"min_positive_val": 2.0, "max_finite_val": 1.0},
        {"min_positive_val": float("nan")},
    ],
)
def test_bad_arguments(module: Any, words: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="AMP301"):
        module.convert_float_to_float16(products([1]), **words)


@BOTH
def test_silent_and_unchecked_unless_asked(module: Any) -> None:
    model = products([2000, 2000], hidden=2000.0)  # overflows on any input
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.convert_float_to_float16(model, disable_shape_infer=True)
    with pytest.warns(ampgraph.PrecisionWarning):
        module.convert_float_to_float16(model, check="auto", rule=["no-epilogue"])


def test_forced_weights() -> None:
    model = products([1.0, 0.1])
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 2]))
    found = onnxruntime_float16.convert_float_to_float16(model, op_block_list=["MatMul"], force_fp16_initializers=True)
    onnx.checker.check_model(found, full_check=True)
    assert types(found)["w"] == TensorProto.FLOAT16
    with pytest.warns(CompatWarning, match="'w' stays float32") as seen:
        found = onnxruntime_float16.convert_float_to_float16(products([1e6]), force_fp16_initializers=True)
    assert types(found)["w"] == TensorProto.FLOAT and seen[0].filename == __file__


@pytest.mark.parametrize(
    "words", [{"force_fp16_inputs": {"Resize": [1]}}, {"use_bfloat16_as_blocked_nodes_dtype": True}]
)
def test_what_is_not_done_is_said(words: dict[str, Any]) -> None:
    with pytest.warns(CompatWarning, match=next(iter(words))) as seen:
        onnxruntime_float16.convert_float_to_float16(products([1]), **words)
    assert seen[0].filename == __file__


def test_float16_already() -> None:
    done = onnxconverter_common.convert_float_to_float16(products([1, 2]))
    with pytest.raises(ValueError, match="has float16 in it already"):
        onnxconverter_common.convert_float_to_float16(done)
    again = onnxconverter_common.convert_float_to_float16(done, check_fp16_ready=False)
    assert again.SerializeToString() == done.SerializeToString()


def test_paths(tmp_path: Path) -> None:
    place = tmp_path / "m.onnx"
    onnx.save_model(onnx.load(DIGITS), str(place), save_as_external_data=True, location="m.data", size_threshold=0)
    expected = onnxconverter_common.float16.convert_float_to_float16(onnx.load(DIGITS), keep_io_types=True)
    for found in (
        onnxconverter_common.convert_float_to_float16_model_path(str(place), keep_io_types=True),
        onnxruntime_float16.convert_float_to_float16(str(place), keep_io_types=True),
    ):
        assert {t.name: t.data_type for t in found.graph.initializer} == {
            t.name: t.data_type for t in expected.graph.initializer
        }
        assert not any(t.external_data for t in found.graph.initializer)
    with pytest.raises(ampgraph.AmpError, match="AMP101"):
        onnxconverter_common.convert_float_to_float16_model_path(str(tmp_path / "none.onnx"))


def large() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model that overflows float16 inside, and comes back."""
    model = products([300, 300], hidden=300.0)
    model.graph.node[-1].CopyFrom(helper.make_node("Div", ["b", "c2"], ["y"], "last"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(90000, np.float32), "c2"))
    return model, {"x": np.array([[1, 2], [3, 4]], np.float32)}


def test_auto_convert_mixed_precision(tmp_path: Path) -> None:
    model, feed = large()
    seen: list[int] = []

    def close(reference: list[Any], result: list[Any]) -> bool:
        seen.append(len(result))
        return np.allclose(reference[0], result[0], rtol=1e-2)

    for words in ({"validate_fn": close}, {"rtol": 1e-2}, {"atol": 0.05}):
        found = onnxconverter_common.auto_convert_mixed_precision(model, feed, keep_io_types=True, **words)
        assert np.allclose(list(ampgraph.run(found, feed, strict=True).values()), feed["x"], rtol=2e-2)
    assert len(seen) >= 2
    place = tmp_path / "made" / "out.onnx"
    onnx.save(model, tmp_path / "in.onnx")
    onnxconverter_common.auto_convert_mixed_precision_model_path(
        str(tmp_path / "in.onnx"), feed, str(place), ["CPUExecutionProvider"], location="w.data", rtol=1e-2
    )
    assert np.allclose(list(ampgraph.run(place, feed, strict=True).values()), feed["x"], rtol=2e-2)


def test_nothing_is_accepted() -> None:
    model, feed = large()
    for words, message in (
        ({}, "both None"),
        ({"validate_fn": lambda reference, result: False}, "themselves"),
        ({"validate_fn": lambda reference, result: result[0].dtype == np.float32}, "no result"),
    ):
        with pytest.raises(ValueError, match=message):
            onnxconverter_common.auto_convert_mixed_precision(model, feed, **words)
