"""What lets a file open that ONNX Runtime refuses: kinds of operators are held in float32, and that is tried."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from ..core.errors import AmpError
from ..core.graph import LOW
from ..core.recipe import Recipe
from ..core.verdict import CheckVerdict
from ..numerics.graphs import load_onnx
from ..oplists.traits import has
from .check_request import Request
from .opening import CPU, refusal
from .steps import Job, run


def with_repair(verdict: CheckVerdict, request: Request, until: float) -> CheckVerdict:
    """The verdict with the first kind of operators that, held in float32, lets the file open: the rarest come first.

    ``until``: as `time.monotonic` tells it, when to end."""
    recipe, count, seconds = request.recipe, 0, 0.0
    if recipe is None:
        return verdict
    for kind in _low_kinds(request.model):
        start = time.monotonic()
        if start + seconds > until:
            return replace(verdict, unrepaired=f"none found in {count} conversions; the time is up")
        pattern, count = f"op:{kind}", count + 1
        if _opens(request, replace(recipe, fp32=(*recipe.fp32, pattern))):
            return replace(verdict, mended_by=(pattern,))
        seconds = max(seconds, time.monotonic() - start)
    return replace(verdict, unrepaired=f"none found in {count} conversions")


def _opens(request: Request, recipe: Recipe) -> bool:
    """Whether what `convert` makes of the reference with a recipe opens."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        path = Path(folder) / "tried.onnx"
        try:
            run(Job(request.reference, recipe)).graph.save(path)
            found = refusal(str(path))
            return found is None or (found.lacks_kernel and request.target != CPU)
        except AmpError:  # the pattern is of a node that convert itself made
            return False


def _low_kinds(model: str) -> list[str]:
    """The operators with low results but for Casts, those of which there are few first."""
    flow = load_onnx(model).dataflow()
    low = (op for op in flow.ops if any(flow.values[v].dtype in LOW for v in op.outputs if v >= 0))
    counts = Counter(op.kind for op in low if not has(op.role, "casts"))
    return sorted(counts, key=lambda kind: (counts[kind], kind))
