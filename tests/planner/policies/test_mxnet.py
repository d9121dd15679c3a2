"""The policy ``mxnet`` beside MXNet's own conversion, as `oracles/mxnet_answers.py` ran it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.report.explain import explanation_lines
from onnx_text import parse
from oracles import onnx_graphs, random_graphs
from share import share

ANSWERS = json.loads(Path(onnx_graphs.__file__).with_name("mxnet.json").read_text())["runs"]
MODEL = """g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) {
    a = Gemm (x, w) b = Softmax (a) c = Add (a, b) d = Gemm (c, w) e = Relu (d) f = Softplus (e) g = HardSwish (e)
    h = Add (f, d) y = Add (h, g)
}"""


def ours(run: str, seed: int) -> str:
    """Our plan of a seed, as the answers are written. Kernels aside: TensorRT has one for everything."""
    steps, outputs = random_graphs.mxnet_graph(seed)
    names = [f"node{number}" for number in range(0, len(steps), 5)] if run == "names" else []
    model = onnx_graphs.model(steps, outputs)
    plan = ampgraph.plan(model, policy="mxnet", target="tensorrt", fp32=names)
    if run != "params":
        return onnx_graphs.text(plan)
    stored = ampgraph.plan(model, policy="mxnet", target="tensorrt", store_weights="low")
    assert onnx_graphs.low_nodes(stored) == onnx_graphs.low_nodes(plan)
    assert not any(cast.value.startswith("w") for cast in stored.casts)  # they are stored low
    return " ".join(word for word in onnx_graphs.text(stored).split(" ") if not word.startswith("-w"))


@pytest.mark.slow
@pytest.mark.parametrize("run", list(ANSWERS))
def test_random_graphs_are_typed_as_by_mxnet(run: str) -> None:
    """Types of all nodes, and what is cast; but for graphs of which MXNet itself makes nothing that binds."""
    compared = [(seed, answer) for seed, answer in share(list(enumerate(ANSWERS[run])), 8) if answer != "refused"]
    for seed, answer in compared:
        assert ours(run, seed) == answer, (run, seed)
    assert compared


def test_float32_operators() -> None:
    """Also after a copy of its result was cast to low for another reader."""
    text = """g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) {
        first = Add (x, x) low = Gemm (first, w) then = Relu (low) y = Add (then, first)
    }"""
    plan = ampgraph.plan(parse(text), policy="mxnet", fp32=["value:first"])
    assert [d.dtype for d in plan.decisions if d.index >= 0] == ["float32", "float16", "float16", "float32"]
    # batch norm of one type stays float32
    text = """<ir_version: 7, opset_import: ["": %d]> g (float[2, 2, 1] x, float[2, 2] w) => (float[2, 2, 1] y)
    <float[2] s = {1, 2}, float[2, 2, 1] k = {1, 2, 3, 4}> { c = Conv (x, k) y = BatchNormalization (c, s, s, s, s) }"""
    found = [
        {d.slot: d.dtype for d in ampgraph.plan(parse(text % opset), policy="mxnet", target="tensorrt").decisions
         if d.kind == "BatchNormalization"}
        for opset in (14, 15)
    ]  # fmt: skip
    assert found == [{"T": "float32", "U": "float32"}, {"T": "float16", "T1": "float32", "T2": "float32"}]


def test_lists_and_plans() -> None:
    assert len([answer for answer in ANSWERS["auto"] if answer != "refused"]) >= 300
    # lists
    [row] = ampgraph.lists("FullyConnected", policy="mxnet")
    assert (row.operator, row.cls, row.at_level) == ("mxnet::FullyConnected", "low", "low")
    assert ampgraph.lists("Elu", policy="mxnet")[0].cls == "conditional"
    # a plan is taken
    plan = ampgraph.plan(parse(MODEL), policy="mxnet")
    once = ampgraph.convert(parse(MODEL), policy="mxnet", check="off")
    assert ampgraph.convert(parse(MODEL), plan=Plan.from_json(plan.to_json()), check="off") == once
    assert ampgraph.convert(once, policy="mxnet", check="off") == once
    # products of parameters are told
    text = """g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }"""
    plan = ampgraph.plan(parse(text), policy="mxnet")
    assert plan.changes_nothing and "1 MatMul of a parameter go by dot" in plan.notes[0].text
    # conversion again changes nothing
    for seed in (3, 7, 9, 12):
        once = ampgraph.convert(onnx_graphs.model(*random_graphs.mxnet_graph(seed)), policy="mxnet", check="off")
        assert ampgraph.convert(once, policy="mxnet", check="off") == once, seed


def test_reasons_and_notes() -> None:
    plan = ampgraph.plan(parse(MODEL), policy="mxnet")
    assert plan.level == "auto"
    kinds = [(d.kind, d.dtype, d.why.text) for d in plan.decisions if d.index >= 0]
    assert kinds == [
        ("Gemm", "float16", "Gemm is cast to low"),
        ("Softmax", "float32", "Softmax is cast to float32"),
        ("Add", "float32", "takes the widest type, and 'a' is there in float32"),
        ("Gemm", "float16", "Gemm is cast to low"),
        ("Relu", "float16", "takes the type of 'd'"),
        ("Softplus", "float32", "Softplus is cast to float32"),
        ("HardSwish", "float16", "takes the type of 'e'"),
        ("Add", "float32", "takes the widest type, and 'f' is there in float32"),
        ("Add", "float32", "takes the widest type, and 'h' is there in float32"),
    ]
    assert [note.text for note in plan.notes] == ["1 HardSwish in none of MXNet's lists: the type of the first operand"]
    told = "\n".join(explanation_lines(ampgraph.explain(parse(MODEL), "b", policy="mxnet")))
    assert "MXNet 1.9.1, amp.convert_symbol: cast to float32 (contrib/amp/lists/symbol_fp16.py, FP32_FUNCS)" in told


@pytest.mark.parametrize(("level", "dtype", "code"), [("O2", "float16", "AMP302"), ("auto", "bfloat16", "AMP303")])
def test_what_has_no_meaning_is_refused(level: str, dtype: str, code: str) -> None:
    with pytest.raises(AmpError) as caught:
        ampgraph.plan(parse(MODEL), level, dtype=dtype, policy="mxnet")
    assert caught.value.code == code and caught.value.hint
