"""What the tests of loss scales share: random steps, and the scale after each."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from ampgraph.training.step.loss_scale import (
    LossScale,
    LossScaleState,
)

FLOAT32_MAX = float(np.finfo(np.float32).max)
RATES = (0.0, 0.02, 0.2, 0.5, 0.9)


def trace(policy: LossScale, steps: Iterable[bool], start: LossScaleState | None = None) -> list[float]:
    """The scale after every step."""
    state, scales = start or policy.start(), []
    for finite in steps:
        state = policy.update(state, finite)
        scales.append(state.scale)
    return scales


def steps_of(seed: int, count: int) -> list[bool]:
    """Random steps: stretches in which overflows are never, seldom, often or nearly always met."""
    dice = random.Random(seed)
    steps: list[bool] = []
    while len(steps) < count:
        rate = dice.choice(RATES)
        steps += [dice.random() >= rate for _ in range(dice.randint(5, 60))]
    return steps[:count]


STARTS = (65536.0, 1.0, 1.25, 3e38, FLOAT32_MAX, 1000003.0)
