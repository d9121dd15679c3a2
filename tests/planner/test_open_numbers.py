"""Forms that ONNX Runtime fuses whatever stands for their numbers: what is written opens as users open it."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

import ampgraph
from onnx_text import array, parse, proto
from share import share

NUMBERS = {
    "two": 2, "eps": 1e-5, "root": 2**0.5, "one": 1, "half": 0.5, "three": 3, "cubic": 0.044715, "factor": 0.79788456,
    "slope": 1.702, "scale": 2.5,
}  # fmt: skip
ROOTED = "p = Pow(s, two) v = ReduceMean<axes = [-1]>(p) a = Add(v, eps) q = Sqrt(a) d = Div(s, q)"
NORM = f"m = ReduceMean<axes = [-1]>(n) s = Sub(n, m) {ROOTED} g = Mul(d, w) b = Add(g, c)"
FORMS = {
    "layer norm": NORM,
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


def model(body: str, head: str, opset: int, where: str, number: str) -> ModelProto:
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
    for form, head, opset, where, level in product(FORMS, HEADS, (11, 13, 17, 18, 20), PLACES, LEVELS)
    for number in names(FORMS[form])
    if not (where == "vector" and form not in ("layer norm", "RMS norm"))
]


@pytest.mark.parametrize("number", ["two", "eps"])
@pytest.mark.parametrize("where", PLACES[2:])
def test_whatever_stands_for_a_number_of_a_norm_it_opens(where: str, number: str) -> None:
    agrees(model(NORM, HEADS["more"], 17, where, number), "O2", "float16")


def placed(body: str, opset: int = 17, given: str = "", functions: str = "", **stored: object) -> ModelProto:
    """A model of a text in which the norm's numbers and weights are stored, where it has them."""
    text = f"g (float[4, 8] x{given}) => (float[4, 8] y) {{ {body} }}"
    every: dict[str, object] = {"k": (8, 8), "w": (8,), "c": (8,), "two": np.float32(2), "eps": np.float32(1e-5)}
    every |= {"axes": np.array([-1])} | stored
    used = {name: v for name, v in every.items() if re.search(rf"(?<!float )\b{name}\b(?! =)", text)}
    domains = ["f"] if functions else []
    return parse(text, used, opset=opset, domains=domains, functions=functions)


HEAD, TAIL = HEADS["product"], "y = MatMul(b, k)"
NEW = NORM.replace("<axes = [-1]>(n)", "(n, last)").replace("<axes = [-1]>(p)", "(p, last)")
SCALED = NORM.replace("w)", "s2)")
CALLED = f'<domain: "f", opset_import: ["": 17]> norm (n, two, eps, w, c) => (b) {{ {NORM} }}'
ELSEWHERE = {
    "its axes are computed": placed(f"last = Neg(ones) {HEAD} {NEW} {TAIL}", 18, ones=np.array([1])),
    "its scale is computed": placed(f"s2 = Abs(given) {HEAD} {SCALED} {TAIL}", given=", float[8] given"),
    "its bias is computed": placed(f"c2 = Add(c, c) {HEAD} {NORM.replace('(g, c)', '(g, c2)')} {TAIL}"),
    "in a function": placed(f"{HEAD} b = f.norm(n, two, eps, w, c) {TAIL}", functions=CALLED),
    "in a function, its eps given": placed(
        f"{HEAD} b = f.norm(n, two, eps, w, c) {TAIL}", given=", float eps", functions=CALLED
    ),
    "in a branch, its eps given": placed(
        f"{HEAD} y = If(ok) <then_branch = t () => (float[4, 8] a1) {{ {NORM} a1 = MatMul(b, k) }}, "
        "else_branch = e () => (float[4, 8] a2) { a2 = MatMul(n, k) }>", given=", float eps, bool ok",
    ),
    "another power": placed(f"{HEAD} {NORM} {TAIL}", two=np.float32(3)),
    "no eps at all": placed(f"{HEAD} {NORM} {TAIL}", eps=np.float32(0)),
}  # fmt: skip


@pytest.mark.parametrize("given", ELSEWHERE.values(), ids=list(ELSEWHERE))
def test_a_norm_elsewhere_opens(given: ModelProto) -> None:
    for level in ("O1", "O2"):
        agrees(given, level, "float16")


def test_a_norm_with_open_numbers_is_not_written_as_its_operator() -> None:
    made = proto(ampgraph.convert(ELSEWHERE["another power"], "O3", target="cpu", check="off"))
    assert "LayerNormalization" not in [node.op_type for node in made.graph.node]


def test_a_grid_of_forms_numbers_and_places() -> None:
    for form, head, opset, where, number, level in share(CELLS, 500):
        try:
            agrees(model(FORMS[form], HEADS[head], opset, where, number), level, "float16")
        except Exception as error:
            raise AssertionError((form, head, opset, where, number, level)) from error
