"""The policy ``tensorflow`` beside TensorFlow's own rewrite, as `oracles/tensorflow_answers.py` ran it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ampgraph
from ampgraph.core.plan import Plan
from ampgraph.planner.policies.tensorflow import Item, paint
from ampgraph.report.explain import explanation_lines
from onnx_text import parse
from oracles import onnx_graphs, random_graphs
from share import share

ANSWERS = json.loads((Path(onnx_graphs.__file__).with_name("tensorflow.json")).read_text())
LEVELS = ("O1", "O2", "O3")
EDITS = """
[allow]
Tanh = "ALLOWLIST_ADD, INFERLIST_REMOVE"
[deny]
Relu = "DENYLIST_ADD, CLEARLIST_REMOVE"
Sigmoid = "DENYLIST_ADD, INFERLIST_REMOVE"
[clear]
Sin = "CLEARLIST_ADD"
[unlisted]
Mul = "INFERLIST_REMOVE"
"""

MODEL = """g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) {
    a = MatMul (x, w) r = Relu (a) b = Exp (r) c = Add (a, b) d = MatMul (c, w) e = Tanh (d) y = HardSwish (e)
}"""


def expected(run: str, seed: int, answer: str) -> str:
    """What TensorFlow did. UNSAFE_FORCE_ALL makes stored statistics half too, which no kernel and no schema takes."""
    steps, _ = random_graphs.tensorflow_graph(seed, ANSWERS["runs"][run]["dtype"])
    norms = [n for n, step in enumerate(steps) if step.kind == "BatchNormalization"]
    statistics = {f"-w{n}_{place}" for n in norms for place in range(4)}
    return " ".join(word for word in answer.split(" ") if run != "O3" or word not in statistics)


def ours(run: str, seed: int, folder: Path) -> Plan:
    """Our plan of a seed. Kernels aside: TensorRT has one for everything."""
    dtype, mine = ANSWERS["runs"][run]["dtype"], folder / "mine.toml"
    mine.write_text(EDITS, encoding="utf-8")
    level, lists = run if run in LEVELS else None, mine if run == "lists" else None
    model = onnx_graphs.model(*random_graphs.tensorflow_graph(seed, dtype))
    return ampgraph.plan(model, level, dtype=dtype, policy="tensorflow", target="tensorrt", lists=lists)


@pytest.mark.slow
@pytest.mark.parametrize("run", list(ANSWERS["runs"]))
def test_random_graphs_are_painted_as_by_tensorflow(run: str, tmp_path: Path) -> None:
    """Types of all nodes, and what is cast."""
    casts = 0
    for seed, answer in share(list(enumerate(ANSWERS["runs"][run]["answers"])), 8):
        plan = ours(run, seed, tmp_path)
        assert onnx_graphs.text(plan) == expected(run, seed, answer), (run, seed)
        casts += len(onnx_graphs.casts(plan))
    assert casts > 20


def types(plan: Plan) -> str:
    """L or F of every node, in order."""
    return "".join("L" if d.dtype != "float32" else "F" for d in plan.decisions if d.index >= 0)


@pytest.mark.parametrize(
    ("level", "low"), [(None, "LLFFLLF"), ("O1", "LFFFLFF"), ("O2", "LLFFLFF"), ("O3", "LLLLLLL"), ("O0", "")]
)
def test_levels(level: str | None, low: str) -> None:
    assert types(ampgraph.plan(parse(MODEL), level, policy="tensorflow")) == low


def test_reasons_and_notes() -> None:
    plan = ampgraph.plan(parse(MODEL), policy="tensorflow")
    assert plan.level == "auto"
    found = {d.kind: d.why.text for d in plan.decisions}
    assert found["Add"] == "reads what '/2:Exp' made, which is on the deny list"
    assert found["Tanh"] == "stands directly after what is low" and found["HardSwish"] == "is in no list"
    assert [note.text for note in plan.notes] == [
        "1 HardSwish in none of TensorFlow's lists: float32, and no paint passes it"
    ]
    told = "\n".join(explanation_lines(ampgraph.explain(parse(MODEL), "b", policy="tensorflow")))
    assert "TensorFlow 2.21, auto_mixed_precision: float32, as is what it flows into" in told


def test_lists_and_plans() -> None:
    [row] = ampgraph.lists("tf::BiasAdd", policy="tensorflow")
    assert (row.operator, row.cls, row.at_level) == ("tf::BiasAdd", "infer", "painted")
    assert [ampgraph.lists("ReduceMean", policy="tensorflow", dtype=t)[0].cls for t in ("float16", "bfloat16")] == [
        "deny", "infer"
    ]  # fmt: skip
    # a schema that refuses is told
    text = 'g (float[2, 2] x) => (float[2, 2] y) { y = Einsum <equation = "ij,jk->ik"> (x, x) }'
    plan = ampgraph.plan(parse(text), dtype="bfloat16", policy="tensorflow")
    assert types(plan) == "F" and "float32 where TensorFlow computes low" in plan.notes[0].text
    # a plan is taken
    plan = ampgraph.plan(parse(MODEL), policy="tensorflow")
    once = ampgraph.convert(parse(MODEL), policy="tensorflow", check="off")
    assert ampgraph.convert(parse(MODEL), plan=Plan.from_json(plan.to_json()), check="off") == once


@pytest.mark.parametrize("level", ["auto", "O1", "O3"])
def test_conversion_again_changes_nothing(level: str) -> None:
    for seed in (3, 9, 12):
        model = onnx_graphs.model(*random_graphs.tensorflow_graph(seed))
        once = ampgraph.convert(model, level, policy="tensorflow", check="off")
        assert ampgraph.convert(once, level, policy="tensorflow", check="off") == once, seed


def items(text: str) -> list[Item]:
    """``allow 0 clear 0 infer 1``: classes, each with what it reads."""
    made: list[Item] = []
    for word in text.split("; "):
        cls, *sources = word.split()
        made.append(Item("" if cls == "-" else cls, free=True, before=[int(n) for n in sources]))
    for number, item in enumerate(made):
        for source in item.before:
            made[source].after.append(number)
    return made


@pytest.mark.parametrize(
    ("text", "low"),
    [
        ("allow; clear 0; -  1; allow 2", [0, 1, 3]),
        ("allow; clear 0; infer 1; allow 2", [0, 1, 2, 3]),
        ("deny; clear 0; infer 1; allow 2", [3]),
        ("deny; allow 0; infer 1", [1, 2]),
        ("allow; deny; infer 0 1; infer 0", [0, 3]),
        ("clear; infer; deny", []),
        ("clear; clear 0; allow 1; infer 2; infer 3; - 4", [0, 1, 2, 3, 4]),
    ],
)
def test_painting(text: str, low: list[int]) -> None:
    assert sorted(paint(items(text)).low) == low


def test_a_pattern_of_the_user_is_heeded_as_a_node_that_is_not_painted() -> None:
    """A MatMul is a seed: held in float32 it paints nobody, and is not said to be refused by schema or kernel."""

    def types(fp32: list[str]) -> list[str]:
        plan = ampgraph.plan(parse(MODEL), policy="tensorflow", target="tensorrt", fp32=fp32)
        assert {d.why.rule for d in plan.decisions if d.index in (0, 4)} == {"user" if fp32 else "tensorflow"}
        return [d.dtype for d in plan.decisions if d.index >= 0]

    free = types([])
    assert free[0] == free[4] == "float16" and set(types(["value:a", "value:d"])) == {"float32"}
