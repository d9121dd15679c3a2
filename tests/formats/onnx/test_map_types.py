"""Map types, which classifiers of scikit-learn and CoreML end in, pass through: onnx_ir has none."""

from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, TypeProto, helper, numpy_helper

import ampgraph
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.numerics.strict.session import StrictSession
from onnx_text import parse

X = np.random.default_rng(3).standard_normal((5, 16)).astype(np.float32)


def map_type(key=TensorProto.INT64):
    """map(key, tensor(float))."""
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))


def classifier(key=TensorProto.INT64, middle=False):
    """Two products, Softmax, labels, and a ZipMap, as skl2onnx writes it."""
    labels = {"classlabels_int64s": [0, 1, 2]} if key == TensorProto.INT64 else {"classlabels_strings": ["a", "b", "c"]}
    model = parse(
        """classifier (float[N, 16] x) => (int64[N] label, float[N, 3] p) {
            h = MatMul(x, w)
            r = Relu(h)
            logits = MatMul(r, v)
            p = Softmax <axis: int = -1> (logits)
            label = ArgMax <axis: int = 1, keepdims: int = 0> (p)
        }""",
        opset=17, w=(16, 8), v=(8, 3),
    )  # fmt: skip
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    name = "zipped" if middle else "probabilities"
    model.graph.node.append(helper.make_node("ZipMap", ["p"], [name], "zip", domain="ai.onnx.ml", **labels))
    kind = helper.make_sequence_type_proto(map_type(key))
    model.graph.output.append(helper.make_value_info("probabilities", kind))
    if middle:
        model.graph.node.append(helper.make_node("Identity", [name], ["probabilities"], domain="own"))
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.value_info.append(helper.make_value_info(name, kind))
    return model


def types(model):
    """Types of a file's inputs, outputs and what it annotates, by name."""
    infos = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    return {info.name: info.type for info in infos}


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("key", [TensorProto.INT64, TensorProto.STRING])
def test_a_zipmap_classifier_converts(level, key):
    model = classifier(key)
    converted = ampgraph.convert(model, level=level)
    onnx.checker.check_model(converted, full_check=True)
    assert types(converted)["probabilities"] == types(model)["probabilities"]
    assert any(t.data_type == TensorProto.FLOAT16 for t in converted.graph.initializer)
    before, after = (StrictSession(m).run({"x": X})["probabilities"] for m in (model, converted))
    assert [list(row) for row in before] == [list(row) for row in after]
    assert np.allclose([list(r.values()) for r in before], [list(r.values()) for r in after], atol=1e-2)
    assert ampgraph.convert(converted, level=level) == converted


def test_files_keep_their_maps(tmp_path):
    source, target = tmp_path / "m.onnx", tmp_path / "low.onnx"
    source.write_bytes(classifier().SerializeToString())
    ampgraph.convert(source, output=target)
    assert types(onnx.load(target))["probabilities"] == types(classifier())["probabilities"]
    assert OnnxGraph.load(target).fault() == ""
    # maps keep their type where weights lie in files
    model, source = classifier(), tmp_path / "m.onnx"
    onnx.save(model, source, save_as_external_data=True, location="m.data", size_threshold=0)
    converted = ampgraph.convert(source)
    assert types(converted)["probabilities"] == types(model)["probabilities"]
    assert {numpy_helper.to_array(t).dtype.name for t in converted.graph.initializer} == {"float16"}


def test_a_map_that_is_fed_passes():
    """DictVectorizer takes one, and so do CoreML's models; TypeProto has maps in maps nowhere."""
    given = helper.make_value_info("words", helper.make_map_type_proto(TensorProto.STRING, floats()))
    nodes = [
        helper.make_node(
            "DictVectorizer", ["words"], ["x"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c", "d"]
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32) / 3, "w")
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "g", [given], [out], [weight])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    converted = ampgraph.convert(model)
    assert types(converted)["words"] == types(model)["words"]
    assert converted.graph.initializer[0].data_type == TensorProto.FLOAT16
    found = StrictSession(converted).run({"words": {"a": 3.0, "c": 1.5}})["y"]
    assert np.allclose(found, [[1, 0, 0.5, 0]], atol=1e-3)
    assert ampgraph.verify(model, converted, data=[cast("Any", {"words": {"a": 3.0, "c": 1.5}})], nodes=2).ok


def floats() -> TypeProto:
    """The type of a scalar."""
    return helper.make_tensor_type_proto(TensorProto.FLOAT, [])


def test_verify_ranges_and_tune_take_maps(tmp_path):
    model = classifier()
    found = ampgraph.verify(model, ampgraph.convert(model), tolerance=1e-2)
    assert found.ok and {o.name for o in found.outputs} == {"label", "p", "probabilities"}
    wrong = ampgraph.convert(model)
    wrong.graph.node[-1].attribute[0].ints[:] = [0, 1, 7]
    assert not ampgraph.verify(model, wrong).ok
    # ranges and tune pass maps by
    model = classifier()
    data = [{"x": X + i} for i in range(3)]
    assert ampgraph.convert(model, data=data) != model
    assert ampgraph.tune(model, data=data).met
    # a map inside the graph keeps its annotation
    model = classifier(middle=True)
    converted = ampgraph.convert(model)
    assert converted != model
    assert types(converted)["zipped"] == types(model)["zipped"]


def test_a_run_shows_maps_and_writes_the_rest(amp, tmp_path):
    (tmp_path / "m.onnx").write_bytes(classifier().SerializeToString())
    np.savez(tmp_path / "x.npz", x=X)
    words = ("run", tmp_path / "m.onnx", "--data", tmp_path / "x.npz", "-o", tmp_path / "out.npz")
    code, out, err = amp(*words, "--strict")
    assert code == 0 and "probabilities  sequence of 5 maps 5x3  " in out
    assert err == f"not in {tmp_path / 'out.npz'}, which holds arrays and no maps: probabilities\n"
    assert sorted(np.load(tmp_path / "out.npz")) == ["label", "p"]
