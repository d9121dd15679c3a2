"""What `tune` tries beside single nodes, and its table of sensitivities."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.search import BUDGET, Point, PromotionSearch
from ampgraph.numerics.strict.session import StrictSession
from cli_helpers import refused
from npz import write_npz
from onnx_text import parse
from present import plain, present

pytest.importorskip("onnxruntime")


def search(squares: Sequence[float], costs: Sequence[int], tolerance: float, **more: Any) -> PromotionSearch:
    """Groups whose squared errors add up."""

    def evaluate(promoted: frozenset[int], step: str) -> Point:
        left = sum(square for i, square in enumerate(squares) if i not in promoted)
        return Point(step, promoted, math.sqrt(left), len(promoted), sum(costs[i] for i in promoted))

    return PromotionSearch(costs, tolerance, evaluate, measure=lambda promoted: squares, **more)


PRODUCTS = 30
SQUARES = [1e-6] * PRODUCTS + [0.9e-6] * PRODUCTS  # products first, then what follows them
COSTS = [100] * PRODUCTS + [1] * PRODUCTS
KINDS = ["Conv"] * PRODUCTS + ["Mul", "Add", "Mul"] * (PRODUCTS // 3)


def test_the_plan_of_another_level_is_tried_and_taken_where_it_is_cheapest() -> None:
    cautious = frozenset(range(PRODUCTS, 2 * PRODUCTS))
    found = search(SQUARES, COSTS, math.sqrt(31e-6), others={"what O1 keeps": cautious})
    best = present(found.run())
    assert best.promoted <= cautious and found.runs <= BUDGET
    assert any(point.step == "what O1 keeps" for point in found.points)
    assert not any(point.step.startswith("first") for point in found.points if len(point.promoted) > 29)


def test_whole_kinds_are_tried() -> None:
    found = search(SQUARES, COSTS, math.sqrt(40e-6), kinds=KINDS)
    best = present(found.run())
    assert any(point.step == "all Add, Mul" or point.step == "all Mul, Add" for point in found.points)
    assert all(KINDS[i] != "Conv" for i in best.promoted)


def test_without_kinds_and_others_products_are_promoted() -> None:
    best = present(search(SQUARES, COSTS, math.sqrt(31e-6)).run())
    assert any(i < PRODUCTS for i in best.promoted)


LAYER = """
    p{i} = MatMul (s{i}, w)
    m{i} = Mul (p{i}, a)
    n{i} = Add (m{i}, b)
    h{i} = HardSwish (n{i})
    k{i} = Mul (h{i}, c)
    s{j} = Add (k{i}, d)"""


def chains(depth: int = 6) -> ModelProto:
    """Roundings that add up: after every product four that no Cast saves."""
    layers = "".join(LAYER.format(i=i, j=i + 1) for i in range(depth))
    rng = np.random.default_rng(0)
    numbers = {name: np.float32(rng.uniform(0.9, 1.3)) for name in "abcd"}
    weight = np.linalg.qr(rng.standard_normal((32, 32)))[0].astype(np.float32)
    text = f"g (float[N, 32] x) => (float[N, 32] y) {{ s0 = Neg (x) {layers}\n y = Neg (s{depth}) }}"
    return parse(text, {**numbers, "w": weight})


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((4, 32)).astype(np.float32)} for _ in range(3)]


@pytest.mark.slow
def test_roundings_that_add_up_cost_no_products() -> None:
    model = chains()
    start = ampgraph.tune(model, data=samples(), tolerance=1e-9).candidates[0].error
    found = ampgraph.tune(model, data=samples(), tolerance=0.85 * start)
    chosen = next(c for c in found.candidates if c.chosen)
    assert found.met and chosen.products == 0 and chosen.nodes > 0 and found.runs <= BUDGET
    again = ampgraph.tune(model, data=samples(), tolerance=0.85 * start)
    assert again.to_dict() == found.to_dict()


def errors(model: ModelProto, low: ModelProto) -> float:
    one, other = StrictSession(model), StrictSession(low)
    found = [(one.run(feed)["y"], other.run(feed)["y"]) for feed in samples()]
    return float(max(np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in found))


def patterns_but(model: ModelProto, own: Collection[str]) -> list[str]:
    """Every node but some."""
    return [name for node in model.graph.node if (name := f"value:{node.output[0]}") not in own]


@pytest.mark.slow
def test_the_table_says_what_each_unit_costs_alone() -> None:
    model = chains(2)
    found = ampgraph.tune(model, data=samples(), tolerance=1.0, sensitivity=True)
    table = present(found.sensitivity)
    assert found.met and found.runs == 1 and len(table) >= 10
    assert sum(present(unit.share) for unit in table) == pytest.approx(1)
    first = table.units[0]
    assert first.measured and table.error == pytest.approx(errors(model, ampgraph.convert(model)))
    alone = ampgraph.convert(model, fp32=patterns_but(model, first.patterns))
    assert first.alone_low == pytest.approx(errors(model, alone))
    held = ampgraph.convert(model, fp32=first.patterns)
    assert first.alone_float32 == pytest.approx(errors(model, held))
    estimated = [unit for unit in table if not unit.measured and unit.share]
    for unit in estimated:
        alone = ampgraph.convert(model, fp32=patterns_but(model, unit.patterns))
        assert unit.alone_low == pytest.approx(errors(model, alone), rel=1.0)
    assert repr(table).splitlines()[0].split()[:2] == ["alone", "low"]
    assert plain(found.to_dict())["sensitivity"]["units"][0]["alone_low"] == first.alone_low


def test_the_table_as_a_file(amp: Any, tmp_path: Path) -> None:
    onnx.save(chains(1), tmp_path / "m.onnx")
    write_npz(tmp_path / "x.npz", samples()[0])
    words = ("tune", tmp_path / "m.onnx", "--data", tmp_path / "x.npz")
    for name in ("s.json", "s.csv"):
        status, out, _ = amp(*words, "--sensitivity", tmp_path / name)
        assert status == 0 and "alone float32" in out
    table = json.loads((tmp_path / "s.json").read_text())
    rows = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    assert [row["patterns"].split() for row in rows] == [unit["patterns"] for unit in table["units"]]
    assert float(rows[0]["alone_low"]) == pytest.approx(table["units"][0]["alone_low"], rel=1e-5)
    before = sorted(path.name for path in tmp_path.iterdir())
    refused(amp(*words, "--sensitivity", tmp_path / "s.txt"), "AMP311", ".json or .csv")
    refused(amp(*words, "--sensitivity", tmp_path / "no" / "s.csv"), "AMP105", "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_overflow_is_named_in_the_table() -> None:
    model = parse("g (float[2, 4] x) => (float[2, 4] y) <float s = {3000}, float t = {0.00001}> {"
                  " a = Mul (x, s)  b = Mul (a, s)  y = Mul (b, t) }")  # fmt: skip
    found = ampgraph.tune(model, "O3", data=[{"x": np.ones((2, 4), np.float32)}], sensitivity=True)
    table = present(found.sensitivity)
    infinite = [unit for unit in table if unit.share is None]
    assert infinite and "value:b" in {p for unit in infinite for p in unit.patterns}
    assert table.to_dict()["error"] is None and table.units[0].to_dict()["alone_low"] is None
