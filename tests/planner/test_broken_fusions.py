"""A norm written out that ONNX Runtime would fuse with the cast before it: what is written loads all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from needs import needs_runtime
from onnx_text import parse

HEAD = "h = MatMul(x, k) r = Relu(h)"
NORM = (
    "m = ReduceMean<axes = [-1]>(n) s = Sub(n, m) p = Pow(s, two) v = ReduceMean<axes = [-1]>(p) a = Add(v, eps) "
    "q = Sqrt(a) d = Div(s, q) g = Mul(d, w) b = Add(g, c) y = MatMul(b, k)"
)
FORMS = {
    "as it is": f"{HEAD} n = Identity(r) {NORM}",
    "behind a Cast that does nothing": f"{HEAD} n = Cast<to = 1>(r) {NORM}",
    "of a Reshape": f"h = MatMul(x, k) n = Reshape(h, to) {NORM}",
}
BFLOAT16_MUL = needs_runtime("older ones have no bfloat16 Mul on the CPU, which the kernel table has")
WAYS = [
    *((17, "float16", level) for level in ("O1", "O2", "auto")),
    (13, "bfloat16", "O3"),
    pytest.param(17, "bfloat16", "O3", marks=BFLOAT16_MUL),
]


def model(body: str, opset: int):
    head = "g (float[4, 8] x) => (float[4, 8] y) <float two = {2}, float eps = {1e-5}, int64[2] to = {4, 8}>"
    return parse(f"{head} {{ {body} }}", k=(8, 8), w=(8,), c=(8,), opset=opset)


@pytest.mark.parametrize("opset, dtype, level", WAYS)
@pytest.mark.parametrize("body", FORMS.values(), ids=list(FORMS))
def test_it_loads(body: str, opset: int, dtype: str, level: str) -> None:
    made = ampgraph.convert(model(body, opset), level, dtype=dtype, target="cpu", check="off")
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


OVERRIDDEN = [("eps",), ("two",), ("w",), ("two", "eps", "w", "c")]


def overridable(names: tuple[str, ...], opset: int) -> ModelProto:
    """The norm alone, some of whose numbers and weights are inputs that need not be given."""
    made = parse(f"g (float[4, 8] n) => (float[4, 8] b) {{ {NORM.rsplit(' y = ', 1)[0]} }}",
                 {"two": np.float32(2), "eps": np.float32(1e-5)}, w=(8,), c=(8,), opset=opset)  # fmt: skip
    shapes = {tensor.name: list(tensor.dims) for tensor in made.graph.initializer}
    made.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in names)
    return made


@pytest.mark.parametrize("opset, dtype, level", [(17, "float16", "O2"), (17, "float16", "O3"), (15, "bfloat16", "O3")])
@pytest.mark.parametrize("names", OVERRIDDEN, ids="-".join)
def test_numbers_that_a_caller_may_override_are_fused_too(
    names: tuple[str, ...], opset: int, dtype: str, level: str
) -> None:
    made = ampgraph.convert(overridable(names, opset), level, dtype=dtype, target="cpu", check="off")
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [value.name for value in made.graph.input] == ["n", *names]


def test_an_overridable_epsilon_stays_an_input_that_counts() -> None:
    """A norm is written as its operator only where its numbers are constants; a scale may be an input."""
    made = [ampgraph.convert(overridable(names, 17), "O3", target="cpu", check="off") for names in (("eps",), ("w",))]
    kinds = [[node.op_type for node in one.graph.node] for one in made]
    assert "LayerNormalization" not in kinds[0] and "LayerNormalization" in kinds[1]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_scale_that_is_an_input_loads(level: str) -> None:
    given = overridable(("w", "c"), 17)
    del given.graph.initializer[:]
    given.graph.initializer.extend(overridable((), 17).graph.initializer[:2])
    assert [tensor.name for tensor in given.graph.initializer] == ["two", "eps"]
    made = ampgraph.convert(given, level, target="cpu", check="off")
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def test_what_it_reads_is_float32_and_says_why() -> None:
    given = model(FORMS["as it is"], 17)
    asked: dict[str, Any] = {"level": "O2", "target": "cpu", "rewrite": "none"}
    found = ampgraph.explain(given, "r", **asked)
    assert found.precision == "float32" and "ONNX Runtime would take the cast" in found.slots[0].reason
    assert (
        ampgraph.explain(model(FORMS["as it is"], 17), "h", level="O2", target="cpu", rewrite="none").precision
        == "float16"
    )


@pytest.mark.parametrize("head", ["n = MatMul(x, k)", "h = MatMul(x, k) n = Add(h, c)"])
def test_behind_a_product_the_norm_is_written_as_its_operator(head: str) -> None:
    made = ampgraph.convert(model(f"{head} {NORM}", 17), "O2", target="cpu", check="off")
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("LayerNormalization") == 1 and "Pow" not in kinds
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    decisions = ampgraph.plan(model(f"{head} {NORM}", 17), level="O2", target="cpu").decisions
    assert {d.kind: d.dtype for d in decisions if d.kind in ("MatMul", "LayerNormalization")} == {
        "MatMul": "float16",
        "LayerNormalization": "float32",
    }


def test_a_form_that_is_left_alone_costs_nothing() -> None:
    body = FORMS["as it is"].replace("Pow(s, two)", "Mul(s, s)")
    assert ampgraph.explain(model(body, 17), "r", level="O2", target="cpu").precision == "float16"


def test_older_opsets_have_an_operator_of_two_types() -> None:
    assert ampgraph.explain(model(FORMS["as it is"], 13), "r", level="O2", target="cpu").precision == "float16"
