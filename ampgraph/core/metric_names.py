"""The metrics by which outputs are judged, by name: what `--help` lists and every verb takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METRICS: Mapping[str, str] = MappingProxyType({
    "auto": "each output as what it is: numbers, probabilities, classes and tokens, detections",
    "l2": "root mean square of the difference over that of the reference, or over 1e-3 where that is smaller",
    "max": "largest difference over the largest magnitude",
    "cosine": "1 - cosine similarity",
    "argmax": "share of places where another class is the largest",
    "probabilities": "l2, but what is less likely than a tenth, all together, by its absolute error",
    "logits": "their softmax, as probabilities",
    "detections": "rows of boxes paired first, by overlap and class; a row without partner counts whole",
    "tokens": "share of integers that differ, place by place; what one side lacks differs",
})  # fmt: skip
OVER_ALL = ("argmax", "tokens")
"""Shares: their mean over the samples is judged, the errors of the others at the 90th percentile."""

CUSTOM = "package.module:function or file.py:function, called as function(reference, result) -> error"
"""What else `--metric` takes."""


def metrics_help() -> str:
    """The names of all metrics, for `--help`."""
    return f"How the error is measured: {', '.join(METRICS)}; or {CUSTOM}."
