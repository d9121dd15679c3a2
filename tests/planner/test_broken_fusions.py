"""A norm written out that ONNX Runtime would fuse with the cast before it: what is written loads all the same."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from needs import needs_runtime
from onnx_text import array, parse, proto
from planner.form_models import WRITTEN_OUT, embeddings
from share import share

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


def test_an_epsilon_stays_an_input_that_counts() -> None:
    """A norm is written as its operator only where its numbers are constants; a scale may be an input."""
    made = [ampgraph.convert(overridable(names, 17), "O3", target="cpu", check="off") for names in (("eps",), ("w",))]
    kinds = [[node.op_type for node in one.graph.node] for one in made]
    assert "LayerNormalization" not in kinds[0] and "LayerNormalization" in kinds[1]
    # a norm with open numbers is not written as its operator
    made = proto(ampgraph.convert(ELSEWHERE["another power"], "O3", target="cpu", check="off"))
    assert "LayerNormalization" not in [node.op_type for node in made.graph.node]


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
    # a form that is left alone costs nothing
    body = FORMS["as it is"].replace("Pow(s, two)", "Mul(s, s)")
    assert ampgraph.explain(model(body, 17), "r", level="O2", target="cpu").precision == "float16"
    # older opsets have an operator of two types
    assert ampgraph.explain(model(FORMS["as it is"], 13), "r", level="O2", target="cpu").precision == "float16"


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


# What a runtime cannot load is not written for it.

BEFORE = {
    "graph input": "t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Relu(m)",
    "float32 value": "e = Exp(x) t = Transpose<perm = [1, 0, 2]>(e) m = MatMul(t, w) y = Relu(m)",
    "in place": "t = Transpose<perm = [1, 0, 2]>(x) i = Identity(t) m = MatMul(i, w) y = Relu(m)",
    "second operand": "t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(w, t) y = Relu(m)",
}


def kernel_model(body: str):
    return parse(f"g (float[8, 8, 8] x) => (float[8, 8, 8] y) {{ {body} }}", w=(8, 8))


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("body", BEFORE.values(), ids=list(BEFORE))
def test_a_transpose_before_a_product_is_float32_on_a_cpu(body, level):
    """A low one kills ONNX Runtime 1.31 as it opens a session, with its default optimisations."""
    found = ampgraph.explain(kernel_model(body), "t", level=level, target="cpu")
    assert found.precision == "float32" and "dies as it loads" in found.slots[0].reason
    assert ampgraph.explain(kernel_model(body), "m", level=level, target="cpu").precision == "float16"


def test_what_a_runtime_loads_is_low():
    body = "t = Transpose<perm = [1, 0, 2]>(x) r = Relu(t) m = MatMul(r, w) y = Relu(m)"
    assert ampgraph.explain(kernel_model(body), "t", level="O2", target="cpu").precision == "float16"
    assert ampgraph.explain(kernel_model(BEFORE["graph input"]), "t", level="O2").precision == "float16"
    # embeddings before no fused attention are low
    given = embeddings(attention=False)
    assert ampgraph.explain(given, "e", level="O3", dtype="bfloat16").precision == "bfloat16"
    assert ampgraph.explain(embeddings(), "two", level="O3", dtype="bfloat16").precision == "bfloat16"
    # From 4 bits no provider of the wheel makes float16.
    given = parse("g (float4e2m1[3, 4] x, float[1] like) => (float[3, 4] y) { y = CastLike (x, like) }", opset=25)
    found = ampgraph.explain(given, "y", level="O3")
    assert found.precision == "float32" and "no provider has a Cast" in found.slots[0].reason
    other = parse("g (int8[3, 4] x, float[1] like) => (float[3, 4] y) { y = CastLike (x, like) }", opset=25)
    assert ampgraph.explain(other, "y", level="O3").precision == "float16"


@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
@pytest.mark.parametrize("given", [embeddings(), embeddings(WRITTEN_OUT)], ids=["operator", "written out"])
def test_embeddings_that_would_be_fused_into_what_takes_no_bfloat16(given, level):
    """The last sum stays float32, whatever the norm behind it; float16 has a kernel, other targets have no fusion."""
    found = ampgraph.explain(given, "e", level=level, dtype="bfloat16")
    assert found.precision == "float32" and "makes one operator of" in found.slots[0].reason
    low = [ampgraph.Recipe.of(level="O3"), ampgraph.Recipe.of(level="O3", dtype="bfloat16", target="tensorrt")]
    assert all(ampgraph.explain(given, "e", recipe=recipe).precision != "float32" for recipe in low)


# Forms that ONNX Runtime fuses whatever stands for their numbers: what is written opens as users open it.

NUMBERS = {
    "two": 2, "eps": 1e-5, "root": 2**0.5, "one": 1, "half": 0.5, "three": 3, "cubic": 0.044715, "factor": 0.79788456,
    "slope": 1.702, "scale": 2.5,
}  # fmt: skip
ROOTED = "p = Pow(s, two) v = ReduceMean<axes = [-1]>(p) a = Add(v, eps) q = Sqrt(a) d = Div(s, q)"
OPEN_NORM = f"m = ReduceMean<axes = [-1]>(n) s = Sub(n, m) {ROOTED} g = Mul(d, w) b = Add(g, c)"
OPEN_FORMS = {
    "layer norm": OPEN_NORM,
    "RMS norm": f"s = Identity(n) {ROOTED} b = Mul(d, w)",
    "gelu": "i = Div(n, root) e = Erf(i) o = Add(e, one) h = Mul(n, o) b = Mul(h, half)",
    "gelu by tanh": "p = Pow(n, three) s = Mul(p, cubic) a = Add(n, s) f = Mul(a, factor) t = Tanh(f) o = Add(t, one) "
    "h = Mul(n, half) b = Mul(h, o)",
    "gelu by a sigmoid": "i = Mul(n, slope) e = Sigmoid(i) b = Mul(n, e)",
    "attention": "t = Transpose<perm = [1, 0]>(n) s = MatMul(n, t) u = Div(s, scale) p = Softmax<axis = -1>(u) "
    "b = MatMul(p, n)",
}
HEADS = {
    "product": "n = MatMul(x, k)",
    "bias": "z = MatMul(x, k) n = Add(z, c)",
    "skip": "z = MatMul(x, k) n = Add(z, x)",
    "more": "z = MatMul(x, k) n = Relu(z)",
}
PLACES = ("stored", "overridable", "required", "computed", "folded", "vector")
LEVELS = ("O1", "O2", "O3", "auto")
TOLERANCE = 2e-2


def names(body: str) -> list[str]:
    return [name for name in NUMBERS if re.search(rf"\b{name}\b", body)]


def open_model(body: str, head: str, opset: int, where: str, number: str) -> ModelProto:
    """The form behind a head, with one number in another place; all others are stored."""
    stored: dict[str, object] = {name: np.float32(NUMBERS[name]) for name in names(body)}
    value, given, before = stored[number], [], ""
    if where in ("overridable", "required"):
        given = [f"float {number}"]
    if where in ("computed", "folded"):
        before = f"{number} = Mul(half_{number}, twice)"
        stored |= {f"half_{number}": np.float32(NUMBERS[number] / 2), "twice": np.float32(2)}
    if where == "computed":
        given, _ = [f"float half_{number}"], stored.pop(f"half_{number}")
    if where == "vector":
        stored[number] = np.full(8, value, np.float32)
    if before or where == "required":
        del stored[number]
    if opset >= 18:
        body, stored["axes"] = body.replace("<axes = [-1]>(n)", "(n, axes)"), np.array([-1])
        body = body.replace("<axes = [-1]>(p)", "(p, axes)")
    inputs = ", ".join(["float[4, 8] x", *given])
    text = f"g ({inputs}) => (float[4, 8] y) {{ {before} {head} {body} y = MatMul(b, k) }}"
    stored |= {"k": array((8, 8), "k"), "w": 1 + array((8,), "w"), "c": array((8,), "c")}
    return parse(text, {name: v for name, v in stored.items() if re.search(rf"\b{name}\b", text)}, opset=opset)


def outcome(given: ModelProto) -> np.ndarray:
    """What a plain run gives, opened with all that the runtime does by default."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {"x": array((4, 8), "x") * 3, "ok": np.array(True), "given": array((8,), "given")}
    for name, number in NUMBERS.items():
        feeds |= {name: np.array(number, np.float32), f"half_{name}": np.array(number / 2, np.float32)}
    return session.run(None, {one.name: feeds[one.name] for one in session.get_inputs()})[0]


def agrees(given: ModelProto, level: str, dtype: str) -> None:
    expected = outcome(given)
    found = outcome(proto(ampgraph.convert(given, level, dtype=dtype, target="cpu", check="off")))
    assert np.sqrt(((expected - found) ** 2).mean()) <= TOLERANCE * np.sqrt((expected**2).mean())


CELLS = [
    (form, head, opset, where, number, level)
    for form, head, opset, where, level in product(OPEN_FORMS, HEADS, (11, 13, 17, 18, 20), PLACES, LEVELS)
    for number in names(OPEN_FORMS[form])
    if not (where == "vector" and form not in ("layer norm", "RMS norm"))
]


@pytest.mark.parametrize("number", ["two", "eps"])
@pytest.mark.parametrize("where", PLACES[2:])
def test_whatever_stands_for_a_number_of_a_norm_it_opens(where: str, number: str) -> None:
    agrees(open_model(OPEN_NORM, HEADS["more"], 17, where, number), "O2", "float16")


def placed(body: str, opset: int = 17, given: str = "", functions: str = "", **stored: object) -> ModelProto:
    """A model of a text in which the norm's numbers and weights are stored, where it has them."""
    text = f"g (float[4, 8] x{given}) => (float[4, 8] y) {{ {body} }}"
    every: dict[str, object] = {"k": (8, 8), "w": (8,), "c": (8,), "two": np.float32(2), "eps": np.float32(1e-5)}
    every |= {"axes": np.array([-1])} | stored
    used = {name: v for name, v in every.items() if re.search(rf"(?<!float )\b{name}\b(?! =)", text)}
    domains = ["f"] if functions else []
    return parse(text, used, opset=opset, domains=domains, functions=functions)


OPEN_HEAD, TAIL = HEADS["product"], "y = MatMul(b, k)"
NEW = OPEN_NORM.replace("<axes = [-1]>(n)", "(n, last)").replace("<axes = [-1]>(p)", "(p, last)")
SCALED = OPEN_NORM.replace("w)", "s2)")
CALLED = f'<domain: "f", opset_import: ["": 17]> norm (n, two, eps, w, c) => (b) {{ {OPEN_NORM} }}'
ELSEWHERE = {
    "its axes are computed": placed(f"last = Neg(ones) {OPEN_HEAD} {NEW} {TAIL}", 18, ones=np.array([1])),
    "its scale is computed": placed(f"s2 = Abs(given) {OPEN_HEAD} {SCALED} {TAIL}", given=", float[8] given"),
    "its bias is computed": placed(f"c2 = Add(c, c) {OPEN_HEAD} {OPEN_NORM.replace('(g, c)', '(g, c2)')} {TAIL}"),
    "in a function": placed(f"{OPEN_HEAD} b = f.norm(n, two, eps, w, c) {TAIL}", functions=CALLED),
    "in a function, its eps given": placed(
        f"{OPEN_HEAD} b = f.norm(n, two, eps, w, c) {TAIL}", given=", float eps", functions=CALLED
    ),
    "in a branch, its eps given": placed(
        f"{OPEN_HEAD} y = If(ok) <then_branch = t () => (float[4, 8] a1) {{ {OPEN_NORM} a1 = MatMul(b, k) }}, "
        "else_branch = e () => (float[4, 8] a2) { a2 = MatMul(n, k) }>", given=", float eps, bool ok",
    ),
    "another power": placed(f"{OPEN_HEAD} {OPEN_NORM} {TAIL}", two=np.float32(3)),
    "no eps at all": placed(f"{OPEN_HEAD} {OPEN_NORM} {TAIL}", eps=np.float32(0)),
}  # fmt: skip


@pytest.mark.parametrize("given", ELSEWHERE.values(), ids=list(ELSEWHERE))
def test_a_norm_elsewhere_opens(given: ModelProto) -> None:
    for level in ("O1", "O2"):
        agrees(given, level, "float16")


def test_a_grid_of_forms_numbers_and_places() -> None:
    for form, head, opset, where, number, level in share(CELLS, 500):
        try:
            agrees(open_model(OPEN_FORMS[form], HEADS[head], opset, where, number), level, "float16")
        except Exception as error:
            raise AssertionError((form, head, opset, where, number, level)) from error
