"""Regions are written in the form that CUDA's ONNX Runtime fuses: as exact or more, named, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from ampgraph.report.lines import rewrite_line
from onnx_text import parse
from planner.form_models import CENTRED, FINE, GELUS, INVERSES, RMS, ROOT, attention, gelu, layer_norm, model, rms
from planner.support import converted, decisions, kinds


def errors(given: ModelProto, **options: Any) -> float:
    """Of strict runs, over a few inputs."""
    result = ampgraph.convert(given, **options)
    rng = np.random.default_rng(2)
    feeds = [{"f": rng.standard_normal((4, 8)).astype(np.float32)} for _ in range(8)]
    return sum(float(np.linalg.norm(run_strict(result, f)["z"] - run_strict(given, f)["z"])) for f in feeds)


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("inverse", INVERSES.values(), ids=INVERSES)
def test_a_norm_divides(inverse: str, level: str) -> None:
    written = kinds(converted(rms(inverse), level))
    assert "Reciprocal" not in written and written.count("Div") == 1 and written.count("Mul") == 1


def test_casts_stand_before_the_low_scale() -> None:
    """One kernel on CUDA, low in and low out, which computes in float32."""
    assert decisions(converted(rms(INVERSES["Reciprocal"]))) == (
        "Cast>f16 MatMul:f16 Cast>f32 Pow:f32 ReduceMean:f32 Add:f32 Sqrt:f32 Div:f32 Cast>f16 Mul:f16 "
        "MatMul:f16 Cast>f32"
    )
    assert decisions(converted(layer_norm())).endswith("Div:f32 Cast>f16 Mul:f16 Add:f16 MatMul:f16 Cast>f32")
    part = model(f"{CENTRED}  {ROOT}  n = Div (d, r)  y = Mul (n, g)")  # without its bias CUDA does not fuse it
    assert decisions(converted(part)).endswith("Div:f32 Mul:f32 Cast>f16 MatMul:f16 Cast>f32")


@pytest.mark.parametrize(("target", "level"), [("cuda", "O1"), ("cpu", "O1"), ("cpu", "O2")])
def test_a_norm_that_would_be_fused_into_two_types_is_written_as_its_operator(target: str, level: str) -> None:
    """ONNX Runtime makes a LayerNormalization-17 of low data and a float32 scale, and refuses its own node."""
    layer = model(f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  y = Add (s, g)", opset=18)
    result = converted(layer, level, target=target)
    assert kinds(result).count("LayerNormalization") == 1 and "Div" not in kinds(result)
    ort.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_scale_that_is_handed_on_is_the_same() -> None:
    """As an exporter writes equal scales of two norms: one stored, the other an Identity of it."""
    plain = layer_norm()
    handed = layer_norm()
    handed.graph.node.insert(0, helper.make_node("Identity", ["g"], ["g2"]))
    scaled = next(node for node in handed.graph.node if node.output[0] == "s")
    scaled.input[1] = "g2"
    assert decisions(converted(handed)).replace("Identity:f16 ", "") == decisions(converted(plain))


def test_what_the_target_does_not_fuse_keeps_its_casts_around_the_scale() -> None:
    other = rms(INVERSES["Reciprocal"])
    assert "Div:f32" not in decisions(converted(other, target="tensorrt"))
    assert decisions(converted(other, target="tensorrt")).endswith("Mul:f32 Mul:f32 Cast>f16 MatMul:f16 Cast>f32")
    squared = model("q = Mul (x, x)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)  r = Sqrt (a)"
                    "  n = Div (x, r)  y = Mul (n, g)")  # fmt: skip
    assert decisions(converted(squared)).endswith("Div:f32 Mul:f32 Cast>f16 MatMul:f16 Cast>f32")


@pytest.mark.parametrize("end", GELUS.values(), ids=GELUS)
def test_a_gelu_is_halved_last(end: str) -> None:
    given = gelu(end)
    result = converted(given)
    assert [n.op_type for n in result.graph.node] == ["Cast", *kinds(given), "Cast"]
    reads = {n.output[0]: set(n.input) for n in result.graph.node}
    assert any("x" in name for name in reads["h_doubled"]) and "h_doubled" in reads["y"]
    assert "half" in " ".join(reads["y"])
    assert ampgraph.plan(given).rewrites and not ampgraph.plan(result).rewrites


@pytest.mark.parametrize("end", FINE.values(), ids=FINE)
def test_a_gelu_that_is_fused_as_it_is_stays(end: str) -> None:
    assert not ampgraph.plan(gelu(end)).rewrites


@pytest.mark.parametrize("given", [gelu(GELUS["half the sum"]), rms(INVERSES["Reciprocal"])], ids=["gelu", "norm"])
def test_forms_are_as_exact_or_more(given: ModelProto) -> None:
    """In float32 to the bit or better; in float16 no worse than with the nodes in the file's order."""
    plain = errors(given, level="O1", target="tensorrt")
    assert errors(given, level="O1") <= 1.01 * plain
    assert errors(given, level="O3") <= 1.01 * errors(given, level="O3", target="tensorrt")


def test_a_value_that_holds_other_numbers_has_a_name_of_its_own() -> None:
    """Errors by node compare values of one name: the product that is halved last is twice what it was."""
    given = gelu(GELUS["swapped"])
    found = ampgraph.verify(given, ampgraph.convert(given), samples=1, nodes=5)
    assert found.ok and all(value.error is None or value.error < 0.01 for s in found.growth for value in s.makes)


def test_what_the_user_names_is_left_as_it_is() -> None:
    assert not ampgraph.plan(rms(INVERSES["Reciprocal"]), fp32=["op:Reciprocal"]).rewrites
    assert not ampgraph.plan(gelu(GELUS["swapped"]), fp32=["op:Erf"]).rewrites


def test_a_model_without_products_is_returned_as_it_is() -> None:
    given = parse(
        f"g (float[4,8] x) => (float[4,8] y) {{ {RMS}  i = Reciprocal (r)  n = Mul (x, i)  y = Mul (n, g) }}",
        two=np.float32(2), eps=np.float32(1e-3), g=np.ones(8, np.float32), opset=16,
    )  # fmt: skip
    assert not ampgraph.plan(given, "O1").rewrites
    assert ampgraph.convert(given, "O1").SerializeToString() == given.SerializeToString()


def said(given: ModelProto) -> str:
    ((what, count),) = Counter(rewrite.what for rewrite in ampgraph.plan(given).rewrites).items()
    return rewrite_line(what, count)


def test_the_summary_and_explain_name_them() -> None:
    assert said(rms(INVERSES["Reciprocal"])).startswith(
        "1 group of nodes written as one Div (quotient) each: the form that"
    )
    assert said(gelu(GELUS["swapped"])).startswith(
        "1 group of nodes written as x * y, halved last (half): the form that"
    )
    assert ampgraph.explain(gelu(GELUS["swapped"]), "h").region == "its region is written as x * y, halved last (half)"
    assert ampgraph.explain(rms(INVERSES["1 / root"]), "i").region == "its region is written as one Div (quotient)"


def test_plans_with_a_form_are_matched_by_place() -> None:
    given = gelu(GELUS["swapped"])
    found = ampgraph.diff(ampgraph.plan(given), ampgraph.plan(given, target="tensorrt"))
    assert not found.decisions and len(found.nodes.first) == 1


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_mask_that_the_fusion_of_attention_fails_to_read_stays_float32(target: str) -> None:
    plan = ampgraph.plan(attention(), "O3", target=target, rewrite="no-order")
    (mask,) = [d for d in plan.decisions if "knows a mask" in d.why.text]
    assert (mask.kind, mask.dtype, mask.why.rule) == ("Mul", "float32", "kernel")
    low = ampgraph.convert(attention(), "O3", target=target, rewrite="no-order")
    ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"])
    assert not any("knows a mask" in d.why.text for d in ampgraph.plan(attention(), dtype="bfloat16").decisions)


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_what_such_a_mask_is_made_of_is_not_cast_twice(level: str) -> None:
    found = decisions(ampgraph.convert(attention(), level, rewrite="no-order"))
    assert "Cast>f32 Sub:f32 Mul:f32 Cast>f16" in found


@pytest.mark.parametrize("lowest", [-10000, -3.4028235e38])
@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_such_a_mask_is_written_as_the_number_by_the_mask(target: str, lowest: float) -> None:
    """There the fusion does not look for the number, so that all may be low."""
    given = attention(lowest)
    low = ampgraph.convert(given, "O3", target=target, rewrite="no-mask")
    assert ampgraph.convert(low, "O3", target=target).SerializeToString() == low.SerializeToString()
    assert not any("knows a mask" in d.why.text for d in ampgraph.plan(given, "O3", target=target).decisions)
    ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"])
    said = [rewrite.what for rewrite in ampgraph.plan(given, "O3", target=target).rewrites]
    assert said == ["number * mask (order)"] and "fails to read" in rewrite_line(said[0], 1)
    assert ampgraph.explain(given, "m", level="O3").region == "its region is written as number * mask (order)"
    feed = {"x": np.ones((2, 8, 16), np.float32), "mask": np.triu(np.ones((8, 8), np.int64))[[3, 0]]}
    plain = ampgraph.convert(given, "O3", target="tensorrt", rewrite="no-mask")
    assert np.array_equal(run_strict(low, feed)["y"], run_strict(plain, feed)["y"])


def test_at_o1_such_a_mask_stays_as_it_is() -> None:
    assert not ampgraph.plan(attention(), "O1").rewrites
