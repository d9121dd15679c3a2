"""Domains and opsets that a file imports."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.opset import at_opset
from ampgraph.numerics.strict.session import StrictSession
from formats.onnx.helpers import LEVELS, code, convert_everywhere, data, low_kinds, nodes, run_plain, x
from fuzz.models import random_model
from onnx_text import parse

MATMUL = "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = Softmax (a) }"


def test_domains_and_casts() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,1] y) {
        y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0, 4.0], intercepts = [0.5]> (x) }""",
        opset=0,
        domains=["ai.onnx.ml"],
    )
    result = convert_everywhere(given, {"x": x(2, 4)})
    assert data(result["O3"]) == data(given)
    # casts bring the default domain
    given = parse(
        "g (float[2,4] x) => (float[2,4] y) { a = com.microsoft.FusedMatMul (x, w)  y = com.microsoft.Gelu (a) }",
        opset=0,
        domains=["com.microsoft"],
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, target="cuda", checked=False, low=["FusedMatMul", "Gelu"])
    assert {o.domain for o in result["O2"].opset_import} == {"", "com.microsoft"}
    # com microsoft without an import
    given = parse("g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = com.microsoft.Gelu (a) }", w=(4, 4))
    convert_everywhere(given, None, run=False, checked=False, low=["MatMul"])


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_another_opset() -> None:
    given = parse(MATMUL.replace("Softmax", "Softmax <axis = 1>"), opset=11, w=(4, 4))
    given.doc_string = "kept"
    converted = ampgraph.convert(given, "O2", opset=21, target="cpu")
    onnx.checker.check_model(converted, full_check=True)
    assert [o.version for o in converted.opset_import] == [21] and converted.doc_string == "kept"
    assert "MatMul" in low_kinds(converted)
    for wrong in (0, 99, -1):
        assert code(partial(ampgraph.convert, given, opset=wrong)) == "AMP307"
    # inputs and outputs are declared as before
    text = "g (float[A,8] x) => (float[A,B] y) <float[8,4] w = {" + ", ".join(["1"] * 32) + "}> { y = MatMul (x, w) }"
    model = parse(text, opset=9, ir=4)
    moved = ir.to_proto(at_opset(OnnxGraph(ir.from_proto(model)), 22).model)
    assert [*moved.graph.input, *moved.graph.output] == [*model.graph.input, *model.graph.output]
    # In IR 3 every stored tensor is an input, which those of bodies cannot be.
    model = parse("g (float[4] x) => (float[4] y) { y = Relu (x) }", opset=7, ir=3)
    assert at_opset(OnnxGraph(ir.from_proto(model)), 22).model.ir_version == 10


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


# Models of old opsets: bfloat16 has no Cast before opset 13, and what a newer opset would free is said.


def casts_to(model: ModelProto, dtype: int) -> int:
    return sum(node.op_type == "Cast" and node.attribute[0].i == dtype for node in nodes(model))


OLD = """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) {
    a = MatMul (x, w)  b = com.microsoft.FusedMatMul (a, w)  d = com.microsoft.Gelu (b)  e = Gemm (d, w, w)
    y = If (c) <then_branch = t () => (float[4,4] p) { p = com.microsoft.FusedMatMul (e, w) },
                else_branch = f () => (float[4,4] q) { q = MatMul (b, w) }>
    g = com.microsoft.FastGelu (y)  h = Add (g, b)  z = Relu (h) }"""


@pytest.mark.slow
@pytest.mark.parametrize("opset", range(7, 13))
@pytest.mark.parametrize("target", ["cuda", "cann", "cpu"])
def test_no_cast_to_bfloat16_before_opset_13(target: str, opset: int) -> None:
    drawn = (random_model(seed, opset) for seed in range(4 * opset, 4 * opset + 4))
    written = parse(OLD, opset=opset, ir=4, domains=["com.microsoft"], w=(4, 4))
    for model in (written, *(case.model for case in drawn if case is not None and case.checked)):
        for level in (*LEVELS, "O0"):
            result = ampgraph.convert(model, level, dtype="bfloat16", target=target)
            onnx.checker.check_model(result)
            assert casts_to(result, TensorProto.BFLOAT16) == 0
            assert all(i.data_type != TensorProto.BFLOAT16 for i in result.graph.initializer)
            onnx.checker.check_model(ampgraph.convert(model, level, dtype="float16", target=target))


@pytest.mark.parametrize("level", ["O1", "O3"])
@pytest.mark.parametrize("inner", [11, 12])
def test_a_function_of_an_older_opset_casts_nothing_to_bfloat16(inner: int, level: str) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y) { e = Exp(x) f = own.F(e, w) h = MatMul(f, w) y = Softmax(h) }"
    body = "F (a, b) => (c) { m = com.microsoft.FusedMatMul(a, b) r = Relu(m) c = MatMul(r, b) }"
    function = f'<domain: "own", opset_import: ["" : {inner}, "com.microsoft" : 1]> {body}'
    model = parse(text, w=(8, 8), opset=17, ir=8, domains=("own", "com.microsoft"), functions=function)
    made = ampgraph.convert(model, level, dtype="bfloat16")
    assert not [node for node in made.functions[0].node if node.op_type == "Cast"]
    assert casts_to(made, TensorProto.BFLOAT16) > 0
    assert ampgraph.convert(made, level, dtype="bfloat16") == made


# Moving to another opset keeps what a model computes.

X = {"x": np.arange(7, dtype=np.float32).reshape(1, 1, 1, 7)}


def resize(operator: str, opset: int, scale: float, mode: str) -> ModelProto:
    scales = f"{{1, 1, 1, {scale}}}"
    if opset == 7:
        body = f'y = {operator} <mode = "{mode}", scales = [1.0, 1.0, 1.0, {scale}]> (x)'
        constant = ""
    else:
        body, constant = f'y = {operator} <mode = "{mode}"> (x, s)', f"<float[4] s = {scales}>"
    text = f"g (float[1,1,1,7] x) => (float[1,1,1,W] y) {constant} {{ {body} }}"
    return parse(text, opset=opset, ir=5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("operator", "opset", "scale"),
    [("Upsample", 7, 2.0), ("Upsample", 9, 2.5), *(("Resize", 10, scale) for scale in (2.0, 3.0, 1.4, 0.6, 0.5))],
)
def test_resize_of_old_opsets(operator, opset, scale, mode):
    model = resize(operator, opset, scale, mode)
    moved = at_opset(OnnxGraph(ir.from_proto(model)), 18)
    [before], [after] = run_plain(model, X).values(), run_plain(ir.to_proto(moved.model), X).values()
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_what_cannot_move_is_refused():
    text = (
        "g (float[1,1,4,7] x) => (float[1,1,H,W] y) <float[4] s = {1, 1, 1.5, 0.6}> "
        '{ y = Resize <mode = "nearest"> (x, s) }'
    )
    resized = OnnxGraph(ir.from_proto(parse(text, opset=10, ir=5)))
    with pytest.raises(AmpError, match="AMP307.*Resize, which writes 'y'"):
        at_opset(resized, 18)
    # what onnx cannot convert is said
    source = model(OTHERS, 13, 17)
    with pytest.raises(AmpError, match="AMP502.*onnx cannot convert function 'F'"):
        StrictSession(source)


# Functions of another opset than the model's: runs and checks see what they compute.

INLINE_X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
SAME = "F (a, b) => (c) { s = Sin(a) r = Softsign(s) q = Abs(r) c = Sinh(q) }"
OTHERS = "F (a, b) => (c) { m = MatMul(a, b) r = Relu(m) c = MatMul(r, b) }"


def model(body: str, outer: int, inner: int) -> ModelProto:
    nodes = "e = Exp(x) f = own.F(e, w) k = own.F(f, w) h = MatMul(k, w) y = Softmax(h)"
    text = f"g (float[4, 8] x) => (float[4, 8] y) {{ {nodes} }}"
    function = f'<domain: "own", opset_import: ["" : {inner}]> {body}'
    return parse(text, w=(8, 8), opset=outer, ir=8, domains=("own",), functions=function)


@pytest.mark.parametrize("outer, inner, body", [(17, 14, SAME), (13, 17, SAME), (17, 13, OTHERS), (21, 17, OTHERS)])
def test_what_runs_is_checked(outer: int, inner: int, body: str) -> None:
    source = model(body, outer, inner)
    expected = ort.InferenceSession(source.SerializeToString()).run(None, {"x": INLINE_X})[0]
    np.testing.assert_allclose(StrictSession(source).run({"x": INLINE_X})["y"], expected, rtol=1e-5)
    assert ampgraph.verify(source, ampgraph.convert(source, "O2"), data=[{"x": INLINE_X}]).ok
