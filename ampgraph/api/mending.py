"""The search for a repair: what is to blame is held in float32, as little as predictions need, and that is tried."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.recipe import Recipe
from ..core.repairs import SHOWN, Mended, Repair
from ..numerics.trace.ranking import Ranking
from .fault_search import FaultSearch
from .kinds import Model
from .made_by import made_by
from .pairs import OnnxPair
from .trials import Outcome, Trial, Trials

if TYPE_CHECKING:
    from ..numerics.inputs.sample_set import Samples

ROUNDS = 16  # of looking at what is left
TURNS = 3  # of holding more, where a conversion leaves more than was predicted
AIM = 0.9  # of the tolerance
LOOKING = 0.4  # of the time that is left, for looking at a model anew
PREDICTING = 0.5  # of the time that is left, for runs that predict
Look = Callable[[FaultSearch], None]


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
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        recipe = recipe or made_by(source, pair.source, pair.result, Path(folder))
        if recipe is None:
            return Mended(None, "not looked for, as the file does not tell how it was made")
        trials = Trials(source, recipe, lambda model: again(pair.remade(model)), until, Path(folder), seconds)
        return said(mended(trials, found, lambda other: other.look(drawn, None)), trials, found)


def said(repair: Repair | None, trials: Trials, found: FaultSearch) -> Mended:
    """The end of a search that began with who was found."""
    number = len(trials.done)
    if repair is not None:
        return Mended(repair, "", number)
    best = min((trial.outcome.error for trial in trials.done), default=math.inf)
    left = f", the best leaves {best:.2g}" if math.isfinite(best) else ""
    why = f"; {trials.refused}" if trials.refused else "" if trials.in_time else "; the time is up"
    none = f"none found in {number} conversion{'s' * (number != 1)}{left}{why}"
    return Mended(None, none if number or why else _hopeless(found), number)


def _hopeless(found: FaultSearch) -> str:
    """Why nothing was tried, where there was time."""
    floor = 0.0 if found.ranking is None else found.ranking.left(found.ranking.order)
    if floor > found.tolerance:
        return f"none found: with every node in float32 that a run can switch the error is {floor:.2g}"
    return "none found short of all in float32, which is no repair"


def mended(trials: Trials, found: FaultSearch, look: Look) -> Repair | None:
    """What was tried and mends the model; None where nothing did in the time.

    ``found``: who is to blame for what the model misses; ``look``: lets another search do the same."""
    held: tuple[str, ...] = ()
    for _ in range(ROUNDS):
        trial = _tried(trials, found, held)
        if trial is None:
            return None
        if trial.outcome.ok:
            return Repair(trial.patterns, trial.outcome.error, str(trials.recipe))
        if not trials.in_time or trial.patterns == held:
            return None
        held, seen = trial.patterns, trial.outcome
        found = replace(found.anew(), pair=seen.pair, outputs=seen.outputs, kept=seen.kept)
        found.seconds = LOOKING * _left(trials)
        look(found)
    return None


def _tried(trials: Trials, found: FaultSearch, held: tuple[str, ...]) -> Trial | None:
    """The first trial that is right, else the last."""
    if found.ranking is not None:
        return _ranked(trials, found.ranking, found.tolerance, held)
    patterns = [pattern for suspect in found.suspects for pattern in suspect.patterns]
    return trials.attempt((*held, *patterns)) if patterns else None


def _ranked(trials: Trials, ranking: Ranking, tolerance: float, held: tuple[str, ...]) -> Trial | None:
    aim, last = AIM * tolerance, None
    until = time.monotonic() + PREDICTING * _left(trials)
    for _ in range(TURNS):
        units = ranking.needed(aim, lambda: time.monotonic() > until)
        if units is None or (len(units) == len(ranking.order) > SHOWN):  # all of many is no repair
            return last
        trial = trials.attempt((*held, *ranking.named(units)))
        if trial is None or trial.outcome.ok:
            return trial or last
        last, aim = trial, aim * min(0.5, AIM * tolerance / max(trial.outcome.error, tolerance))
    return last


def _left(trials: Trials) -> float:
    return max(trials.until - time.monotonic() - trials.seconds, 0.0)
