"""What errors over samples come to: half of generated ones miss, fewer are doubtful, the user's are held to p90."""

import math

import pytest

from ampgraph.api.judging import judged, unsure
from ampgraph.numerics.metrics.agreement import Agreement, Apart, vanishing


def watched(errors, sizes=None):
    found = Agreement("y")
    for error, size in zip(errors, sizes or [1.0] * len(errors), strict=True):
        astray = int(math.isinf(error))
        off = 0.0 if astray else error * size
        found.add(Apart(error, off, compared=4, floating=True, off=off, size=size, astray=astray))
    return found


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
    ],
)
def test_generated_inputs(errors, outcome, exceeded):
    verdict = judged([watched(errors)], 1e-2, generated=True)
    assert (verdict.outcome, verdict.exceeded) == (outcome, exceeded)


def test_what_comes_close_is_said_so():
    verdict = judged([watched([7e-3] * 6)], 1e-2, generated=True)
    said = "DOUBTFUL: error 0.007 at 'y' on 6 generated inputs, tolerance 0.01: real ones may miss it: give --data"
    assert str(verdict) == said


@pytest.mark.parametrize(("worst", "outcome"), [(9e-3, "ok"), (1.5e-2, "missed")])
def test_one_of_eight_of_the_users_decides(worst, outcome):
    assert judged([watched([1e-3] * 7 + [worst])], 1e-2, generated=False).outcome == outcome


def test_a_generated_sample_in_which_the_output_nearly_vanishes_is_measured_against_the_others():
    found = [watched([1e-3] * 5 + [0.5], [1.0] * 5 + [0.01])]
    assert judged(found, 1e-2, generated=True).outcome == "doubtful"  # 5e-3 of 0.1: not 0.5, and not nothing
    found = [watched([1e-3] * 5 + [0.05], [1.0] * 5 + [0.01])]
    assert judged(found, 1e-2, generated=True).outcome == "ok"
    assert judged(found, 1e-2, generated=False).outcome == "missed"


def test_more_samples_are_wanted_where_the_first_come_close():
    for errors, wanted in ([1e-3] * 6, False), ([1e-3] * 5 + [3e-3], True), ([1.5e-2] * 6, False):
        assert unsure([watched(errors)], 1e-2) == wanted


def test_an_output_that_says_nothing_is_not_judged():
    mute = Agreement("m")
    for _ in range(3):
        mute.add(Apart(math.inf, 0.0, silent=True, floating=True))
    assert judged([mute, watched([1e-3] * 3)], 1e-2, generated=True).outcome == "ok"
    assert judged([mute], 1e-2, generated=True).outcome == "not checked"


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
    seen = [watched(errors, sizes)]
    assert judged(seen, 1e-2, generated=True).outcome == "ok"  # the floor says so
    assert said in vanishing(seen, {}) and bool(said) == bool(vanishing(seen, {}))
    assert not vanishing(seen, {"y": "probabilities"})  # probabilities may be as near to zero as they like
