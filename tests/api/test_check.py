"""The check with which a conversion ends: what it says, what it leaves, and that nothing in its child goes for ok."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph import AmpError
from ampgraph.api import check, check_run, checked
from ampgraph.api.calibrate import Measuring
from ampgraph.api.check_run import CheckRun, Request, near_the_limit
from ampgraph.api.steps import Conversion, Job, convert_in_memory
from ampgraph.api.tune import Bench
from ampgraph.core.pass_ import Change
from ampgraph.core.progress import silent
from ampgraph.core.recipe import Recipe
from ampgraph.core.verdict import SIMULATED, CheckVerdict
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.numerics.inputs.samples import Samples, load_samples
from ampgraph.numerics.metrics import verdict as judging
from ampgraph.numerics.metrics.agreement import Agreement, compare_outputs, vanishing_output
from ampgraph.numerics.metrics.metric import EDGES, own_metric
from ampgraph.numerics.metrics.roles import PROBABILITIES
from ampgraph.numerics.metrics.verdict import Compared
from ampgraph.numerics.pairs import MindirPair, OnnxPair
from ampgraph.numerics.ranges.calibrate import measured_ranges
from ampgraph.planner.resolve import resolve
from formats.mindir.files import dense, write
from onnx_text import parse

PRODUCT = """
agraph (float[N,8] x) => (float[N,8] y) {
  y = MatMul(x, w)
}"""
PRODUCTS = "agraph (float[N,8] x) => (float[N,8] y) { a = MatMul(x, w)  y = MatMul(a, w) }"
MINDIR = Path(ampgraph.__file__).parent / "models" / "digits_cnn.mindir"
SMALL = {"w": np.eye(8, dtype=np.float32)}
LARGE = {"w": np.full((8, 8), 3e4, np.float32)}  # float16 holds it, and no sum of such products


here = pytest.mark.usefixtures("check_here")
"""For what a verdict says: the other tests start the check's process."""
ANSWER = check_run.answer_request


@pytest.fixture
def path(tmp_path):
    def write(weights, text=PRODUCT):
        file = tmp_path / "model.onnx"
        file.write_bytes(parse(text, **weights).SerializeToString())
        return file

    return write


def dies(request, tell):
    os.abort()


def sleeps(request, tell):
    time.sleep(60)


def gives_up(request, tell):
    sys.exit("no")


def dies_looking(request, tell):
    """As the check does, until it looks for the node."""
    with pytest.MonkeyPatch.context() as here:
        here.setattr(check_run.FaultSearch, "look", lambda *_: os.abort())
        ANSWER(request, tell)


def rows(text):
    return dict(line.split(None, 1) for line in text.splitlines() if line and not line.startswith(" "))


@here
@pytest.mark.slow
def test_right_results_and_overflows(amp, path):
    code, out, _ = amp("convert", path(SMALL), "--check", "auto")
    assert code == 0 and rows(out)["check"].startswith("ok: 6 generated inputs, relative L2 error up to ")
    assert ", tolerance 0.01 (simulated" in rows(out)["check"]
    assert "; optional: `ampgraph verify " in rows(out)["next"]
    # an overflow is announced with its node and what to try, which mends it
    source = path(LARGE)
    code, out, _ = amp("convert", source, "--check", "auto", "--json")
    found = json.loads(out)["check"]
    assert code == 1 and found["outcome"] == "missed" and found["error"] is None
    assert found["first"] == "MatMul y" and not found["repair"]  # which nobody asked for
    assert (source.parent / "model.O2.onnx").exists()
    words = [word for option in found["suggestion"] for word in option.split()]
    code, out, _ = amp("convert", source, "--check", "auto", *words)
    assert code == 0 and "check" not in rows(out)  # nothing is low any more
    # that no guard fired is not said alone
    said = [rows(amp("convert", path(SMALL), "--dry-run", *words)[1])["float32"] for words in ([], ["--samples", "1"])]
    assert said == [
        "none; no risk of overflow or underflow found from operators and weights (--data DIR also measures values)",
        "no risk of overflow or underflow was found beside what was measured",
    ]


OVERFLOWING = (
    {**SMALL, "w2": np.full((8, 8), 3e4, np.float32)},
    PRODUCT.replace("y = MatMul(x, w)", "a = MatMul(x, w)  b = Sigmoid(a)  c = MatMul(b, w2)  y = MatMul(c, w2)"),
)  # weights and text; the second and third product overflow on all inputs


@here
@pytest.mark.slow
def test_an_output_that_is_nowhere_finite_is_announced(amp, path):
    """In no element, on no input: there is nothing to compare, and all of it is wrong."""
    source = path(*OVERFLOWING)
    code, out, _ = amp("convert", source, "--check", "auto", "--level", "O3", "--json")
    found = json.loads(out)["check"]
    assert code == 1 and found["outcome"] == "missed" and found["error"] is None


@here
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "require"])
def test_what_overflows_on_generated_inputs_is_guarded_by_their_ranges(amp, path, tmp_path, mode):
    """And nothing else: the file is that of a conversion with these ranges."""
    source, output = path(*OVERFLOWING), tmp_path / "low.onnx"
    code, out, _ = amp("convert", source, "-o", output, "--check", mode)
    said = rows(out)
    assert code == 0 and said["check"].startswith("ok: 6 generated inputs") and "pinned" not in said["check"]
    assert checked.GUARDED in out and "2 MatMul (range)" in said["products"]
    asked = ampgraph.convert(source, ranges=ampgraph.calibrate(source, count=12), range_margin=16.0, check="off")
    assert onnx.load(output).graph == asked.graph
    in_memory = ampgraph.convert(onnx.load(source), check=mode)
    assert in_memory.graph == asked.graph


COARSE = """agraph (float[4,8] x) => (float[4,8] y) {
  [large] a = Gemm(x, w, large)  [less] b = Sub(a, large)  c = Tanh(b)  d = MatMul(c, w)  e = Tanh(d)  y = MatMul(e, w)
}"""  # float16's step at 300 is a quarter of what is left
STEM = {"large": np.full(8, 300, np.float32), **SMALL}


@here
@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--check", "require"], ["--dtype", "bfloat16"]])
def test_the_first_products_are_held_where_that_makes_it_right(amp, path, words):
    source = path(STEM, COARSE)
    code, out, _ = amp("convert", source, "--check", "auto", *words)
    said = rows(out)
    assert code == 0 and said["check"].startswith("ok: ") and ", repaired: 3 pinned to float32 (large ...)" in out
    assert checked.HELD in out and said["products"].startswith("2 of 3 ")
    assert "by --fp32 large, yours or a check's (user)" in out and "asked for" not in said["float32"]
    if "--dtype" not in words:
        low = onnx.load(source.parent / "model.O2.onnx")
        assert low.graph == ampgraph.convert(source, check="off", fp32=["large", "less", "value:c"]).graph
        assert low.graph == ampgraph.convert(source, check="auto").graph


@here
@pytest.mark.slow
def test_a_stem_is_held_by_the_ranges_that_were_measured(path):
    """An iterator of samples is read once."""
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((4, 8)).astype(np.float32)} for _ in range(12)]
    low, summary = ampgraph.convert(path(STEM, COARSE), check="auto", data=iter(data), report=True)
    assert summary.check is not None and summary.check.ok and summary.check.pinned == ("large", "less", "value:c")
    assert summary.check.samples == check.SAMPLES and not summary.check.generated
    assert low.graph == ampgraph.convert(path(STEM, COARSE), data=data, check="off", fp32=summary.check.pinned).graph


@here
@pytest.mark.slow
@pytest.mark.parametrize("words", [["--level", "O3"], ["--low", "large"], ["--fp32", "op:Gemm", "--tolerance", "1e-9"]])
def test_a_stem_is_not_held_against_what_was_asked_or_where_it_is_not_enough(amp, path, words):
    code, out, _ = amp("convert", path(STEM, COARSE), "--check", "auto", *words)
    assert code == 1 and rows(out)["check"].startswith("MISSED") and "pinned" not in out


@here
@pytest.mark.slow
def test_a_plan_is_followed_though_it_overflows(path, tmp_path):
    source = path(*OVERFLOWING)
    plan = ampgraph.plan(source)
    with pytest.warns(ampgraph.PrecisionWarning, match="MISSED"):
        ampgraph.convert(source, plan=plan, output=tmp_path / "low.onnx", check="auto")


@here
@pytest.mark.slow
def test_require_leaves_no_file(amp, path):
    source = path(LARGE)
    code, out, _ = amp("convert", source, "--check", "require", "--plan-out", source.parent / "plan.json")
    assert code == 1 and rows(out)["result"] == "not written (--check require)"
    assert rows(out)["check"].startswith("MISSED: relative L2 error infinite at 'y' on ")
    assert [file.name for file in source.parent.iterdir()] == ["model.onnx"]
    assert amp("convert", path(SMALL), "--check", "require")[0] == 0
    assert (source.parent / "model.O2.onnx").exists()


@here
@pytest.mark.slow
def test_in_python_it_is_a_warning_or_with_require_an_error(path):
    source = path(LARGE)
    with pytest.warns(ampgraph.PrecisionWarning, match="MISSED") as caught:
        ampgraph.convert(source, output=source.parent / "low.onnx", check="auto")
    warning = caught[0].message
    assert isinstance(warning, ampgraph.PrecisionWarning) and warning.verdict.missed and caught[0].filename == __file__
    with pytest.raises(ampgraph.AmpError, match="AMP507"):
        ampgraph.convert(source, output=source.parent / "other.onnx", check="require")
    assert not (source.parent / "other.onnx").exists()
    with pytest.raises(ampgraph.AmpError, match="AMP507"):
        ampgraph.convert(parse(PRODUCT, LARGE), check="require")


@here
@pytest.mark.slow
def test_the_users_samples_are_what_it_runs_on(path):
    small = [{"x": np.full((2, 8), 1e-3, np.float32)}]
    source = path(LARGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ampgraph.convert(source, output=source.parent / "low.onnx", data=iter(small), check="require")


@here
@pytest.mark.slow
@pytest.mark.parametrize("words", [["--level", "O3"], ["--policy", "pytorch"]])
def test_levels_and_policies_without_guards_are_announced_too(amp, path, words):
    code, out, _ = amp("convert", path(LARGE), "--check", "auto", *words)
    assert code == 1 and rows(out)["check"].startswith("MISSED: relative L2 error infinite")


@pytest.mark.slow
@pytest.mark.mindspore
def test_mindir_is_checked_on_mindspore(amp, tmp_path):
    pytest.importorskip("mindspore")
    source, output = write(dense(), tmp_path / "dense.mindir"), tmp_path / "low.mindir"
    code, out, _ = amp("convert", source, "-o", output, "--check", "auto", "--tolerance", "1e-9")
    assert code == 1 and rows(out)["check"].startswith("MISSED: relative L2 error 0.00") and output.exists()


def test_mindir_is_not_checked_without_mindspore(amp, tmp_path, monkeypatch):
    find = check.importlib.util.find_spec
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None if name == "mindspore" else find(name))
    code, out, _ = amp("convert", MINDIR, "-o", tmp_path / "low.mindir", "--check", "auto")
    assert code == 0 and rows(out)["check"].startswith("not checked: mindspore is not installed")
    assert "pip install" in rows(out)["next"]


@pytest.mark.parametrize("mode", ["off", "dry", "O0"])
def test_nothing_to_check(amp, path, mode):
    words = {"off": ["--check", "off"], "dry": ["--dry-run"], "O0": ["--level", "O0"]}[mode]
    code, out, _ = amp("convert", path(LARGE), "--check", "auto", *words)
    assert code == 0 and "check" not in rows(out)


@here
@pytest.mark.slow
def test_the_environment_says_what_no_option_says(amp, path, monkeypatch):
    monkeypatch.setenv("AMPGRAPH_CHECK", "require")
    assert amp("convert", path(LARGE))[0] == 1
    assert amp("convert", path(LARGE), "--check", "of")[2].startswith("error[AMP301]: invalid value for --check: of")


@here
@pytest.mark.slow
def test_options_steer_the_check(amp, path):
    out = amp("convert", path(SMALL), "--check", "auto", "--dtype", "bfloat16", "--opset", "22", "--json")[1]
    found = json.loads(out)["check"]
    assert found["outcome"] == "ok" and found["tolerance"] == 5e-2 and found["error"] > 1e-3
    # tolerance
    code, out, _ = amp("convert", path({"w": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)}),
                       "--check", "auto", "--tolerance", "1e-7")  # fmt: skip
    assert code == 1 and "tolerance 1e-07" in rows(out)["check"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "end, said",
    [
        (dies, "the run crashed: Aborted"),
        (sleeps, "the run took more than 2 seconds"),
        (gives_up, "the run failed: no"),
    ],
)
def test_a_child_that_does_not_answer_is_never_ok(amp, path, monkeypatch, end, said):
    monkeypatch.setattr(check_run, "answer_request", end)
    if end is sleeps:
        monkeypatch.setattr(check, "SECONDS", 2)
    status, out, _ = amp("convert", path(SMALL), "--check", "auto")
    assert status == 0 and rows(out)["check"] == f"not checked: {said}"
    assert rows(out)["next"] == "ampgraph verify MODEL RESULT runs it without limits"
    assert amp("convert", path(SMALL), "--check", "require")[0] == 1


@pytest.mark.slow
def test_a_child_that_dies_looking_for_the_node_has_missed(path, monkeypatch):
    monkeypatch.setattr(check_run, "answer_request", dies_looking)
    source = path(LARGE)
    with pytest.warns(ampgraph.PrecisionWarning, match="MISSED"):
        ampgraph.convert(source, output=source.parent / "low.onnx", check="auto")


def test_what_was_seen_before_the_time_was_up_stands(path, tmp_path, monkeypatch):
    source = path(LARGE)
    ampgraph.convert(source, output=tmp_path / "low.onnx", check="off")
    for name, size in (("a", 1e-3), ("b", 1.0), ("c", 1.0)):
        np.savez(tmp_path / name, x=np.full((2, 8), size, np.float32))
    left = iter([judging.compare_outputs] * 2)
    monkeypatch.setattr(judging, "compare_outputs", lambda a, b: next(left)(a, b))
    asked = Request(str(source), str(tmp_path / "low.onnx"), str(tmp_path), 3, {}, 1e-2, 10)
    answers: list[CheckVerdict] = []
    with pytest.raises(StopIteration):
        check_run.check_files(asked, answers.append)
    assert [(found.outcome, found.samples, found.left) for found in answers] == [("ok", 1, 2), ("missed", 2, 1)]


def test_samples_that_there_was_no_time_for_are_counted(path, tmp_path):
    source = path(SMALL)
    ampgraph.convert(source, output=tmp_path / "low.onnx", check="off")
    for name in "abc":
        np.savez(tmp_path / name, x=np.ones((2, 8), np.float32))
    for data, count, said in (
        (str(tmp_path), 3, r"ok: 1 sample \(2 more would take too long\), relative L2 error up to 0,"),
        (
            None,
            6,
            r"ok: 1 generated input, relative L2 error up to [0-9.]+,",
        ),  # which tells nothing of what depends on it
    ):
        answers: list[CheckVerdict] = []
        check_run.check_files(
            Request(str(source), str(tmp_path / "low.onnx"), data, count, {}, 1e-2, 0), answers.append
        )
        assert re.match(said, str(answers[-1]))


@here
@pytest.mark.slow
def test_repair_holds_what_overflows_by_its_range(amp, path):
    source = path(LARGE)
    code, out, _ = amp("convert", source, "--check", "auto", "--repair", "--json")
    found = json.loads(out)
    assert code == 0 and found["nodes"] == {"float32": 1}
    # all of it in float32 is right, and no repair
    assert found["check"] is None and found["notes"][-1]["text"] == "none found: only all of it in float32 helps"
    said = rows(amp("convert", source, "--check", "auto", "--repair")[1])
    assert "check" not in said and said["repair"] == "none found: only all of it in float32 helps"


@here
@pytest.mark.slow
def test_repair_searches_where_no_range_says_it(amp, path, tmp_path):
    """Values far within the type, whose last digits are what the output is."""
    text = """agraph (float[4,64] x) => (float[4,64] z) {
        a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big)  c = MatMul(y, v)  z = Relu(c) }"""
    one = np.eye(64, dtype=np.float32)
    source = path({"w": one, "v": one, "big": np.full(64, 100, np.float32)}, text)
    missed = amp("convert", source, "--check", "auto")
    assert missed[0] == 1 and rows(missed[1])["check"].startswith("MISSED")
    samples = [{"x": np.ones((4, 64), np.float32) / 3}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ampgraph.convert(source, output=tmp_path / "low.onnx", data=iter(samples), check="require", repair=True)
    code, out, _ = amp("convert", source, "--check", "require", "--repair")
    assert code == 0 and (tmp_path / "model.O2.onnx").exists()
    assert "repaired: " in rows(out)["check"]


def test_names_and_vanishing_outputs():
    """As what `verify`, `tune` and the check print is: a pattern that `convert` takes."""
    text = """agraph (float[4,8] x) => (float[4,1] y) {
      a = MatMul(x, w)  i = ArgMax<axis = 1>(a)  y = GatherElements<axis = 1>(a, i) }"""
    plan = ampgraph.plan(parse(text, SMALL), fp32=["value:i"])
    assert {d.kind for d in plan.decisions if d.why.text == "--fp32 value:i"} == {"ArgMax"}
    low = [ampgraph.convert(parse(text, SMALL)), parse(text, SMALL)]
    found = ampgraph.verify(low[1], low[0], nodes=9)
    patterns = [pattern for suspect in found.growth for pattern in suspect.patterns]
    assert ampgraph.plan(low[1], fp32=patterns)
    # verify says that an output vanishes
    text = "agraph (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  y = MatMul(a, w) }"
    for size, said in (1e-4, True), (1e-1, False):
        model = parse(text, w=np.eye(8, dtype=np.float32) * np.float32(size))
        found = ampgraph.verify(model, ampgraph.convert(model), samples=2)
        assert found.ok and any("'y' vanishes in float16" in note for note in found.notes) == said


@here
@pytest.mark.slow
def test_what_comes_near_the_end_of_the_type_is_said(amp, path):
    source = path({"w": 8000 * np.eye(8, dtype=np.float32)})
    wide = "DOUBTFUL: 'y' is infinite on generated inputs 4 times as large as usual and may overflow on real ones"
    with pytest.warns(ampgraph.PrecisionWarning, match=wide):
        ampgraph.convert(source, output=source.parent / "low.onnx", check="require")
    assert (source.parent / "low.onnx").exists()
    found = json.loads(amp("convert", source, "--check", "auto", "--repair", "--json")[1])
    assert found["nodes"] == {"float32": 1}


@pytest.mark.parametrize(("samples", "near"), [(2, True), (12, False)])
def test_more_samples_may_come_nearer_to_the_end_of_the_type(path, tmp_path, samples, near):
    """Two tell less of what others reach than twelve do."""
    source = path({"w": 5500 * np.eye(8, dtype=np.float32)})
    ampgraph.convert(source, output=tmp_path / "low.onnx", check="off")
    pair = OnnxPair(str(source), str(tmp_path / "low.onnx"), "cpu")
    feeds = [{"x": np.full((1, 8), 3.3, np.float32)}] * samples
    assert bool(near_the_limit(pair, load_samples(pair.reference, feeds), 10)) == near


def test_rows_without_a_clear_class_say_little_of_others():
    """What is missed on samples of probabilities alone that are undecided is none where others are decided."""
    agreement, lost = Agreement("p"), np.array([[0.02, -0.02]], np.float32)
    metric = own_metric(True)
    for row in [[0.5, 0.5]] * 6 + [[0.99, 0.01]] * 2:
        want = np.array([row], np.float32)
        got = want + lost if row[0] == 0.5 else want
        agreement.add(compare_outputs(want, got), metric.judge({"p": want}, {"p": got})["p"])
    assert agreement.held.errors == [0.0, 0.0]
    agreement.parts, agreement.judged = agreement.parts[:7], agreement.judged[:7]  # one of seven is too few
    assert len(agreement.held.errors) == 7 and agreement.held.worst > 1e-2


@pytest.mark.parametrize(
    ("kind", "there", "got", "outcome"),
    [
        ("probabilities", 0.02, 0.0215, "doubtful"),
        ("probabilities", 0.9, 0.95, "missed"),
        ("probabilities", 0.02, math.inf, "missed"),
        ("numbers", 0.02, 0.0215, "missed"),
    ],
)
def test_probabilities_of_what_is_not_there_are_doubted_not_missed(kind, there, got, outcome):
    seen = Compared(own_metric(True, {"p": kind}), numbers_first=True)
    for _ in range(6):
        seen.add({"p": np.array([there, 0.01])}, {"p": np.array([got, 0.01])})
    assert seen.verdict(1e-2, generated=True).outcome == outcome


@pytest.mark.parametrize(
    ("usual", "far", "outcome"), [(1e-3, 5e-2, "ok"), (5e-2, 1e-3, "missed"), (1e-3, math.inf, "missed")]
)
def test_outputs_that_run_away_say_nothing_of_those_that_do_not(usual, far, outcome):
    """Neither by their errors nor by their size, against which the others are measured; what is not finite counts."""
    found = watched([usual, far, far] * 2, [1.0, 1e17, 1e6] * 2).verdict(1e-2, generated=True)
    assert found.outcome == outcome
    assert watched([5e-2] * 6, [1e6] * 6).verdict(1e-2, generated=True).missed  # as large in all: nothing runs away


@pytest.mark.parametrize(("body", "near"), [("y = MatMul(p, w)", True), ("m = MatMul(p, e)  y = Add(m, w)", False)])
def test_what_a_product_makes_may_come_near_below_zero_and_a_mask_is_large_there(path, tmp_path, body, near):
    weights = {"w": -5000 * np.eye(8, dtype=np.float32) * (1 if near else 4), "e": np.eye(8, dtype=np.float32)}
    source = path(weights, f"agraph (float[8,8] x) => (float[8,8] y) {{ p = Abs(x)  {body} }}")
    ampgraph.convert(source, output=tmp_path / "low.onnx", low=["op:*"], check="off")
    pair = OnnxPair(str(source), str(tmp_path / "low.onnx"), "cpu")
    found = near_the_limit(pair, load_samples(pair.reference, count=6), 10)
    assert found.startswith("'y' reaches ") if near else not found


def test_more_samples_are_looked_at_where_the_first_come_near(path, tmp_path, monkeypatch):
    seen = []

    def watched_ranges(*given, **more):
        seen.append(measured_ranges(*given, **more))
        return seen[-1]

    monkeypatch.setattr(check_run, "measured_ranges", watched_ranges)
    for size in (10.0, 3000.0):  # far off, and near
        source = path({"w": size * np.eye(8, dtype=np.float32)})
        ampgraph.convert(source, output=tmp_path / "low.onnx", check="off")
        pair = OnnxPair(str(source), str(tmp_path / "low.onnx"), "cpu")
        near_the_limit(pair, load_samples(pair.reference, count=6), 10)
    assert [ranges.samples for ranges in seen] == [2, 6]


@here
@pytest.mark.slow
def test_outputs_that_vanish_or_do_not_move(amp, path, tmp_path):
    source = path({"w": 1e-4 * np.eye(8, dtype=np.float32)}, PRODUCTS)
    np.savez(tmp_path / "x", x=np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8))
    said = "DOUBTFUL: 'y' vanishes in float16: "
    for words, end in ([], " on 6 generated inputs"), (["--data", tmp_path / "x.npz"], " on 1 sample"):
        code, out, _ = amp("convert", source, "--check", "auto", *words)
        assert code == 0 and rows(out)["check"].startswith(said) and rows(out)["check"].endswith(end)
        advice = "judge the result by its own task" if words else "may be wrong: convert again with --data"
        assert advice in rows(out)["next"]
    out = amp("convert", source, "--check", "auto", "--dtype", "bfloat16", "--opset", "22")[1]
    assert rows(out)["check"].startswith("ok: ")
    # A model that is low already: its second conversion is compared with itself, to the bit.
    amp("convert", path(SMALL), "-o", tmp_path / "low.onnx")
    out = amp("convert", tmp_path / "low.onnx", "-o", tmp_path / "again.onnx", "--check", "require")[1]
    assert "check" not in rows(out) or rows(out)["check"].endswith(
        "relative L2 error up to 0, tolerance 0.01 (" + SIMULATED + ")"
    )
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "low.onnx").read_bytes()


def test_what_outputs_of_mindir_are_is_known_by_their_number(tmp_path):
    ampgraph.convert(MINDIR, output=tmp_path / "low.mindir", check="off")
    assert list(MindirPair(MINDIR, tmp_path / "low.mindir", "cpu").roles()) == ["output0"]


@here
@pytest.mark.slow
def test_models_of_which_little_can_be_said(amp, path, monkeypatch):
    text = "agraph (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  r = RandomNormalLike(a)  y = Add(a, r) }"
    out = amp("convert", path(SMALL, text), "--check", "auto")[1]
    assert rows(out)["check"].startswith("not checked: the float32 model differs from itself by ")
    # one that differs from itself and draws nothing is not called random
    monkeypatch.setattr(check_run.CheckRun, "_error_against_itself", lambda self: 1.0)
    found = rows(amp("convert", path(LARGE), "--check", "auto")[1])
    assert found["check"].endswith(
        "and draws no random numbers: its generated inputs may have sizes that it does not take"
    )
    assert found["next"].startswith("give --data, or sizes with --dim")
    # outputs that nothing changes are not called right
    out = amp("convert", path({"w": np.zeros((8, 8), np.float32)}), "--check", "auto")[1]
    assert rows(out)["check"].startswith("not checked: the outputs do not depend on the generated inputs")


def test_what_passes_the_budget_is_not_checked(amp, path, monkeypatch):
    monkeypatch.setattr(check, "MEMORY", 100)
    source = path(SMALL)
    out = amp("convert", source, "--check", "auto")[1]
    assert rows(out)["check"].startswith("not checked: it would take 0.0 GB of memory")
    assert rows(out)["next"] == "--check-memory 1 allows it"
    assert rows(amp("convert", source, "--check", "auto", "--check-memory", "1")[1])["check"].startswith("ok")
    assert amp("convert", source, "--check-memory", "0")[2].startswith("error[AMP312]")


@here
def test_a_model_that_was_refused_before_is_called_yours(amp, path):
    text = "agraph (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  y = Softmax <foo = 1> (a) }"
    out = rows(amp("convert", path(SMALL, text), "--check", "auto")[1])
    said = out["check"]
    assert "your model, as it was before, does not run: ONNX Runtime refuses the model: " in said
    assert "Unrecognized attribute: foo" in said
    assert "onnx.checker.check_model may name the fault" in out["next"]


@pytest.mark.slow
def test_memory_that_a_child_may_not_take(path, tmp_path, monkeypatch):
    source = path(SMALL)
    ampgraph.convert(source, output=tmp_path / "low.onnx")
    asked = Request(str(source), str(tmp_path / "low.onnx"), None, 1, {"N": 1 << 24}, 1e-2, 10)
    monkeypatch.setattr(check, "SLACK", (1 << 30) - check.MEMORY)
    assert "memory" in str(check.ask(asked))


# In memory a conversion is checked as the command checks it.


@pytest.mark.usefixtures("check_here")
def test_in_memory_it_is_checked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMPGRAPH_CHECK")
    model = parse(TEXT, WEIGHTS)
    with pytest.warns(ampgraph.PrecisionWarning, match="MISSED: relative L2 error 0.6") as caught:
        low, report = ampgraph.convert(model, report=True)
    assert isinstance(low, onnx.ModelProto) and isinstance(report, ampgraph.Summary)
    assert report.check == verdict_of(caught[0]) and report.casts_after == sum(
        n.op_type == "Cast" for n in low.graph.node
    )
    with pytest.warns(ampgraph.PrecisionWarning) as caught:
        path, written = ampgraph.convert(model, output=tmp_path / "low.onnx", report=True)
    assert path == tmp_path / "low.onnx" and onnx.load(path) == low
    assert report.lines()[1] == "result      in memory" and str(path) in written.lines()[1]
    same = verdict_of(caught[0])
    assert (same.outcome, same.error, same.first) == (report.check.outcome, report.check.error, report.check.first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ampgraph.convert(model, check="off") == low
        right, report = ampgraph.convert(model, fp32=["value:b", "value:y"], report=True)
    assert report.check is None or report.check.ok
    with pytest.raises(AmpError, match="AMP507"):
        ampgraph.convert(model, check="require")


@pytest.mark.parametrize(("mode", "kept"), [("auto", True), ("require", False)])
def test_an_interrupt_keeps_the_file(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, kept: bool
) -> None:
    def interrupted(*_: object) -> CheckVerdict:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "ask", interrupted)
    for repair in (False, True):
        place = tmp_path / f"{repair}.onnx"
        with pytest.raises(KeyboardInterrupt):
            ampgraph.convert(files[0], output=place, check=mode, repair=repair)
        assert place.is_file() == kept
        assert not kept or place.read_bytes() == Path(files[1]).read_bytes()


# What the check says that mends a model was tried; what was not is a suggestion; and it ends in its time.

TEXT = "agraph (float[4,64] x) => (float[4,64] y) { a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big) }"
WEIGHTS = {"w": np.eye(64, dtype=np.float32), "big": np.full(64, 300, np.float32)}


@pytest.fixture
def files(path: Callable[..., Path], tmp_path: Path) -> tuple[str, str]:
    """A model whose last digits are what it gives, and what was made of it."""
    source, low = path(WEIGHTS, TEXT), tmp_path / "low.onnx"
    ampgraph.convert(source, output=low, check="off")
    return str(source), str(low)


def verdict(files: tuple[str, str], recipe: Recipe | None, **more: Any) -> CheckVerdict:
    """The last answer of the check, in this process."""
    given: list[CheckVerdict] = []
    check_run.check_files(Request(*files, None, 3, {}, 1e-2, 10, recipe=recipe, **more), given.append)
    return given[-1]


@pytest.mark.parametrize("metric", [None, "l2"])
def test_a_repair_was_tried(files: tuple[str, str], metric: str | None) -> None:
    found = verdict(files, Recipe(), metric=metric)
    assert found.missed and found.repair and not found.suggestion
    assert found.repaired_error is not None and found.repaired_error <= 1e-2
    assert str(found).endswith(f"convert again with {' '.join(found.repair)} (tried: error {found.repaired_error:.2g})")
    ampgraph.convert(files[0], output=files[1], fp32=found.mended_by, check="off")
    assert verdict(files, None, metric=metric).ok


def test_what_was_not_tried_is_a_suggestion(files: tuple[str, str]) -> None:
    found = verdict(files, None)
    assert found.missed and not found.repair and not found.unrepaired
    assert "convert again with --repair, which searches what must be float32, or try --fp32 " in str(found)
    # where the time is up nothing is called a repair
    found = verdict(files, Recipe(), whole=0.0)
    assert found.missed and not found.repair and "the time is up; try --fp32 " in str(found)
    assert "--repair" not in str(found)


@pytest.mark.filterwarnings("ignore::ampgraph.PrecisionWarning")
def test_a_passes_work_is_not_tried(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is asked for a repair last, behind a first verdict and one with ranges, and by a recipe alone."""
    asked: list[Recipe | None] = []

    def ask(request: Request, *_: object) -> CheckVerdict:
        asked.append(request.recipe)
        return CheckVerdict("missed", 1.0, 1e-2, samples=6)

    monkeypatch.setattr(check, "ask", ask)
    for passes in (), (lambda graph: Change(0),):
        ampgraph.convert(files[0], output=files[1], passes=passes, check="auto", repair=True)
    assert asked == [None, None, Recipe(), None, None, None]
    # nor is anything where nobody asks for a repair
    ampgraph.convert(files[0], output=files[1], check="auto")
    assert asked[6:] == [None]


@pytest.mark.filterwarnings("ignore::ampgraph.PrecisionWarning")
@pytest.mark.parametrize(("seconds", "wanted"), [(1.0, [True, False]), (100.0, [True])])
def test_a_repair_by_ranges_ends_with_the_time_of_all_ways(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, seconds: float, wanted: list[bool]
) -> None:
    """It is not tried where the run of a sample would not end by then."""
    endless: list[bool] = []

    def watched(job: Job, *more: Any) -> Conversion:
        endless.append(job.measuring.until > time.monotonic() + check.SECONDS)
        return convert_in_memory(job, *more)

    monkeypatch.setattr(checked, "convert_in_memory", watched)
    monkeypatch.setattr(check, "ask", lambda *_: CheckVerdict("missed", 1.0, 1e-2, samples=6, seconds=seconds))
    ampgraph.convert(files[0], output=files[1], check="auto", repair=True)
    assert endless == wanted


def test_no_sample_but_the_first_is_measured_behind_the_time(files: tuple[str, str]) -> None:
    graph = OnnxGraph.load(files[0])
    for until, samples in (0.0, 1), (math.inf, 6):
        options = Measuring(samples=6, until=until).measured_options(resolve(Recipe(), "ONNX"), graph)
        assert options.ranges is not None and options.ranges.samples == samples


@pytest.mark.filterwarnings("ignore::ampgraph.PrecisionWarning")
def test_tune_is_held_to_the_tolerance_of_a_whole_output(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the part which misses is three times as large."""
    held: list[float] = []
    missed = CheckVerdict("missed", 0.1, 3e-2, samples=1, exceeded=1)
    monkeypatch.setattr(check, "ask", lambda *_: missed)
    monkeypatch.setattr(Bench, "search", lambda _, tolerance: held.append(tolerance))
    ampgraph.convert(files[0], output=files[1], check="auto", repair=True)
    assert held == [1e-2]


@pytest.mark.parametrize("late", [False, True])
def test_a_search_that_ends_by_its_time_alone_repairs_nothing(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """All in float32 is what `tune` finds for a tolerance of nearly 0, and all that it knows where the time is up."""
    if late:
        monkeypatch.setattr(Bench, "late", lambda _: True)
    missed = convert_in_memory(Job(files[0], Recipe()), lambda *_: None)
    verdict = CheckVerdict("missed", 0.1, 1e-9, samples=1, exceeded=1)
    found = checked.repair_by_search(replace(missed, verdict=verdict), verdict, math.inf, lambda *_: None)
    assert (found is None) == late


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_repair_takes_what_the_check_finds_where_tune_finds_nothing(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "repair_by_search", lambda *words: None)
    with pytest.warns(ampgraph.PrecisionWarning, match="MISSED"):
        ampgraph.convert(files[0], output=files[1], check="auto")
    ampgraph.convert(files[0], output=files[1], check="require", repair=True)
    assert ampgraph.verify(*files, nodes=0).ok


@pytest.mark.slow
def test_a_check_says_how_far_it_is(path, tmp_path):
    """From its own process, while that runs."""
    heard: list[tuple[str, int, int]] = []
    for source, words in ((SMALL, {"end of float16"}), (LARGE, {"looking at nodes", "run 1 of at most"})):
        heard.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ampgraph.convert(path(source), check="auto", repair=True, progress=lambda *far: heard.append(far))
        assert [far for far in heard if far[0] == "checking"][1:7] == [("checking", done, 6) for done in range(6)]
        assert words == {word for word in words if any(word in what for what, _, _ in heard)}


# Data never makes a result worse than none: what was measured is not used where it takes a guard's place wrongly.

POWER = "agraph (float[4,64] x) => (float[M,N] y) { h = MatMul(x, w)  s = ReduceSumSquare <axes = [-1]> (h)  BODY }"


@here
@pytest.mark.slow
@pytest.mark.parametrize("body", ["y = Mul(s, many)", "q = Sqrt(s)  y = Div(h, q)"])
@pytest.mark.parametrize("size", [1e-3, 1e-4, 3e-5])
def test_data_never_makes_it_worse(amp, path, tmp_path, size, body):
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((64, 64)).astype(np.float32) * size / 8, "many": np.array(1e4, np.float32)}
    source = path({name: np.float32(value) for name, value in weights.items()}, POWER.replace("BODY", body))
    data = [{"x": rng.standard_normal((4, 64)).astype(np.float32)} for _ in range(3)]
    for number, feeds in enumerate(data):
        np.savez(tmp_path / f"{number}.npz", **feeds)
    low, summary = ampgraph.convert(source, data=data, check="auto", report=True)
    assert summary.check is not None and summary.check.ok and ampgraph.verify(source, low, data=data).ok
    said = [note["text"] for note in summary.notes if "that were measured are not used" in note["text"]]
    assert bool(said) == (size < 1e-3 and "Mul" in body)
    if said:  # the file is that without data, and what was measured is there all the same
        assert low.graph == ampgraph.convert(source, check="off").graph
        words = ("--data", tmp_path, "--check", "auto", "-o", tmp_path / "low.onnx")
        code, out, _ = amp("convert", source, *words, "--ranges-out", tmp_path / "ranges.json")
        assert code == 0 and "that were measured are not used: with them the result has an error of" in out
        assert onnx.load(tmp_path / "low.onnx").graph == low.graph and (tmp_path / "ranges.json").exists()
        steered = ampgraph.convert(source, ranges=str(tmp_path / "ranges.json"), check="off")
        assert not ampgraph.verify(source, steered, data=data, nodes=0).ok


# What errors over samples come to: half of generated ones miss, fewer are doubtful, the user's are held to p90.


def watched(errors, sizes=None, generated=True, **others):
    """What the check sees of an output with such errors, at such sizes; ``others``: what it sees of other outputs."""
    seen = Compared(own_metric(generated), numbers_first=True)
    for error, size in zip(errors, sizes or [1.0] * len(errors), strict=True):
        want = np.full(4, size)
        got = np.full(4, np.inf) if math.isinf(error) else want * (1 + error)
        seen.add({"y": want, **others}, {"y": got, **others})
    return seen


@pytest.mark.parametrize(
    ("errors", "outcome", "exceeded"),
    [
        ([1e-3] * 6, "ok", 0),
        ([1e-3] * 5 + [1.5e-2], "ok", 1),  # one that is not far off
        ([1e-3] * 5 + [5e-2], "doubtful", 1),
        ([1e-3] * 4 + [1.5e-2] * 2, "doubtful", 2),
        ([1e-3] * 3 + [1.5e-2] * 3, "missed", 3),
        ([1e-3] * 22 + [1.5e-2] * 2, "ok", 2),
        ([1e-3] * 21 + [1.5e-2] * 3, "ok", 3),
        ([1e-3] * 20 + [1.5e-2] * 4, "doubtful", 4),  # more than one of eight
        ([1e-3] * 23 + [5e-2], "ok", 1),
        ([1e-3] * 22 + [5e-2] * 2, "doubtful", 2),
        ([4e-3] * 21 + [8e-3] * 3, "ok", 0),
        ([4e-3] * 20 + [8e-3] * 4, "doubtful", 0),  # close: real ones may miss
        ([1e-3] * 5 + [math.inf], "missed", 1),  # what is not finite
        ([1.5e-2], "doubtful", 1),  # one alone, as there was no time for more
        ([1.5e-2] * 2, "missed", 2),
        ([5e-2], "missed", 1),
    ],
)
def test_generated_inputs(errors, outcome, exceeded):
    verdict = watched(errors).verdict(1e-2, generated=True)
    assert (verdict.outcome, verdict.exceeded) == (outcome, exceeded)


def test_generated_inputs_on_which_the_reference_moves_can_be_doubted_alone() -> None:
    """Where rounding its inputs changes it as much, no conversion can do better. What is infinite is missed as ever."""
    outcome = lambda errors, moved, generated=True: watched(errors).verdict(1e-2, generated, moved).outcome  # noqa: E731
    wrong = [1.5e-2] * 4 + [1e-3] * 2
    assert [outcome(wrong, moved) for moved in ((), (4, 5), (0,), (0, 1))] == ["missed", "missed", "missed", "doubtful"]
    assert outcome(wrong, range(6), generated=False) == "missed" == outcome([math.inf] * 6, range(6))
    assert outcome([1e-3] * 6, range(6)) == "ok"


def test_how_many_meet_the_error_is_said() -> None:
    """Of ten samples or more the 90th percentile is said; the others may be above the tolerance."""
    few, many = (watched([1e-3] * n + [1.5e-2]).verdict(1e-2, generated=True).finding for n in (5, 23))
    above = "tolerance 0.01; 1 of {} above it, which passes: up to 1 in 8 may be (simulated"
    assert few.startswith(f"ok: 6 generated inputs, relative L2 error up to 0.015, {above.format(6)}")
    said = "relative L2 error up to 0.001 on 22 and 0.015 on the worst of the other 2, "
    assert many.startswith(f"ok: 24 generated inputs, {said}{above.format(24)}")
    ten = watched([1e-3] * 9 + [2e-3]).verdict(1e-2, generated=True).finding
    assert "10 generated inputs, relative L2 error up to 0.001 on 9 and 0.002 on the other, tolerance 0.01 (" in ten
    far, close = (watched(errors).verdict(1e-2, generated=True).finding for errors in (
        [1e-3] * 22 + [5e-2] * 2, [1e-3] * 20 + [8e-3] * 3 + [1.5e-2],
    ))  # fmt: skip
    assert "2 of 24 above it by far" in far and "1 of 24 above it, others close to it" in close


BESIDE, TIED = (
    "relative to answers near zero, which real inputs may give",
    "where two classes are equally likely, which real inputs may give",
)


@pytest.mark.parametrize(
    ("errors", "sizes", "critical"),
    [
        ([1e-3] * 23 + [1.5e-2], [1.0] * 23 + [0.2], 1.5e-2),  # one that misses
        ([2e-3] * 23 + [1e-4], [1.0] * 23 + [0.12], 2e-3 / 0.12),  # one that might: by the usual difference
        ([2e-3] * 23 + [1e-4], [1.0] * 23 + [0.01], 2e-3 / 0.1),  # no nearer to zero than float16 knows the others
        ([2e-3] * 24, [0.12] + [1.0] * 11 + [5.0] * 12, 2e-3 / 0.3),  # by what is off below the scale, 3
        ([2e-3] * 24, [1.0] * 24, 2e-3),
        ([2e-3] * 5, [1.0] * 4 + [0.7], 0.0),  # too few
    ],
)
def test_what_would_miss_beside_an_answer_near_zero_is_doubtful(errors: Any, sizes: Any, critical: float) -> None:
    verdict = watched(errors, sizes).verdict(1e-2, generated=True)
    assert verdict.critical == pytest.approx(critical)
    assert verdict.is_critical == (critical > 1e-2) == verdict.doubtful == (BESIDE in verdict.finding)
    assert watched(errors, sizes).unsure(1e-2) == (critical > 1e-2)
    real = watched(errors, sizes, generated=False).verdict(1e-2, generated=False)
    assert real.critical == 0.0 and BESIDE not in real.finding


def rows_of(scores: Any) -> Any:
    """Probabilities of two classes from the difference of their scores."""
    likely = 1 / (1 + np.exp(-np.array(scores, np.float64)))
    return np.stack([likely, 1 - likely], -1).astype(np.float32)


@pytest.mark.parametrize("moved", [0.004, 0.05])
@pytest.mark.parametrize("alone", [False, True])
def test_what_would_miss_at_a_tie_of_classes_is_doubtful(moved: float, alone: bool) -> None:
    """Probabilities near 0 and 1 hide that scores have moved; of those that float16 does not tell nothing is known."""
    turn = (lambda scores: rows_of(scores)[:, 1]) if alone else rows_of
    seen = Compared(own_metric(True, {"y": PROBABILITIES} if alone else {}), numbers_first=True)
    for score in (5.0, 6.0, 7.0, 8.0, 9.0, 20.0):
        seen.add({"y": turn([score])}, {"y": turn([score + moved])})
    verdict = seen.verdict(1e-2, generated=True)
    assert verdict.critical / (verdict.tolerance or 0) == pytest.approx(moved / 2 / 1e-2, rel=0.05)
    assert verdict.doubtful == (moved > 0.02) == (TIED in verdict.finding)
    many = own_metric(True, {"y": PROBABILITIES} if alone else {}).judge(
        *({"y": np.concatenate([turn([score])] * 100)} for score in (6.0, 6.0 + moved))
    )
    # of a hundred rows one is at a tie, of a map of events more
    assert many["y"].tie == pytest.approx(moved / (4 if alone else 20), rel=0.05)
    tied = own_metric(False).judge({"y": turn([0.0])}, {"y": turn([moved])})["y"].error()
    assert tied == pytest.approx(moved / 2, rel=0.05)


def test_a_map_of_events_is_doubted_by_what_is_on_it() -> None:
    """Where nothing is on a generated picture, what is off says little of pictures with something to find."""
    seen = Compared(own_metric(True, {"y": PROBABILITIES}), numbers_first=True)
    for found, moved in (1.0, 0.1), (1.0, 0.1), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0):
        scores = np.full((1, 1, 8, 8), -7.0)
        scores[..., :4] += 16 * found
        want, got = (rows_of(x)[..., 0] for x in (scores, scores + moved))
        seen.add({"y": want}, {"y": got})
    assert seen.verdict(1e-2, generated=True).critical == pytest.approx(EDGES * 0.1, rel=0.1)


def test_what_samples_are_held_to():
    verdict = watched([7e-3] * 6).verdict(1e-2, generated=True)
    said = "DOUBTFUL: relative L2 error 0.007 at 'y' on 6 generated inputs, tolerance 0.01: real ones may miss it"
    assert verdict.finding == said and str(verdict).startswith(f"{said}; convert again with --data DIR")
    # more samples are wanted where the first come close
    for errors, wanted in ([1e-3] * 6, False), ([1e-3] * 5 + [3e-3], True), ([1.5e-2] * 6, False):
        assert watched(errors).unsure(1e-2) == wanted
    # and where about half miss, which may be by chance
    for errors, wanted in ([1e-3] * 2 + [1.5e-2] * 4, True), ([1e-3] + [1.5e-2] * 5, False), ([math.inf] * 3, False):
        assert watched(errors).unsure(1e-2) == wanted
    # an output that says nothing is not judged
    mute = np.full(3, np.nan)
    assert watched([1e-3] * 3, mute=mute).verdict(1e-2, generated=True).outcome == "ok"
    silent = Compared(own_metric(True), numbers_first=True)
    silent.add({"mute": mute}, {"mute": mute})
    assert silent.verdict(1e-2, generated=True).outcome == "not checked"
    # a generated sample in which the output nearly vanishes is measured against the others
    sizes = [1.0] * 5 + [0.01]
    verdict = watched([1e-3] * 5 + [0.5], sizes).verdict(1e-2, generated=True)
    assert verdict.outcome == "doubtful"  # 5e-3 of 0.1: not 0.5, and not nothing
    assert watched([1e-3] * 5 + [0.05], sizes).verdict(1e-2, generated=True).outcome == "ok"
    assert watched([1e-3] * 5 + [0.05], sizes, generated=False).verdict(1e-2, generated=False).outcome == "missed"


@here
@pytest.mark.parametrize(("kind", "outcome"), [("Sqrt", "not checked"), ("Exp", "ok")])
def test_outputs_that_float32_itself_makes_no_numbers_of_prove_nothing(kind, outcome):
    """NaN beside NaN is no agreement: a recurrent model whose states were drawn passed with an error of 0."""
    outputs = "float[1, 1] a, float[1, 1] b, float[4, 8] y"
    body = f"y = MatMul (x, w) m = ReduceMin (x) a = {kind} (m) b = {kind} (m)"
    model = parse(f"g (float[4, 8] x) => ({outputs}) {{ {body} }}", w=(8, 8))
    _, report = ampgraph.convert(model, check="auto", report=True)
    assert report.check is not None and report.check.outcome == outcome
    assert outcome == "ok" or "not finite on most of the generated inputs, at 'a' and 1 more" in str(report.check)


@pytest.mark.parametrize(("worst", "outcome"), [(9e-3, "ok"), (1.5e-2, "missed")])
def test_one_of_eight_of_the_users_decides(worst, outcome):
    assert watched([1e-3] * 7 + [worst], generated=False).verdict(1e-2, generated=False).outcome == outcome


@pytest.mark.parametrize(
    ("errors", "sizes", "said"),
    [
        ([0.97] * 6, [2e-8] * 6, "97% of it is lost, which is 2e-08 at most"),
        ([1.0, 0.5, 0.2, 0.1, 1.0, 1.0], [1e-6] * 6, "of it is lost"),
        ([1.0] * 5 + [1e-3], [2e-8] * 5 + [1.0], ""),  # small in some samples
        ([2e-2] * 6, [2e-5] * 6, ""),  # the float16 numbers there are, as everywhere
    ],
)
def test_an_output_that_float16_does_not_reach(errors, sizes, said):
    seen = watched(errors, sizes)
    assert seen.verdict(1e-2, generated=True).outcome == "ok"  # the floor says so
    assert said in vanishing_output(seen.outputs, {}) and bool(said) == bool(vanishing_output(seen.outputs, {}))
    assert not vanishing_output(
        seen.outputs, {"y": "probabilities"}
    )  # probabilities may be as near to zero as they like


# A model that its inputs' own rounding takes beyond the tolerance is named as such, with how much that is.

FOLDS = 8  # of the tent map, each of which doubles a difference
FOLD = "b{0} = Abs(a{0})  c{0} = Mul(b{0}, two)  a{1} = Sub(one, c{0})"
CHAOTIC = f"""
agraph (float[4,8] x) => (float[4,8] a{FOLDS}) {{
  p = MatMul(x, w)
  a0 = Tanh(p)
  {"  ".join(FOLD.format(i, i + 1) for i in range(FOLDS))}
}}"""
CHAOTIC_WEIGHTS = {"w": np.eye(8, dtype=np.float32), "one": np.float32(1), "two": np.float32(2)}
SAID = r"the model is chaotic in itself: rounding its inputs alone changes it by ([0-9.]+)"


@pytest.fixture
def chaotic_path(path):
    return path(CHAOTIC_WEIGHTS, CHAOTIC)


def verdict_of(caught: warnings.WarningMessage) -> CheckVerdict:
    assert isinstance(caught.message, ampgraph.PrecisionWarning)
    return caught.message.verdict


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
@pytest.mark.parametrize("data", [False, True])
def test_the_check_names_it(chaotic_path, data):
    """Generated inputs on which the model itself moves say nothing of the conversion; samples of the user's count."""
    options = {}
    if data:
        options["data"] = chaotic_path.parent / "x.npz"
        np.savez(options["data"], x=np.random.default_rng(0).normal(size=(8, 4, 8)).astype(np.float32))
    with pytest.warns(ampgraph.PrecisionWarning, match=SAID) as caught:
        ampgraph.convert(chaotic_path, output=chaotic_path.parent / "low.onnx", check="auto", **options)
    verdict = verdict_of(caught[0])
    assert verdict.missed == data == (not verdict.doubtful)
    assert verdict.sensitivity is not None and 0.02 < verdict.sensitivity < 0.5


def test_verify_and_tune_name_it(chaotic_path, monkeypatch):
    low = ampgraph.convert(chaotic_path)
    found = ampgraph.verify(chaotic_path, low)  # what a repair mends is not called chaotic
    assert (found.repair is None) == any(re.search(SAID, note) for note in found.notes)
    monkeypatch.setattr("ampgraph.api.verify.SECONDS", -60.0)
    notes = [note for note in ampgraph.verify(chaotic_path, low).notes if re.search(SAID, note)]
    assert len(notes) == 1 and f"at 'a{FOLDS}', whatever is float32 inside; judge it by its task" in notes[0]
    assert not any(re.search(SAID, note) for note in ampgraph.verify(chaotic_path, low, tolerance=0.9).notes)
    # tune names it where nothing short of all in float32 meets the tolerance
    tuned = ampgraph.tune(chaotic_path, samples=2)
    chosen = next(point for point in tuned.candidates if point.chosen)
    whole = next(point for point in tuned.candidates if point.step == "all in float32")
    assert tuned.patterns and any(re.search(SAID, n) for n in tuned.notes) == (chosen.promoted == whole.promoted)


@pytest.mark.parametrize("times", [1, 3])
def test_what_a_model_moves_by_is_said_in_units_of_the_tolerance(times):
    """Which is three times as large where a part of an output decides; what the whole is held to is not."""
    close = 1 + 2.0**-12  # float16 rounds it to one
    run = lambda feeds: {"y": np.full(4, 1 + 0.02 * (feeds["x"][0] - 1) / (close - 1))}  # noqa: E731
    drawn = Samples(True, (), 6, lambda: iter([{"x": np.full(1, close, np.float32)}] * 6))
    pair: Any = SimpleNamespace(low=("float16",), run_reference=run)
    request, seen = Request("", "", None, 6, {}, 1e-2, 10.0), watched([1.5e-2] * 6)
    verdict = replace(seen.verdict(1e-2, generated=True), tolerance=times * 1e-2)
    found = CheckRun(request, pair, drawn, "", print, math.inf, seen, silent, verdict)._fields_on_chaos()
    assert found == {"sensitivity": pytest.approx(times * 0.02, rel=0.05), "outcome": "doubtful"}


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_what_is_wrong_by_its_nodes_alone_is_not_chaotic(path, tmp_path):
    source = path({**WEIGHTS, "big": np.full(64, 100, np.float32)}, TEXT)
    with pytest.warns(ampgraph.PrecisionWarning) as caught:
        ampgraph.convert(source, output=tmp_path / "low.onnx", check="auto")
    assert verdict_of(caught[0]).sensitivity is None


@here
@pytest.mark.slow
def test_an_operator_that_onnx_does_not_have_is_named(amp, path):
    """Nothing is lowered, and yet the runtime is asked: a name of another domain may be known where the model runs."""
    misspelt = path(SMALL)
    model = onnx.load(misspelt)
    model.graph.node[0].op_type = "MatMull"
    onnx.save(model, misspelt)
    code, out, _ = amp("convert", misspelt, "--check", "auto")
    said = rows(out)
    assert code == 0 and said["check"].startswith("not checked: your model, as it was before, does not run: ")
    assert "has no operator MatMull: did you mean 'MatMul'?" in said["next"]
    output = misspelt.parent / "low.onnx"
    assert amp("convert", misspelt, "--check", "require", "-o", output)[0] == 1 and not output.exists()
    model.graph.node[0].domain = "of.mine"
    model.opset_import.add(domain="of.mine", version=1)
    onnx.save(model, misspelt)
    out = amp("convert", misspelt, "--check", "auto")[1]
    assert "check" not in rows(out) and "no schema is known for of.mine::MatMull (unknown)" in out
