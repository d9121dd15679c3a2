"""`ampgraph.tune` with models: what it promotes, what it writes, and its answers to bad input."""

from __future__ import annotations

import csv
import errno
import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import ampgraph
from ampgraph import AmpError
from ampgraph.api import tune as tuning
from ampgraph.core.names import literal
from ampgraph.core.recipe import Recipe
from ampgraph.numerics.metrics import verdict as judging
from ampgraph.numerics.search import BUDGET
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.report.tuning import Sensitivity, UnitSensitivity
from cli_helpers import refused
from hard_models import HARD_MODELS
from npz import write_npz
from onnx_text import parse
from present import plain, present


def tuned(name, count=4, **more):
    hard = HARD_MODELS[name]
    model = hard.build()
    return model, hard.feeds(count), ampgraph.tune(model, data=hard.feeds(count), **more)


@pytest.mark.parametrize("tolerance", [1e-2, 1.0])
def test_inputs_and_outputs_may_be_low(tolerance):
    text = "agraph (float[4,64] x) => (float[4,64] y) { a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big) }"
    model = parse(text, w=np.eye(64, dtype=np.float32), big=np.full(64, 100, np.float32))
    found = ampgraph.tune(model, samples=2, io=["*=low"], tolerance=tolerance)
    assert found.met and bool(found.patterns) == (tolerance < 1)
    converted = ampgraph.convert(model, io=["*=low"], fp32=found.patterns)
    assert {value.type.tensor_type.elem_type for value in (*converted.graph.input, *converted.graph.output)} == {
        TensorProto.FLOAT16
    }


@pytest.fixture(scope="module")
def bytes_tuned():
    """The tuning that others must equal."""
    return tuned("bytes", tolerance=5e-5)[2]


def strict_error(model, converted, feeds):
    """The relative L2 of the worst output at the 90th percentile, once more."""
    ours, theirs = StrictSession(model), StrictSession(converted)
    errors = []
    for feed in feeds:
        want, got = ours.run(feed), theirs.run(feed)
        errors.append(max(np.linalg.norm(got[n] - want[n]) / np.linalg.norm(want[n]) for n in want))
    return sorted(errors)[math.ceil(0.9 * len(errors)) - 1]


def counting(kind, opened):
    """The class, noting that it is opened."""

    def opener(*given, **more):
        opened.append(kind.__name__)
        return kind(*given, **more)

    return opener


@pytest.mark.slow
def test_a_model_of_400_nodes_takes_few_strict_runs(monkeypatch):
    """Counted from outside: each candidate opens one session, and one is opened whose nodes are switched."""
    opened: list[str] = []
    for name in ("StrictSession", "SwitchedSession"):
        monkeypatch.setattr(tuning, name, counting(getattr(tuning, name), opened))
    hard = HARD_MODELS["llama"]
    model, feeds = hard.build(), hard.feeds(2)
    found = tuning.tune(model, data=feeds, tolerance=4.5e-4)
    assert len(model.graph.node) >= 390 and found.met
    assert found.runs == len(opened) - 2 <= 8  # the reference is one, and the switched one
    assert opened.count("SwitchedSession") == 1
    start, whole = found.candidates[0], found.candidates[1]
    chosen = next(c for c in found.candidates if c.chosen)
    assert start.error > 4.5e-4 >= chosen.error and whole.error == 0
    assert start.bytes < chosen.bytes < 0.7 * whole.bytes and chosen.products < 0.5 * whole.products
    monkeypatch.undo()
    assert strict_error(model, ampgraph.apply(model, present(found.plan)), feeds) == pytest.approx(found.error)
    again = ampgraph.convert(model, "O2", fp32=found.patterns)
    assert again.SerializeToString() == ampgraph.apply(model, present(found.plan)).SerializeToString()


@pytest.mark.slow
def test_what_is_promoted():
    model, feeds, found = tuned("t5", tolerance=5e-3)
    assert found.met and not math.isfinite(found.candidates[0].error)
    assert len(found.patterns) <= 8 and any("wo" in pattern for pattern in found.patterns)
    assert found.to_dict()["candidates"][0]["error"] is None
    assert strict_error(model, ampgraph.apply(model, present(found.plan)), feeds) <= 5e-3
    # The low nodes in the bodies of an If.
    model, feeds, found = tuned("lstm", 8, tolerance=1e-6)
    assert found.met and any("rising" in p or "falling" in p for p in found.patterns)
    # what was float32 stays so when its neighbours are promoted
    model, _, found = tuned("detector", tolerance=1e-9)
    assert found.met and found.error == 0
    assert ampgraph.apply(model, present(found.plan)).SerializeToString() == model.SerializeToString()
    # bfloat16 and another level
    _, _, found = tuned("bytes", tolerance=4e-4, dtype="bfloat16", level="auto")
    assert found.met and found.dtype == "bfloat16" and found.level == "auto" and found.patterns
    # what the user asked for is kept
    _, _, found = tuned("lstm", tolerance=3e-4, low=["op:LSTM"], fp32=["forecast*"])
    assert not found.met and found.plan is None and found.patterns == ()
    assert found.error > 3e-4 and found.runs == 2
    # O0 has nothing to promote
    _, _, found = tuned("bytes", tolerance=1e-9, level="O0")
    assert found.met and found.runs == 1 and found.patterns == ()


@pytest.mark.slow
def test_the_same_input_gives_the_same_plan(bytes_tuned):
    one, two = bytes_tuned, tuned("bytes", tolerance=5e-5)[2]
    assert one.to_dict() == two.to_dict() and one.plan.to_json() == two.plan.to_json()


def plain_model(kinds=("MatMul",), **more):
    """x times a weight, a node each, without names."""
    names = ["x", *(f"v{i}" for i in range(len(kinds) - 1)), "y"]
    nodes = "  ".join(f"{names[i + 1]} = {kind} ({names[i]}, w)" for i, kind in enumerate(kinds))
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    return parse(f"g (float[4, 4] x) => (float[4, 4] y) {{ {nodes} }}", w=weight, opset=18, **more)


def test_names_of_nodes():
    found = ampgraph.tune(plain_model(("MatMul", "MatMul")), tolerance=1e-9)
    assert found.met and set(found.patterns) == {"value:v0", "value:y"}
    assert any("generated" in note or "seed" in note for note in found.notes)
    # names with brackets mean themselves
    model = plain_model(("MatMul", "MatMul"))
    model.graph.node[0].name, model.graph.node[1].name = "a[0]*", "op:b"
    found = ampgraph.tune(model, tolerance=1e-9)
    assert set(found.patterns) == {"a[[]0][*]", "value:y"} and literal("plain/name_1") == "plain/name_1"
    # functions are tuned by the names in their bodies
    cell = '<domain: "my", opset_import: ["" : 18]> Cell (a, b) => (c) { [inner] c = MatMul (a, b) }'
    model = plain_model(("my.Cell", "my.Cell"), functions=cell, domains=["my"])
    model.graph.node[0].name, model.graph.node[1].name = "one", "two"
    found = ampgraph.tune(model, tolerance=1e-9)
    assert found.met and found.patterns == ("inner",)


@pytest.mark.parametrize("until", [math.inf, 0.0])
def test_a_search_ends_when_its_time_is_up(until, tmp_path):
    """Behind the level's plan and all in float32, which it always runs."""
    bench = tuning.bench_of(plain_model(("MatMul",) * 4), Recipe(), None, 1, "l2", tmp_path, None, until=until)
    best = present(bench.search(2e-4))
    assert bench.late() == (until == 0) and best.error <= 2e-4
    assert (len(bench.points), len(best.promoted)) == ((2, 4) if bench.late() else (4, 3))


@pytest.mark.slow
def test_weights_beside_the_model(tmp_path):
    hard = HARD_MODELS["vit"]
    path = tmp_path / "vit.onnx"
    onnx.save(hard.build(), path, save_as_external_data=True, location="vit.bin")
    found = ampgraph.tune(path, data=hard.feeds(2), tolerance=1e-4, output=tmp_path / "out.onnx")
    assert found.met and found.output == str(tmp_path / "out.onnx") and found.patterns
    assert strict_error(str(path), str(tmp_path / "out.onnx"), hard.feeds(2)) == pytest.approx(found.error)


def test_progress_and_words_are_told():
    told = []
    ampgraph.tune(plain_model(), tolerance=1e-9, samples=2, progress=lambda *part: told.append(part))
    assert told[0][0].startswith("run 0 of at most 20: running the reference")
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert all(done < total == 2 * (BUDGET + 1) for _, done, total in told)


@pytest.mark.slow
def test_outputs_in_a_file_give_the_same_tuning(monkeypatch, bytes_tuned):
    monkeypatch.setattr(judging, "IN_MEMORY", 0)
    assert tuned("bytes", tolerance=5e-5)[2].to_dict() == bytes_tuned.to_dict()


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    told = []
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(AmpError, match="AMP105.*Read-only"):
        ampgraph.tune(
            plain_model(), tolerance=1e-2, output=tmp_path / "o.onnx", progress=lambda *part: told.append(part)
        )
    assert told == []


@pytest.mark.parametrize("tolerance", [0, -1e-3, float("nan"), float("inf"), "1e-3"])
def test_a_tolerance_that_is_none(tolerance):
    with pytest.raises(AmpError, match="AMP312.*must be a positive number, not"):
        ampgraph.tune(plain_model(), tolerance=tolerance)


def test_bad_input():
    with pytest.raises(AmpError, match="AMP312.*'cosin'\nhint: did you mean 'cosine'"):
        ampgraph.tune(plain_model(), metric="cosin")
    with pytest.raises(AmpError, match="AMP108.*no sample"):
        ampgraph.tune(plain_model(), data=[])
    with pytest.raises(AmpError, match="AMP305"):
        ampgraph.tune(plain_model(), fp32=["nothing"])
    with pytest.raises(AmpError, match="AMP503.*NaN"):
        ampgraph.tune(plain_model(), data=[{"x": np.full((4, 4), np.nan, np.float32)}])


def test_a_mask_that_stays_float32_is_floored_all_the_same():
    """Its constant is stored in float32 because its Add is, though what follows is low."""
    text = """g (float[4, 4] x) => (float[4, 4] y) { [add] s = Add (x, m)  [move] r = Reshape (s, shape)
        [soft] p = Softmax (r)  [product] y = MatMul (p, w) }"""
    mask = np.where(np.tri(4), 0, -1e9).astype(np.float32)
    model = parse(text, m=mask, shape=np.array([4, 4]), w=(4, 4), opset=18)
    converted = ampgraph.convert(model, "O2", fp32=["add"], low=["move", "soft"])
    stored = {i.name: numpy_helper.to_array(i) for i in converted.graph.initializer}
    assert stored["m"].dtype == np.float32 and stored["m"].min() == -32752
    assert np.isfinite(StrictSession(converted).run({"x": np.zeros((4, 4), np.float32)})["y"]).all()


# What `tune` tries beside single nodes, and its table of sensitivities.


@pytest.mark.slow
def test_candidates() -> None:
    # roundings that add up cost no products
    model = chains()
    start = ampgraph.tune(model, data=samples(), tolerance=1e-9).candidates[0].error
    tuned = ampgraph.tune(model, data=samples(), tolerance=0.85 * start)
    chosen = next(c for c in tuned.candidates if c.chosen)
    assert tuned.met and chosen.products == 0 and chosen.nodes > 0 and tuned.runs <= BUDGET
    again = ampgraph.tune(model, data=samples(), tolerance=0.85 * start)
    assert again.to_dict() == tuned.to_dict()


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


def errors(model: ModelProto, low: ModelProto) -> float:
    one, other = StrictSession(model), StrictSession(low)
    found = [(one.run(feed)["y"], other.run(feed)["y"]) for feed in samples()]
    return float(max(np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in found))


def patterns_but(model: ModelProto, own: Collection[str]) -> list[str]:
    """Every node but some."""
    return [name for node in model.graph.node if (name := f"value:{node.output[0]}") not in own]


def test_the_table_in_words() -> None:
    def unit(number: int, share: float | None, measured: bool) -> UnitSensitivity:
        patterns = tuple(f"n{number}_{i}" for i in range(5))
        return UnitSensitivity(patterns, ("MatMul", "Add", "MatMul"), 8, share, 0.5, 0.25, measured)

    units = (unit(0, None, True), *(unit(n, 0.012345, False) for n in range(1, 23)))
    head, first, second, *rest, last = Sensitivity("O2", "relative L2", 1.0, units).lines()
    assert head.split() == ["alone", "low", "alone", "float32", "share", "unit"]
    assert (
        first.split()[2:] == ["all", "measured", "MatMul", "Add", "(n0_0", "n0_1", "n0_2)"]
        and first.split()[0] == "0.5"
    )
    assert second.split()[2:5] == ["1.23", "%", "estimated"]
    assert len(rest) == 18 and last == "and 3 more"
    assert Sensitivity("O2", "relative L2", 1.0, units[:20]).lines()[-1] == rest[-1]


@pytest.mark.slow
def test_the_table() -> None:
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
    # an overflow is named in the table
    model = parse("g (float[2, 4] x) => (float[2, 4] y) <float s = {3000}, float t = {0.00001}> {"
                  " a = Mul (x, s)  b = Mul (a, s)  y = Mul (b, t) }")  # fmt: skip
    found = ampgraph.tune(model, "O3", data=[{"x": np.ones((2, 4), np.float32)}], sensitivity=True)
    table = present(found.sensitivity)
    infinite = [unit for unit in table if unit.share is None]
    assert infinite and "value:b" in {p for unit in infinite for p in unit.patterns}
    assert table.to_dict()["error"] is None and table.units[0].to_dict()["alone_low"] is None


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
