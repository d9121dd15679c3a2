"""Parts of an output that differ in scale are judged by themselves; what is nothing is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ampgraph.core.verdict import MISSED, OK
from ampgraph.numerics.metrics.metric import metric_of, own_metric
from ampgraph.numerics.metrics.parts import MOST
from ampgraph.numerics.metrics.verdict import Compared

Array = np.ndarray
RNG = np.random.default_rng(0)


def head(samples: int) -> list[Array]:
    """A detector's raw head [1, 4 + 6, 200]: boxes in pixels, scores below one."""
    boxes = [RNG.uniform(10, 600, (1, 4, 200)) for _ in range(samples)]
    return [np.concatenate([box, RNG.uniform(0, 0.2, (1, 6, 200)) ** 2], 1).astype(np.float32) for box in boxes]


def turned(samples: int) -> list[Array]:
    """The same with the boxes in rows."""
    return [array.transpose(0, 2, 1).copy() for array in head(samples)]


def tasks(samples: int) -> list[Array]:
    """A vector of tasks: an age in years, a share, a temperature in kelvin, a probability."""
    scale = np.array([40, 0.5, 290, 0.05])
    return [(scale * RNG.uniform(0.5, 1.5, (1, 4))).astype(np.float32) for _ in range(samples)]


def maps(samples: int) -> list[Array]:
    """Depth in metres beside a confidence, [1, 2, 16, 16]."""
    scale = np.array([80, 0.4]).reshape(1, 2, 1, 1)
    return [(scale * RNG.uniform(0.1, 1, (1, 2, 16, 16))).astype(np.float32) for _ in range(samples)]


KINDS: dict[str, tuple[Callable[[int], list[Array]], int, slice, str]] = {
    "head": (head, 1, slice(4, None), "[:, 4:10]"),
    "turned": (turned, 2, slice(4, None), "[:, :, 4:10]"),
    "tasks": (tasks, 1, slice(3, 4), "[:, 3]"),
    "maps": (maps, 1, slice(1, 2), "[:, 1]"),
}
CHANGES: dict[str, Callable[[Array, int], Array]] = {
    "zeroed": lambda part, axis: 0 * part,
    "scaled": lambda part, axis: 1.05 * part,
    "shifted": lambda part, axis: np.roll(part, 1, axis),
    "permuted": lambda part, axis: np.flip(part, -1 if axis == 1 else 1),
}


def seen(wanted: list[Array], got: list[Array], generated: bool) -> Compared:
    found = Compared(own_metric(generated), numbers_first=True)
    for one, other in zip(wanted, got, strict=True):
        found.add({"y": one}, {"y": other.astype(np.float32)})
    return found


ORDERLESS = {("tasks", "shifted"), ("tasks", "permuted"), ("maps", "shifted")}  # of one number, or one channel
CASES = [(kind, change) for kind in KINDS for change in CHANGES if (kind, change) not in ORDERLESS]


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize(("kind", "change"), CASES)
def test_what_is_wrong_with_a_part_is_noticed(kind: str, change: str, generated: bool) -> None:
    make, axis, where, name = KINDS[kind]
    wanted, got = make(8), []
    for array in wanted:
        changed, index = array.copy(), (*[slice(None)] * axis, where)
        changed[index] = CHANGES[change](changed[index], axis)
        got.append(changed)
    verdict = seen(wanted, got, generated).verdict(1e-2, generated)
    assert verdict.outcome == MISSED and verdict.output == f"y{name}" and verdict.tolerance == pytest.approx(3e-2)
    assert verdict.error is not None and verdict.error > 3e-2
    assert seen(wanted, got, generated).error > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_not(kind: str) -> None:
    wanted = KINDS[kind][0](8)
    rounded = [array.astype(np.float16).astype(np.float32) for array in wanted]
    assert seen(wanted, wanted, True).verdict(1e-2, True).outcome == OK
    verdict = seen(wanted, rounded, True).verdict(1e-2, True)
    assert verdict.outcome == OK and verdict.output == "y" and verdict.tolerance == 1e-2


def test_a_part_may_be_off_by_three_times_as_much() -> None:
    wanted = head(8)
    got = [array * np.where(np.arange(10) < 4, 1, 1.02).reshape(1, 10, 1) for array in wanted]
    assert seen(wanted, got, False).within(1e-2)
    assert not seen(wanted, got, False).within(5e-3)


def test_channels_that_are_nothing_say_nothing() -> None:
    """Noise of 1e-6 beside boxes, below the floor of the measure; and a channel of zeros."""
    wanted = [
        np.concatenate([array, 1e-6 * RNG.normal(size=(1, 1, 200)), np.zeros((1, 1, 200))], 1) for array in head(8)
    ]
    got = [array.copy() for array in wanted]
    for array in got:
        array[:, 10:] = 1e-5 * RNG.normal(size=(1, 2, 200))
    assert seen(wanted, got, False).within(1e-2)


def test_numbers_of_one_scale_have_no_parts() -> None:
    """Logits, one of which is near zero by chance."""
    wanted = [RNG.normal(size=(1, 50)) for _ in range(8)]
    found = seen(wanted, [array + 0.005 * RNG.normal(size=(1, 50)) for array in wanted], False)
    assert found.within(1e-2) and found.outputs[0].by_part == []
    places = [RNG.normal(size=(1, MOST + 1)) * np.geomspace(1, 1e6, MOST + 1) for _ in range(3)]
    assert seen(places, places, False).outputs[0].by_part == []


@pytest.mark.parametrize("alike", [1.0, 0.0])
def test_a_logit_that_is_small_by_chance_is_no_part(alike: float) -> None:
    """Of one sample, or of several on which the same class is near zero."""
    base = RNG.normal(size=(1, 100))
    base[0, 58] = 1e-3
    wanted = [base + alike * index * 1e-3 * RNG.normal(size=(1, 100)) for index in range(6 if alike else 1)]
    got = [array + 4e-4 * RNG.normal(size=(1, 100)) for array in wanted]
    assert seen(wanted, got, False).within(1e-2) and seen(wanted, got, True).within(1e-2)
    # boxes and scores are told apart in one sample
    [boxes] = head(1)
    scores = boxes * np.where(np.arange(10) < 4, 1, 1.05).reshape(1, 10, 1)
    assert not seen([boxes], [scores], False).within(1e-2)


def test_other_measures_have_none() -> None:
    wanted = head(4)
    wrong = [np.concatenate([array[:, :4], 0 * array[:, 4:]], 1) for array in wanted]
    found = Compared(metric_of("cosine"))
    for one, other in zip(wanted, wrong, strict=True):
        found.add({"y": one}, {"y": other})
    assert found.within(1e-2)


def test_sizes_that_change_have_none_along_them() -> None:
    wanted = [RNG.normal(size=(1, n)) * np.geomspace(1, 1e4, n) for n in (3, 5)]
    assert seen(wanted, wanted, False).outputs[0].by_part == []
