"""Domains and opsets that a file imports."""

from __future__ import annotations

from functools import partial

import onnx
import pytest
from onnx import TensorProto, helper

import ampgraph
from formats.onnx.helpers import (
    LEVELS,
    code,
    convert_everywhere,
    data,
    low_kinds,
    nodes,
    x,
)
from onnx_text import parse

MATMUL = "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = Softmax (a) }"


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


def test_another_opset_when_asked() -> None:
    given = parse(MATMUL.replace("Softmax", "Softmax <axis = 1>"), opset=11, w=(4, 4))
    given.doc_string = "kept"
    converted = ampgraph.convert(given, "O2", opset=21, target="cpu")
    onnx.checker.check_model(converted, full_check=True)
    assert [o.version for o in converted.opset_import] == [21] and converted.doc_string == "kept"
    assert "MatMul" in low_kinds(converted)
    for wrong in (0, 99, -1):
        assert code(partial(ampgraph.convert, given, opset=wrong)) == "AMP307"


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
