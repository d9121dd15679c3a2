"""Whether float32 residual streams would lessen an error that is near the tolerance: tried, and named where they do."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..core.errors import AmpError
from ..core.recipe import Recipe
from ..core.verdict import CheckVerdict
from .kinds import Model
from .pairs import OnnxPair
from .trials import Outcome, converted

LESS = 0.8  # of the error: what is left where it is worth its Casts
NEAR = 0.25  # of the tolerance: errors below are no reason


def with_stream_tried(
    verdict: CheckVerdict, source: Model, recipe: Recipe | None, pair: object, again: Callable[[OnnxPair], Outcome],
    until: float,
) -> CheckVerdict:  # fmt: skip
    """The verdict with what `--fp32-stream` left of the error on the same samples, where that is ok or clearly less.

    ``again`` judges a pair; ``until``: as `time.monotonic` tells it, when to end."""
    error, needed = verdict.error or 0.0, verdict.seconds * verdict.samples
    if recipe is None or recipe.fp32_stream or verdict.repair or verdict.sensitivity is not None:
        return verdict
    near = error > NEAR * (verdict.tolerance or math.inf)
    if not near or not isinstance(pair, OnnxPair) or time.monotonic() + needed > until:
        return verdict
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        try:
            model = converted(source, replace(recipe, fp32_stream=True), Path(folder, "tried.onnx"))
        except AmpError:  # a framework's policy knows no such option
            return verdict
        found = again(pair.remade(model))
    worth = found.error < error * (1 if found.ok else LESS)
    return replace(verdict, stream=found.error) if worth else verdict
