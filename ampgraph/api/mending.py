"""What mends a model: it is converted again with more in float32, as little as runs predict, and judged as before."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import AmpError
from ..core.graph import LOW, Graph
from ..core.recipe import Recipe
from ..core.repairs import SHOWN, Mended, Repair
from ..core.verdict import CheckVerdict
from ..numerics.graphs import load_onnx
from ..numerics.metrics.agreement import Agreement
from ..numerics.search import Ranking
from ..oplists.traits import has
from .fault_search import FaultSearch
from .kinds import Feeds, Model, PathLike
from .made_by import made_by
from .opening import CPU, refusal
from .pairs import OnnxPair
from .steps import Job, run

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples
    from .check_request import Request

ROUNDS = 16  # of looking at what is left
TURNS = 3  # of holding more, where a conversion leaves more than was predicted
AIM = 0.9  # of the tolerance
LOOKING = 0.4  # of the time that is left, for looking at a model anew
PREDICTING = 0.5  # of the time that is left, for runs that predict
LESS = 0.8  # of the error: what a float32 stream leaves where it is worth its Casts
NEAR = 0.25  # of the tolerance: errors below are no reason to try that


@dataclass(frozen=True)
class Outcome:
    """How a model was judged: the largest error of an output, whether that is right; what was run, and the outputs over
    the samples; ``kept`` as `FaultSearch` has it."""

    error: float
    ok: bool
    pair: OnnxPair
    outputs: list[Agreement]
    kept: tuple[int, Feeds, Feeds] | None = None


@dataclass(frozen=True)
class Trial:
    """What became of a conversion with more in float32."""

    patterns: tuple[str, ...]
    outcome: Outcome


@dataclass
class Mending:
    """A search for what mends a model.

    Attributes:
        source: what its reference was read from; ``recipe``: with which it was made.
        judge: runs another model on the same samples.
        look: lets a search for nodes do as the first one did.
        until: the time, as `time.monotonic` tells it, by which all ends; ``seconds``: what a trial takes, as far as
            that is known.
    """

    source: Model
    recipe: Recipe
    judge: Callable[[Graph | PathLike], Outcome]
    look: Callable[[FaultSearch], None]
    until: float
    folder: Path
    seconds: float = 0.0
    done: list[Trial] = field(default_factory=list)
    refused: str = ""

    @property
    def in_time(self) -> bool:
        """Whether there is time for one more."""
        return time.monotonic() + self.seconds < self.until

    @property
    def _left(self) -> float:
        return max(self.until - time.monotonic() - self.seconds, 0.0)

    def search(self, found: FaultSearch) -> Mended:
        """What was tried and mends the model, or why nothing is known to. ``found``: who is to blame for what it
        misses."""
        first, held = found, tuple[str, ...]()
        for _ in range(ROUNDS):
            trial = self._tried(found, held)
            if trial is not None and trial.outcome.ok:
                return Mended(Repair(trial.patterns, trial.outcome.error, str(self.recipe)), "", len(self.done))
            if trial is None or not self.in_time or trial.patterns == held:
                break
            held, seen = trial.patterns, trial.outcome
            found = replace(found.anew(), pair=seen.pair, outputs=seen.outputs, kept=seen.kept)
            found.seconds = LOOKING * self._left
            self.look(found)
        return Mended(None, self._why_not(first), len(self.done))

    def _why_not(self, found: FaultSearch) -> str:
        """Why nothing was found, by a search that began with ``found``."""
        number = len(self.done)
        best = min((trial.outcome.error for trial in self.done), default=math.inf)
        left = f", the best leaves {best:.2g}" if math.isfinite(best) else ""
        why = f"; {self.refused}" if self.refused else "" if self.in_time else "; the time is up"
        if number or why:
            return f"none found in {number} conversion{'s' * (number != 1)}{left}{why}"
        floor = 0.0 if found.ranking is None else found.ranking.left(found.ranking.order)
        if floor > found.tolerance:
            return f"none found: with every node in float32 that a run can switch the error is {floor:.2g}"
        return "none found short of all in float32, which is no repair"

    def _tried(self, found: FaultSearch, held: tuple[str, ...]) -> Trial | None:
        """The first trial that is right, else the last."""
        if found.ranking is not None:
            return self._ranked(found.ranking, found.tolerance, held)
        patterns = [pattern for suspect in found.suspects for pattern in suspect.patterns]
        return self.attempt((*held, *patterns)) if patterns else None

    def _ranked(self, ranking: Ranking, tolerance: float, held: tuple[str, ...]) -> Trial | None:
        aim, last = AIM * tolerance, None
        until = time.monotonic() + PREDICTING * self._left
        for _ in range(TURNS):
            units = ranking.needed(aim, lambda: time.monotonic() > until)
            if units is None or (len(units) == len(ranking.order) > SHOWN):  # all of many is no repair
                return last
            trial = self.attempt((*held, *ranking.named(units)))
            if trial is None or trial.outcome.ok:
                return trial or last
            last, aim = trial, aim * min(0.5, AIM * tolerance / max(trial.outcome.error, tolerance))
        return last

    def attempt(self, patterns: Iterable[str]) -> Trial | None:
        """Tries patterns of `--fp32`; None where there is no time, or `convert` refuses them."""
        names = tuple(dict.fromkeys(patterns))
        known = next((trial for trial in self.done if trial.patterns == names), None)
        if known is not None or not self.in_time:
            return known
        start = time.monotonic()
        try:
            recipe = replace(self.recipe, fp32=(*self.recipe.fp32, *names))
            trial = Trial(
                names, self.judge(converted(self.source, recipe, self.folder / f"tried{len(self.done)}.onnx"))
            )
        except AmpError as error:
            self.refused = error.message
            return None
        self.seconds = max(self.seconds, time.monotonic() - start)
        self.done.append(trial)
        return trial


def converted(source: Model, recipe: Recipe, path: Path) -> Graph | PathLike:
    """What `convert` makes of a model: a graph, or the file ``path`` where weights lie beside the model's."""
    graph = run(Job(source, recipe)).graph
    if not graph.data_files():
        return graph
    graph.save(path)
    return path


def repair_of(
    source: Model, recipe: Recipe | None, found: FaultSearch, again: Callable[[OnnxPair], Outcome], drawn: Samples,
    until: float, seconds: float = 0.0,
) -> Mended | None:  # fmt: skip
    """The search for what mends a model made from ``source``; None where nobody is to blame.

    ``recipe``: with which; None finds out. ``again`` judges a pair, which took ``seconds`` for the first one."""
    pair = found.pair
    if not found.suspects or not isinstance(pair, OnnxPair):
        return None
    if not pair.strict:
        return Mended(None, "not looked for, as the run is not strict")
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as name:
        folder = Path(name)
        recipe = recipe or made_by(
            pair.source, pair.result, lambda guess: converted(source, guess, folder / "again.onnx")
        )
        if recipe is None:
            return Mended(None, "not looked for, as the file does not tell how it was made")
        return Mending(
            source, recipe, lambda model: again(pair.remade(model)), lambda other: other.look(drawn, None), until,
            folder, seconds,
        ).search(found)  # fmt: skip


def with_stream_tried(
    verdict: CheckVerdict, source: Model, recipe: Recipe | None, pair: object, again: Callable[[OnnxPair], Outcome],
    until: float,
) -> CheckVerdict:  # fmt: skip
    """The verdict with what `--fp32-stream` left of the error on the same samples, where that is ok or clearly less.

    ``again`` judges a pair; ``until``: as `time.monotonic` tells it, when to end."""
    error, needed = verdict.error or 0.0, verdict.seconds * verdict.samples
    if recipe is None or recipe.fp32_stream or verdict.mended_by or verdict.sensitivity is not None:
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


# -- files that do not open -------------------------------------------------------------------------------------------


def with_repair(verdict: CheckVerdict, request: Request, until: float) -> CheckVerdict:
    """The verdict on a file that ONNX Runtime refuses with the first kind of operators that, held in float32, lets it
    open: the rarest come first.

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
