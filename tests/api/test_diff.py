"""`ampgraph.diff`: two conversions or two plans side by side, and nothing where they are alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse

NET = """g (float[N, 8] x) => (float[N, 8] y) {
    [first] h = MatMul(x, w)
    [bias] b = Add(h, v)
    [soft] s = Softmax(b)
    [second] y = MatMul(s, w)
}"""
NORM = """g (float[N, 8] x, float[N, 8] z) => (float[N, 8] y) <float two = {2}, float eps = {0.00001}> {
    [mean] m = ReduceMean<axes = [-1]>(x)
    [centre] d = Sub(x, m)
    [square] q = Pow(d, two)
    [variance] r = ReduceMean<axes = [-1]>(q)
    [floor] e = Add(r, eps)
    [root] t = Sqrt(e)
    [norm] n = Div(d, t)
    [scaled] k = Mul(n, gain)
    [shifted] l = Add(k, shift)
    [product] p = MatMul(l, w)
    [sum] y = Add(p, z)
}"""


def net(text: str = NET, **weights: Any) -> ModelProto:
    return parse(text, w=(8, 8), **(weights or {"v": (8,)}))


def test_models_that_are_alike() -> None:
    one = ampgraph.convert(net())
    found = ampgraph.diff(one, ampgraph.convert(net()))
    assert found.alike and found.sort == "models" and not found.settings
    assert found.bytes is not None and found.bytes[0] == found.bytes[1]


def test_models_that_differ() -> None:
    kept = ampgraph.convert(net(), fp32=["second"])
    low = ampgraph.convert(net(), "O3")
    found = ampgraph.diff(kept, low)
    assert not found.alike
    assert {item.name: (item.first, item.second) for item in found.decisions if item.name == "second"} == {
        "second": ("float32", "float16")
    }
    casts = [{n.input[0] for n in m.graph.node if n.op_type == "Cast"} for m in (kept, low)]
    assert len(found.casts.first) >= len(casts[0] - casts[1]) and len(found.casts.second) >= len(casts[1] - casts[0])
    assert found.bytes is not None
    assert [item for item in found.weights if item.name == "'w'"] or found.bytes[0] > found.bytes[1]
    assert not found.nodes


def test_nodes_that_one_has_alone() -> None:
    other = net()
    other.graph.node[1].op_type = "Sub"
    found = ampgraph.diff(net(), other)
    assert found.nodes.first == ("Add 'bias'",) and found.nodes.second == ("Sub 'bias'",) and not found.alike


def test_plans_that_differ_say_why() -> None:
    plain, held = ampgraph.plan(net()), ampgraph.plan(net(), fp32=["first"])
    assert ampgraph.diff(plain, plain).alike
    found = ampgraph.diff(plain, held)
    changed = next(item for item in found.decisions if item.name.startswith("MatMul #0"))
    assert (changed.kind, changed.first, changed.second) == ("MatMul", "float16", "float32")
    assert changed.first_why.startswith("region: ") and changed.second_why.startswith("user: ")
    assert found.casts or found.weights
    assert found.bytes is None


def test_plans_with_and_without_a_rewrite_are_matched_by_place() -> None:
    """A rewrite takes nodes away; those behind it keep their numbers of the file in the report."""
    model = net(NORM, gain=(8,), shift=(8,))
    with_norm, without = ampgraph.plan(model, "O3"), ampgraph.plan(model, "O2", fp32=["product"], rewrite="none")
    assert with_norm.rewrites and not without.rewrites
    found = ampgraph.diff(with_norm, without)
    assert [item.name for item in found.decisions if item.kind == "MatMul"] == ["MatMul #9 T"]
    assert len(found.nodes.first) == 1 and found.nodes.first[0].startswith("LayerNormalization")


def test_what_cannot_be_compared() -> None:
    with pytest.raises(AmpError, match="AMP208.*one of the two is a plan"):
        ampgraph.diff(net(), ampgraph.plan(net()))
    other = parse("g (float[2] x) => (float[2] y) { [other] y = Relu(x) }")
    with pytest.raises(AmpError, match="AMP208.*no node in common"):
        ampgraph.diff(net(), other)
    with pytest.raises(AmpError, match="AMP403"):
        ampgraph.diff(ampgraph.plan(net()), ampgraph.plan(other))


def test_the_command(amp, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(net(), source)
    for level in ("O1", "O3"):
        made, plan = tmp_path / f"{level}.onnx", tmp_path / f"{level}.json"
        assert amp("convert", source, "--level", level, "-o", made, "--plan-out", plan)[0] == 0
    code, out, _ = amp("diff", tmp_path / "O1.onnx", tmp_path / "O3.onnx")
    assert code == 1 and "1 Softmax float32 in the first, float16 in the second (soft)" in out
    assert "verdict     they differ in" in out
    code, out, _ = amp("diff", tmp_path / "O1.json", tmp_path / "O3.json", "--json")
    found = json.loads(out)
    assert code == 1 and not found["alike"] and found["sort"] == "plans"
    assert [item["name"] for item in found["settings"]] == ["level"]
    code, out, _ = amp("diff", tmp_path / "O1.onnx", tmp_path / "O1.onnx")
    assert code == 0 and "the models are alike" in out
    assert amp("diff", tmp_path / "O1.onnx", tmp_path / "O1.json")[0] == 2


def test_errors_side_by_side(amp: Any, tmp_path: Path) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    for level in ("O1", "O3"):
        words = ("--level", level, "-o", tmp_path / f"{level}.onnx", "--plan-out", tmp_path / f"{level}.json")
        assert amp("convert", tmp_path / "m.onnx", *words)[0] == 0
    models, plans = ([tmp_path / f"{level}.{end}" for level in ("O1", "O3")] for end in ("onnx", "json"))
    found = ampgraph.diff(*models, reference=tmp_path / "m.onnx", samples=2)
    (errors,) = found.errors
    seen = [ampgraph.verify(tmp_path / "m.onnx", path, samples=2).outputs[0].p90 for path in models]
    assert [errors.first, errors.second] == pytest.approx(seen) and min(seen) > 0
    assert ampgraph.diff(*plans, reference=tmp_path / "m.onnx", samples=2).errors == found.errors
    code, out, _ = amp("diff", *models, "--reference", tmp_path / "m.onnx", "--samples", 2)
    assert code == 1 and f"errors      y  {seen[0]:.2e} and {seen[1]:.2e}" in out
    code, _, err = amp("diff", *models, "--samples", 2)
    assert code == 2 and "add --reference" in err
