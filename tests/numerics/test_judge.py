"""How a tuning run judges outputs: metrics, what is not finite, references in a file."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ampgraph import AmpError
from ampgraph.numerics.metrics import verdict as judging
from ampgraph.numerics.metrics.metric import metric_of
from ampgraph.numerics.metrics.verdict import Judge


def judged(metric, want, got):
    judge = Judge(metric_of(metric))
    judge.learn({"y": want})
    return judge.error(0, {"y": got})


def test_metrics():
    want, got = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[3.0, 4.5], [0.0, 0.0]])
    assert judged("l2", want, got) == pytest.approx(0.1)
    assert judged("max", want, got) == pytest.approx(0.125)
    cosine = (want * got).sum() / np.linalg.norm(want) / np.linalg.norm(got)
    assert judged("cosine", want, got) == pytest.approx(1 - cosine)
    assert judged("argmax", want, got) == 0.0 and judged("argmax", want, got[:, ::-1]) == 0.5
    assert judged("argmax", np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25


@pytest.mark.parametrize("metric", ["l2", "max", "argmax", "cosine"])
def test_what_is_not_finite_misses_every_tolerance(metric):
    want = np.ones((1, 4), np.float32)
    for bad in (np.inf, np.nan):
        got = want.copy()
        got[0, 2] = bad
        assert judged(metric, want, got) == math.inf
        assert judged(metric, got, want) == math.inf
        assert judged(metric, got, got) == 0.0
    judge = Judge(metric_of(metric))
    assert judge.over_samples([0.0] * 99 + [math.inf]) == math.inf


def test_nine_of_ten_samples_decide():
    errors = [float(k) for k in range(1, 21)]
    assert Judge(metric_of("l2")).over_samples(errors) == 18 and Judge(metric_of("argmax")).over_samples(errors) == 10.5


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
    for metric in ("l2", "max", "cosine"):
        ours, theirs = Judge(metric_of(metric), tmp_path), Judge(metric_of(metric))
        for sample in samples:
            ours.learn(sample)
            theirs.learn(sample)
        for place, sample in enumerate(samples):
            other = {**sample, "a": sample["a"] + 1}
            assert ours.error(place, other) == theirs.error(place, other) > 0
            assert ours.error(place, sample) == theirs.error(place, sample)
    spilled = (tmp_path / "expected.bin").stat().st_size
    assert spilled >= 3 * (2 * number.nbytes + number.nbytes // 2)


def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "IN_MEMORY", 0)
    with pytest.raises(AmpError, match="AMP105"):
        Judge(metric_of("l2"), tmp_path / "none").learn({"y": np.ones(3)})


@pytest.mark.parametrize("value", [np.float32(3.0), np.ones((4, 1), np.float32)])
def test_argmax_without_classes_is_refused(value):
    with pytest.raises(AmpError, match="AMP312.*classes"):
        Judge(metric_of("argmax")).learn({"y": value})


def test_a_reference_that_is_nowhere_finite_is_told():
    judge = Judge(metric_of("l2"))
    judge.learn({"y": np.ones(3, np.float32)})
    with pytest.raises(AmpError, match="AMP503.*'y' is nowhere finite in sample 1"):
        judge.learn({"y": np.full(3, np.nan, np.float32)})
