"""What metrics say of outputs: numbers, probabilities, detections, tokens, and functions of the user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ampgraph
from ampgraph import AmpError
from ampgraph.core.metric_names import METRICS, metrics_help
from ampgraph.formats import adapters
from ampgraph.numerics.metrics import verdict as judging
from ampgraph.numerics.metrics.agreement import Agreement, Judged, OutputDifference, Scores, compare_outputs, quantile
from ampgraph.numerics.metrics.metric import SAMPLE, Metric, address_of, metric_of, own_metric
from ampgraph.numerics.metrics.roles import roles_of
from ampgraph.numerics.metrics.verdict import Compared, References
from ampgraph.numerics.search import BUDGET, Search, confirm_by_runs
from onnx_text import parse
from present import plain

Side = Mapping[str, Any]


def error(metric: str, want: Any, got: Any, role: str = "") -> float:
    return metric_of(metric, {"y": role}).judge({"y": want}, {"y": got})["y"].error()


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_scales_of_errors() -> None:
    wants = [np.full(4, size, np.float32) for size in (5.0, 4.0, 6.0, 0.01)]
    output, plain = Agreement("y"), Agreement("y")
    for want in wants:
        got = want + np.float32(0.002)  # half of float16's step at 5
        judged = metric_of("auto").judge({"y": want}, {"y": got})["y"]
        output.add(compare_outputs(want, got), judged)
        plain.add(compare_outputs(want, got))
    assert output.scores.worst == pytest.approx(0.002 / (0.1 * 4.5), rel=1e-3)  # a tenth of the median scale
    assert plain.worst == output.worst == pytest.approx(0.2, rel=1e-3)
    assert output.within(1e-2) and not plain.within(1e-2)
    # one large sample excuses nothing
    output = Agreement("y")
    for size in (1.0, 1.0, 1000.0):
        want = np.full(4, size, np.float32)
        output.add(compare_outputs(want, want + 0.05), metric_of("auto").judge({"y": want}, {"y": want + 0.05})["y"])
    assert output.scores.worst == pytest.approx(0.05, rel=1e-3) and not output.within(1e-2)
    # what is not likely at all is judged by its absolute error
    want, got = np.array([[1e-2, 1e-5]], np.float32), np.array([[1.05e-2, 4e-5]], np.float32)
    assert error("l2", want, got) > 4e-2
    assert error("probabilities", want, got) == pytest.approx(5e-4 / 0.1, rel=1e-2)
    assert error("auto", want, got, "probabilities") == error("probabilities", want, got)
    assert error("auto", want, got) == error("l2", want, got)  # numbers that happen to lie between 0 and 1
    # one lost among many is seen
    want = np.full((1, 20_000), 1e-5, np.float32)
    want[0, 7] = 0.9
    got = want.copy()
    got[0, 7] = 0.1
    assert error("probabilities", want, got) > 0.5


@pytest.mark.parametrize("metric", list(METRICS))
def test_equal_outputs_have_no_error_by_any_metric(metric: str) -> None:
    rng = np.random.default_rng(0)
    outputs = {"boxes": _boxes(rng, 5), "ids": np.arange(5), "scores": rng.random((5, 3)).astype(np.float32)}
    judged = metric_of(metric).judge(outputs, outputs)
    assert judged and all(found.error() == pytest.approx(0, abs=1e-9) for found in judged.values())


# -- probabilities ----------------------------------------------------------------------------------------------------


def test_probabilities_and_logits() -> None:
    rng = np.random.default_rng(0)
    want = rng.dirichlet(np.ones(4), 3).astype(np.float32)
    assert metric_of("auto").judge({"y": want}, {"y": want})["y"].sort == "probabilities"
    assert metric_of("auto").judge({"y": want * 2}, {"y": want})["y"].sort == "numbers"
    # logits are the same when all are shifted
    want = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    assert error("l2", want, want + 2) > 1
    assert error("logits", want, want + 2) < 1e-6
    assert error("logits", want, -want) > 0.1
    masked = np.where(want > 0, -np.inf, want)
    assert error("logits", masked, masked) == 0 and error("logits", want, masked) == math.inf
    # logarithms of probabilities are judged as probabilities
    want = np.log(np.array([[0.999, 1e-3, 1e-9]]))
    got = want + np.array([[0.0, 0.0, -3.0]])
    assert error("auto", want, got, "log probabilities") < 1e-6 < 0.1 < error("l2", want, got)


def test_the_graph_tells_what_outputs_are() -> None:
    model = parse(
        """g (float[8] s, float[8, 4] b)
            => (float[8] p, float[8] l, float[8] g, float[k, 4] t, float[8] n, int64[k] c) {
            r = Sigmoid (s)
            p = Reshape (r, whole)
            l = LogSoftmax (s)
            q = Sigmoid (s)
            g = Mul (q, s)
            v, c = TopK (s, k)
            t = Gather (b, c)
            n = Neg (s)
        }""",
        k=np.array([3]),
        whole=np.array([8]),
    )
    graph = adapters.load(model)[0]
    graph.prepare()
    assert roles_of(graph.dataflow()) == {
        "p": "probabilities", "l": "log probabilities", "g": "numbers", "t": "rows", "n": "numbers", "c": "rows"
    }  # fmt: skip


# -- detections -------------------------------------------------------------------------------------------------------


def _boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    corner = rng.uniform(0, 400, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(20, 80, (count, 2))], 1).astype(np.float32)


def _rows(layout: str, boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
    parts = [classes[:, None].astype(np.float32), scores[:, None], boxes]
    if layout == "class first":
        return {"d": np.concatenate(parts, 1)}
    if layout == "box first":
        return {"d": np.concatenate([boxes, parts[1], parts[0]], 1)[None]}
    return {"b": boxes[None], "s": scores[None], "c": classes[None], "n": np.array([len(boxes)])}


@pytest.mark.parametrize("layout", ["class first", "box first", "apart"])
def test_the_order_of_detections_means_nothing(layout: str) -> None:
    rng = np.random.default_rng(1)
    boxes, scores, classes = _boxes(rng, 12), rng.random(12).astype(np.float32), rng.integers(0, 3, 12)
    order = rng.permutation(12)
    want = _rows(layout, boxes, scores, classes)
    got = _rows(layout, boxes[order] + np.float32(0.05), scores[order], classes[order])
    metric = metric_of("auto", dict.fromkeys(want, "rows"))
    judged = metric.judge(want, got)
    assert set(judged) == set(want)
    assert all(found.error() < 1e-3 for found in judged.values())
    assert all(found.paired == (24, 24) for found in judged.values() if found.sort == "detections")
    assert compare_outputs(want[next(iter(want))], got[next(iter(want))]).error > 0.3  # by place
    lost = metric.judge(want, _rows(layout, boxes[:11], scores[:11], classes[:11]))
    assert lost[next(iter(want))].paired == (22, 23) and lost[next(iter(want))].error() > 0.1
    if layout == "apart":
        assert lost["n"].error() == pytest.approx(1 / 12)
    other = metric.judge(want, _rows(layout, boxes, scores, np.where(np.arange(12) == 5, 9, classes)))
    assert other[next(iter(want))].paired == (22, 24)  # the same box of another class is no partner


def test_boxes_and_tokens() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    judged = metric_of("detections").judge({"y": rows}, {"y": rows[::-1] + np.float32(1e-4)})["y"]
    assert judged.paired == (12, 12) and judged.error() < 1e-3
    # no detections on either side
    none, some = np.zeros((0, 6), np.float32), np.array([[0, 0.9, 10, 10, 30, 30]], np.float32)
    metric = metric_of("detections")
    assert metric.judge({"y": none}, {"y": none})["y"].error() == 0
    assert metric.judge({"y": none}, {"y": some})["y"].error() > 1
    assert metric.judge({"y": some}, {"y": none})["y"].error() == pytest.approx(1)
    # tokens and integers
    want, got = np.array([[5, 6, 7, 8]]), np.array([[5, 6, 9]])
    assert error("tokens", want, got) == error("auto", want, got) == pytest.approx(0.5)
    assert error("auto", want, want + (want == 7)) == 0.25
    assert error("auto", np.array([True, False]), np.array([True, True])) == 0.5
    # integers that differ are shown and count
    body = "y = ArgMax <axis = 1, keepdims = 0> (a)  z = Neg (x)"
    text = "g (float[4, 3] x) => (int64[4] y, float[4, 3] z)"
    model, other = (parse(f"{text} {{ a = {kind} (x)  {body} }}") for kind in ("Identity", "Floor"))
    data = [{"x": np.array([[0.1, 0.2, 0.3], [1, 2, 3], [3, 2, 1], [1, 2, 0]], np.float32)}]
    found = ampgraph.verify(model, other, data=data)
    text = "\n".join(found.lines())
    assert not found.ok and "output      y  missed" in text and "25 % of the elements differ" in text
    assert "verdict     missed: y" in text
    # what a branch gives is what it makes
    model = parse(
        """g (bool c, float[8] s) => (float[8] p, float[8] n) {
            p, n = If (c) <then_branch = a () => (float[8] u, float[8] v) { u = Sigmoid (s)  v = Neg (s) },
                           else_branch = b () => (float[8] w, float[8] x) { w = Sigmoid (s)  x = Abs (s) }>
        }"""
    )
    graph = adapters.load(model)[0]
    graph.prepare()
    assert roles_of(graph.dataflow()) == {"p": "probabilities", "n": "numbers"}


def test_verify_takes_boxes_behind_a_selection_as_a_set() -> None:
    model = parse(
        "g (float[8] s, float[8, 4] b) => (float[3, 4] t) { v, c = TopK (s, k)  t = Gather (b, c) }", k=np.array([3])
    )
    swapped = parse(
        """g (float[8] s, float[8, 4] b) => (float[3, 4] t) {
            v, c = TopK (s, k)  d = Gather (c, turned)  t = Gather (b, d) }""",
        k=np.array([3]),
        turned=np.array([2, 0, 1]),
    )
    data = [{"s": np.arange(8, dtype=np.float32), "b": _boxes(np.random.default_rng(0), 8)}]
    found = ampgraph.verify(model, swapped, data=data)
    assert found.ok and plain(found.to_dict())["outputs"][0]["judged_as"] == "detections"
    assert plain(found.to_dict())["outputs"][0]["relative_l2"]["p90"] > 0.1
    assert "6 of 6 rows have a partner in the other model" in "\n".join(found.lines())
    assert not ampgraph.verify(model, swapped, data=data, metric="l2", nodes=0).ok


# -- integers ---------------------------------------------------------------------------------------------------------


# -- of the user's own ------------------------------------------------------------------------------------------------


def off_by(reference: Side, result: Side) -> float:
    """A metric that the tests name by its module."""
    return float(max(np.abs(reference[name] - result[name]).max() for name in reference))


def test_a_function_judges_samples() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {0.1, 0.3}> { y = Mul (x, w) }")
    low = ampgraph.convert(model, "O3")
    data = [{"x": np.full(2, size, np.float32)} for size in (1, 2, 3)]
    found = ampgraph.verify(model, low, data=data, metric=off_by, tolerance=1e-2)
    assert found.ok and found.overall is not None and 0 < found.overall.worst < 1e-2
    text = "\n".join(found.lines())
    assert "metric      off_by  " in text and "verdict     ok: off_by within 0.01" in text
    assert not ampgraph.verify(model, low, data=data, metric=off_by, tolerance=1e-9, nodes=0).ok
    tuned = ampgraph.tune(model, data=data, metric=off_by, tolerance=1e-9, level="O3")
    assert tuned.met and tuned.metric == "off_by" and tuned.patterns


def test_a_function_is_named_by_its_file_or_module(amp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def close(a, b):\n    return max(abs(a[n] - b[n]).max() for n in a)\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    for text in (f"{tmp_path}/mine.py:close", "mine:close"):
        status, out, _ = amp("verify", tmp_path / "m.onnx", tmp_path / "m.onnx", "--metric", text)
        assert status == 0 and f"ok: {text} within" in out
    loaded = metric_of(f"{tmp_path}/mine.py:close")
    assert loaded.judge({"y": np.ones(2)}, {"y": np.full(2, 1.5)})[SAMPLE].error() == 0.5
    assert address_of(off_by).endswith("test_metrics:off_by") and address_of(lambda a, b: 0.0) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("l3", "unknown metric 'l3'"),
        ("no.such.module:f", "ModuleNotFoundError"),
        ("gone.py:f", "no such file: gone.py"),
        ("math:nothing", "math has no function 'nothing'"),
        ("math:pi", "math has no function 'pi'"),
    ],
)
def test_a_metric_that_is_none_is_told_before_anything_is_read(text: str, told: str) -> None:
    for verb in (lambda: ampgraph.verify("gone", "gone", metric=text), lambda: ampgraph.tune("gone", metric=text)):
        with pytest.raises(AmpError, match="AMP312") as raised:
            verb()
        assert told in raised.value.message and raised.value.hint


@pytest.mark.parametrize(
    "given", [lambda a, b: "much", lambda a, b: math.nan, lambda a, b: -1, lambda a: 0, lambda a, b: 1 / 0]
)
def test_a_function_that_gives_no_error_is_told(given: Any) -> None:
    with pytest.raises(AmpError, match="AMP312.*metric <lambda>"):
        metric_of(given).judge({"y": np.ones(2)}, {"y": np.ones(2)})


# -- in a conversion's check ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_a_check_takes_a_metric(amp: Any, tmp_path: Path) -> None:
    """The wrong sum is far off by relative L2, and by the function of the file it is not."""
    (tmp_path / "mine.py").write_text("def never(a, b):\n    return 0.0\n")
    model = parse("g (float[2, 8] x) => (float[2, 8] y) <float k = {1000}> { b = Add (x, k)  y = Sub (b, k) }")
    (tmp_path / "c.onnx").write_bytes(model.SerializeToString())
    words = ("convert", tmp_path / "c.onnx", "--level", "O3", "--check", "auto", "-o", tmp_path / "low.onnx")
    status, out, _ = amp(*words, "--metric", "l2")
    assert status == 1 and "MISSED" in out and "at 'y'" in out
    status, out, _ = amp(*words, "--metric", f"{tmp_path}/mine.py:never")
    assert status == 0 and ", error 0, tolerance" in out and "check       ok: " in out
    status, _, err = amp(*words, "--metric", "l3")
    assert status == 2 and "unknown metric 'l3'" in err
    with pytest.raises(AmpError, match="AMP312.*cannot be found by the process"):
        ampgraph.convert(model, output=tmp_path / "x.onnx", check="auto", metric=lambda a, b: 0.0)
    assert not (tmp_path / "x.onnx").exists()


# How a tuning run judges outputs: metrics, what is not finite, references in a file.


def judged(metric, want, got):
    """By a sample among others, and by another run on it."""
    seen = Compared(metric_of(metric))
    seen.add({"y": want}, {"y": got})
    assert seen.error == seen.errors[0] == seen.error_of({"y": want}, {"y": got})
    return seen.error


def scored(metric, errors):
    """What such errors of samples come to."""
    found = Agreement("y", over_all=metric_of(metric).over_all)
    for error in errors:
        found.add(OutputDifference(error, error, compared=1), Judged(error))
    return found.scores.decisive


def test_metrics(tmp_path):
    want, got = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[3.0, 4.5], [0.0, 0.0]])
    assert judged("l2", want, got) == pytest.approx(0.1)
    assert judged("max", want, got) == pytest.approx(0.125)
    cosine = (want * got).sum() / np.linalg.norm(want) / np.linalg.norm(got)
    assert judged("cosine", want, got) == pytest.approx(1 - cosine)
    assert judged("argmax", want, got) == 0.0 and judged("argmax", want, got[:, ::-1]) == 0.5
    assert judged("argmax", np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25
    # what decides
    errors = [float(k) for k in range(1, 21)]
    assert scored("l2", errors) == 18 and scored("argmax", errors) == 10.5
    # a reference that is nowhere finite is told
    kept = References(tmp_path)
    kept.add({"y": np.ones(3, np.float32)}, metric_of("l2"))
    with pytest.raises(AmpError, match="AMP503.*'y' is nowhere finite in sample 1"):
        kept.add({"y": np.full(3, np.nan, np.float32)}, metric_of("l2"))
    # help names every metric
    assert all(name in metrics_help() for name in METRICS) and "file.py:function" in metrics_help()


@pytest.mark.parametrize("metric", ["l2", "max", "argmax", "cosine"])
def test_what_is_not_finite_misses_every_tolerance(metric):
    want = np.ones((1, 4), np.float32)
    for bad in (np.inf, np.nan):
        got = want.copy()
        got[0, 2] = bad
        assert judged(metric, want, got) == math.inf
        assert judged(metric, got, want) == math.inf
        assert judged(metric, got, got) == 0.0
    seen = Compared(metric_of(metric))
    for found in [want] * 99 + [got]:  # one of a hundred
        seen.add({"y": want}, {"y": found})
    assert seen.error == math.inf and not seen.within(1e9) and seen.verdict(1e9, generated=True).missed


def test_what_is_too_much_for_memory_is_read_back_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "IN_MEMORY", 100)
    rng = np.random.default_rng(0)
    number = rng.standard_normal((3, 40)).astype(np.float32)
    samples: list[dict[str, Any]] = [
        {
            "a": number,
            "b": number.astype(ml_dtypes.bfloat16),
            "c": [number[0], number[1]],
            "d": np.array([], np.float32),
        },
        {"a": number.T, "b": number[:, 0].astype(ml_dtypes.bfloat16), "c": [], "d": np.array(1.5)},
        {"a": np.arange(60), "b": np.array(["x", "y"], object), "c": [number], "d": np.zeros((2, 0))},
    ]
    kept, all_of = References(tmp_path), Compared(metric_of("l2"))
    for sample in samples:
        kept.add(sample, metric_of("l2"))
    for place, sample in enumerate(samples):
        assert all_of.distance(kept[place], sample) == 0.0 == Compared(metric_of("l2")).add(kept[place], sample)
        other = {**sample, "a": sample["a"] + 1}
        assert Compared(metric_of("l2")).add(kept[place], other) == Compared(metric_of("l2")).add(sample, other) > 0
    spilled = (tmp_path / "expected.bin").stat().st_size
    assert spilled >= 2 * (2 * number.nbytes + number.nbytes // 4)


@pytest.mark.parametrize(("limit", "spilled"), [(24, False), (23, True)])
def test_all_outputs_together_are_in_memory_up_to_a_limit(tmp_path, monkeypatch, limit, spilled):
    monkeypatch.setattr(judging, "IN_MEMORY", limit)
    kept = References(tmp_path)
    for _ in range(2):  # of 12 bytes each
        kept.add({"y": np.ones(3, np.float32)}, metric_of("l2"))
    assert (tmp_path / "expected.bin").exists() == isinstance(kept[1]["y"], np.memmap) == spilled
    assert not isinstance(kept[0]["y"], np.memmap)


def test_a_reference_that_is_nowhere_finite_is_named(tmp_path):
    kept = References(tmp_path)
    kept.add({"y": np.array([1, np.inf], np.float32)}, metric_of("l2"))
    with pytest.raises(AmpError, match="AMP503.*the float32 model's own output 'y' is nowhere finite in sample 1"):
        kept.add({"y": np.full(2, np.nan, np.float32)}, metric_of("l2"))


def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "IN_MEMORY", 0)
    with pytest.raises(AmpError, match="AMP105"):
        References(tmp_path / "none").add({"y": np.ones(3)}, metric_of("l2"))


@pytest.mark.parametrize("value", [np.float32(3.0), np.ones((4, 1), np.float32)])
def test_argmax_without_classes_is_refused(value, tmp_path):
    with pytest.raises(AmpError, match="AMP312.*classes"):
        References(tmp_path).add({"y": value}, metric_of("argmax"))


# The search for what has to be in float32, without models.


def searched(squares, aim, costs=None, overflow=(), floor=0.0, **more):
    """A search over groups whose squared errors add up: what it finds, and the search."""
    costs = costs or [1] * len(squares)

    def error(held):
        left = [square for i, square in enumerate(squares) if i not in held]
        return math.inf if set(overflow) - held else math.sqrt(sum(left) + floor**2)

    def measure(held):
        return [math.inf if i in overflow and i not in held else square for i, square in enumerate(squares)]

    search = Search(costs, error, measure, **more)
    return search.cheapest(aim), search


def test_the_search():
    best, search = searched([1e-6] * 10, 1e-2)
    assert best == frozenset() and len(search.known) == 1
    # what overflows comes first
    best, search = searched([0.0] * 50, 1e-3, overflow=(7, 30))
    assert best == {7, 30} and len(search.known) <= 8
    # what costs much and helps little is left out
    best, _ = searched([1e-6] * 8, math.sqrt(1.5e-6), [1] * 7 + [1000])
    assert len(best) == 7 and 7 not in best
    # so are products where what follows them is enough
    best, _ = searched([1e-6] * 30 + [0.9e-6] * 30, math.sqrt(31e-6), [100] * 30 + [1] * 30)
    assert best <= frozenset(range(30, 60))
    # what cannot be met has no result
    best, search = searched([1e-6] * 10, 1e-3, floor=0.1)
    assert best is None and len(search.known) == 2
    # of what a few units make the rest is left out
    assert searched([25.0, 0.0, 16.0, 0.0, 0.01, 0.01], 0.5)[0] == {0, 2}
    # where the time is up, so many as should be enough
    best, search = searched([25.0, 0.0, 16.0], 0.5, late=lambda: True)
    assert best == {0, 2} and len(search.known) <= 3


def test_errors_that_cancel_are_tried_one_by_one():
    """What makes most by itself may be what keeps another's error small: squares do not tell."""
    parts = [3.0, -2.9, 2.8, -2.7, 0.5, 0.1, 0.1, 0.05]

    def error(held):
        return abs(sum(part for i, part in enumerate(parts) if i not in held))

    def fewest(heavy):
        return Search([1] * 8, error, lambda held: [part**2 for part in parts], heavy=heavy).cheapest(0.5)

    assert fewest(frozenset(range(8))) == {4} and len(fewest(frozenset())) > 4
    assert fewest(frozenset(range(4))) == {4}  # of what is not heavy, what is needed


@pytest.mark.parametrize("seed", range(20))
def test_the_search_comes_close_to_the_smallest_set(seed):
    rng = np.random.default_rng(seed)
    squares = list(rng.lognormal(0, 2, 300) * 1e-8)
    tolerance = math.sqrt(sum(squares) * rng.uniform(0.05, 0.8))
    best, search = searched(squares, tolerance)
    left = sorted(squares)
    fewest = len(squares) - max(k for k in range(301) if sum(left[:k]) <= tolerance**2)
    assert search.left(best) <= tolerance and fewest <= len(best) <= fewest * 1.08 + 1


@pytest.mark.parametrize("off", [0.8, 1.0, 1.3])
def test_predictions_that_are_off_are_asked_again_for_less(off):
    """What is left is as much more, or less, than was predicted."""
    squares, tolerance = [10.0**-k for k in range(4, 12)], 2e-5
    runs: dict[int, float] = {}

    def left(count):
        return math.sqrt(sum(squares[count:]))

    def predict(aim):
        return next(frozenset(range(k)) for k in range(9) if off * left(k) <= aim)

    def run(held, aim):
        runs[len(held)] = left(len(held))
        return runs[len(held)]

    confirm_by_runs(tolerance, predict, run, BUDGET)
    assert len(runs) <= 4
    assert min(k for k in runs if runs[k] <= tolerance) <= 1 + next(k for k in range(9) if left(k) <= tolerance)


def test_undecided_rows_of_generated_samples_count_as_a_tenth() -> None:
    """An undecided row moves by p (1 - p) of what its scores do; trained models are seldom so on their own inputs."""

    def rows(sure: int, unsure: int, moved: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        want = np.array([[0.99, 0.01]] * sure + [[0.6, 0.4]] * unsure)
        got = want + np.array([[1e-3, -1e-3]] * sure + [[moved, -moved]] * unsure)
        return {"p": want}, {"p": got}

    def error(metric: Metric, sure: int, unsure: int) -> float:
        return metric.judge(*rows(sure, unsure, 0.02))["p"].error()

    checked, exact = own_metric(generated=True), own_metric(generated=False)
    assert error(checked, 9, 1) == pytest.approx(error(exact, 9, 1))  # a tenth of them is as in real samples
    assert error(checked, 5, 5) < 0.6 * error(exact, 5, 5)
    assert error(checked, 0, 1) == pytest.approx(0.1**0.5 * error(exact, 0, 1))
    want, got = rows(5, 5, 0.02)
    got["p"][0] += [0.1, -0.1]  # a row that was decided counts whole
    assert checked.judge(want, got)["p"].error() > 0.8 * exact.judge(want, got)["p"].error()
    scores, moved = {"y": want["p"] * 2}, {"y": got["p"] * 2}  # rows of one alone are probabilities
    assert checked.judge(scores, moved)["y"].error() == pytest.approx(exact.judge(scores, moved)["y"].error())


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [([0.1] * 3, "missed"), ([0.1, 0.1, 0.0], "doubtful"), ([0.1] * 3 + [0.0] * 3, "missed"), ([0.1], "missed")],
)
def test_few_generated_samples_miss_where_all_do(errors: list[float], outcome: str) -> None:
    """Half of three says less than half of six."""
    seen = Compared(own_metric(generated=True), numbers_first=True)
    for number, error in enumerate(errors):
        want = np.random.default_rng(number).normal(size=100).astype(np.float32)
        seen.add({"y": want}, {"y": want * np.float32(1 + error)})
    assert seen.verdict(1e-2, generated=True).outcome == outcome


def test_outputs_that_are_no_arrays() -> None:
    """Maps by their keys, in any order; an empty optional is like another one only."""
    one, other = {"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}
    same = compare_outputs(one, other)
    assert same.error == 0 and same.nested and compare_outputs(None, None).error == 0
    for want, got, why in ((one, {"a": 1.0}, "keys"), (None, np.ones(2), "empty"), ([one], one, "lengths")):
        found = compare_outputs(want, got)
        assert math.isinf(found.error) and why in found.reason


def test_quantiles_and_what_decides() -> None:
    """Quantiles are errors that occurred; a mean with one infinite error is infinite."""
    errors = [float(i) for i in range(1, 9)]
    assert [quantile(errors, share) for share in (0.0, 0.5, 0.9, 1.0)] == [1, 4, 8, 8]
    assert Scores("tokens", [0.0, 1.0, 0.5, 0.5], over_all=True).decisive == 0.5
    assert math.isinf(Scores("tokens", [0.0, math.inf], over_all=True).decisive)
    assert Judged(0.0).error() == 0 and Judged(0.0, 0.0).error() == 0 and math.isinf(Judged(1.0, 0.0).error())
    assert Judged(1.0, 2.0, scaled=True).error(100.0) == pytest.approx(0.1)  # a tenth of the scale, not the size


def test_a_reference_of_nothing_finite_is_unchecked() -> None:
    seen = Compared(own_metric(True), numbers_first=True)
    for _ in range(3):
        seen.add({"y": np.full(4, np.nan)}, {"y": np.full(4, np.nan)})
    verdict = seen.verdict(1e-2, generated=True)
    assert verdict.outcome not in ("ok", "missed") and seen.mostly_silent() == ["y"]
