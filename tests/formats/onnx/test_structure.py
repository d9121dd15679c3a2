"""What a file may look like: order, names, little in it, sparse tensors, and what it says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import ampgraph
from ampgraph import convert
from ampgraph.api import prepare
from ampgraph.api.steps import Conversion, Job, run_job
from ampgraph.core.recipe import Recipe
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.report.summary import SaidNote
from ampgraph.runtime import optimizing
from formats.onnx.helpers import LEVELS, code, convert_everywhere, convert_twice, data, low_kinds, nodes, session, x
from onnx_text import parse, proto

MATMUL = "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = Softmax (a) }"


# -- order and names --------------------------------------------------------------------------------------------------


def unsorted() -> ModelProto:
    """A model whose main graph and one of whose bodies stand backwards."""
    given = parse(
        """g (float[2,4] x, bool c) => (float[2,4] y) {
        a = MatMul (x, w)  b = Exp (a)
        y = If (c) <
            then_branch = t () => (float[2,4] p) { r = MatMul (b, w)  p = Softmax (r) },
            else_branch = e () => (float[2,4] q) { q = Identity (a) } > }""",
        w=(4, 4),
    )
    branch = given.graph.node[2].attribute[0].g
    for graph in (branch, given.graph):
        backwards = list(reversed(graph.node))
        del graph.node[:]
        graph.node.extend(backwards)
    return given


def test_files_without_repairs() -> None:
    for level in LEVELS:
        converted = convert_twice(unsorted(), level, target="cpu")
        onnx.checker.check_model(converted, full_check=True)
        assert low_kinds(converted)["MatMul"] == 2
    # nothing is said of a file without repairs
    done = run_job(Job(defined(("dense", 1, False)), Recipe(level="O2"), report=True))
    assert not [note for note in notes(done) if note["topic"] == "repaired"]


@pytest.mark.parametrize("options", [{}, {"opset": 20}, {"opset": "auto"}, {"optimize": True}])
def test_unsorted_nodes_of_every_kind_of_model(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """What is tried on a copy, and what ONNX Runtime's optimizer writes unsorted, needs a copy of unsorted nodes."""
    counter = optimizing.NodeCounter("CPUExecutionProvider", "", "ENABLE_ALL")
    found = optimizing.FusedModel(unsorted(), "a test", 9, 3, counter)
    monkeypatch.setattr(prepare, "best_fused", lambda proto, *asked, **python: found)
    given = ir.from_proto(unsorted())
    for model in (given, unsorted()):
        result = ampgraph.convert(model, check="off", **options)
        converted = ir.to_proto(result) if isinstance(result, ir.Model) else result
        onnx.checker.check_model(converted, full_check=True)
        assert low_kinds(converted)["MatMul"] == 2
    assert data(ir.to_proto(given)) == data(ir.to_proto(ir.from_proto(unsorted())))
    assert data(ir.to_proto(ampgraph.convert(given, "O0"))) == data(ir.to_proto(given))


def test_new_names_are_new_in_every_scope() -> None:
    """Everything that a cast of x or a would be called is taken: by a value, a node, a body's value, an initializer."""
    given = parse(
        """g (float[2,4] x, bool c) => (float[2,4] y, float[2,4] x_float16_1) {
        [x_to_float16] a = MatMul (x, w)
        a_float32 = Exp (a)
        x_float16 = If (c) <
            then_branch = t () => (float[2,4] p) { a_float32_1 = MatMul (a_float32, w)  p = Softmax (a_float32_1) },
            else_branch = e () => (float[2,4] q) { q = Mul (a, a_float16) } >
        y = Exp (x_float16)
        x_float16_1 = MatMul (x_float16, w) }""",
        w=(4, 4),
        a_float16=(2, 4),
    )
    result = convert_everywhere(given, [{"x": x(2, 4), "c": np.array(c)} for c in (True, False)], low=["MatMul"])
    for level in LEVELS:
        named = [n.name for n in nodes(result[level]) if n.name]
        assert len(set(named)) == len(named)


@pytest.mark.slow
def test_two_processes_give_the_same_bytes() -> None:
    """Nothing depends on the order of a set of strings."""
    program = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from formats.onnx.test_structure import busy_model
import ampgraph
models = [ampgraph.convert(busy_model(), level, target="cpu") for level in ("O1", "O2", "auto")]
print(hashlib.sha256(b"".join(m.SerializeToString(deterministic=True) for m in models)).hexdigest())
"""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    runs = [
        subprocess.run(
            [sys.executable, "-c", program, folder],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def busy_model() -> ModelProto:
    return parse(
        """g (float[2,4] x, bool c) => (float[2,4] y, float[2,4] z) {
        a = MatMul (x, w)  b = Exp (a)  d = loc.f (b, w)  e = loc.f (d, w)  s = Softmax (e)
        y = If (c) <
            then_branch = t () => (float[2,4] p) { r = MatMul (b, w)  p = Add (r, k) },
            else_branch = e () => (float[2,4] q) { q = Mul (s, k) } >
        z = loc.f (y, w) }""",
        functions='<domain: "loc", opset_import: ["" : 17]> f (a, w) => (b) { h = MatMul (a, w)  b = Exp (h) }',
        domains=["loc"],
        w=(4, 4),
        k=(2, 4),
    )


# -- little in it, and odd tensors ------------------------------------------------------------------------------------


def test_little_graphs_and_odd_tensors() -> None:
    given = parse("g (float[2,4] x) => (float[2,4] y) { y = CumSum (x, axis) }", axis=np.array(1))
    given.graph.node[0].doc_string = "kept"
    assert all(data(ampgraph.convert(given, level)) == data(given) for level in ("O0", "O1", "auto"))
    busy = busy_model()
    assert data(ampgraph.convert(busy, "O0")) == data(busy)
    # empty tensors and scalars
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float[2,0] z, float q, float[0] u) <float s = {2.0}> {
        a = MatMul (x, w)  b = Mul (a, s)  y = Add (b, s)  z = MatMul (x, empty)
        q = ReduceSum <keepdims = 0> (a)  u = Identity (none) }""",
        w=(4, 4),
        empty=(4, 0),
        none=(0,),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    # strings
    given = parse(
        """g (float[2,4] x, string[2] s) => (float[2,4] y, string[2] t, string[2] u) <string[2] k = {"a", "bé"}> {
        y = MatMul (x, w)  t = Identity (s)  u = Identity (k) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4), "s": np.array(["p", "q"], dtype=object)}, low=["MatMul"])
    # training information is refused
    given = parse(MATMUL, w=(4, 4))
    given.training_info.add().algorithm.name = "step"
    assert code(lambda: ampgraph.convert(given)) == "AMP107"


@pytest.mark.parametrize("form", ["initializer", "constant"])
def test_sparse_tensors_become_dense(form: str) -> None:
    sparse = onnx.SparseTensorProto(dims=[2, 4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "sp"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64), "places"))
    given = parse(
        "g (float[2,4] x) => (float[2,4] y) { m = MatMul (x, w)  a = Add (m, sp)  y = MatMul (a, w) }", w=(4, 4)
    )
    if form == "initializer":
        given.graph.sparse_initializer.append(sparse)
    else:
        given.graph.node.insert(0, helper.make_node("Constant", [], ["sp"], sparse_value=sparse))
    result = convert_everywhere(given, {"x": x(2, 4)}, checked=False, low=["MatMul", "Add"])
    onnx.checker.check_model(result["O2"], full_check=True)
    sparse.dims[:] = [1 << 30, 1 << 30]
    if form == "initializer":
        given.graph.sparse_initializer[0].dims[:] = sparse.dims
        assert code(lambda: ampgraph.convert(given)) == "AMP102"


# -- what the file says of itself -------------------------------------------------------------------------------------


def test_words_are_kept() -> None:
    given = parse(
        "g (float[N,4] x) => (float[N,4] y) { [n1] a = MatMul (x, w)  [n2] b = Softmax (a)  y = Add (b, k) }",
        w=(4, 4),
        k=np.arange(4, dtype=np.int64),
    )
    given.graph.node[2].op_type, given.graph.node[2].input[1] = "Identity", ""
    del given.graph.node[2].input[1:]
    given.doc_string, given.graph.doc_string, given.domain, given.model_version = "model doc", "graph doc", "dom", 7
    helper.set_model_props(given, {"key": "value"})
    given.graph.input[0].type.denotation = "IMAGE"
    given.graph.input[0].type.tensor_type.shape.dim[1].denotation = "CHANNEL"
    owners = {
        "input": given.graph.input[0],
        "output": given.graph.output[0],
        "node": given.graph.node[0],
        "weight": given.graph.initializer[0],
        "other weight": given.graph.initializer[1],
        "graph": given.graph,
    }
    for name, owner in owners.items():
        owner.doc_string = f"{name} doc"
        owner.metadata_props.add(key=f"{name} key", value=f"{name} value")
    note = given.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    text = str(result["O2"])
    words = [
        "model doc",
        "IMAGE",
        "SCALE_TENSOR",
        *(f"{n} doc" for n in owners),
        *(f"{n} value" for n in owners),
    ]
    assert {word: text.count(f'"{word}"') for word in words} == dict.fromkeys(words, 1)
    assert result["O2"].graph.input[0].type.tensor_type.shape.dim[1].denotation == "CHANNEL"


# Files that ONNX Runtime takes and onnx_ir does not: constants that are defined twice, sparse and odd initializers.

X = np.ones((5, 4), np.float32)
SHAPE = (4, 3)
PRODUCT = "g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }"


def notes(done: Conversion) -> tuple[SaidNote, ...]:
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
    opened = session(model)
    return opened.run(None, {"x": X})[0], [item.name for item in opened.get_overridable_initializers()]


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
    done = run_job(Job(model, Recipe(level="O2"), report=True))
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
    done = run_job(Job(model, Recipe(level="O2", freeze_weights=None if ir == 3 else False), report=True))
    converted = proto(done.model())
    assert [item.name for item in converted.graph.input] == (["x"] if ir == 3 else ["x", "w"])
    (wanted, optional), (found, still) = of_runtime(model), of_runtime(converted)
    np.testing.assert_array_equal(found, wanted)
    assert optional == still == ([] if ir == 3 else ["w"])
    said = [note["text"] for note in notes(done) if note["topic"] == "repaired"]
    assert "1 sparse tensor is stored dense, as ONNX Runtime holds them" in said


SLICED = """g (float[4, 4] x) => (float[4, 3] y, int64 n) {
  n = Add(first, one)  z = Slice(x, first, end, axis)  p = Pad(z, around)  a = Add(x, p)  y = MatMul(a, w) }"""


def test_scalar_bounds_of_a_slice_are_vectors():
    """ONNX Runtime runs no such node; a scalar that others read stays one."""
    scalars = {"first": np.array(1), "end": np.array(3), "one": np.array(1)}
    model = parse(SLICED, scalars, axis=np.array([0]), around=np.array([1, 0, 1, 0]), w=SHAPE, opset=18)
    done = run_job(Job(model, Recipe(level="O2"), report=True))
    converted = proto(done.model())
    text = "1 Slice has scalars for bounds: they are vectors now, as ONNX has them"
    assert text in [note["text"] for note in notes(done) if note["topic"] == "repaired"]
    fed = {"x": np.ones((4, 4), np.float32)}
    found, number = session(converted).run(None, fed)
    expected = (fed["x"] + np.pad(fed["x"][1:3], ((1, 1), (0, 0)))) @ numpy_helper.to_array(model.graph.initializer[-1])
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    assert number == 2 and number.shape == ()
    assert ampgraph.verify(model, converted, samples=1).ok


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
    done = run_job(Job(model, Recipe(level="O2"), report=True))
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
        seen.append([(item.name, item.type, len(item.shape)) for item in session(made).get_outputs()])
    assert seen[0] == seen[1]


# Map types, which classifiers of scikit-learn and CoreML end in, pass through: onnx_ir has none.

MAP_X = np.random.default_rng(3).standard_normal((5, 16)).astype(np.float32)


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
    before, after = (StrictSession(m).run({"x": MAP_X})["probabilities"] for m in (model, converted))
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
    model = parse(
        """g (float[1,4] words) => (float[1,4] y) {
            x = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b", "c", "d"]> (words)
            y = MatMul (x, w) }""",
        domains=["ai.onnx.ml"],
        w=np.eye(4, dtype=np.float32) / 3,
    )
    model.graph.input[0].type.CopyFrom(map_type(TensorProto.STRING))
    converted = ampgraph.convert(model)
    assert types(converted)["words"] == types(model)["words"]
    assert converted.graph.initializer[0].data_type == TensorProto.FLOAT16
    found = StrictSession(converted).run({"words": {"a": 3.0, "c": 1.5}})["y"]
    assert np.allclose(found, [[1, 0, 0.5, 0]], atol=1e-3)
    assert ampgraph.verify(model, converted, data=[cast("Any", {"words": {"a": 3.0, "c": 1.5}})], nodes=2).ok


def test_verify_ranges_and_tune_take_maps(tmp_path):
    model = classifier()
    found = ampgraph.verify(model, ampgraph.convert(model), tolerance=1e-2)
    assert found.ok and {o.name for o in found.outputs} == {"label", "p", "probabilities"}
    wrong = ampgraph.convert(model)
    wrong.graph.node[-1].attribute[0].ints[:] = [0, 1, 7]
    assert not ampgraph.verify(model, wrong).ok
    # ranges and tune pass maps by
    model = classifier()
    data = [{"x": MAP_X + i} for i in range(3)]
    assert ampgraph.convert(model, data=data) != model
    assert ampgraph.tune(model, data=data).met
    # a map inside the graph keeps its annotation
    model = classifier(middle=True)
    converted = ampgraph.convert(model)
    assert converted != model
    assert types(converted)["zipped"] == types(model)["zipped"]


def test_a_run_shows_maps_and_writes_the_rest(amp, tmp_path):
    (tmp_path / "m.onnx").write_bytes(classifier().SerializeToString())
    np.savez(tmp_path / "x.npz", x=MAP_X)
    words = ("run", tmp_path / "m.onnx", "--data", tmp_path / "x.npz", "-o", tmp_path / "out.npz")
    code, out, err = amp(*words, "--strict")
    assert code == 0 and "probabilities  sequence of 5 maps 5x3  " in out
    assert err == f"not in {tmp_path / 'out.npz'}, which holds arrays and no maps: probabilities\n"
    assert sorted(np.load(tmp_path / "out.npz")) == ["label", "p"]


# A decoder with a cache inside ONNX Runtime's searches, as its converter for GPT-2 writes them.

WORDS, WIDTH, HEADS = 24, 16, 2

DECODER = """
decoder (int32[B,S] input_ids, int32[B,S] position_ids, int32[B,T] attention_mask, float[2,B,2,P,8] past_0)
  => (float[B,S,24] logits, float[2,B,2,T,8] present_0)
{
  word = Gather (words, input_ids)
  place = Gather (places, position_ids)
  h = Add (word, place)
  mask = Cast <to = 1> (attention_mask)
  given = Unsqueeze (mask, axes)
  hidden = Sub (one, given)
  bias = Mul (hidden, large)
  normed = LayerNormalization (h, scale, shift)
  joined = MatMul (normed, w_in)
  heads = Reshape (joined, by_heads)
  turned = Transpose <perm = [2, 0, 3, 1, 4]> (heads)
  q, new = Split (turned, one_two)
  cache = Concat <axis = 3> (past_0, new)
  present_0 = Identity (cache)
  k, v = Split (cache, one_one)
  k_t = Transpose <perm = [0, 1, 2, 4, 3]> (k)
  scores = MatMul (q, k_t)
  scaled = Mul (scores, factor)
  masked = Add (scaled, bias)
  weights = Softmax (masked)
  mixed = MatMul (weights, v)
  back = Transpose <perm = [1, 3, 0, 2, 4]> (mixed)
  flat = Reshape (back, by_width)
  out = MatMul (flat, w_out)
  residual = Add (h, out)
  logits = MatMul (residual, w_words)
}
"""


def _weights() -> dict[str, np.ndarray]:
    dice = np.random.default_rng(3)

    def drawn(*shape: int) -> np.ndarray:
        return (dice.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    return {
        **{"words": drawn(WORDS, WIDTH) * 4, "places": drawn(32, WIDTH), "w_in": drawn(WIDTH, 3 * WIDTH)},
        **{"w_out": drawn(WIDTH, WIDTH), "w_words": drawn(WIDTH, WORDS)},
        **{"scale": np.ones(WIDTH, np.float32), "shift": np.zeros(WIDTH, np.float32)},
        **{"one": _number(1.0), "large": _number(-10000.0), "factor": _number(0.35)},
        **{"axes": np.array([1, 2]), "one_two": np.array([1, 2]), "one_one": np.array([1, 1])},
        **{"by_heads": np.array([0, 0, 3, HEADS, WIDTH // HEADS]), "by_width": np.array([0, 0, WIDTH])},
    }


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def search(kind: str) -> onnx.ModelProto:
    """A model of one ``BeamSearch``, ``GreedySearch`` or ``Sampling``: ``input_ids`` to ``sequences``."""
    decoder = parser.parse_graph(DECODER)
    decoder.initializer.extend(numpy_helper.from_array(array, name) for name, array in _weights().items())
    given = {"max_length": 12, "min_length": 1}
    beams = {"num_beams": 3, "num_return_sequences": 1} if kind == "BeamSearch" else {}
    floats = {"length_penalty": 1.0} if beams else {}
    numbers = {**given, **beams, **floats, "repetition_penalty": 1.0}
    stored = {
        name: np.array([number], np.float32 if isinstance(number, float) else np.int32)
        for name, number in numbers.items()
    }
    certain = {"top_p": 0.1, "temperature": 0.5} if kind == "Sampling" else {}  # one word is left to draw from
    attributes: dict[str, Any] = {
        **certain,
        "decoder": decoder,
        "model_type": 0,
        "eos_token_id": WORDS - 1,
        "pad_token_id": WORDS - 1,
    }
    text = f"""g (int32[B,S] input_ids) => (int32[{"B,1,L" if beams else "B,L"}] sequences) {{
        [search] sequences = com.microsoft.{kind} (input_ids, {", ".join(numbers)}) }}"""
    model = parse(text, stored, ir=8, domains=["com.microsoft"])
    model.graph.node[0].attribute.extend(helper.make_attribute(*given) for given in attributes.items())
    return model


# Decoders inside ONNX Runtime's searches: low inside, with the names and types that its operators demand.

KINDS = ("BeamSearch", "GreedySearch", "Sampling")
PROMPTS = np.random.default_rng(1).integers(0, WORDS - 1, (2, 5)).astype(np.int32)


def sequences(model: onnx.ModelProto) -> np.ndarray:
    """What ONNX Runtime finds on the CPU."""
    return np.asarray(session(model).run(None, {"input_ids": PROMPTS})[0])


def decoder(model: onnx.ModelProto) -> onnx.GraphProto:
    return next(a.g for a in model.graph.node[0].attribute if a.name == "decoder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_a_search_loads_and_finds_the_same(kind: str, level: str) -> None:
    given, low = search(kind), proto(convert(search(kind), level, check="off"))
    assert np.array_equal(sequences(given), sequences(low))
    old, new = decoder(given), decoder(low)
    for before, after in ((old.input, new.input), (old.output, new.output)):
        assert [(v.name, v.type) for v in before] == [(v.name, v.type) for v in after]
    matrices = [t for t in new.initializer if t.name.startswith("w_")]
    assert len(matrices) == 3 and all(t.data_type == onnx.TensorProto.FLOAT16 for t in matrices)


def test_bfloat16_keeps_the_names_too() -> None:
    """The CPU has no kernels to run it."""
    low = decoder(proto(convert(search("BeamSearch"), "O2", dtype="bfloat16", check="off")))
    assert [v.name for v in low.output] == ["logits", "present_0"]
    assert any(t.data_type == onnx.TensorProto.BFLOAT16 for t in low.initializer)
