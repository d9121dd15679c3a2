"""Models that no runtime opens: one line that names the node and what is wrong, before anything is planned."""

from __future__ import annotations

from contextlib import nullcontext

import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx import faults
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.numerics.strict.session import StrictSession
from effort import lines_run
from formats.onnx.helpers import code
from onnx_text import parse

WEIGHT = {"w": (4, 4)}
HEAD = "g (float[2, 4] x) => (float[2, 4] y)"


def body(text: str, **more) -> onnx.ModelProto:
    return parse(f"{HEAD} {{ {text} }}", WEIGHT, **more)


def circle(count: int) -> onnx.ModelProto:
    """Of a product and Relus."""
    lines = [f"[n{i}] {'y' if i == count - 1 else f'h{i}'} = Relu (h{i - 1})" for i in range(1, count)]
    return body(f"[n0] h0 = MatMul (y, w)  {'  '.join(lines)}")


BRANCHES = """g (float[2, 4] x, bool c) => (float[2, 4] y) { [choice] y = If (c) <
    then_branch = t () => (p) { [inner] p = MatMul (x, ghost) }, else_branch = e () => (q) { q = Relu (x) }> }"""
CAPTURED = (
    BRANCHES.replace("y = If", "a = If").replace("(x, ghost)", "(y, w)").replace("}> }", "}>  [back] y = Neg (a) }")
)
INSIDE = '<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { [inner] b = Softmax <axis: string = "1"> (a) }'
FAULTS = {
    "undefined": (body("[mm] a = MatMul (x, w)  [sum] y = Add (a, ghost)"), "node 'sum' (Add) reads 'ghost'"),
    "without a name": (body("y = MatMul (x, ghost)"), "the node that writes 'y' (MatMul) reads 'ghost'"),
    "in a body": (parse(BRANCHES, WEIGHT), "node 'inner' (MatMul) reads 'ghost'"),
    "output": (body("a = MatMul (x, w)"), "nothing defines the output 'y'"),
    "too many": (body("[mm] y = MatMul (x, w, w)"), "node 'mm' (MatMul) has 3 inputs, and its operator has 2"),
    "too few": (body("[mm] y = MatMul (x)"), "node 'mm' (MatMul) has 1 input, and its operator has 2"),
    "variadic": (body("[c] y = Concat <axis = 0> ()"), "has 0 inputs, and its operator has at least 1"),
    "left out": (body('[g] a = MatMul (x, w)  [c] y = Clip ("", a)'), "node 'c' (Clip) leaves out input 0 ('input')"),
    "outputs": (body("[mm] y, z = MatMul (x, w)"), "node 'mm' (MatMul) has 2 outputs, and its operator has at most 1"),
    "text": (
        body('[s] a = Softmax <axis = "1"> (x)  y = MatMul (a, w)'),
        "node 's' (Softmax) has an attribute 'axis' of type STRING, and its operator takes INT",
    ),
    "attribute left out": (body("[c] y = Concat (x, x)"), "node 'c' (Concat) has no attribute 'axis', which its"),
    "written twice": (
        body("[a] y = MatMul (x, w)  [b] y = Relu (x)"),
        "node 'b' (Relu) writes 'y', which node 'a' (MatMul) writes too",
    ),
    "an input written": (body("[a] x = MatMul (x, w)  y = Relu (x)"), "(MatMul) writes 'x', which is an input"),
    "a weight written": (body("[a] w = Relu (x)  y = MatMul (x, w)"), "node 'a' (Relu) writes 'w', which is stored"),
    "a circle": (
        body("[a] h = MatMul (y, w)  [b] y = Relu (h)"),
        "nodes read in a circle: 'a' (MatMul) -> 'b' (Relu) -> 'a' (MatMul)",
    ),
    "a circle of four": (
        circle(4),
        "a circle: 'n0' (MatMul) -> 'n1' (Relu) -> 'n2' (Relu) -> 'n3' (Relu) -> 'n0' (MatMul)",
    ),
    "a circle of five": (circle(5), "a circle: 'n0' (MatMul) -> 'n1' (Relu) -> 'n2' (Relu) -> 'n3' (Relu) -> ..."),
    "a circle in a body": (
        parse(BRANCHES.replace("MatMul (x, ghost)", "MatMul (h, w)  [back] h = Relu (p)"), WEIGHT),
        "nodes read in a circle: 'inner' (MatMul) -> 'back' (Relu) -> 'inner' (MatMul)",
    ),
    "a circle through a body": (
        parse(CAPTURED, WEIGHT),
        "nodes read in a circle: 'choice' (If) -> 'back' (Neg) -> 'choice' (If)",
    ),
    "whole number": (body("[g] y = Gemm <alpha = 1> (x, w)"), "'alpha' of type INT, and its operator takes FLOAT"),
    "in a function": (
        body("a = loc.f (x)  y = MatMul (a, w)", functions=INSIDE, domains=["loc"]),
        "node 'inner' (Softmax) has an attribute 'axis' of type STRING",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name, tmp_path):
    model, said = FAULTS[name]
    onnx.save(model, tmp_path / "m.onnx")
    for given, where in ((model, "model"), (tmp_path / "m.onnx", str(tmp_path / "m.onnx"))):
        with pytest.raises(AmpError) as caught:
            ampgraph.convert(given, check="off")
        assert caught.value.code == "AMP204" and caught.value.where == where
        assert said in caught.value.message and "\n" not in caught.value.message


SOUND = {
    "references": body(
        "a = loc.f <axis = 1> (x)  y = MatMul (a, w)",
        functions="""<domain: "loc", opset_import: ["" : 17]> f <axis> (a) => (b)
            { b = Softmax <axis: int = @axis> (a) }""",
        domains=["loc"],
    ),
    "another domain": body('a = MatMul (x, w)  y = loc.MatMul <axis = "1"> (a)', domains=["loc"]),
    "own operator of a known name": body(
        "a = MatMul (x, w)  y = Neg (a, x)",
        functions='<domain: "", opset_import: ["" : 17]> Neg (a, b) => (c) { c = Add (a, b) }',
    ),
    "left out where it may be": body('a = MatMul (x, w)  y = Clip (a, "", w0)  w0 = Constant <value_float = 1.0> ()'),
    "unknown attribute": body("[mm] y = MatMul <foo = 1> (x, w)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_some_runtime_may_admit_is_left_alone(name):
    ampgraph.convert(SOUND[name], check="off")


def tree(depth: int) -> str:
    def one(at: int) -> str:
        call = f"loc.f{at + 1}" if at < depth - 1 else "Relu"
        return f"""<domain: "loc", opset_import: ["" : 17, "loc" : 1]> f{at} (a) => (b)
            {{ t = {call} (a)  b = {call} (t) }}"""

    return "\n".join(map(one, range(depth)))


def test_functions_that_multiply_are_refused_before_they_are_expanded():
    model = body("a = loc.f0 (x)  y = MatMul (a, w)", functions=tree(39), domains=["loc"])
    assert len(model.SerializeToString()) < 4096

    def refused() -> None:
        with pytest.raises(AmpError, match="1,099,511,627,776 nodes once functions are expanded") as caught:
            ampgraph.convert(model, check="off")
        assert caught.value.code == "AMP203"

    lines_run(refused, 1_000_000)
    ampgraph.convert(body("a = loc.f0 (x)  y = MatMul (a, w)", functions=tree(6), domains=["loc"]), check="off")


@pytest.mark.parametrize(("most", "refused"), [(6, False), (5, True)])
def test_so_many_nodes_may_be_there_once_functions_are_expanded(monkeypatch, most, refused):
    """Two calls of two nodes each: the calls count as well as what is in them."""
    monkeypatch.setattr(faults, "MOST_NODES", most)
    functions = '<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { t = Relu (a)  b = Relu (t) }'
    model = onnx_io.deserialize(body("a = loc.f (x)  y = loc.f (a)", functions=functions, domains=["loc"]), None)
    said = "6 nodes once functions are expanded, and 5 are the most"
    with pytest.raises(AmpError, match=said) if refused else nullcontext():
        faults.refuse_multiplied(model)


def test_a_function_that_calls_itself_is_refused():
    functions = '<domain: "loc", opset_import: ["" : 17, "loc" : 1]> f (a) => (b) { b = loc.f (a) }'
    assert code(lambda: ampgraph.convert(body("y = loc.f (x)", functions=functions, domains=["loc"]))) == "AMP203"


def test_what_is_said_of_versions_that_nobody_knows():
    newest, ml = faults.NEWEST[""], faults.NEWEST["ai.onnx.ml"]
    model = body("y = MatMul (x, w)", opset=newest)
    model.opset_import.add(domain="ai.onnx.ml", version=ml)
    model.opset_import.add(domain="of.others", version=9999)
    model.ir_version = onnx.IR_VERSION
    assert faults.unknown_versions(model) == []
    model.ir_version += 1
    model.opset_import[0].version, model.opset_import[1].version = 0, ml + 1
    assert faults.unknown_versions(model) == [
        f"IR version {onnx.IR_VERSION + 1} is unknown: read as {onnx.IR_VERSION}, the newest known here",
        "opset 0 is unknown: no operator of it is known",
        f"opset {ml + 1} of ai.onnx.ml is unknown: read as {ml}, the newest known here",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: setattr(model.opset_import[0], "version", 99), "opset 99 is unknown: read as"),
        (lambda model: setattr(model, "ir_version", 99), "IR version 99 is unknown: read as"),
    ],
)
def test_versions_that_nobody_knows_are_said(amp, tmp_path, change, said):
    model = body("y = MatMul (x, w)")
    change(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    status, out, _ = amp("convert", tmp_path / "m.onnx", "--check", "off")
    assert status == 0 and said in out
    with pytest.raises(AmpError, match="may be older than the model"):
        StrictSession(model)
