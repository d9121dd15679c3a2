"""What the cut is told of sizes and bytes, in numbers that follow from the model."""

from __future__ import annotations

from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.costs import LAUNCH, CutTask, same_size_roots
from ampgraph.planner.cut import Undecided
from ampgraph.planner.facts.facts import Facts
from ampgraph.planner.policies.ampgraph import judge
from ampgraph.planner.resolve import resolve
from onnx_text import parse


def task_of(text: str) -> tuple[CutTask, dict[str, int]]:
    """What the cut is asked of a model, and its values by name."""
    graph, _ = adapters.load(parse(text))
    graph.prepare()
    flow = graph.dataflow("float16")
    task = judge(Facts(flow, resolve(Recipe.of(level="O2"), "ONNX"))).task
    return task, {value.name: value.id for value in flow.values}


def test_values_of_one_size_have_one_root_and_one_guess() -> None:
    """Also where the shape is known on one side of a Transpose alone, whichever that is."""
    text = "g (float[N, 4] x, float[8, 6] k) => (float[P, Q] y, float[R, S, T] z)"
    text += "{ a = Relu (x)  b = Transpose (a)  y = Neg (b)  c = Transpose (k)  z = Unsqueeze (c, one) }"
    task, ids = task_of(text.replace(" =>", " =>").replace("{ a", "<int64[1] one = {0}> { a"))
    roots = same_size_roots(task.flow, task.options)
    assert {roots[ids[name]] for name in "xaby"} == {ids["x"]} and {roots[ids[name]] for name in "kcz"} == {ids["k"]}
    costs = task.costs
    assert len({costs.elements(ids[name]) for name in "xaby"}) == 1
    assert [costs.elements(ids[name]) for name in "kcz"] == [48, 48, 48]


def test_bytes_of_casts_and_of_float32() -> None:
    """A Cast reads 4 bytes of an element and writes 2, or the reverse; float32 moves 2 more of each, in and out."""
    text = "<float[4, 4] w = {0.5}> { p = MatMul (x, w)  s = Sigmoid (p)  y = MatMul (s, w) }"
    text = "g (float[8, 4] x) => (float[8, 4] y) " + text.replace("{0.5}", "{" + ", ".join(["0.5"] * 16) + "}")
    task, ids = task_of(text)
    costs = task.costs
    assert costs.cast(ids["p"]) == 6 * 32 + LAUNCH
    [sigmoid] = [op for op in task.flow.ops if op.role == "Sigmoid"]
    [unit] = {task.decisions.roots[slot] for slot in sigmoid.slots.values()}
    assert Undecided(task).extra(unit) == 2 * 32 + 2 * 32
