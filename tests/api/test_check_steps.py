"""The steps of a check and of a repair one by one, with verdicts and conversions that are stood in for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampgraph.api import check, check_run, checked, mending
from ampgraph.api.calibrate import Measuring
from ampgraph.api.steps import Checking, Conversion, Job, convert_in_memory
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.core.progress import silent
from ampgraph.core.recipe import Recipe
from ampgraph.core.verdict import ALL, CheckVerdict
from ampgraph.formats.adapters import load_onnx
from onnx_text import parse

MISSED = CheckVerdict("missed", 0.5, 1e-2, 6, exceeded=6, output="y")
RIGHT = CheckVerdict("ok", 0.001, 1e-2, 6)
ONNX_GRAPH = load_onnx(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }"))


def conversion(verdict: CheckVerdict | None, **words: Any) -> Conversion:
    job, plan = Job("model.onnx", Recipe.of(), **words), Plan("", "O2", "float16", "ampgraph", "cuda")
    return Conversion(job, ONNX_GRAPH, lambda *_: None, plan, None, None, True, None, verdict=verdict)


# -- whether and how --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Checking("allways"), "AMP301"),
        (Checking(tolerance=0.0), "AMP312.*tolerance"),
        (Checking(tolerance=math.inf), "AMP312.*tolerance"),
        (Checking(memory=-1.0), "AMP312.*check-memory"),
        (Checking(metric="no-such-metric"), "AMP312"),
        (Checking(metric=lambda expected, result: 0.0), "AMP312.*cannot be found"),
    ],
)
def test_what_a_check_cannot_be_told(asked: Checking, code: str) -> None:
    with pytest.raises(AmpError, match=code):
        check.fill_in_checking(asked)


def test_the_mode_comes_from_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, mode in {"": "auto", "require": "require"}.items():
        monkeypatch.setenv(check.DEFAULT, said)
        assert check.fill_in_checking(Checking(None)).mode == mode
        assert check.fill_in_checking(Checking("off")).mode == "off"


def samples(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"x": np.full(2, number, np.float32)}


def test_an_iterator_is_read_once_and_checked_all_the_same() -> None:
    assert len(check.with_data_kept(Measuring(samples(20)), often=True).data) == 20  # type: ignore[arg-type]
    data = check.with_data_kept(Measuring(samples(20)), often=False).data
    assert isinstance(data, check.FirstKept) and len(list(data)) == 20 and len(data.kept) == check.SAMPLES
    given = list(samples(2))
    assert check.with_data_kept(Measuring(given), often=False).data is given
    cases: list[tuple[Any, int]] = [(data, check.SAMPLES), (given, 2), (given[0], 1)]
    for asked, count in cases:
        with check._samples_file(asked) as folder:
            files = sorted(Path(folder or "").glob("*.npz"))
            assert [float(np.load(file)["x"][0]) for file in files] == [*range(count)]
        assert not Path(folder or "").exists()
    for path, same in ((None, None), (Path("x.npz"), "x.npz")):
        with check._samples_file(path) as folder:
            assert folder == same


# -- repairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("without", "dropped"), [(RIGHT, True), (MISSED, False), (None, False)])
def test_ranges_that_harm_are_dropped_where_that_is_right(
    monkeypatch: pytest.MonkeyPatch, without: CheckVerdict | None, dropped: bool
) -> None:
    used: list[bool] = []

    def made(job: Job, progress: object) -> Conversion:
        used.append(job.measuring.used)
        return conversion(None)

    monkeypatch.setattr(checked, "convert_in_memory", made)
    monkeypatch.setattr(checked, "verdict_before_writing", lambda done, progress: without)
    given = conversion(MISSED, measuring=Measuring(samples=4))
    found = checked.drop_harmful_ranges(given, silent)
    assert used == [False] and (found is not given) == dropped
    if dropped:
        assert found.verdict is RIGHT and "error of 0.5 at 'y'" in found.plan.notes[0].text
    for kept in (
        conversion(MISSED),
        replace(given, verdict=RIGHT),
        replace(given, verdict=replace(MISSED, refused="no")),
    ):
        assert checked.drop_harmful_ranges(kept, silent) is kept and used == [False]


FLOAT32 = None  # the verdict of a conversion in which nothing is low any more


@pytest.mark.parametrize(
    ("ways", "tried", "outcome"),
    [
        ({"ranges": RIGHT}, ["ranges"], "right"),
        ({"ranges": FLOAT32, "search": RIGHT}, ["ranges", "search"], "right"),
        ({"patterns": RIGHT}, ["ranges", "search", "patterns"], "right"),
        ({"ranges": FLOAT32}, ["ranges", "search"], "float32"),
        ({"patterns": FLOAT32}, ["ranges", "search", "patterns"], "float32"),
        ({"ranges": MISSED, "patterns": MISSED}, ["ranges", "search", "patterns"], "missed"),
        ({"patterns": "why"}, ["ranges", "search", "patterns"], "why"),
    ],
)
def test_the_order_of_repairs(monkeypatch: pytest.MonkeyPatch, ways: Any, tried: list[str], outcome: str) -> None:
    """Ranges, then tune's search, then what the check finds, unless all in float32 is known to be right."""
    missed, asked = conversion(MISSED), list[str]()

    def stand_in(name: str) -> Callable[..., Conversion | None]:
        def way(given: Conversion, *_: object) -> Conversion | None:
            asked.append(name)
            if ways.get(name, "") == "why":
                return replace(given, verdict=replace(MISSED, unrepaired="the time is up"))
            none = None if name != "patterns" else conversion(MISSED)
            return conversion(ways[name]) if name in ways else none

        return way

    for name in ("ranges", "search", "patterns"):
        monkeypatch.setattr(checked, f"repair_by_{name}", stand_in(name))
    found = checked.repair(missed, silent)
    assert asked == tried
    notes = [note.text for note in found.plan.notes]
    assert notes == ([ALL] if outcome == "float32" else [])
    assert {
        "right": found.verdict is RIGHT, "float32": found.verdict is None, "missed": found is missed,
        "why": found.job is missed.job and found.verdict is not None and found.verdict.unrepaired == "the time is up",
    }[outcome]  # fmt: skip
    for nothing in (conversion(None), conversion(RIGHT), conversion(replace(MISSED, samples=0))):
        assert checked.repair(nothing, silent) is nothing and asked == tried


@pytest.mark.parametrize("way", [
    lambda done: checked.repair_by_ranges(done, MISSED, math.inf, silent),
    lambda done: checked.guard_by_generated_ranges(done, silent),
])  # fmt: skip
def test_what_ranges_made_is_checked_on_as_many_samples(monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    """Not on so many as were measured."""
    asked: list[check_run.Request] = []

    def verdict(done: Conversion, *_: object, least: int = 0) -> CheckVerdict:
        asked.append(check.request_for(done, "reference", Path("result"), None))
        return RIGHT

    monkeypatch.setattr(checked, "verdict_before_writing", verdict)
    model = parse("g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  y = MatMul (a, w) }", w=(8, 8))
    done = convert_in_memory(Job(model, Recipe(), checking=Checking("auto")), silent)
    infinite = CheckVerdict("missed", math.inf, 1e-2, samples=6, generated=True)
    assert way(replace(done, verdict=infinite)) is not None
    assert [(one.samples, one.more) for one in asked] == [(check.GENERATED, check.MORE)]


@pytest.mark.parametrize(("then", "kept"), [
    (RIGHT, True), (replace(MISSED, generated=True), True), (CheckVerdict("missed", math.inf, generated=True), False),
    (CheckVerdict("not checked", reason="killed"), False), (None, False),
])  # fmt: skip
def test_ranges_of_generated_inputs_are_kept_where_nothing_overflows(
    monkeypatch: pytest.MonkeyPatch, then: CheckVerdict | None, kept: bool
) -> None:
    """What is finite then and still too far off is tried with more in float32."""
    monkeypatch.setattr(checked, "verdict_before_writing", lambda *_, **__: then)
    model = parse("g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  y = MatMul (a, w) }", w=(8, 8))
    done = convert_in_memory(Job(model, Recipe(), checking=Checking("auto")), silent)
    done = replace(done, verdict=CheckVerdict("missed", math.inf, 1e-2, samples=6, generated=True))
    got = checked.guard_by_generated_ranges(done, silent)
    assert (got is not done) == kept == (got.verdict is then)


def found(outcome: str, worst: float, critical: float = 0.0, samples: int = 24) -> CheckVerdict:
    return CheckVerdict(
        outcome, worst, 1e-2, samples, generated=True, relative=True, worst=worst, critical=critical, exceeded=0
    )


CRITICAL = found("doubtful", 4e-3, 1.3e-2)  # beside an answer near zero


@pytest.mark.parametrize(
    ("first", "then", "tried", "outcome"),
    [
        (found("doubtful", 2e-2), [found("ok", 5e-3)], 1, "ok"),
        (found("missed", 2e-2), [MISSED, found("doubtful", 2e-2), found("ok", 9e-3)], 3, "ok"),
        (found("missed", 2e-2), [MISSED] * 3, 3, "missed"),
        (
            found("doubtful", 2e-2),
            [found("doubtful", 3e-2), found("doubtful", 1.5e-2), found("doubtful", 1.1e-2)],
            3,
            "doubtful",
        ),
        (found("doubtful", 2e-2), [found("doubtful", 3e-2), FLOAT32, MISSED], 3, "as it was"),
        (found("ok", 5.9e-3), [], 0, "as it was"),
        (found("ok", 7e-3), [found("ok", 5e-3)], 1, "ok"),
        (found("ok", 7e-3), [found("ok", 8e-3)], 1, "as it was"),
        (found("ok", 7e-3), [found("ok", 6e-3)], 1, "as it was"),  # by chance, perhaps
        (CRITICAL, [found("ok", 4e-3, 9e-3)], 1, "ok"),
        (replace(CRITICAL, critical=1.1e-2), [found("ok", 4e-3, 9e-3), found("ok", 4e-3, 9.5e-3)] * 2, 3, "doubtful"),
        (found("doubtful", 0.0), [], 0, "as it was"),  # a value near the end of float16
    ],
)
def test_what_is_held_where_the_error_is_too_large_or_comes_close(
    monkeypatch: pytest.MonkeyPatch, first: CheckVerdict, then: list[CheckVerdict], tried: int, outcome: str
) -> None:
    """The first trial that is right, else the best end, of which there are two. An error near zero has to fall."""
    model = parse(
        "g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  b = MatMul (a, w)  y = MatMul (b, w) }", w=(8, 8)
    )
    asked: list[tuple[str, ...]] = []

    def again(job: Job, patterns: tuple[str, ...], progress: object, least: int) -> Conversion:
        asked.append(patterns)
        assert least == first.samples
        return conversion(then[len(asked) - 1])

    monkeypatch.setattr(checked, "_convert_with_pins", again)
    if not first.worst:
        first = replace(first, near="'y' reaches 6e4")
    given = replace(convert_in_memory(Job(model, Recipe(), checking=Checking("auto")), silent), verdict=replace(first))
    got = checked.hold_some(given, silent)
    assert len(asked) == tried
    if outcome == "as it was" or outcome == first.outcome == "missed":
        assert got is given
    else:
        assert got is not given and got.verdict is not None and got.verdict.outcome == outcome
        assert [note.text for note in got.plan.notes] == [checked.HELD]
        assert outcome != "doubtful" or got.verdict.nearest == min(one.nearest for one in then[:2] if one)


@pytest.mark.parametrize("mends", [True, False])
def test_what_no_search_repairs_is_tried_all_the_same(monkeypatch: pytest.MonkeyPatch, mends: bool) -> None:
    given = conversion(MISSED, checking=Checking("auto", repair=True))
    held = replace(given, verdict=RIGHT)
    monkeypatch.setattr(checked, "verdict_before_writing", lambda *_: MISSED)
    monkeypatch.setattr(checked, "repair", lambda done, _: done if mends else replace(done, verdict=RIGHT))
    monkeypatch.setattr(checked, "hold_some", lambda *_: held if mends else pytest.fail("it is right"))
    found = checked.check_before_writing(given, "auto", silent)
    assert found.verdict is RIGHT and (found is held) == mends


def test_no_trial_is_begun_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "time_limit", lambda: time.monotonic() - 1)
    monkeypatch.setattr(checked, "_convert_with_pins", lambda *_: pytest.fail("a trial was begun"))
    model = parse("g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  y = MatMul (a, w) }", w=(8, 8))
    given = convert_in_memory(Job(model, Recipe(), checking=Checking("auto")), silent)
    given = replace(given, verdict=found("doubtful", 2e-2))
    assert checked.hold_some(given, silent) is given


@pytest.mark.parametrize("fails", ["guard_by_generated_ranges", "hold_some"])
def test_an_attempt_that_fails_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def failing(*_: object) -> Conversion:
        raise AmpError("AMP504", "stopped")

    monkeypatch.setattr(checked, fails, failing)
    given = conversion(MISSED)
    assert checked.mend(given, silent) is given


def test_no_repair_is_begun_that_would_not_end_in_time() -> None:
    slow = replace(MISSED, seconds=10.0)
    found = checked.repair_by_patterns(conversion(slow), slow, time.monotonic() + 1, silent)
    assert found.verdict is not None and found.verdict.unrepaired == "none found: the time is up"


# -- in the child -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operators", "generated", "remedy"),
    [(["random"], True, "--metric"), ([], True, check_run.SIZES), ([], False, "--metric")],
)
def test_why_a_model_differs_from_itself(
    monkeypatch: pytest.MonkeyPatch, operators: list[str], generated: bool, remedy: str
) -> None:
    """Random numbers, if it draws some; else sizes that were guessed leave parts of it empty."""
    text = "y = RandomNormalLike (x)" if operators else "y = Relu (x)"
    graph = load_onnx(parse(f"g (float[4] x) => (float[4] y) {{ {text} }}"))

    class Opened(check_run.OnnxPair):
        def __init__(self) -> None:
            pass

        source = graph  # type: ignore[assignment]

    run = object.__new__(check_run.CheckRun)
    run.pair = Opened()
    run.drawn = type("Drawn", (), {"generated": generated})()  # type: ignore[assignment]
    found = run._verdict_on_unsteady(0.25)
    assert found.outcome == "not checked" and "differs from itself by 0.25" in found.reason and remedy in found.remedy


def test_an_error_behind_a_verdict_leaves_it_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    request = check_run.Request("a.onnx", "b.onnx", None, 1, {}, 1e-2, 1.0)
    for first, error, outcome, said in (
        (MISSED, AmpError("AMP504", "it does not run"), "missed", ""),
        (RIGHT, AmpError("AMP504", "it does not run"), "not checked", "it does not run"),
        (None, MemoryError(), "not checked", "more memory"),
    ):

        def runs(request: object, answer: Callable[[CheckVerdict], None], progress: object) -> None:
            if first is not None:  # noqa: B023
                answer(first)  # noqa: B023
            raise error  # noqa: B023

        monkeypatch.setattr(check_run, "check_files", runs)
        told: list[Any] = []
        check_run.answer_request(request, told.append)
        verdict = CheckVerdict.from_dict(told[-1])
        assert verdict.outcome == outcome and said in verdict.reason


# -- the search for a repair ------------------------------------------------------------------------------------------


def test_a_float32_stream_is_tried_only_where_it_may_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not without a recipe, for a small error, for another pair, or where there is no time."""

    def never(*_: object) -> None:
        raise AssertionError("it was tried")

    monkeypatch.setattr(mending, "convert_to_judge", never)
    recipe, late = Recipe.of(), time.monotonic() - 1
    pair: Any = object.__new__(mending.OnnxPair)
    for verdict, asked, other, until in (
        (MISSED, None, pair, math.inf),
        (MISSED, Recipe.of(fp32_stream=True), pair, math.inf),
        (replace(MISSED, error=1e-4), recipe, pair, math.inf),
        (replace(MISSED, mended_by=("op:Add",)), recipe, pair, math.inf),
        (MISSED, recipe, None, math.inf),
        (MISSED, recipe, pair, late),
    ):
        assert mending.try_stream(verdict, "model.onnx", asked, other, never, until) is verdict  # type: ignore[arg-type]


def test_what_convert_refuses_is_no_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuses(*_: object) -> None:
        raise AmpError("AMP305", "no node of that name")

    monkeypatch.setattr(mending, "convert_to_judge", refuses)
    search = mending.Mending("model.onnx", Recipe.of(), refuses, None, math.inf, tmp_path)  # type: ignore[arg-type]
    assert search.attempt(["one"]) is None and search.refused == "no node of that name" and not search.done
    search.until = time.monotonic() - 1
    monkeypatch.setattr(mending, "convert_to_judge", None)  # it is not asked
    assert search.attempt(["one"]) is None
