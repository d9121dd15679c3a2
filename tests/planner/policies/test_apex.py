"""The policy apex beside NVIDIA's Apex itself: the type of every node at each level, and the numbers.

The answers are those of the real framework (tests/oracles/make_apex.py); what differs is named here, with why.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse
from oracles.answers import Answers
from planner.policies.support import decided_model, differences, letters, origin, strict_errors
from share import share

ANSWERS = Answers("apex")
LEVELS = ("O1", "O2", "O3")
RANDOM = sorted(name for name in ANSWERS.types if name.startswith("random"))
NAMES = sorted(set(ANSWERS.types) - set(RANDOM))
COSINE = {"linalg_vector_norm": 2, "clamp_min": 2, "div": 2, "mul": 1, "sum": 1}
"""cosine_similarity computes its norms wide, and the exporter took it apart."""
NAMED: dict[tuple[str, str], dict[str, int]] = {
    # Apex patches the function of torch.nn.functional; these modules call torch.softmax and Tensor.softmax
    ("pre_norm", "O1"): {"softmax": 1},
    ("masked_scores", "O1"): {"softmax": 1},
    # the exporter leaves out that the operator wrote into a half tensor
    ("in_place", "O1"): {"add": 3},
    ("losses", "O2"): COSINE,
    ("losses", "O3"): COSINE,
}


def fields(level: str) -> dict[str, Any]:
    return {"policy": "apex", "level": level}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_types_of_modules(name: str, level: str) -> None:
    if ANSWERS.types[name][level].startswith("refused"):
        assert level == "O1" and name in ("activations", "contractions", "decoder", "recurrent")
        return
    ours = letters(decided_model(ANSWERS.model(name), kernels=False, **fields(level)))
    found = differences(ANSWERS, name, level, ours)
    assert Counter(origin.removeprefix("aten.") for _, origin, _, _ in found) == NAMED.get((name, level), {})


def compared_nodes(answers: Answers, name: str, level: str) -> int:
    """How many nodes of a random module have Apex's types, which all must."""
    if answers.types[name][level].startswith("refused"):
        return 0
    model = answers.model(name)
    ours = letters(decided_model(model, kernels=False, **fields(level)))
    assert unexplained(model.graph, answers.types[name][level], ours) == [], name
    return len(ours)


def unexplained(graph: onnx.GraphProto, theirs: str, ours: str) -> list[tuple[str, str, str, str]]:
    """Nodes of another type, but for two operators, and what has its type from them.

    Today's F.prelu is no function of Python any more, and stays unpatched; torch.square is none of Apex's, and in
    a file it is pow(2), which Apex makes float32.
    """
    found, named = [], set[str]()
    for node, real, own in zip(graph.node, theirs, ours, strict=True):
        silent, row = "." in (real, own), (node.op_type, origin(node), real, own)
        excused = row[1] == "aten.prelu" or row == ("Pow", "aten.pow", "l", "f") or not named.isdisjoint(node.input)
        if excused and (silent or real != own):
            named.update(node.output)
        elif not silent and real != own:
            found.append(row)
    return found


def test_what_follows_from_a_named_difference_is_told_from_others() -> None:
    text = """g (float[4] x, float s) => (float[4] y) {
        p = PRelu (x, s)  r = Reshape (p, n)  a = Neg (r)  b = Cos (x)  c = Cos (b)  y = Add (a, c) }"""
    graph = parse(text, n=np.array([4])).graph
    for node, name in zip(graph.node, ("prelu", "view", "neg", "cos", "cos", "add"), strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"[target=torch.ops.aten.{name}.default](args)")
    assert unexplained(graph, "f.fllf", "l.llll") == []
    assert unexplained(graph, "f.ffll", "l.llll") == [("Cos", "aten.cos", "f", "l")]
    assert unexplained(graph, "l.llff", "l.llll") == [("Cos", "aten.cos", "f", "l"), ("Add", "aten.add", "f", "l")]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_types_of_random_modules(level: str) -> None:
    assert sum(compared_nodes(ANSWERS, name, level) for name in RANDOM) > 800


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [*NAMES, *share(RANDOM, 6)])
def test_numbers_within_half_a_place_for_each_low_node(name: str, level: str) -> None:
    assert max(strict_errors(ANSWERS, name, level, **fields(level)), default=0) <= 1


def test_what_apex_stores_and_refuses() -> None:
    with pytest.raises(AmpError, match="AMP302"):
        ampgraph.plan(ANSWERS.model("convnet"), "auto", policy="apex")
    with pytest.raises(AmpError, match="AMP303"):
        ampgraph.plan(ANSWERS.model("convnet"), policy="apex", dtype="bfloat16")
    # nothing is low at o0
    assert all(set(types["O0"]) <= {"f", "."} for types in ANSWERS.types.values())
    assert not ampgraph.plan(ANSWERS.model("convnet"), "O0", policy="apex").casts
    # weights are stored as apex does
    model = ANSWERS.model("convnet")
    assert not [edit for edit in ampgraph.plan(model, "O1", policy="apex").weights if "." in edit.value]
    stored = {edit.value for edit in ampgraph.plan(model, "O2", policy="apex").weights}
    assert {"c1.weight", "out.weight", "g2.weight"} <= stored
    kept = ampgraph.plan(model, "O2", policy="apex", store_weights="keep")
    assert "out.weight" in {edge.value for edge in kept.casts} and not kept.weights


def test_batch_norms_keep_float32_statistics_at_o2() -> None:
    model = ANSWERS.model("detection_head")
    norms = [node.name for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert norms == []  # folded into its convolution by the exporter, as in the other modules
    found = [name for name in RANDOM if any(n.op_type == "BatchNormalization" for n in ANSWERS.model(name).graph.node)]
    model = ANSWERS.model(found[0])
    decided = decided_model(model, kernels=False, **fields("O2"))
    norm = next(op for op in decided.flow.ops if op.kind == "BatchNormalization")
    assert {slot: decided.settled.is_low(unit) for slot, unit in norm.slots.items()} == {
        "T": True, "T1": False, "T2": False
    }  # fmt: skip
    whole = ampgraph.plan(model, "O3", policy="apex")
    assert {d.dtype for d in whole.decisions if d.kind == "BatchNormalization"} == {"float16"}
    # CUDA's kernel takes one type: float32, from half data to a half result
    plan = ampgraph.plan(model, "O2", policy="apex")
    assert {d.dtype for d in plan.decisions if d.kind == "BatchNormalization"} == {"float32"}
    inner, made = norm.inputs[0], norm.outputs[0]
    names = [decided.flow.values[value].name for value in (inner, made)]
    assert {edge.to for edge in plan.casts if edge.value == names[0]} == {"float32"}
    assert {edge.to for edge in plan.casts if edge.value == names[1]} == {"float16"}
