"""The check with which a conversion ends: what it says, what it leaves, and that nothing in its child goes for ok."""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import ampgraph
from ampgraph.api import check, check_run
from ampgraph.api.check_request import Request
from ampgraph.api.near_limit import near_the_limit
from ampgraph.api.pairs import MindirPair, OnnxPair
from ampgraph.core.verdict import CheckVerdict
from ampgraph.numerics.inputs.samples import load_samples
from formats.mindir.build import dense, write
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


@pytest.mark.slow
def test_a_right_result_is_said_to_be(amp, path):
    code, out, _ = amp("convert", path(SMALL), "--check", "auto")
    assert code == 0 and rows(out)["check"].startswith("ok ")
    assert rows(out)["check"].endswith("on 6 generated inputs (rounding of stored values)")


@here
@pytest.mark.slow
def test_an_output_that_is_nowhere_finite_is_announced(amp, path):
    """In no element, on no input: there is nothing to compare, and all of it is wrong."""
    text = PRODUCT.replace("y = MatMul(x, w)", "a = MatMul(x, w)  b = Sigmoid(a)  c = MatMul(b, w2)  y = MatMul(c, w2)")
    source = path({**SMALL, "w2": np.full((8, 8), 3e4, np.float32)}, text)
    code, out, _ = amp("convert", source, "--check", "auto", "--json")
    found = json.loads(out)["check"]
    assert code == 1 and found["outcome"] == "missed" and found["error"] is None


@pytest.mark.slow
def test_an_overflow_is_announced_with_its_node_and_a_repair_that_mends_it(amp, path):
    source = path(LARGE)
    code, out, _ = amp("convert", source, "--check", "auto", "--json")
    found = json.loads(out)["check"]
    assert code == 1 and found["outcome"] == "missed" and found["error"] is None
    assert found["first"] == "MatMul y"
    assert (source.parent / "model.O2.onnx").exists()
    words = [word for option in found["repair"] for word in option.split()]
    code, out, _ = amp("convert", source, "--check", "auto", *words)
    assert code == 0 and "check" not in rows(out)  # nothing is low any more


@here
@pytest.mark.slow
def test_require_leaves_no_file(amp, path):
    source = path(LARGE)
    code, out, _ = amp("convert", source, "--check", "require", "--plan-out", source.parent / "plan.json")
    assert code == 1 and rows(out)["result"] == "not written (--check require)"
    assert rows(out)["check"].startswith("MISSED: error infinite at 'y' on ")
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
    assert code == 1 and rows(out)["check"].startswith("MISSED: error infinite")


@pytest.mark.slow
@pytest.mark.mindspore
def test_mindir_is_checked_on_mindspore(amp, tmp_path):
    pytest.importorskip("mindspore")
    source, output = write(dense(), tmp_path / "dense.mindir"), tmp_path / "low.mindir"
    code, out, _ = amp("convert", source, "-o", output, "--check", "auto", "--tolerance", "1e-9")
    assert code == 1 and rows(out)["check"].startswith("MISSED: error 0.00") and output.exists()


def test_mindir_is_not_checked_without_mindspore(amp, tmp_path, monkeypatch):
    find = check.importlib.util.find_spec
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None if name == "mindspore" else find(name))
    code, out, _ = amp("convert", MINDIR, "-o", tmp_path / "low.mindir", "--check", "auto")
    assert code == 0 and rows(out)["check"] == "not checked: mindspore is not installed"


def test_that_no_guard_fired_is_not_said_alone(amp, path):
    said = [rows(amp("convert", path(SMALL), "--dry-run", *words)[1])["guards"] for words in ([], ["--samples", "1"])]
    assert said == ["none fired; ranges were not measured", "none fired beside what was measured"]


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
    assert amp("convert", path(LARGE), "--check", "of")[2].startswith("error[AMP301]: --check of is none")


@here
@pytest.mark.slow
def test_bfloat16_has_a_tolerance_of_its_own(amp, path):
    out = amp("convert", path(SMALL), "--check", "auto", "--dtype", "bfloat16", "--opset", "22", "--json")[1]
    found = json.loads(out)["check"]
    assert found["outcome"] == "ok" and found["tolerance"] == 5e-2 and found["error"] > 1e-3


@here
@pytest.mark.slow
def test_tolerance(amp, path):
    code, out, _ = amp("convert", path({"w": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)}),
                       "--check", "auto", "--tolerance", "1e-7")  # fmt: skip
    assert code == 1 and "tolerance 1e-07" in rows(out)["check"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "end, said",
    [
        (dies, "not checked: the run crashed: Aborted"),
        (sleeps, "not checked: the run took more than 2 seconds"),
        (gives_up, "not checked: the run failed: no"),
    ],
)
def test_a_child_that_does_not_answer_is_never_ok(amp, path, monkeypatch, end, said):
    monkeypatch.setattr(check_run, "answer_request", end)
    if end is sleeps:
        monkeypatch.setattr(check, "SECONDS", 2)
    status, out, _ = amp("convert", path(SMALL), "--check", "auto")
    assert status == 0 and rows(out)["check"] == said.removeprefix("check ")
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
    left = iter([check_run.apart] * 2)
    monkeypatch.setattr(check_run, "apart", lambda a, b: next(left)(a, b))
    asked = Request(str(source), str(tmp_path / "low.onnx"), str(tmp_path), 3, {}, 1e-2, 10)
    answers: list[CheckVerdict] = []
    with pytest.raises(StopIteration):
        check_run.run(asked, answers.append)
    assert [(found.outcome, found.samples, found.left) for found in answers] == [("ok", 1, 2), ("missed", 2, 1)]


def test_samples_that_there_was_no_time_for_are_counted(path, tmp_path):
    source = path(SMALL)
    ampgraph.convert(source, output=tmp_path / "low.onnx", check="off")
    for name in "abc":
        np.savez(tmp_path / name, x=np.ones((2, 8), np.float32))
    asked = Request(str(source), str(tmp_path / "low.onnx"), str(tmp_path), 3, {}, 1e-2, 0)
    answers: list[CheckVerdict] = []
    check_run.run(asked, answers.append)
    assert str(answers[-1]).startswith("ok 0 on 1 sample (2 more would take too long)")


@here
@pytest.mark.slow
def test_repair_holds_what_overflows_by_its_range(amp, path):
    source = path(LARGE)
    code, out, _ = amp("convert", source, "--check", "auto", "--repair", "--json")
    found = json.loads(out)
    assert code == 0 and found["nodes"] == {"float32": 1}


@here
@pytest.mark.slow
def test_repair_searches_where_no_range_says_it(amp, tmp_path):
    """Values far within the type, whose last digits are what the output is."""
    text = "agraph (float[4,64] x) => (float[4,64] y) { a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big) }"
    weights = {"w": np.eye(64, dtype=np.float32), "big": np.full(64, 100, np.float32)}
    source = tmp_path / "model.onnx"
    source.write_bytes(parse(text, weights).SerializeToString())
    missed = amp("convert", source, "--check", "auto")
    assert missed[0] == 1 and rows(missed[1])["check"].startswith("MISSED")
    samples = [{"x": np.ones((4, 64), np.float32) / 3}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ampgraph.convert(source, output=tmp_path / "low.onnx", data=iter(samples), check="require", repair=True)
    code, out, _ = amp("convert", source, "--check", "require", "--repair")
    assert code == 0 and (tmp_path / "model.O2.onnx").exists()
    assert "repaired: " in rows(out)["check"]


def test_a_node_without_a_name_that_makes_indices_is_named_by_them():
    """As what `verify`, `tune` and the check print is: a pattern that `convert` takes."""
    text = """agraph (float[4,8] x) => (float[4,1] y) {
      a = MatMul(x, w)  i = ArgMax<axis = 1>(a)  y = GatherElements<axis = 1>(a, i) }"""
    plan = ampgraph.plan(parse(text, SMALL), fp32=["value:i"])
    assert {d.kind for d in plan.decisions if d.why.text == "--fp32 value:i"} == {"ArgMax"}
    low = [ampgraph.convert(parse(text, SMALL)), parse(text, SMALL)]
    found = ampgraph.verify(low[1], low[0], nodes=9)
    patterns = [pattern for suspect in found.growth for pattern in suspect.patterns]
    assert ampgraph.plan(low[1], fp32=patterns)


@here
@pytest.mark.slow
def test_what_comes_near_the_end_of_the_type_is_said(amp, path):
    source = path({"w": 4000 * np.eye(8, dtype=np.float32)})
    with pytest.warns(ampgraph.PrecisionWarning, match="DOUBTFUL: 'y' reaches .* of 65,504 on 12 generated inputs and"):
        ampgraph.convert(source, output=source.parent / "low.onnx", check="require")
    assert (source.parent / "low.onnx").exists()
    found = json.loads(amp("convert", source, "--check", "auto", "--repair", "--json")[1])
    assert found["nodes"] == {"float32": 1}


@pytest.mark.parametrize(("body", "near"), [("y = MatMul(p, w)", True), ("m = MatMul(p, e)  y = Add(m, w)", False)])
def test_what_a_product_makes_may_come_near_below_zero_and_a_mask_is_large_there(path, tmp_path, body, near):
    weights = {"w": -5000 * np.eye(8, dtype=np.float32) * (1 if near else 4), "e": np.eye(8, dtype=np.float32)}
    source = path(weights, f"agraph (float[8,8] x) => (float[8,8] y) {{ p = Abs(x)  {body} }}")
    ampgraph.convert(source, output=tmp_path / "low.onnx", low=["op:*"], check="off")
    pair = OnnxPair(str(source), str(tmp_path / "low.onnx"), "cpu")
    found = near_the_limit(pair, load_samples(pair.reference, count=6), 10)
    assert found.startswith("'y' reaches ") if near else not found


@here
@pytest.mark.slow
def test_an_output_that_vanishes_in_float16_is_announced(amp, path, tmp_path):
    source = path({"w": 1e-4 * np.eye(8, dtype=np.float32)}, PRODUCTS)
    np.savez(tmp_path / "x", x=np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8))
    said = "DOUBTFUL: 'y' vanishes in float16: "
    for words, end in ([], " on 6 generated inputs: give --data"), (["--data", tmp_path / "x.npz"], " on 1 sample"):
        code, out, _ = amp("convert", source, "--check", "auto", *words)
        assert code == 0 and rows(out)["check"].startswith(said) and rows(out)["check"].endswith(end)
    out = amp("convert", source, "--check", "auto", "--dtype", "bfloat16", "--opset", "22")[1]
    assert rows(out)["check"].startswith("ok ")


def test_what_outputs_of_mindir_are_is_known_by_their_number(tmp_path):
    ampgraph.convert(MINDIR, output=tmp_path / "low.mindir", check="off")
    assert list(MindirPair(MINDIR, tmp_path / "low.mindir", "cpu").roles()) == ["output0"]


@here
@pytest.mark.slow
def test_a_model_that_draws_numbers_is_not_held_against_itself(amp, path):
    text = "agraph (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  r = RandomNormalLike(a)  y = Add(a, r) }"
    out = amp("convert", path(SMALL, text), "--check", "auto")[1]
    assert rows(out)["check"].startswith("not checked: the float32 model differs from itself by ")


@here
@pytest.mark.slow
def test_outputs_that_nothing_changes_are_not_called_right(amp, path):
    out = amp("convert", path({"w": np.zeros((8, 8), np.float32)}), "--check", "auto")[1]
    assert rows(out)["check"].startswith("not checked: the outputs do not depend on the generated inputs")


@here
@pytest.mark.slow
def test_outputs_that_rounding_does_not_move_are_right(amp, path, tmp_path):
    """A model that is low already: its second conversion is compared with itself, to the bit."""
    amp("convert", path(SMALL), "-o", tmp_path / "low.onnx")
    out = amp("convert", tmp_path / "low.onnx", "-o", tmp_path / "again.onnx", "--check", "require")[1]
    assert "check" not in rows(out) or rows(out)["check"].startswith("ok 0 ")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "low.onnx").read_bytes()


def test_what_passes_the_budget_is_not_checked(amp, path, monkeypatch):
    monkeypatch.setattr(check, "MEMORY", 100)
    out = amp("convert", path(SMALL), "--check", "auto")[1]
    assert rows(out)["check"].startswith("not checked: it would take 0 GB of memory")


@pytest.mark.slow
def test_memory_that_a_child_may_not_take(path, tmp_path, monkeypatch):
    source = path(SMALL)
    ampgraph.convert(source, output=tmp_path / "low.onnx")
    asked = Request(str(source), str(tmp_path / "low.onnx"), None, 1, {"N": 1 << 24}, 1e-2, 10)
    monkeypatch.setattr(check, "SLACK", (1 << 30) - check.MEMORY)
    assert "memory" in str(check.ask(asked))
