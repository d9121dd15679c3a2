"""What mends a model: it is converted again with more in float32, as little as runs predict, and judged as before."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.annotations import pinned_in, target_in
from ..core.errors import AmpError
from ..core.graph import LOW, DescribedGraph, Graph
from ..core.recipe import Recipe
from ..core.repairs import SHOWN, Repair, RepairOutcome
from ..core.verdict import ALL, CheckVerdict
from ..formats.adapters import OnnxGraph, load_onnx
from ..numerics.comparison import Outcome
from ..numerics.inputs.samples import Samples
from ..numerics.pairs import OnnxPair
from ..numerics.search import Search, confirm_by_runs
from ..numerics.trace.fault_search import FaultSearch
from ..planner.resolve import resolve
from .kinds import Model, PathLike
from .steps import Job, run_job

ROUNDS = 16  # of looking at what is left
TURNS = 3  # of holding more, where a conversion leaves more than was predicted
WRONG = 2.0  # times the tolerance: at least so wrong is what is not right, for the next prediction
LOOKING = 0.4  # of the time that is left, for looking at a model anew
PREDICTING = 0.5  # of the time that is left, for runs that predict
LESS = 0.8  # of the error: what a float32 stream leaves where it is worth its Casts
NEAR = 0.25  # of the tolerance: errors below are no reason to try that
LEVELS = ("O2", "auto", "O3", "O1")  # by which a model may have been made that does not say


Trial = tuple[tuple[str, ...], Outcome]
"""Patterns that a conversion pinned to float32 besides, and what became of it."""


@dataclass
class Mending:
    """A search for what mends a model.

    Attributes:
        source: what its reference was read from; ``recipe``: with which it was made.
        judge: runs another model on the same samples.
        drawn: the samples.
        until: the time, as `time.monotonic` tells it, by which all ends; ``seconds``: what a trial takes, as far as
            that is known.
    """

    source: Model
    recipe: Recipe
    judge: Callable[[Graph | PathLike], Outcome]
    drawn: Samples
    until: float
    folder: Path
    seconds: float = 0.0
    done: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    refused: str = ""

    @property
    def in_time(self) -> bool:
        """Search for a repair: whether there is time to try one more."""
        return time.monotonic() + self.seconds < self.until

    @property
    def _left(self) -> float:
        """Search for a repair: seconds that are left for trials, less what one more takes; 0 when there are none."""
        return max(self.until - time.monotonic() - self.seconds, 0.0)

    def search(self, found: FaultSearch) -> RepairOutcome:
        """Search for a repair: what was tried and mends the model, or why nothing is known to. ``found``: the nodes to
        blame."""
        first, held = found, tuple[str, ...]()
        for _ in range(ROUNDS):
            trial = self._tried(found, held)
            if trial is not None and trial[1].ok:
                return RepairOutcome(Repair(trial[0], trial[1].error, str(self.recipe)), "", len(self.done))
            if trial is None or not self.in_time or trial[0] == held:
                break
            held, outcome = trial
            found = replace(
                found, pair=outcome.pair, compared=outcome.compared, kept=outcome.kept, seconds=LOOKING * self._left,
                seen=False,
            )  # fmt: skip
            found.look(self.drawn, None)
        return RepairOutcome(None, self._why_not(first), len(self.done))

    def _why_not(self, found: FaultSearch) -> str:
        """Search for a repair: why none was found, in words."""
        number = len(self.done)
        best = min((outcome.error for outcome in self.done.values()), default=math.inf)
        left = f", the best leaves {best:.2g}" if math.isfinite(best) else ""
        why = f"; {self.refused}" if self.refused else "" if self.in_time else "; the time is up"
        if number or why:
            return f"none found in {number} conversion{'s' * (number != 1)}{left}{why}"
        search = found.search
        floor = 0.0 if search is None else search.left(range(len(search.costs)))
        if floor > found.tolerance:
            return f"none found: with every node in float32 that a run can switch the error is {floor:.2g}"
        return ALL

    def _tried(self, found: FaultSearch, held: tuple[str, ...]) -> Trial | None:
        """Search for a repair: tries patterns one after the other: the first trial that is right, else the last one."""
        if found.search is not None:
            return self._predicted(found, found.search, held)
        patterns = [pattern for suspect in found.suspects for pattern in suspect.patterns]
        return self.attempt((*held, *patterns)) if patterns else None

    def _predicted(self, found: FaultSearch, search: Search, held: tuple[str, ...]) -> Trial | None:
        """Search for a repair: tries the cheapest pins that a strict run predicts to be enough, and aims lower where
        the conversion leaves more; the last trial, if one was made."""
        until, last = time.monotonic() + PREDICTING * self._left, list[Trial]()
        search = replace(search, late=lambda: time.monotonic() > until)

        def predict(aim: float) -> frozenset[int] | None:
            units = search.cheapest(aim)
            return None if units is not None and len(units) == len(search.costs) > SHOWN else units  # that is no repair

        def run(units: frozenset[int], aim: float) -> float | None:
            trial = self.attempt((*held, *(pattern for unit in sorted(units) for pattern in found.patterns(unit))))
            last.extend([] if trial is None else [trial])
            return None if trial is None or trial[1].ok else max(trial[1].error, WRONG * found.tolerance)

        confirm_by_runs(found.tolerance, predict, run, TURNS)
        return last[-1] if last else None

    def attempt(self, patterns: Iterable[str]) -> Trial | None:
        """For a repair: converts with more patterns of `--fp32`, and compares; None where time is up or `convert`
        refuses."""
        names = tuple(dict.fromkeys(patterns))
        if names not in self.done:
            start = time.monotonic()
            if not self.in_time:
                return None
            try:
                recipe = replace(self.recipe, fp32=(*self.recipe.fp32, *names))
                model = converted(self.source, recipe, self.folder / f"tried{len(self.done)}.onnx")
                self.done[names] = self.judge(model)
            except AmpError as error:
                self.refused = error.message
                return None
            self.seconds = max(self.seconds, time.monotonic() - start)
        return names, self.done[names]


def converted(source: Model, recipe: Recipe, path: Path) -> Graph | PathLike:
    """For a repair: what `convert` makes of a model: a graph, or the file ``path`` where weights lie beside the
    model's."""
    graph = run_job(Job(source, recipe)).graph
    if not graph.data_files():
        return graph
    graph.save(path)
    return path


def repair_of(
    source: Model, recipe: Recipe | None, found: FaultSearch, again: Callable[[OnnxPair], Outcome], drawn: Samples,
    until: float, seconds: float = 0.0,
) -> RepairOutcome | None:  # fmt: skip
    """The search for what mends a model made from ``source``; None where nobody is to blame.

    ``recipe``: with which; None finds out. ``again`` judges a pair, which took ``seconds`` for the first one;
    ``until``: the time, as `time.monotonic` tells it, at which it ends."""
    pair = found.pair
    if not found.suspects or not isinstance(pair, OnnxPair):
        return None
    if not pair.strict:
        return RepairOutcome(None, "not looked for, as the run is not strict")
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as name:
        folder = Path(name)
        recipe = recipe or made_by(
            pair.source, pair.result, lambda guess: converted(source, guess, folder / "again.onnx")
        )
        if recipe is None:
            return RepairOutcome(None, "not looked for, as the file does not tell how it was made")
        judge = lambda model: again(pair.with_model(model))  # noqa: E731  # of two types, which a function would repeat
        return Mending(source, recipe, judge, drawn, until, folder, seconds).search(found)


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
        found = again(pair.with_model(model))
    worth = found.error < error * (1 if found.ok else LESS)
    return replace(verdict, stream=found.error) if worth else verdict


# -- with what recipe a model was made of another ----------------------------------------------------------------------


def made_by(reference: OnnxGraph, model: OnnxGraph, convert: Callable[[Recipe], Model | Graph]) -> Recipe | None:
    """For a repair by `verify`: the recipe with which ``convert`` makes ``model`` of its reference, by what the model's
    metadata says, or by what gives the same types; None for another tool's work, and where more was said than the file
    tells (patterns of `--low`, lists, measured ranges)."""
    wanted = _types(model)
    for recipe in _guesses(reference, model):
        try:
            found = load_onnx(convert(recipe))
        except AmpError:
            continue
        if _types(found) == wanted:
            return recipe
    return None


def _guesses(reference: OnnxGraph, model: OnnxGraph) -> list[Recipe]:
    """For a repair by `verify`: recipes by which a converted model may have been made of its reference: that in its
    metadata, else every level with its types and opset; none where nothing is low."""
    flows = reference.dataflow(), model.dataflow()
    before, after = ([flow.values[v] for v in (*flow.scopes[0].inputs, *flow.scopes[0].outputs)] for flow in flows)
    given = {value.name for value in before if value.dtype in LOW}
    io = tuple(f"{value.name}=low" for value in after if value.dtype in LOW and value.name not in given)
    dtype = next((value.dtype for value in flows[1].values if value.dtype in LOW), "")
    if not dtype:
        return []
    ours, theirs = (flow.opset for flow in flows)
    plain = Recipe(dtype=dtype, io=io, opset=theirs if theirs != ours else None)
    try:
        said = _said(plain, model.metadata() if isinstance(model, DescribedGraph) else {})
        return [said] if said is not None else [Recipe.of(plain, level=level) for level in LEVELS]
    except AmpError:  # words of somebody else
        return []


def _said(plain: Recipe, metadata: Mapping[str, str]) -> Recipe | None:
    """For a repair by `verify`: the recipe that a file's metadata says it was made with. AmpError AMP301 to AMP311 for
    words that make no sense."""
    level, policy = (metadata.get(f"ampgraph.{word}") for word in ("level", "policy"))
    if level is None:
        return None
    said = Recipe.of(plain, level=level, policy=policy or "ampgraph", fp32=pinned_in(metadata))
    target = target_in(metadata)
    return said if target == resolve(said, "ONNX").target else replace(said, target=target)


def _types(graph: Graph) -> set[tuple[str, str]]:
    """For a repair by `verify`: names and types of all values, by which a conversion is compared with the model."""
    return {(value.name, value.dtype) for value in graph.dataflow().values}
