"""The policy pytorch beside torch.autocast itself: the type of every node, and the numbers.

The answers are those of the real framework (tests/oracles/make_pytorch.py); what differs is named here, with why.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from onnx_text import parse
from oracles.answers import Answers
from planner.policies.support import decided_model, differences, letters, strict_errors
from share import share

ANSWERS = Answers("pytorch")
CASES = ("cuda float16", "cuda bfloat16", "cpu bfloat16")
RANDOM = sorted(name for name in ANSWERS.types if name.startswith("random"))
NAMES = sorted(set(ANSWERS.types) - set(RANDOM))
NAMED: dict[tuple[str, str], dict[tuple[str, str], int]] = {
    # one ONNX operator holds two types of PyTorch's
    ("losses", "cuda"): {("SoftmaxCrossEntropyLoss", "aten.cross_entropy_loss"): 1},
    ("convnet", "cpu"): {("InstanceNormalization", "aten.instance_norm"): 1},
    ("recurrent", "cpu"): {("GRU", "aten.gru"): 1, ("Transpose", "aten.gru"): 3, ("Reshape", "aten.gru"): 1},
    # the exporter leaves out that the operator wrote into a low tensor
    ("in_place", "cuda"): {("Add", "aten.add"): 2, ("Mul", "aten.add"): 1},
    ("in_place", "cpu"): {("Add", "aten.add"): 2, ("Mul", "aten.add"): 1},
}
SMALL = {"aten.linalg_vector_norm": 2, "aten.clamp_min": 2, "aten.div": 2, "aten.mul": 1, "aten.sum": 1}
"""cosine_similarity computes its norms wide on the CPU, and the exporter took it apart."""


def fields(case: str) -> dict[str, Any]:
    device, dtype = case.split()
    return {"policy": "pytorch", "target": device, "dtype": dtype}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_types_of_modules(name: str, case: str) -> None:
    ours = letters(decided_model(ANSWERS.model(name), kernels=False, **fields(case)))
    found = differences(ANSWERS, name, case, ours)
    if (name, case) == ("losses", "cpu bfloat16"):
        assert Counter(origin for _, origin, _, _ in found) == SMALL
    elif name == "contractions" and "bfloat16" in case:
        assert found == [("Einsum", "aten.einsum", "l", "f")] * 2  # no ONNX opset yet admits bfloat16 there
    else:
        assert Counter((kind, origin) for kind, origin, _, _ in found) == NAMED.get((name, case.split()[0]), {})


def compared_nodes(answers: Answers, name: str, case: str) -> int:
    """How many nodes of a random module have PyTorch's types, which all must."""
    model, theirs = answers.model(name), answers.types[name][case]
    if theirs.startswith("refused") or ("bfloat16" in case and any(n.op_type == "Einsum" for n in model.graph.node)):
        return 0
    ours = letters(decided_model(model, kernels=False, **fields(case)))
    inside = [node for node in model.graph.node if "RMSNorm" in str(node.metadata_props)]
    found = differences(answers, name, case, ours)
    # on the CPU rms_norm computes in float32 and gives its result low; in the file it is six nodes
    assert len(found) == (len(inside) if case.startswith("cpu") and found else 0), (name, found)
    return len(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_types_of_random_modules(case: str) -> None:
    assert sum(compared_nodes(ANSWERS, name, case) for name in RANDOM) > 1000


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*NAMES, *share(RANDOM, 6)])
def test_numbers_within_half_a_place_for_each_low_node(name: str, case: str) -> None:
    if ANSWERS.types[name][case].startswith("refused"):
        assert "expected dtype" in ANSWERS.types[name][case]  # lerp takes no mixed types in PyTorch
    assert max(strict_errors(ANSWERS, name, case, **fields(case)), default=0) <= 1


def test_what_is_said_and_refused() -> None:
    assert ANSWERS.versions["torch"].startswith("2.13.0") and len(NAMES) >= 12 and len(RANDOM) == 60
    # kernels that are missing are told
    plan = ampgraph.plan(ANSWERS.model("recurrent"), policy="pytorch", dtype="bfloat16")
    told = [note.text for note in plan.notes if note.topic == "parity"]
    assert any("LSTM float32 where PyTorch computes low" in text for text in told)
    # levels without a meaning are refused
    for level in ("O1", "O2", "O3"):
        with pytest.raises(AmpError, match="AMP302") as caught:
            ampgraph.plan(parse(PLAIN), level, policy="pytorch")
        assert "auto: torch.autocast" in caught.value.hint
    # explain names the list and the rule
    found = ampgraph.explain(ANSWERS.model("pre_norm"), "softmax", policy="pytorch")
    assert found.listed == "fp32" and found.listed_at.startswith("pytorch.toml:")
    assert "PyTorch 2.13" in found.rule and "autocast_mode.h" in found.rule and found.slots[0].rule == "pytorch"
    # two types in one operator are told
    plan = ampgraph.plan(ANSWERS.model("losses"), policy="pytorch")
    told = [note.text for note in plan.notes if note.topic == "parity"]
    assert told == ["PyTorch computes a part of it low; SoftmaxCrossEntropyLoss has one type"]


PLAIN = """g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) <float[8] bias = {1,2,3,4,5,6,7,8}, float half = {0.5}> {
    a = MatMul (x, w) b = Add (a, bias) c = Mul (b, half) d = Softmax (c) y = Add (c, d)
}"""


def test_a_file_without_names_goes_by_onnx_operators() -> None:
    plan = ampgraph.plan(parse(PLAIN), policy="pytorch")
    types = {d.kind + str(d.index): d.dtype for d in plan.decisions if d.index >= 0}
    assert types == {
        "MatMul0": "float16",
        "Add1": "float16",
        "Mul2": "float16",
        "Softmax3": "float32",
        "Add4": "float32",
    }
    assert [note.text for note in plan.notes if note.topic == "origin"] == [
        "0 nodes by the PyTorch operators that the exporter names, 5 by the file's own"
    ]
    assert [edge.value for edge in plan.casts] == ["x", "w", "bias", "c"]  # each once
    assert [edit.value for edit in plan.weights] == ["half"]  # a number of the program's
    stored = ampgraph.plan(parse(PLAIN), policy="pytorch", store_weights="low")
    assert [edit.value for edit in stored.weights] == ["bias", "half"]


BRANCHES = """g (float[4, 8] x, float[8, 8] w, bool c) => (float[4, 8] y) {
    a = MatMul (x, w)
    b = If (c) <then_branch = t () => (float[4, 8] p) { p = Relu (a) },
                else_branch = e () => (float[4, 8] q) { s = Softmax (a) q = MatMul (s, w) }>
    y = Tanh (b)
}"""


def test_bodies_and_calls() -> None:
    plan = ampgraph.plan(parse(BRANCHES), policy="pytorch")
    types = {(d.scope.rpartition("/")[2], d.kind): d.dtype for d in plan.decisions if d.index >= 0}
    kinds = {kind: {dtype for (_, one), dtype in types.items() if one == kind} for _, kind in types}
    assert kinds["Softmax"] == {"float32"} and kinds["Relu"] == kinds["Tanh"] == {"float16"}
    # a norm that was taken apart is one call
    plan = ampgraph.plan(parse(APART), policy="pytorch")
    assert [(d.kind, d.dtype) for d in plan.decisions if d.dtype == "float16"] == [("MatMul", "float16")] * 2
    assert [edge.value for edge in plan.casts if edge.to == "float32"] == ["a", "y"]
    # a loop state that starts in float32 stays so
    plan = ampgraph.plan(parse(LOOP), policy="pytorch")
    decided = [(d.kind, d.slot, d.dtype) for d in plan.decisions if d.index >= 0 and d.kind != "Identity"]
    assert {("MatMul", "T", "float16"), ("Loop", "state0", "float32"), ("Add", "T", "float32")} <= set(decided)
    # a plan is followed to the byte
    model = ANSWERS.model("decoder")
    plan = ampgraph.plan(model, policy="pytorch")
    made = ampgraph.convert(model, policy="pytorch", check="off")
    followed = ampgraph.convert(model, plan=Plan.from_json(plan.to_json()), check="off")
    assert made.SerializeToString() == followed.SerializeToString()


APART = """g (float[4, 8] x, float[8, 8] w, float[8] gain, float[8] shift) => (float[4, 8] y)
<float two = {2}, float eps = {0.00001}> {
    a = MatMul (x, w) mean = ReduceMean <axes = [-1]> (a) centred = Sub (a, mean) squared = Pow (centred, two)
    variance = ReduceMean <axes = [-1]> (squared) safe = Add (variance, eps) root = Sqrt (safe)
    normed = Div (centred, root) scaled = Mul (normed, gain) shifted = Add (scaled, shift) y = MatMul (shifted, w)
}"""


LOOP = """g (float[4, 8] x, float[8, 8] w, int64 n, bool go) => (float[4, 8] y) {
    a = MatMul (x, w)
    b = Loop (n, go, x) <body = step (int64 i, bool c, float[4, 8] s) => (bool d, float[4, 8] t) {
        d = Identity (c) t = MatMul (s, w) }>
    y = Add (a, b)
}"""
