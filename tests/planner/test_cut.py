"""The cut against brute force and greedy propagation, on problems and on graphs; converting again changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import onnx
import onnx.printer
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ampgraph.core.dataflow import NONE
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.formats.onnx import shapes
from ampgraph.numerics.strict.session import run_strict
from ampgraph.planner.bounded import float32_units
from ampgraph.planner.costs import LAUNCH, Costs, CutTask, same_size_roots
from ampgraph.planner.cut import INFINITE, Net, Undecided
from ampgraph.planner.decisions import FREE, HIGH, LOW
from ampgraph.planner.facts.facts import Facts
from ampgraph.planner.policies.ampgraph import judge
from ampgraph.planner.promotions import op_bytes
from ampgraph.planner.resolve import resolve
from effort import assert_linear
from onnx_text import parse
from planner.graphs import random_models
from planner.problems import Problem, free_units, solution_of, whole
from planner.support import LEVELS, converted, decisions
from share import examples

SHARED = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
QUICK = settings(SHARED, max_examples=examples(150))
GRAPHS = settings(SHARED, max_examples=examples(100))
FIXED_LOW, FIXED_HIGH = 1_000_000, 1_000_001


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> Problem:
    """Small problems: nets with and without a writer, fixed units of both sides, rounding that is forbidden."""
    free = list(range(draw(st.integers(1, most))))
    units = st.sampled_from([*free, FIXED_LOW, FIXED_HIGH])
    prices = st.integers(0, 6)
    nets = []
    for _ in range(draw(st.integers(1, 12))):
        writer = draw(st.none() | units)
        readers = draw(st.frozensets(units, min_size=1, max_size=4))
        up = draw(prices | st.just(INFINITE)) if writer is not None else draw(prices)
        nets.append(Net(writer, readers, up, draw(prices)))
    extra = {unit: draw(st.integers(-6, 6)) for unit in free if draw(st.booleans())}
    return Problem(nets, {FIXED_LOW: LOW, FIXED_HIGH: HIGH}, extra)


def brute_force(problem: Problem) -> tuple[int, list[dict[int, int]]]:
    """The least cost, and every assignment that has it."""
    units, best = free_units(problem), None
    found: list[dict[int, int]] = []
    for sides in itertools.product((LOW, HIGH), repeat=len(units)):
        solution = dict(zip(units, sides, strict=True))
        cost = problem.cost(solution)
        if best is None or cost < best:
            best, found = cost, []
        if cost == best:
            found.append(solution)
    assert best is not None
    return best, found


def high_side(solution: dict[int, int]) -> frozenset[int]:
    return frozenset(unit for unit, side in solution.items() if side == HIGH)


def greedy(problem: Problem, need_all: bool) -> dict[int, int]:
    """Propagation from the fixed units: low where a neighbour (or every decided one) is low, else float32."""
    sides = dict(problem.fixed)
    for unit in free_units(problem):
        around = [
            sides[other]
            for net in problem.nets
            if unit in net.readers or unit == net.writer
            for other in (*net.readers, net.writer)
            if other is not None and other in sides
        ]
        low = bool(around) and (all if need_all else any)(side == LOW for side in around)
        sides[unit] = LOW if low else HIGH
    return {unit: side for unit, side in sides.items() if unit not in problem.fixed}


@QUICK
@given(problems())
def test_the_cut_is_the_cheapest_with_the_smallest_float32_side(problem: Problem) -> None:
    solution = solution_of(problem)
    cost, optimal = brute_force(problem)
    assert problem.cost(solution) == cost
    smallest = min(map(high_side, optimal), key=len)
    assert all(smallest <= high_side(other) for other in optimal), "the smallest side is not unique: the test is wrong"
    assert high_side(solution) == smallest


@pytest.mark.slow
@QUICK
@given(problems(most=30), st.booleans())
def test_the_cut_is_never_dearer_than_propagation(problem: Problem, need_all: bool) -> None:
    assert problem.cost(solution_of(problem)) <= problem.cost(greedy(problem, need_all))


def test_values_and_readers() -> None:
    """Two low readers of a float32 value share a Cast; a third, free one between them and float32 joins."""
    shared = Net(FIXED_HIGH, frozenset({FIXED_LOW, 0}), 5, 5)
    back = Net(0, frozenset({FIXED_HIGH}), 4, 4)
    onward = Net(0, frozenset({1}), 3, 3)
    last = Net(1, frozenset({FIXED_LOW}), 3, 3)
    assert solution_of(Problem([shared, back, onward, last], {FIXED_LOW: LOW, FIXED_HIGH: HIGH})) == {0: HIGH, 1: LOW}
    assert solution_of(Problem([shared, onward, last], {FIXED_LOW: LOW, FIXED_HIGH: HIGH})) == {0: LOW, 1: LOW}
    # a given cast or rounding stays between readers
    model = parse("g (float[4,4] x) => (float[4,4] y, float16[4,4] z) { y = MatMul (x, x)  z = Cast <to = 10> (x) }")
    assert decisions(converted(model, "O1")) == "Cast>f16 MatMul:f16 Cast>f32"
    # The second time the product is low already and its cast looks like one that does nothing.
    model = parse(
        """g (float[4,4] x) => (float[4,4] y) {
            a = MatMul (x, x)  l = Cast <to = 10> (a)  r = Cast <to = 1> (l)  y = Add (r, b)
        }""",
        b=np.ones(4, np.float32),
    )
    assert decisions(converted(model, "O1")) == "Cast>f16 MatMul:f16 Cast>f32 Add:f32"
    # A product may read them low; what reads them in float32 reads them exactly.
    model = parse(
        """g (int64[1,5000] p) => (float[5000,1] y, float[1,8] z) {
            f = Cast <to = 1> (p)  y = Transpose <perm = [1, 0]> (f)  z = MatMul (f, w)
        }""",
        w=np.ones((5000, 8), np.float32),
    )
    for level in LEVELS:
        result = run_strict(converted(model, level), {"p": np.arange(5000).reshape(1, 5000)})
        assert level == "O3" or (result["y"][:, 0] == np.arange(5000)).all(), level


def with_many_readers(count: int) -> Problem:
    readers = range(count)
    nets = [Net(FIXED_HIGH, frozenset(readers), 3, 3), Net(FIXED_LOW, frozenset(readers), 2, 2)]
    nets += [Net(unit, frozenset({FIXED_LOW if unit % 2 else FIXED_HIGH}), 4, 5) for unit in readers]
    nets += [Net(unit, frozenset({unit + 1}), 2, 2) for unit in readers[:-1]]
    return Problem(nets, {FIXED_LOW: LOW, FIXED_HIGH: HIGH})


@pytest.mark.slow
def test_the_work_grows_with_readers_and_units() -> None:
    assert len(solution_of(with_many_readers(1200))) == 1200
    assert_linear(lambda count: partial(solution_of, with_many_readers(count)), 100)

    # what a unit moves is found once for all who read a value
    def extras(count: int) -> Callable[[], object]:
        task = blocks(count, "mN = MatMul ({x}, w)  xN = Mul (mN, s)")
        units = [root for root in dict.fromkeys(task.decisions.roots) if task.decisions.sides[root] == FREE]
        assert len(units) >= count
        choices = Undecided(task)
        return lambda: [choices.extra(unit) for unit in units]

    assert_linear(extras, 40)


def judged(model, level: str, dims: dict[str, int] | None = None) -> CutTask:
    graph, _ = adapters.load(model)
    graph.prepare()
    flow = graph.dataflow("float16")
    return judge(Facts(flow, resolve(Recipe.of(level=level, dims=dims or {}), "ONNX"))).task


def altered(task: CutTask, numbers: Random) -> CutTask:
    """The same model with other decisions, few or many, and all else that bears on the costs drawn too. Often what goes
    in and out is float32 and nothing else."""
    decided, around = numbers.choice((0.1, 0.5)), numbers.choice(((LOW,), (LOW, HIGH)))
    sides = [numbers.choice(around) if numbers.random() < decided else FREE for _ in task.decisions.sides]
    for unit in task.flow.units:
        if unit.op == NONE and len(around) == 1:
            sides[task.decisions.roots[unit.id]] = HIGH
    counted, fused = (
        frozenset(number for number, _ in enumerate(some) if numbers.random() < 0.2)
        for some in (task.flow.values, task.flow.ops)
    )
    worth = {root: numbers.randint(-2, 3) for root in set(task.decisions.roots) if numbers.random() < 0.3}
    return CutTask(task.flow, task.options, replace(task.decisions, sides=sides), worth, counted, fused)


@pytest.mark.slow
@GRAPHS
@given(random_models(most=10), st.sampled_from(("O1", "O2", "auto")), st.none() | st.integers())
def test_what_is_looked_at_decides_as_the_whole_model_does(model, level: str, seed: int | None) -> None:
    note(onnx.printer.to_text(model))
    task = judged(model, level)
    task = task if seed is None else altered(task, Random(seed))
    problem = whole(task)
    solution = dict.fromkeys(free_units(problem), LOW) | dict.fromkeys(float32_units(task), HIGH)
    assert set(solution) == {root for root in task.decisions.roots if task.decisions.sides[root] == FREE}
    assert solution == solution_of(problem)
    if len(solution) <= 10:
        cost, optimal = brute_force(problem)
        assert problem.cost(solution) == cost
        assert high_side(solution) == min(map(high_side, optimal), key=len)


DRAWN = {  # models, and what is not low beside q; a Log is taken into one kernel with its Casts
    "a stored tensor that is there in float32": (
        "(float[4,4] x, float[4,4] z) => (float[4,4] p, float[4,4] q) { p = Mul (x, w)  q = Mul (z, w) }",
        {"p": HIGH, "z": FREE},
    ),
    "a value that no Cast serves yet": (
        "(float[4,4] x) => (float[4,4] p, float[4,4] q) { h = Neg (x)  p = Log (h)  q = Abs (h) }",
        {"h": HIGH},
    ),
    "a large input": (
        "(float[900,900] x) => (float[900,4] p) { q = ReduceMax <axes = [1]> (x)  p = MatMul (q, v) }",
        {"x": HIGH},
    ),
    "a large value": (
        "(float[900,4] x) => (float[900,4] p) { h = MatMul (x, u)  q = ReduceMax <axes = [1]> (h)  p = MatMul (q, v) }",
        {"h": HIGH},
    ),
}


@pytest.mark.parametrize(("text", "given"), DRAWN.values(), ids=DRAWN)
def test_what_draws_an_operator_to_float32_by_itself(text: str, given: dict[str, int]) -> None:
    stored = {"w": np.ones((4, 4), np.float32), "u": np.ones((4, 900), np.float32), "v": np.ones((1, 4), np.float32)}
    task = judged(parse(f"g {text}", known=stored, opset=13), "auto")
    flow, find = task.flow, task.decisions.find
    unit_of = {value.name: find(value.unit) for value in flow.values if value.unit != NONE}
    sides = [LOW] * len(task.decisions.sides)
    for name, side in (given | {"q": FREE}).items():
        sides[unit_of[name]] = side
    for value in flow.scopes[0].outputs:
        sides[find(flow.uses[value][-1].unit)] = sides[find(flow.values[value].unit)]
    fused = {op.id for op in flow.ops if op.role == "Log"}
    task = CutTask(flow, task.options, replace(task.decisions, sides=sides), fused=fused)
    assert unit_of["q"] in float32_units(task)


def test_a_body_writes_at_each_turn_and_reads_its_weights_once() -> None:
    text = """g (float[4,8] x, int64 n) => (float[4,4] y, float[4,4] z) { y = MatMul (x, w)
        z = Loop (n, , y) <body = b (int64 i, bool c, float[4,4] h) => (bool d, float[4,4] k) {
            d = Identity (c)  k = Add (h, v) }> }"""
    stored = {"w": np.ones((8, 4), np.float32), "v": np.ones((1, 4), np.float32)}
    task = judged(parse(text, stored, opset=17), "O2")
    times = max(scope.times for scope in task.flow.scopes)
    for weights, product, added in ((True, 64 + 128, 64 * times + 16), (False, 64, 64 * times)):
        found = {op.kind: op_bytes(task.flow, task.costs, op, weights) for op in task.flow.ops}
        assert times > 1 and (found["MatMul"], found["Add"]) == (product, added)


def blocks(count: int, block: str) -> CutTask:
    """Blocks that follow one another: ``block`` makes ``xN`` of ``x``, ``N`` being its number."""
    names = ["x", *(f"x{number}" for number in range(count))]
    lines = [block.replace("N", str(number)).format(x=names[number]) for number in range(count)]
    text = f"g (float[4,4] x, float[4,4] s) => (float[4,4] {names[-1]}) {{ {' '.join(lines)} }}"
    return judged(parse(text, w=np.ones((4, 4), np.float32)), "auto")


def test_the_search_looks_only_around_what_is_float32() -> None:
    """However far the model goes on."""
    residual = "aN = Softmax ({x})  mN = MatMul (aN, w)  tN = Transpose <perm = [1, 0]> (mN)  xN = Add (tN, {x})"
    asked = []
    for count in (8, 16):
        problem = Undecided(blocks(count, residual))
        problem.float32_units()
        asked.append(len(problem.costs._elements))
    assert asked[0] == asked[1] > 0


def test_bounds_of_sizes_save_the_inference_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only inputs and outputs are float32, they show that nothing else is."""

    def infer(*_: object, **__: object) -> None:
        raise AssertionError("shapes are inferred")

    task = blocks(4, "mN = MatMul ({x}, w)  tN = Transpose <perm = [1, 0]> (mN)  xN = Relu (tN)")
    monkeypatch.setattr(shapes, "infer", infer)
    assert float32_units(task) == set()
    with pytest.raises(AssertionError, match="inferred"):
        Undecided(task).float32_units()


def test_what_is_moved_has_a_price_of_its_own() -> None:
    """Storing 64 bytes twice is cheaper than a kernel; counted as if a byte of each weighed the same it is not."""
    model = parse(
        "g (float[4,4] x) => (float[4,4] v, float[4,4] y) { v = Identity (w)  y = MatMul (x, w) }",
        w=np.ones((4, 4), np.float32),
    )
    assert decisions(converted(model, "O2")) == "Cast>f16 Identity:f32 MatMul:f16 Cast>f32"
    # The small side of a Concat is cast, not the large one.
    model = parse(
        """g (float[64,4096] x) => (float[64,8] p, float[64,4097] q) {
            y, mean = LayerNormalization <axis = -1> (x, b)  s = Sigmoid (mean)
            f = Concat <axis = 1> (y, s)  p = MatMul (f, w)  q = LayerNormalization <axis = -1> (f, c)
        }""",
        b=np.ones(4096, np.float32),
        c=np.ones(4097, np.float32),
        w=np.ones((4097, 8), np.float32),
    )
    model = onnx.shape_inference.infer_shapes(model)  # types the mean
    assert decisions(converted(model, "O2", target="cann")) == (
        "LayerNormalization:f32 Cast>f16 Sigmoid:f16 Cast>f32 Concat:f32 "
        "Cast>f16 MatMul:f16 Cast>f32 LayerNormalization:f32"
    )


# What the cut is told of sizes and bytes, in numbers that follow from the model.


def test_values_of_one_size_have_one_root_and_one_guess() -> None:
    """Also where the shape is known on one side of a Transpose alone, whichever that is."""
    text = "g (float[N, 4] x, float[8, 6] k) => (float[P, Q] y, float[R, S, T] z)"
    text += "{ a = Relu (x)  b = Transpose (a)  y = Neg (b)  c = Transpose (k)  z = Unsqueeze (c, one) }"
    task = judged(parse(text, one=np.array([0])), "O2")
    ids = {value.name: value.id for value in task.flow.values}
    roots = same_size_roots(task.flow, task.options)
    assert {roots[ids[name]] for name in "xaby"} == {ids["x"]} and {roots[ids[name]] for name in "kcz"} == {ids["k"]}
    costs = task.costs
    assert len({costs.elements(ids[name]) for name in "xaby"}) == 1
    assert [costs.elements(ids[name]) for name in "kcz"] == [48, 48, 48]


@pytest.mark.parametrize(("together", "starts"), [(0, (1, 1, 1)), (4, (0, 1, 1)), (5, (0, 0, 1))])
def test_inputs_with_a_first_value_are_cast_together(together: int, starts: tuple[int, ...]) -> None:
    """As parameters of a training step are: those of so many numbers at most, and nothing that is computed or given."""
    text = "g (float[4] x, float[4] small, float[5] large) => (float[4] y, float[5] z) {"
    text += " y = Add (x, small)  z = Neg (large) }"
    task = judged(parse(text, small=(4,), large=(5,)), "O2")
    costs = Costs(task.flow, replace(task.options, cast_together=together))
    ids = {value.name: value.id for value in task.flow.values}
    assert tuple(costs.starts(ids[name]) for name in ("small", "large", "y")) == starts
    assert costs.starts(ids["x"]) == 1 and costs.cast(ids["small"]) == 6 * 4 + LAUNCH * starts[0]


def test_bytes_of_casts_and_of_float32() -> None:
    """A Cast reads 4 bytes of an element and writes 2, or the reverse; float32 moves 2 more of each, in and out."""
    text = "g (float[8, 4] x) => (float[8, 4] y) { p = MatMul (x, w)  s = Sigmoid (p)  y = MatMul (s, w) }"
    task = judged(parse(text, w=(4, 4)), "O2")
    product = next(value.id for value in task.flow.values if value.name == "p")
    assert task.costs.cast(product) == 6 * 32 + LAUNCH
    [sigmoid] = [op for op in task.flow.ops if op.role == "Sigmoid"]
    [unit] = {task.decisions.roots[slot] for slot in sigmoid.slots.values()}
    assert Undecided(task).extra(unit) == 2 * 32 + 2 * 32
