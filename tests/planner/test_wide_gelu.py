"""CUDA's ONNX Runtime matches no constants in bfloat16: a GELU stays float32 there, or becomes its operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.form_models import gelu
from planner.support import converted, decisions, kinds

LAST = "h = Mul (x, o)  y = Mul (h, half)"
TANH = """c = Pow (x, three)  m = Mul (c, cubic)  i = Add (x, m)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)
    h = Mul (x, half)  y = Mul (h, o)"""
NUMBERS = {"three": 3, "cubic": 0.044715, "factor": 0.7978845608, "one": 1, "half": 0.5}


def by_tanh(opset: int = 18, body: str = TANH) -> ModelProto:
    stored = {name: np.float32(number) for name, number in NUMBERS.items() if name in body}
    graph = f"g (float[4,8] f) => (float[4,8] z) {{ x = MatMul (f, w)  {body}  z = MatMul (y, w) }}"
    return parse(graph, {"w": np.eye(8, dtype=np.float32), **stored}, opset=opset)


def by_erf(opset: int = 18) -> ModelProto:
    model = gelu(LAST)
    model.opset_import[0].version, model.ir_version = opset, 9
    return model


@pytest.mark.parametrize("level", ["O2", "auto"])
@pytest.mark.parametrize("model", [by_erf, by_tanh])
def test_it_stays_float32_between_casts(model, level: str) -> None:
    found = decisions(converted(model(), level, dtype="bfloat16"))
    assert found.count("Cast>f32") == 2 and found.count("Cast>bf16") == 2  # with those of the borders
    assert "Erf:f32" in found or "Tanh:f32" in found
    said = ampgraph.explain(model(), "y", level=level, dtype="bfloat16").slots[0].reason
    assert "one kernel on cuda in float32" in said


@pytest.mark.parametrize("options", [{"level": "O1"}, {"level": "O1", "dtype": "bfloat16"}, {"dtype": "bfloat16"}])
def test_a_cube_that_stays_float32_is_written_of_squares(options: dict[str, Any]) -> None:
    """CUDA's ONNX Runtime knows that form between Casts; constants and result keep their names."""
    result = ampgraph.convert(by_tanh(), **options)
    onnx.checker.check_model(result, full_check=True)
    assert "Pow" not in kinds(result) and kinds(result).count("Mul") == 6
    assert [node.output[0] for node in result.graph.node if "half" in node.input or "y" in node.output][-1] == "y"
    assert ampgraph.convert(result, **options).SerializeToString() == result.SerializeToString()
    assert "Pow" in kinds(ampgraph.convert(by_tanh(), rewrite="no-squares", **options))
    assert "Pow" in kinds(ampgraph.convert(by_tanh(), target="tensorrt", **options))
    assert "of squares" in ampgraph.explain(by_tanh(), "m", **options).region


@pytest.mark.parametrize(
    "cube", ["q = Mul (x, x)  c = Mul (q, x)  m = Mul (c, cubic)", "c = Pow (x, three)  m = Mul (c, cubic)"]
)
@pytest.mark.parametrize("end", ["h = Mul (o, half)  y = Mul (x, h)", "h = Mul (x, o)  y = Mul (h, half)"])
def test_every_order_is_written_so(cube: str, end: str) -> None:
    given = by_tanh(body=f"{cube}  i = Add (x, m)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)  {end}")
    result = converted(given, "O1")
    assert kinds(result).count("Mul") == 6 and kinds(result).count("Add") == 2
    feeds = {"f": np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32) * 3}
    plain = converted(given, "O1", rewrite="none")
    assert np.allclose(run_strict(result, feeds)["z"], run_strict(plain, feeds)["z"], rtol=2e-3, atol=1e-5)


ELSEWHERE = [("O3", {}), ("O2", {"target": "tensorrt"}), ("O2", {"dtype": "float16"})]


@pytest.mark.parametrize(("level", "options"), ELSEWHERE)
@pytest.mark.parametrize("model", [by_erf, by_tanh])
def test_elsewhere_it_is_low(model, level: str, options: dict[str, Any]) -> None:
    found = decisions(converted(model(), level, **{"dtype": "bfloat16", **options}))
    assert "Erf:f32" not in found and "Tanh:f32" not in found


def test_what_is_read_from_inside_is_no_kernel() -> None:
    model = by_erf()
    model.graph.output.append(helper.make_tensor_value_info("t", 1, [4, 8]))
    assert "Erf:bf16" in decisions(converted(model, dtype="bfloat16"))


@pytest.mark.parametrize(("model", "attribute"), [(by_erf, b"none"), (by_tanh, b"tanh")])
def test_at_its_opset_it_is_its_operator(model, attribute: bytes) -> None:
    given = model(20)
    result = converted(given, dtype="bfloat16")
    assert kinds(result) == ["Cast", "MatMul", "Gelu", "MatMul", "Cast"]
    written = next(node for node in result.graph.node if node.op_type == "Gelu")
    assert written.attribute[0].s == attribute
    assert ampgraph.convert(result, dtype="bfloat16").SerializeToString() == result.SerializeToString()
    assert "Gelu" not in kinds(converted(given, dtype="bfloat16", rewrite="no-gelu"))
    assert "Gelu" not in kinds(converted(given))  # float16 needs none


@pytest.mark.parametrize("model", [by_erf, by_tanh])
def test_an_opset_that_has_the_operator_is_found(model) -> None:
    result = ampgraph.convert(model(), dtype="bfloat16", opset="auto")
    assert result.opset_import[0].version == 20 and "Gelu" in kinds(result)
    others: list[dict[str, Any]] = [{"rewrite": "no-gelu", "dtype": "bfloat16"}, {}]
    for options in others:
        assert ampgraph.convert(model(), opset="auto", **options).opset_import[0].version == 18


@pytest.mark.parametrize("model", [by_erf, by_tanh])
@pytest.mark.parametrize("opset", [18, 20])
def test_it_is_no_less_right(model, opset: int) -> None:
    given, rng = model(opset), np.random.default_rng(1)
    made = [ampgraph.convert(given, dtype="bfloat16", target=target) for target in ("cuda", "tensorrt")]
    errors = np.zeros(2)
    for _ in range(24):
        feeds = {"f": rng.standard_normal((4, 8)).astype(np.float32)}
        expected = run_strict(given, feeds)["z"]
        errors += [float(np.linalg.norm(run_strict(one, feeds)["z"] - expected)) for one in made]
    assert errors[0] <= errors[1]


BOTH = "s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)"
POWER = f"c = Pow (x, three)  m = Mul (c, cubic)  i = Add (x, m)  {BOTH}"
PRODUCTS = f"q = Mul (x, x)  c = Mul (q, x)  m = Mul (c, cubic)  i = Add (x, m)  {BOTH}"
SQUARES = "a = Mul (x, cubic)  q = Mul (a, x)  i = Add (q, one)  f1 = Mul (x, factor)  s = Mul (f1, i)  t = Tanh (s)"
ENDS = ["h = Mul (o, half)  y = Mul (x, h)", "h = Mul (x, o)  y = Mul (half, h)"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cube", [POWER, PRODUCTS, f"{SQUARES}  o = Add (t, one)"])
def test_low_its_half_is_first(cube: str, end: str) -> None:
    """CUDA's ONNX Runtime knows the half beside the data, and a cube by Pow alone: no constant is computed anew."""
    given = by_tanh(body=f"{cube}  {end}")
    result = converted(given)
    made = {name: node for node in result.graph.node for name in node.output}
    outer = [made[name].op_type for name in made["y"].input]
    (inner,) = (made[name] for name in made["y"].input if made[name].op_type == "Mul")
    assert sorted(outer) == ["Add", "Mul"] and "half" in " ".join(inner.input)
    assert "Pow" in kinds(result) or kinds(result).count("Mul") == 6
    assert converted(result).SerializeToString() == result.SerializeToString()
    feeds = {"f": np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32) * 3}
    plain = converted(given, rewrite="none")
    assert np.allclose(run_strict(result, feeds)["z"], run_strict(plain, feeds)["z"], rtol=4e-3, atol=1e-4)


def test_what_is_fused_as_it_is_stays() -> None:
    assert converted(by_tanh()).SerializeToString() == converted(by_tanh(), rewrite="none").SerializeToString()
    given = by_tanh(body=f"{POWER}  {ENDS[0]}")
    others: list[dict[str, Any]] = [{"target": "tensorrt"}, {"rewrite": "no-half"}]
    for options in others:
        assert any("o" in node.input and "h" in node.output for node in converted(given, **options).graph.node)
    assert ampgraph.explain(given, "h").region == "its region is written as x * y, halved first (half)"
