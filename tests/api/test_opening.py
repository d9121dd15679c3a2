"""A file that does not open as its users open it is announced, whatever its strict run says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper

import ampgraph
from ampgraph.api import check_run, checked
from ampgraph.api.check_run import Request
from ampgraph.api.steps import Checking, Conversion, Job
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from ampgraph.core.verdict import CheckVerdict
from ampgraph.planner import regions
from ampgraph.runtime import opening
from ampgraph.runtime.opening import Opening, open_each, opening_fault, opening_refusal
from cli_helpers import refused
from onnx_text import array, parse, proto

NORM = """g (float[2, 8] x) => (float[2, 8] y) {{
  a = MatMul(x, k) {0} m = ReduceMean<axes = [-1]>({1}) d = Sub({1}, m) p = Pow(d, two) v = ReduceMean<axes = [-1]>(p)
  e = Add(v, eps) q = Sqrt(e) n = Div(d, q) z = Mul(n, w) o = Add(z, c) y = MatMul(o, k)
}}"""
STORED = {"k": (8, 8), "w": (8,), "c": (8,), "two": array(2.0).astype("f"), "eps": array(1e-5).astype("f")}
BROKEN = "bound to different types"


@pytest.fixture(autouse=True)
def opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process opens the same files once, whichever test asks: it takes most of their time."""
    monkeypatch.setattr(opening, "_open_in_children", _open_once)


def _open_once(names: list[str], *, optimised: bool) -> list[Opening]:
    key = optimised, *(Path(name).read_bytes() if Path(name).exists() else name for name in names)
    if key not in OPENED:
        OPENED[key] = OPEN(names, optimised=optimised)
    return OPENED[key]


OPEN = opening._open_in_children
OPENED: dict[tuple[bool | bytes | str, ...], list[Opening]] = {}


def files(folder: Path) -> tuple[str, str]:
    """A model, and one with its first product in float16, which ONNX Runtime fuses into a norm of two types."""
    narrow = "l = Cast<to = 10>(a) h = Relu(l) f = Cast<to = 1>(h)"
    before, after = parse(NORM.format("f = Relu(a)", "f"), STORED), parse(NORM.format(narrow, "f"), STORED)
    for name, made in (("model", before), ("low", after)):
        onnx.save(made, folder / f"{name}.onnx")
    return str(folder / "model.onnx"), str(folder / "low.onnx")


def asked(model: str, low: str, target: str) -> list[CheckVerdict]:
    """What the child of a check answers."""
    given: list[CheckVerdict] = []
    recipe = Recipe.of(level="O1", target="cuda")
    check_run.check_files(Request(model, low, None, 1, {}, 1e-2, 10, recipe=recipe, target=target), given.append)
    return given


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_refusal_is_announced_at_any_target_with_its_cause_and_what_mends_it(tmp_path: Path, target: str) -> None:
    first, last = asked(*files(tmp_path), target)
    assert first.missed and BROKEN in first.refused and first.why.endswith("with ORT_DISABLE_ALL it is not refused")
    assert last.repair[0].startswith("--fp32 op:") and "(tried: it opens)" in str(last)
    assert str(last).startswith("MISSED: ONNX Runtime does not open it: Type Error: ")
    assert CheckVerdict.from_dict(json.loads(json.dumps(last.to_dict()))) == last


def test_what_is_no_fault(tmp_path: Path) -> None:
    _, low = files(tmp_path)
    assert [found.refused for found in asked(low, low, "cuda")][-1] == ""
    # types that the cpu has no kernels for are said and no fault
    model, low = killing(tmp_path, "bfloat16")
    last = asked(model, low, "cuda")[-1]
    assert not last.missed and "ONNX Runtime's CPU does not open it: Could not find an implementation" in str(last)
    assert asked(model, low, "cpu")[0].missed


def test_what_is_not_the_models_fault_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = files(tmp_path)
    with pytest.raises(AmpError) as lacking:
        open_each([model, str(tmp_path / "gone.onnx")])
    assert lacking.value.code == "AMP101" and lacking.value.where == str(tmp_path / "gone.onnx")
    monkeypatch.setattr(opening, "SECONDS", 0.0)
    with pytest.raises(AmpError, match="AMP504.*ONNX Runtime does not open it: ") as late:
        OPEN([model], optimised=True)
    assert late.value.where == model
    with pytest.raises(AmpError) as full:
        opening._opening_from_answer("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc", model)
    assert full.value.code == "AMP504" and "out of memory" in full.value.message


def test_no_fault_for_another_target(tmp_path: Path) -> None:
    given = parse("g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Relu(x) y = Conv(a, w) }",
                  w=(4, 3, 1, 1), opset=22)  # fmt: skip
    given.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 4, 8, 8)))
    path = str(tmp_path / "low.onnx")
    onnx.save(proto(ampgraph.convert(given, "O3", dtype="bfloat16", target="cuda", check="off")), path)
    found = opening_refusal(path)
    assert found is not None and found.lacks_kernel and "Could not find an implementation" in found.said
    onnx.save(given, tmp_path / "model.onnx")
    assert opening_fault(str(tmp_path / "model.onnx"), path, "cuda") is None
    assert opening_fault(str(tmp_path / "model.onnx"), path, "cpu") == found
    # It writes out what Clip is, with a Where that takes no bfloat16 at this opset.
    paths = str(tmp_path / "model.onnx"), str(tmp_path / "low.onnx")
    for path, kind in zip(paths, ("float", "bfloat16"), strict=True):
        text = f"g ({kind}[4, 8] x, {kind} top) => ({kind}[4, 8] y) {{ y = Clip (x, , top) }}"
        onnx.save(parse(text, opset=14), path)
    found = opening_refusal(paths[1])
    assert found is not None and "Where" in found.said and opening_fault(*paths, "cuda") is None
    assert opening_fault(*paths, "cpu") == found


def test_what_is_no_graph_and_what_kills(tmp_path: Path) -> None:
    paths = str(tmp_path / "model.onnx"), str(tmp_path / "low.onnx")
    for path, kind in zip(paths, ("float", "bfloat16"), strict=True):
        onnx.save(parse(f"g ({kind}[4, 4] x) => ({kind}[4, 4] y) {{ y = MatMul (x, x) }}", opset=11), path)
    found = opening_fault(*paths, "cuda")
    assert found is not None and "is invalid" in found.said and not found.optimised
    # verify and check say it too
    model, low = files(tmp_path)
    assert BROKEN in ampgraph.verify(model, low, samples=1).notes[0]
    (finding,) = ampgraph.check(low).findings
    assert finding.rule == "opens" and finding.level == "error" and BROKEN in finding.message
    assert not any("opens" in note for note in ampgraph.verify(low, low, samples=1).notes)


def killing(folder: Path, kind: str = "float16") -> tuple[str, str]:
    """A model, and the same in a low type; of float16 ONNX Runtime's CPU dies."""
    given = "g (float[a, 3, 8] x) => (float[3, a, 4] y) {{ l = {0}(x) c = Transpose<perm = [1, 0, 2]>(l) {1} }}"
    before = parse(given.format("Identity", "y = MatMul(c, w)"), w=(8, 4))
    number = onnx.TensorProto.DataType.Value(kind.upper())
    weight = array((8, 4), "w").astype(helper.tensor_dtype_to_np_dtype(number))
    after = parse(given.format(f"Cast<to = {number}>", "m = MatMul(c, w) y = Cast<to = 1>(m)"), {"w": weight})
    for name, made in (("model", before), ("low", after)):
        onnx.save(made, folder / f"{name}.onnx")
    return str(folder / "model.onnx"), str(folder / "low.onnx")


def test_a_file_that_kills_the_runtime(tmp_path: Path) -> None:
    """Those beside it are opened all the same."""
    model, low = killing(tmp_path)
    first, second, third = open_each([model, low, model])
    assert first.opens and third.opens and not second.opens
    assert "Segmentation fault" in second.said and second.died and second.optimised
    # what kills the runtime before is no fault
    _, low = killing(tmp_path)
    assert opening_fault(low, low, "cuda") is None
    # check and verify survive it and say so
    model, low = killing(tmp_path)
    (finding,) = ampgraph.check(low).findings
    assert finding.rule == "opens" and finding.level == "error" and "Segmentation fault" in finding.message
    assert "Segmentation fault" in ampgraph.verify(model, low, samples=1).notes[0]


def test_what_kills_the_runtime_is_a_fault_at_any_target(tmp_path: Path) -> None:
    files = killing(tmp_path)
    assert {opening_fault(*files, target) for target in ("cpu", "tensorrt")} == {opening_refusal(files[1])}
    first, last = asked(*files, "cuda")
    assert first.missed and "Segmentation fault" in first.refused and "crashes on it: with ORT_DISABLE_ALL" in first.why
    assert str(last).startswith("MISSED: ONNX Runtime does not open it: the run crashed")
    assert last.repair == ("--fp32 op:MatMul",) and "(tried: it opens)" in str(last)


def test_a_float16_operator_that_opens_and_does_not_run_there_is_said(tmp_path: Path) -> None:
    text = """g (float[2, 2] x) => (float[2, 2] y) {{
      a = {0} s = ScatterElements<axis = 1, reduction = "add">(a, i, u) y = {1} }}"""
    i = np.array([[0, 1]])
    one = parse(
        text.format("MatMul(x, w)", "Relu(s)"), {"w": (2, 2), "i": i, "u": array([[1, 2]]).astype("f")}, opset=18
    )
    low = ampgraph.convert(one, "O3", target="cuda", check="off")
    for name, made in (("model", one), ("low", low)):
        onnx.save(proto(made), tmp_path / f"{name}.onnx")
    found = asked(str(tmp_path / "model.onnx"), str(tmp_path / "low.onnx"), "cuda")[-1]
    assert not found.missed and "ONNX Runtime's CPU does not run it: ScatterElements: the kernel refuses to add" in str(
        found
    )


@pytest.mark.usefixtures("check_here")
def test_a_conversion_that_does_not_open_ends_with_1_and_leaves_no_file(amp, tmp_path: Path, monkeypatch) -> None:
    """As if a form of a norm were not known: nothing keeps a cast from the place in front of it."""
    monkeypatch.setattr(regions, "beside_fusion", lambda *_: [])
    source, words = tmp_path / "model.onnx", ("--level", "O1", "--rewrite", "none", "--check", "require")
    onnx.save(parse(NORM.format("", "a"), STORED), source)
    code, out, _ = amp("convert", source, *words)
    assert code == 1 and BROKEN in out and "tried" not in out  # nothing is searched for unless --repair asks for it
    assert not (tmp_path / "model.O1.onnx").exists()


@pytest.mark.parametrize("mends", [True, False])
def test_it_is_repaired_by_what_was_tried(monkeypatch: pytest.MonkeyPatch, mends: bool) -> None:
    """Each is converted once, and only the one that is chosen is written."""
    refused = CheckVerdict("missed", None, 1e-2, refused=BROKEN, mended_by=("op:Add",))
    jobs: list[Job] = []
    written: list[Conversion] = []

    def made(job: Job, progress: object) -> Conversion:
        jobs.append(job)
        return Conversion(job, None, None, None, None, None, True, None)  # type: ignore[arg-type]

    def trial(done: Conversion, progress: object, repairing: float = 0.0, least: int = 0) -> CheckVerdict:
        return CheckVerdict("ok", 0.0, 1e-2, 6, True) if mends and done.job.recipe.fp32 else refused

    def finished(done: Conversion, progress: object) -> Conversion:
        written.append(done)
        return done

    monkeypatch.setattr(checked, "convert_in_memory", made)
    monkeypatch.setattr(checked, "mode_of", lambda done: "auto")
    monkeypatch.setattr(checked, "verdict_before_writing", trial)
    monkeypatch.setattr(checked, "write_files", finished)
    done = checked.convert_and_check(Job("model.onnx", Recipe.of(), checking=Checking("auto", repair=True)))
    assert done.verdict is not None and done.verdict.pinned == (("op:Add",) if mends else ())
    assert written == [done] and done.verdict.ok == mends
    assert [job.recipe.fp32 for job in jobs] == [(), ("op:Add",)]


# `ampgraph check`: what is sound, what is not, and the forms in which it is told.

TEXT = "g (float[4, 8] x) => (float[4, 8] y) { [one] h = MatMul (x, w) y = Relu (h) }"
IDLE = "g (float[4, 8] x) => (float[4, 8] y) { c = Cast <to = 1> (x) h = MatMul (c, w) y = Relu (h) }"
LOW = "g (float16[4, 8] x) => (float16[4, 8] y) { h = MatMul (x, w) y = Mul (h, h) }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(parse(TEXT, w=(8, 8)), tmp_path / "m.onnx")
    onnx.save(parse(TEXT, w=np.full((8, 8), np.nan, np.float32)), tmp_path / "nan.onnx")
    onnx.save(parse(IDLE, w=(8, 8)), tmp_path / "idle.onnx")
    onnx.save(parse(LOW, w=np.full((8, 8), 1000, np.float16)), tmp_path / "high.onnx")
    onnx.save(parse(TEXT.replace("Relu", "Nothing"), w=(8, 8)), tmp_path / "invalid.onnx")
    onnx.save(parse(TEXT, w=np.zeros((8, 8), np.float32)), tmp_path / "zero.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:80])
    np.savez(tmp_path / "x.npz", x=np.ones((4, 8), np.float32))
    np.savez(tmp_path / "low.npz", x=np.ones((4, 8), np.float16))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sound_files_and_mistakes(folder: Path, amp: Any) -> None:
    ampgraph.convert("m.onnx", output="m.O2.onnx")
    code, out, err = amp("check", "m.onnx", "m.O2.onnx", "--against", "m.onnx")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{n}: ok (reads, valid, stored, casts, opens, finite, right by a strict run)" for n in ("m.onnx", "m.O2.onnx")
    ]
    assert str(ampgraph.check("m.onnx", "m.onnx")) == out.splitlines()[0]
    # mistakes are the users
    refused(amp("check", "m.onnx", "--format", "jnuit"), "AMP301", "junit")
    refused(amp("check", "m.onnx", "--data", "none.npz"), "AMP101", "none.npz")
    refused(amp("check", "m.onnx", "--dim", "n=3"), "AMP310", "n")


@pytest.mark.parametrize(
    ("model", "more", "rule", "level"),
    [
        ("cut.onnx", [], "reads", "error"),
        ("none.onnx", [], "reads", "error"),
        ("invalid.onnx", [], "valid", "error"),
        ("nan.onnx", [], "stored", "error"),
        ("idle.onnx", [], "casts", "warning"),
        ("high.onnx", [], "finite", "warning"),
        ("high.onnx", ["--data", "low.npz"], "finite", "error"),
        ("zero.onnx", ["--against", "m.onnx", "--data", "x.npz"], "right", "error"),
    ],
)
def test_what_is_not_sound(folder: Path, amp: Any, model: str, more: list[str], rule: str, level: str) -> None:
    code, out, _ = amp("check", model, *more, "--format", "json")
    (one,) = json.loads(out)
    assert (rule, level) in {(found["rule"], found["level"]) for found in one["findings"]}, one
    assert rule not in one["passed"] and code == int(level == "error") and one["ok"] == (level == "warning")


def test_forms_for_machines(folder: Path, amp: Any) -> None:
    code, out, _ = amp("check", "m.onnx", "cut.onnx", "idle.onnx", "--format", "junit")
    suites = ElementTree.fromstring(out)
    assert code == 1 and [suite.get("failures") for suite in suites] == ["0", "1", "0"]
    assert suites[1][0].get("name") == "reads" and suites[1][0].find("failure") is not None
    code, out, _ = amp("check", "m.onnx", "cut.onnx", "idle.onnx", "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    told = [
        (r["ruleId"], r["level"], r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
        for r in run["results"]
    ]
    assert code == 1 and told == [("reads", "error", "cut.onnx"), ("casts", "warning", "idle.onnx")]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} >= {"reads", "casts"}


def test_what_cannot_be_looked_at_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ampgraph.AmpError("AMP501", "onnxruntime is not installed", hint="install it")

    for module in ("numerics.strict.session", "runtime.opening"):
        monkeypatch.setattr(f"ampgraph.{module}.import_onnxruntime", missing)
    found = ampgraph.check("m.onnx")
    assert found.ok and found.skipped == tuple((rule, "onnxruntime is not installed") for rule in ("opens", "finite"))
    assert "finite not looked at: onnxruntime is not installed" in str(found)
