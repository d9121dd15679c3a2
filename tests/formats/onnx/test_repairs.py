"""Files that ONNX Runtime takes and onnx_ir does not: constants that are defined twice, sparse and odd initializers."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.api.steps import Conversion, Job, run
from ampgraph.core.recipe import Recipe
from onnx_text import parse, proto

X = np.ones((5, 4), np.float32)
SHAPE = (4, 3)
PRODUCT = "g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }"


def notes(done: Conversion) -> tuple[dict[str, str], ...]:
    assert done.summary is not None
    return done.summary.notes


def dense(number):
    """An initializer of one number."""
    return numpy_helper.from_array(np.full(SHAPE, number, np.float32), "w")


def constant(number):
    """The same as a node."""
    return helper.make_node("Constant", [], ["w"], value=dense(number))


def sparse(number):
    """The same with only its first column."""
    filled = np.arange(4, dtype=np.int64) * 3
    values = numpy_helper.from_array(np.full(4, number, np.float32), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(filled, "places"), SHAPE)


def defined(*definitions, ir=None):
    """A product whose weight is defined by all of these."""
    model = parse(PRODUCT, ir=ir)
    for kind, number, behind in definitions:
        if kind == "dense":
            model.graph.initializer.append(dense(number))
        elif kind == "sparse":
            model.graph.sparse_initializer.append(sparse(number))
        else:
            model.graph.node.insert(len(model.graph.node) if behind else 0, constant(number))
    return model


def of_runtime(model):
    """What ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0], [item.name for item in session.get_overridable_initializers()]


DUPLICATES = {
    "constants": [("constant", 1, False), ("constant", 2, True)],
    "constants before": [("constant", 1, False), ("constant", 2, False)],
    "a constant and an initializer": [("constant", 2, False), ("dense", 3, False)],
    "initializers": [("dense", 3, False), ("dense", 4, False)],
    "sparse and dense": [("sparse", 5, False), ("dense", 3, False)],
    "sparse and a constant": [("sparse", 5, False), ("constant", 2, True)],
    "all": [("sparse", 5, False), ("constant", 2, True), ("constant", 4, False), ("dense", 3, False)],
}


@pytest.mark.parametrize("kind", DUPLICATES)
def test_constants_defined_twice_are_what_the_runtime_takes_them_for(kind):
    model = defined(*DUPLICATES[kind])
    done = run(Job(model, Recipe(level="O2"), report=True))
    converted = proto(done.model())
    wanted, _ = of_runtime(model)
    found, _ = of_runtime(converted)
    np.testing.assert_array_equal(found, wanted)
    assert [t.data_type for t in converted.graph.initializer] == [TensorProto.FLOAT16] or len(converted.graph.node) > 1
    said = [note["text"] for note in notes(done) if note["topic"] == "repaired"]
    assert f"constant 'w' is defined {len(DUPLICATES[kind])} times" in said[0]
    assert ampgraph.verify(model, converted).ok


@pytest.mark.parametrize("ir", [3, 8])
def test_a_sparse_initializer_that_is_an_input_stays_one(ir):
    model = defined(("sparse", 5, False), ir=ir)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, SHAPE))
    done = run(Job(model, Recipe(level="O2"), report=True))
    converted = proto(done.model())
    assert [item.name for item in converted.graph.input] == ["x", "w"]
    (wanted, optional), (found, still) = of_runtime(model), of_runtime(converted)
    np.testing.assert_array_equal(found, wanted)
    assert optional == still == ([] if ir == 3 else ["w"])
    assert {
        "topic": "repaired",
        "where": "",
        "text": "1 sparse tensor is stored dense, as ONNX Runtime holds them",
    } in notes(done)


SLICED = """g (float[4, 4] x) => (float[4, 3] y, int64 n) {
  n = Add(first, one)  z = Slice(x, first, end, axis)  p = Pad(z, around)  a = Add(x, p)  y = MatMul(a, w) }"""


def test_scalar_bounds_of_a_slice_are_vectors():
    """ONNX Runtime runs no such node; a scalar that others read stays one."""
    scalars = {"first": np.array(1), "end": np.array(3), "one": np.array(1)}
    model = parse(SLICED, scalars, axis=np.array([0]), around=np.array([1, 0, 1, 0]), w=SHAPE, opset=18)
    done = run(Job(model, Recipe(level="O2"), report=True))
    converted = proto(done.model())
    text = "1 Slice has scalars for bounds: they are vectors now, as ONNX has them"
    assert {"topic": "repaired", "where": "", "text": text} in notes(done)
    fed = {"x": np.ones((4, 4), np.float32)}
    session = onnxruntime.InferenceSession(converted.SerializeToString())
    found, number = session.run(None, fed)
    expected = (fed["x"] + np.pad(fed["x"][1:3], ((1, 1), (0, 0)))) @ numpy_helper.to_array(model.graph.initializer[-1])
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    assert number == 2 and number.shape == ()
    assert ampgraph.verify(model, converted, samples=1).ok


def test_nothing_is_said_of_a_file_without_repairs():
    done = run(Job(defined(("dense", 1, False)), Recipe(level="O2"), report=True))
    assert not [note for note in notes(done) if note["topic"] == "repaired"]


WRONG = {
    "a rank": ("float[N, 3, 1] h", "float[N, 3] y", ["'h' is annotated [N,3,1] and is [N,3]: repaired"]),
    "a size": ("float[N, 7] h", "float[N, 3] y", ["'h' is annotated [N,7] and is [N,3]: repaired"]),
    "an output": ("float[N, 3] h", "float[7] y", ["'y' is annotated [7] and is [N,3]: left as it is"]),
    "nothing": ("float[M, 3] h", "float[N, K] y", []),
}


@pytest.mark.parametrize("kind", WRONG)
def test_shapes_that_cannot_be_are_repaired_and_said(kind):
    middle, output, said = WRONG[kind]
    text = f"g (float[N, 4] x) => ({output}) <{middle}> {{ h = MatMul(x, w) y = Relu(h) }}"
    model = parse(text, w=SHAPE)
    done = run(Job(model, Recipe(level="O2"), report=True))
    converted = proto(done.model())
    assert [note["text"] for note in notes(done) if note["topic"] == "repaired"] == [
        f"the shape of {words}" for words in said
    ]
    assert converted.graph.output == model.graph.output
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in converted.graph.value_info}
    assert ranks["h"] == 2
    assert ampgraph.verify(model, converted).ok
    assert ampgraph.convert(converted) == converted
    assert ampgraph.apply(model, ampgraph.plan(model)) == converted


@pytest.mark.parametrize("output", ["float[] y", "float[N, 3] y", "float[M, K] y"])
def test_the_runtime_sees_the_interface_that_it_saw(output):
    """Whatever the file says of an output's shape: the runtime infers it."""
    model = parse(f"g (float[N, 4] x) => ({output}) {{ h = MatMul(x, w) y = Relu(h) }}", w=SHAPE)
    seen = []
    for made in (model, ampgraph.convert(model, level="O3")):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        seen.append([(item.name, item.type, len(item.shape)) for item in session.get_outputs()])
    assert seen[0] == seen[1]
