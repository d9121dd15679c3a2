"""How sensitive a model is by itself: what the rounding of its inputs alone, all else in float32, does to its outputs.

Where that passes a tolerance, the model is chaotic: no choice of precision inside it brings it below, as long as its
inputs come in a low type or are not known better than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import ml_dtypes
import numpy as np

from ...core.arrays import Result
from .agreement import Agreement, apart

Outputs = Mapping[str, Result]
Feeds = dict[str, Result]


def sensitivity(run: Callable[[Feeds], Outputs], samples: Iterable[Feeds], dtype: str) -> tuple[str, float]:
    """The output that changes most, and its error at the 90th percentile of the samples; ("", 0.0) for none.

    ``run`` runs the float32 model. Samples without a floating input, or with one beyond ``dtype``, tell nothing.
    """
    outputs: dict[str, Agreement] = {}
    for feeds in samples:
        rounded = {name: rounded_to(value, dtype) for name, value in feeds.items()}
        if all(rounded[name] is feeds[name] for name in feeds) or not all(map(_finite, rounded.values())):
            continue
        expected, found = run(feeds), run(rounded)
        for name, value in expected.items():
            outputs.setdefault(name, Agreement(name)).add(apart(value, found[name]))
    floating = [output for output in outputs.values() if output.floating and output.compared]
    worst = max(floating, key=lambda output: output.p90, default=None)
    return ("", 0.0) if worst is None or not math.isfinite(worst.p90) else (worst.name, worst.p90)


def rounded_to(value: Result, dtype: str) -> Result:
    """A floating array rounded to a low type and back; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.dtype.itemsize < 4:
        return value
    low = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    with np.errstate(over="ignore"):
        return value.astype(low).astype(value.dtype)


def _finite(value: Result) -> bool:
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.isfinite(value).all())
