"""Masks of -10,000 less their largest number in each row: hidden rows keep their scores, and nothing else changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.metrics.agreement import apart
from ampgraph.numerics.strict.session import StrictSession
from onnx_text import parse

F = np.float32
SCORES = "k = Transpose <perm = [1, 0]> (x)  s = MatMul (x, k)"
MASK = "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, far)"
ENDS = "p = Softmax <axis = -1> (a)  y = MatMul (p, x)"
FORMS = {
    "added": f"{SCORES}  {MASK}  a = Add (s, m)  {ENDS}",
    "taken away": f"{SCORES}  c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, size1)  a = Sub (s, m)  {ENDS}",
    "by an Unsqueeze": f"{SCORES}  {MASK}  u = Unsqueeze (m, zero)  u1 = Squeeze (u, zero)  a = Add (u1, s)  {ENDS}",
    "of two layers": f"""{SCORES}  {MASK}  a1 = Add (s, m)  p1 = Softmax <axis = -1> (a1)  x1 = MatMul (p1, x)
        s1 = MatMul (x1, k)  a = Add (s1, m)  {ENDS}""",
    "beside another": f"{SCORES}  {MASK}  b = Add (s, near)  d = Dropout (b)  a = Add (d, m)  {ENDS}",
    "read in a branch": f"""{SCORES}  {MASK}  p = If (true) <
        then_branch = t () => (float[8, 8] a1) {{ b1 = Add (s, m)  a1 = Softmax <axis = -1> (b1) }},
        else_branch = e () => (float[8, 8] a2) {{ a2 = Identity (s) }}>  y = MatMul (p, x)""",
}
LEFT = {
    "read elsewhere": f"{SCORES}  {MASK}  a = Add (s, m)  {ENDS.replace('y =', 'o =')}  y = Add (o, m)",
    "over another axis": f"{SCORES}  {MASK}  a = Add (s, m)  p = Softmax <axis = 0> (a)  y = MatMul (p, x)",
    "of scores": f"{SCORES}  c = Cast <to = 9> (seen)  m = Where (c, s, far)  a = Add (m, near)  {ENDS}",
    "of constants": f"{SCORES}  n = Sub (one, row)  m = Mul (n, far)  a = Add (s, m)  {ENDS}",
    "and of minus infinity": f"""{SCORES}  {MASK}  d = Cast <to = 9> (seen)  w = Where (d, m, low)  a = Add (s, w)
        {ENDS}""",
    "without rows": f"{SCORES}  c0 = Cast <to = 1> (size)  m = Mul (c0, far)  a = Add (s, m)  {ENDS}",
}


def model(body: str, opset: int = 17) -> ModelProto:
    stored = {"one": F(1), "far": F(-10000), "near": F(0.5), "zero": np.array([0]), "true": np.array(True),
              "row": np.array([1, 1, 1, 0, 0, 0, 0, 0], F), "low": F(-np.inf), "size": np.array(3),
              "size1": F(10000)}  # fmt: skip
    used = {
        name: value for name, value in stored.items() if f"{name})" in body or f"({name}" in body or f" {name}," in body
    }
    return parse(f"g (float[8, 8] x, int64[1, 8] seen) => (float[8, 8] y) {{ {body} }}", used, opset=opset)


def error(source: ModelProto, made: ModelProto, seen: list[int]) -> float:
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(F), "seen": np.array([seen])}
    return apart(StrictSession(source).run(feeds)["y"], StrictSession(made).run(feeds)["y"]).error


def kinds(made: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in made.graph.node)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_hidden_whole_keep_their_scores(form: str) -> None:
    source = model(FORMS[form])
    made = ampgraph.convert(source, "O3", check="off")
    assert kinds(made)["ReduceMin" if form == "taken away" else "ReduceMax"] == 1
    assert error(source, made, [0] * 8) < 5e-3 and error(source, made, [1, 1, 0, 0, 0, 0, 0, 0]) < 5e-3
    assert error(source, ampgraph.convert(source, "O3", check="off", rewrite="no-mask"), [0] * 8) > 0.02
    assert ampgraph.convert(made, "O3", check="off") == made


@pytest.mark.parametrize(
    "opset, dtype, target", [(17, "float16", "cpu"), (18, "float16", "cuda"), (13, "bfloat16", "cuda")]
)
def test_it_loads(opset: int, dtype: str, target: str) -> None:
    made = ampgraph.convert(
        model(FORMS["added"].replace("-1>", "1>"), opset), "O2", dtype=dtype, target=target, check="off"
    )
    assert kinds(made)["ReduceMax"] == 1
    if target == "cpu" or dtype == "float16":
        ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("form", LEFT)
def test_what_is_left_alone(form: str) -> None:
    made = ampgraph.convert(model(LEFT[form]), "O3", check="off")
    assert not kinds(made)["ReduceMax"] and kinds(made)["MatMul"]


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_a_mask_that_is_added_in_float32_stays(level: str) -> None:
    assert not kinds(ampgraph.convert(model(FORMS["added"]), level, check="off"))["ReduceMax"]


@pytest.mark.parametrize("target, count", [("cuda", 0), ("tensorrt", 1)])
def test_where_the_runtime_fuses_attention_behind_a_norm_it_finds_the_mask_as_it_was(target: str, count: int) -> None:
    body = FORMS["added"].replace("y = MatMul (p, x)", "o = MatMul (p, x)  y = LayerNormalization (o, row)")
    made = ampgraph.convert(model(body), "O2", target=target, check="off")
    assert kinds(made)["ReduceMax"] == count


@pytest.mark.filterwarnings("error")
def test_numbers_near_the_end_of_float32_are_compared_without_a_warning():
    made = "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, far)  a = Sub (s, m)"
    stored = {"one": F(1), "far": np.array([1e4] * 7 + [3e38], F)}
    source = parse(f"g (float[8, 8] x, int64[1, 8] seen) => (float[8, 8] y) {{ {SCORES}  {made}  {ENDS} }}", stored)
    assert kinds(ampgraph.convert(source, check="off"))["ReduceMax"] == 0
