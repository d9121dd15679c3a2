"""What a file may look like: order, names, borders, imports, opsets, and what it says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ampgraph
from formats.onnx.helpers import (
    LEVELS,
    casts,
    code,
    convert_everywhere,
    convert_twice,
    data,
    kinds,
    low_kinds,
    nodes,
    stored,
    types,
    x,
)
from onnx_text import parse

MATMUL = "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = Softmax (a) }"


# -- order and names --------------------------------------------------------------------------------------------------


def test_unsorted_nodes_in_every_graph() -> None:
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
    for level in LEVELS:
        converted = convert_twice(given, level, target="cpu")
        onnx.checker.check_model(converted, full_check=True)
        assert low_kinds(converted)["MatMul"] == 2


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


# -- borders ----------------------------------------------------------------------------------------------------------

BORDERS = {
    "an output that is read inside": "(float[2,4] y, float[2,4] z) { y = MatMul (x, w)  z = Softmax (y) }",
    "an input that is an output": "(float[2,4] y, float[2,4] x) { y = MatMul (x, w) }",
    "an initializer that is an output": "(float[2,4] y, float[4,4] w) { y = MatMul (x, w) }",
    "an output that is only moved": """(float[2,4] y, float[2,4] z) {
        a = MatMul (x, w)  y = Identity (a)  z = Identity (a) }""",
    "an output of a given cast": """(float16[2,4] h, float[2,4] y) {
        a = MatMul (x, w)  h = Cast <to = 10> (a)  y = Softmax (a) }""",
    "an output of a given cast, its source an output too": """(float16[2,4] h, float[2,4] a, float[2,4] y) {
        a = MatMul (x, w)  h = Cast <to = 10> (a)  y = MatMul (a, w) }""",
}


@pytest.mark.parametrize("rest", BORDERS.values(), ids=BORDERS.keys())
def test_borders(rest: str) -> None:
    convert_everywhere(parse(f"g (float[2,4] x) => {rest}", w=(4, 4)), {"x": x(2, 4)}, low=["MatMul"])


def test_an_output_listed_twice() -> None:
    """The checker and the runtime have their doubts; the names stay what they were."""
    given = parse("g (float[2,4] x) => (float[2,4] y, float[2,4] y) { y = MatMul (x, w) }", w=(4, 4))
    result = convert_everywhere(given, None, run=False, checked=False, low=["MatMul"])
    assert kinds(result["O2"]) == ["Cast", "MatMul", "Cast"]


@pytest.mark.parametrize(("ir", "opset"), [(3, 8), (8, 17)])
def test_initializers_listed_as_inputs_stay_float32_inputs(ir: int, opset: int) -> None:
    given = parse(
        """g (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) {
        h = MatMul (x, w)  i = Add (h, b)  y = Softmax <axis = 1> (i) }""",
        ir=ir,
        opset=opset,
        w=(4, 4),
        b=(4,),
    )
    feeds = [{"x": x(2, 4)}] + ([{"x": x(2, 4), "w": x(4, 4)}] if ir > 3 else [])
    result = convert_everywhere(given, feeds, bfloat16=opset > 12, low=["MatMul"])
    assert set(stored(result["O3"]).values()) == {TensorProto.FLOAT}


def test_graphs_with_little_in_them() -> None:
    for text in (
        "g (float[2,4] x) => (float[2,4] x) { }",
        "g () => () { }",
        "g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }",
    ):
        convert_everywhere(parse(text), None, run=False)


def test_an_unchanged_model_comes_back_as_it_was() -> None:
    given = parse("g (float[2,4] x) => (float[2,4] y) { y = CumSum (x, axis) }", axis=np.array(1))
    given.graph.node[0].doc_string = "kept"
    assert all(data(ampgraph.convert(given, level)) == data(given) for level in ("O0", "O1", "auto"))
    busy = busy_model()
    assert data(ampgraph.convert(busy, "O0")) == data(busy)


def test_empty_tensors_and_scalars() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float[2,0] z, float q, float[0] u) <float s = {2.0}> {
        a = MatMul (x, w)  b = Mul (a, s)  y = Add (b, s)  z = MatMul (x, empty)
        q = ReduceSum <keepdims = 0> (a)  u = Identity (none) }""",
        w=(4, 4),
        empty=(4, 0),
        none=(0,),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])


def test_strings() -> None:
    given = parse(
        """g (float[2,4] x, string[2] s) => (float[2,4] y, string[2] t, string[2] u) <string[2] k = {"a", "bé"}> {
        y = MatMul (x, w)  t = Identity (s)  u = Identity (k) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4), "s": np.array(["p", "q"], dtype=object)}, low=["MatMul"])


@pytest.mark.parametrize("form", ["initializer", "constant"])
def test_sparse_tensors_become_dense(form: str) -> None:
    sparse = onnx.SparseTensorProto(dims=[2, 4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "sp"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64), "places"))
    given = parse("g (float[2,4] x) => (float[2,4] y) { a = Add (x, sp)  y = MatMul (a, w) }", w=(4, 4))
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


# -- imports and opsets -----------------------------------------------------------------------------------------------


def test_only_the_ml_domain() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,1] y) {
        y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0, 4.0], intercepts = [0.5]> (x) }""",
        opset=0,
        domains=["ai.onnx.ml"],
    )
    result = convert_everywhere(given, {"x": x(2, 4)})
    assert data(result["O3"]) == data(given)


def test_casts_bring_the_default_domain() -> None:
    given = parse(
        "g (float[2,4] x) => (float[2,4] y) { a = com.microsoft.FusedMatMul (x, w)  y = com.microsoft.Gelu (a) }",
        opset=0,
        domains=["com.microsoft"],
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, target="cuda", checked=False, low=["FusedMatMul", "Gelu"])
    assert {o.domain for o in result["O2"].opset_import} == {"", "com.microsoft"}


def test_com_microsoft_without_an_import() -> None:
    given = parse("g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = com.microsoft.Gelu (a) }", w=(4, 4))
    convert_everywhere(given, None, run=False, checked=False, low=["MatMul"])


@pytest.mark.parametrize("annotated", [True, False])
def test_a_custom_domain_stays_float32_and_is_named(annotated: bool) -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z) {
        a = MatMul (x, w)  b, c = my.Thing (a, w)  y = MatMul (b, w)  z = Exp (a) }""",
        domains=["my"],
        w=(4, 4),
    )
    if annotated:
        given.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 4]))
    result = convert_everywhere(given, None, run=False, low=["MatMul"])
    for level in LEVELS:
        graph = result[level].graph
        made_low = {o for n in graph.node if n.op_type == "Cast" and n.attribute[0].i == 10 for o in n.output}
        made_low |= {o for n in graph.node if n.op_type == "MatMul" for o in n.output}
        low = made_low | {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
        thing = next(n for n in graph.node if n.op_type == "Thing")
        assert not set(thing.input) & low
    notes = [note for note in ampgraph.plan(given, "O2").notes if "my::Thing" in note.where]
    assert notes and "no schema" in notes[0].text


@pytest.mark.parametrize("opset", range(7, 27))
def test_an_mlp_and_a_convolution_at_every_opset(opset: int) -> None:
    ir = 3 if opset < 9 else 8 if opset < 19 else 10 if opset < 24 else 11
    weights = {"w1": (4, 8), "b1": (8,), "w2": (8, 8), "k": (3, 1, 3, 3)}
    listed = "".join(f", float[{','.join(map(str, shape))}] {name}" for name, shape in weights.items() if ir == 3)
    given = parse(
        f"""g (float[2,4] x, float[1,1,6,6] i{listed}) => (float[2,8] y, float[1,3,6,6] z) {{
        a = Gemm (x, w1, b1)  r = Relu (a)  m = MatMul (r, w2)  y = Softmax <axis = 1> (m)
        c = Conv <pads = [1, 1, 1, 1]> (i, k)  z = Sigmoid (c) }}""",
        weights,
        opset=opset,
        ir=ir,
    )
    feeds = {"x": x(2, 4), "i": x(1, 1, 6, 6)}
    convert_everywhere(given, feeds, low=["Gemm", "MatMul", "Conv"], levels=("O1", "O2", "O3"))
    in_bfloat16 = low_kinds(ampgraph.convert(given, "O1", dtype="bfloat16", target="cuda"), TensorProto.BFLOAT16)
    assert ("MatMul" in in_bfloat16, "Conv" in in_bfloat16) == (opset >= 13, opset >= 22)
    if 13 <= opset < 22:
        plan = ampgraph.plan(given, "O1", dtype="bfloat16", target="cuda")
        why = next(d.why for d in plan.decisions if d.kind == "Conv")
        assert why.rule == "opset" and "22" in why.text


def test_another_opset_when_asked() -> None:
    given = parse(MATMUL.replace("Softmax", "Softmax <axis = 1>"), opset=11, w=(4, 4))
    given.doc_string = "kept"
    converted = ampgraph.convert(given, "O2", opset=21, target="cpu")
    onnx.checker.check_model(converted, full_check=True)
    assert [o.version for o in converted.opset_import] == [21] and converted.doc_string == "kept"
    assert "MatMul" in low_kinds(converted)
    for wrong in (0, 99, -1):
        assert code(partial(ampgraph.convert, given, opset=wrong)) == "AMP307"


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


def test_training_information_is_refused() -> None:
    given = parse(MATMUL, w=(4, 4))
    given.training_info.add().algorithm.name = "step"
    assert code(lambda: ampgraph.convert(given)) == "AMP107"


# -- inputs and outputs that may change -------------------------------------------------------------------------------

CACHE = """g (float[2,4] x, float[2,4] past_k) => (float[2,4] y, float[2,4] past_o, float[4,4] w) {
    a = MatMul (x, w)  past_o = Add (a, past_k)  y = Softmax (past_o) }"""


@pytest.mark.parametrize(
    ("io", "low"),
    [
        ("low", "x past_k y past_o w"),
        (["past_*=low"], "past_k past_o"),
        (["*=low", "y=keep"], "x past_k past_o w"),
        (["w=low"], "w"),
        (["x=low"], "x"),
        ("keep", ""),
    ],
)
def test_io(io: str | list[str], low: str) -> None:
    given = parse(CACHE, w=(4, 4))
    result = convert_everywhere(given, None, run=False, io=io)
    for level in LEVELS:
        graph = result[level].graph
        found = types([*graph.input, *graph.output])
        assert list(found) == ["x", "past_k", "y", "past_o", "w"]
        assert {name for name, kind in found.items() if kind == TensorProto.FLOAT16} == set(low.split())
        shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
        assert shapes == [[2, 4]] * 4 + [[4, 4]]


def test_io_never_takes_a_name_from_another_border() -> None:
    """wide and y become low: they are what l and n are already, under names of their own."""
    given = parse(
        """g (float16[2,4] l) => (float16[2,4] l, float[2,4] wide, float[2,4] y, float16[2,4] n) {
        wide = Cast <to = 1> (l)  y = MatMul (wide, w)  n = Cast <to = 10> (y) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, None, run=False, io=["wide=low", "y=low"])
    for level in LEVELS:
        assert list(types(result[level].graph.output)) == ["l", "wide", "y", "n"]
        assert set(types(result[level].graph.output).values()) == {TensorProto.FLOAT16}


def test_io_keeps_the_shape_where_a_given_cast_takes_over() -> None:
    given = parse(
        "g (float[2,4] x) => (float[2,4] h, float16[2,4] z) { h = Exp (x)  c = Cast <to = 10> (h)  z = Relu (c) }"
    )
    convert_everywhere(given, None, run=False, io="keep")
    converted = convert_twice(given, "O1", target="cpu", io=["h=low"])
    assert types(converted.graph.output) == {"h": TensorProto.FLOAT16, "z": TensorProto.FLOAT16}
    assert [d.dim_value for d in converted.graph.output[0].type.tensor_type.shape.dim] == [2, 4]


@pytest.mark.parametrize("name", ["", "ai.onnx"])
def test_both_names_of_the_default_domain(name: str) -> None:
    given = parse(MATMUL, functions='<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { b = Exp (a) }', w=(4, 4))
    for holder in (given, given.functions[0]):
        holder.opset_import[0].domain = name
    for node in nodes(given):
        node.domain = name
    # Neither onnx nor the runtime knows a function's import by the other name.
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"], checked=not name, run=not name)
    for holder in (result["O2"], result["O2"].functions[0]):
        assert len(holder.opset_import) == 1


def test_io_mistakes() -> None:
    given = parse(CACHE, w=(4, 4))
    for wrong in (["nothing*=low"], ["x=bfloat16"], ["x"]):
        assert code(partial(ampgraph.convert, given, io=wrong)) == "AMP305"


def test_the_number_of_casts_of_a_chain() -> None:
    given = parse("g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  b = Relu (a)  y = MatMul (b, w) }", w=(4, 4))
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul", "Relu"])
    assert {casts(result[level]) for level in LEVELS} == {2}
