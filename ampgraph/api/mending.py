"""The search for a repair: a model is converted again with more in float32, as little as runs predict, and judged as
before."""

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

ROUNDS = 16  # of looking for the nodes to blame in what the last trial left
TURNS = 3  # conversions of a round, each with more in float32 where the one before leaves more than was predicted
WRONG = 2.0  # times the tolerance: what misses counts as at least so wrong, for the next prediction
LOOKING = 0.4  # of the time that is left, for a look for nodes to blame
PREDICTING = 0.5  # of the time that is left, for runs that predict
LESS = 0.8  # of the error: a float32 stream that leaves no more is worth its Casts
NEAR = 0.25  # of the tolerance: a smaller error is no reason to try a float32 stream
LEVELS = ("O2", "auto", "O3", "O1")  # tried in this order for a file that does not say its own


Trial = tuple[tuple[str, ...], Outcome]
"""The patterns that a conversion pinned to float32 beside the recipe's, and how its result did."""


@dataclass
class Mending:
    """A search for a repair of a model that misses the tolerance.

    Attributes:
        source: what its reference was read from; ``recipe``: with which it was made from that.
        judge: runs another model on the same samples and judges it.
        drawn: the samples.
        until: the time of `time.monotonic` by which all ends; ``seconds``: the longest trial so far.
        folder: for files of trials.
        done: the outcome of each trial, by the patterns that it pinned.
        refused: why `convert` refused the last trial that it refused; "" for none.
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
        """Search for a repair: tries to pin the nodes to blame that were ``found``, then those to blame for what that
        left, and so on; returns what was tried and mends the model, or why nothing is known to."""
        first, pinned = found, tuple[str, ...]()
        for _ in range(ROUNDS):
            trial = self._try(found, pinned)
            if trial is not None and trial[1].ok:
                return RepairOutcome(Repair(trial[0], trial[1].error, str(self.recipe)), "", len(self.done))
            if trial is None or not self.in_time or trial[0] == pinned:
                break
            pinned, outcome = trial
            found = replace(
                found, pair=outcome.pair, compared=outcome.compared, kept=outcome.kept, seconds=LOOKING * self._left,
                seen=False,
            )  # fmt: skip
            found.look(self.drawn, None)
        return RepairOutcome(None, self._why_not(first), len(self.done))

    def _why_not(self, found: FaultSearch) -> str:
        """Search for a repair: why none was found, in words. ``found``: the first look for nodes to blame."""
        number = len(self.done)
        best = min((outcome.error for outcome in self.done.values()), default=math.inf)
        left = f", the best leaves {best:.2g}" if math.isfinite(best) else ""
        why = "" if self.in_time else "; the time is up"
        if self.refused:
            why = f"; {self.refused}"
        if number or why:
            return f"none found in {number} conversion{'s' * (number != 1)}{left}{why}"
        search = found.search
        floor = 0.0 if search is None else search.left(range(len(search.costs)))
        if floor > found.tolerance:
            return f"none found: with every node in float32 that a run can switch the error is {floor:.2g}"
        return ALL

    def _try(self, found: FaultSearch, pinned: tuple[str, ...]) -> Trial | None:
        """Search for a repair: pins the nodes to blame beside what is ``pinned`` already: those that runs predict to be
        enough, or without such runs all that were found. Returns the last trial; None where none was made."""
        if found.search is not None:
            return self._try_predicted(found, found.search, pinned)
        patterns = [pattern for suspect in found.suspects for pattern in suspect.patterns]
        return self.attempt((*pinned, *patterns)) if patterns else None

    def _try_predicted(self, found: FaultSearch, search: Search, pinned: tuple[str, ...]) -> Trial | None:
        """Search for a repair: tries the cheapest pins that strict runs predict to be enough, and aims lower where the
        conversion leaves more. Returns the last trial; None where none was made."""
        until, last = time.monotonic() + PREDICTING * self._left, list[Trial]()
        search = replace(search, late=lambda: time.monotonic() > until)

        def predict(aim: float) -> frozenset[int] | None:
            units = search.cheapest(aim)
            if units is not None and len(units) == len(search.costs) > SHOWN:
                return None  # all of a model in float32 is no repair
            return units

        def run(units: frozenset[int], aim: float) -> float | None:
            trial = self.attempt((*pinned, *(pattern for unit in sorted(units) for pattern in found.patterns(unit))))
            if trial is None:
                return None
            last.append(trial)
            return None if trial[1].ok else max(trial[1].error, WRONG * found.tolerance)

        confirm_by_runs(found.tolerance, predict, run, TURNS)
        return last[-1] if last else None

    def attempt(self, patterns: Iterable[str]) -> Trial | None:
        """For a repair: converts with more patterns of `--fp32`, and judges the result; one that was tried before is
        not tried again. None where the time is up or `convert` refuses."""
        names = tuple(dict.fromkeys(patterns))
        if names not in self.done:
            start = time.monotonic()
            if not self.in_time:
                return None
            try:
                recipe = replace(self.recipe, fp32=(*self.recipe.fp32, *names))
                model = convert_to_judge(self.source, recipe, self.folder / f"tried{len(self.done)}.onnx")
                self.done[names] = self.judge(model)
            except AmpError as error:
                self.refused = error.message
                return None
            self.seconds = max(self.seconds, time.monotonic() - start)
        return names, self.done[names]


def convert_to_judge(source: Model, recipe: Recipe, path: Path) -> Graph | PathLike:
    """For a repair: what `convert` makes of a model: a graph, or ``path`` as a file where weights lie in data files."""
    graph = run_job(Job(source, recipe)).graph
    if not graph.data_files():
        return graph
    graph.save(path)
    return path


def find_repair(
    source: Model, recipe: Recipe | None, found: FaultSearch, again: Callable[[OnnxPair], Outcome], drawn: Samples,
    until: float, seconds: float = 0.0,
) -> RepairOutcome | None:  # fmt: skip
    """Searches for a repair of a model that was made from ``source``; None where no node is to blame.

    ``recipe``: with which it was made; None finds out. ``found``: the look for nodes to blame; ``again`` judges a pair
    on the same samples, which took ``seconds`` for the model; ``until``: when to end, by `time.monotonic`."""
    pair = found.pair
    if not found.suspects or not isinstance(pair, OnnxPair):
        return None
    if not pair.strict:
        return RepairOutcome(None, "not looked for, as the run is not strict")
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as name:
        folder = Path(name)
        recipe = recipe or find_recipe(
            pair.source, pair.result, lambda guess: convert_to_judge(source, guess, folder / "again.onnx")
        )
        if recipe is None:
            return RepairOutcome(None, "not looked for, as the file does not tell how it was made")
        judge = lambda model: again(pair.with_model(model))  # noqa: E731  # of two types, which a function would repeat
        return Mending(source, recipe, judge, drawn, until, folder, seconds).search(found)


def try_stream(
    verdict: CheckVerdict, source: Model, recipe: Recipe | None, pair: object, again: Callable[[OnnxPair], Outcome],
    until: float,
) -> CheckVerdict:  # fmt: skip
    """For a check: tries `--fp32-stream` on the same samples, and returns the verdict with the error that it leaves
    where that is ok or clearly less; the verdict as it is where it is not worth a try, or none fits in ``until`` the
    time of `time.monotonic`. ``again`` judges a pair."""
    error, needed = verdict.error or 0.0, verdict.seconds * verdict.samples
    if recipe is None or recipe.fp32_stream or verdict.mended_by or verdict.sensitivity is not None:
        return verdict
    near = error > NEAR * (verdict.tolerance or math.inf)
    if not near or not isinstance(pair, OnnxPair) or time.monotonic() + needed > until:
        return verdict
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        try:
            model = convert_to_judge(source, replace(recipe, fp32_stream=True), Path(folder, "tried.onnx"))
        except AmpError:  # a framework's policy knows no such option
            return verdict
        found = again(pair.with_model(model))
    worth = found.error < error * (1 if found.ok else LESS)
    return replace(verdict, stream=found.error) if worth else verdict


# -- with what recipe a model was made of another ----------------------------------------------------------------------


def find_recipe(reference: OnnxGraph, model: OnnxGraph, convert: Callable[[Recipe], Model | Graph]) -> Recipe | None:
    """For a repair by `verify`: the recipe with which ``convert`` makes ``model`` of its reference: the first of the
    guesses that gives values of the same names and types; None for another tool's work, and where the conversion was
    told more than the file says (patterns of `--low`, lists, measured ranges)."""
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
    """For a repair by `verify`: recipes by which a converted model may have been made of its reference: the one in its
    metadata, else one of each level, with the low type, opset and low inputs and outputs that the file has; none where
    nothing is low, or the metadata make no sense."""
    flows = reference.dataflow(), model.dataflow()
    before, after = ([flow.values[v] for v in (*flow.scopes[0].inputs, *flow.scopes[0].outputs)] for flow in flows)
    given = {value.name for value in before if value.dtype in LOW}
    io = tuple(f"{value.name}=low" for value in after if value.dtype in LOW and value.name not in given)
    dtype = next((value.dtype for value in flows[1].values if value.dtype in LOW), "")
    if not dtype:
        return []
    ours, theirs = (flow.opset for flow in flows)
    common = Recipe(dtype=dtype, io=io, opset=theirs if theirs != ours else None)
    try:
        said = _recipe_in(model.metadata() if isinstance(model, DescribedGraph) else {}, common)
        return [said] if said is not None else [Recipe.of(common, level=level) for level in LEVELS]
    except AmpError:  # words of somebody else
        return []


def _recipe_in(metadata: Mapping[str, str], common: Recipe) -> Recipe | None:
    """For a repair by `verify`: the recipe that a file's metadata say it was made with: their level, policy, patterns
    and target in place of those of ``common``; None where they say no level. Raises AmpError AMP301 to AMP311 for words
    that make no sense."""
    level, policy = (metadata.get(f"ampgraph.{word}") for word in ("level", "policy"))
    if level is None:
        return None
    said = Recipe.of(common, level=level, policy=policy or "ampgraph", fp32=pinned_in(metadata))
    target = target_in(metadata)
    return said if target == resolve(said, "ONNX").target else replace(said, target=target)


def _types(graph: Graph) -> set[tuple[str, str]]:
    """For a repair by `verify`: (name, type) of all values, by which a conversion is compared with the model."""
    return {(value.name, value.dtype) for value in graph.dataflow().values}
