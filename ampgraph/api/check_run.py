"""What the child of a check runs: a strict run beside the reference, and the nodes to blame where it misses.

It answers more than once, and the last answer counts, so that a search for nodes that crashes leaves the verdict
standing.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.repairs import Mended
from ..core.verdict import DOUBTFUL, MISSED, OK, CheckVerdict, unchecked
from ..numerics.inputs.sample_set import Samples
from ..numerics.inputs.samples import load_samples
from ..numerics.metrics.agreement import Agreement, apart
from ..numerics.metrics.metric import metric_of
from ..numerics.metrics.sensitivity import sensitivity
from ..numerics.metrics.vanishing import vanishing
from .check_request import Request
from .comparison import Comparison
from .comparison import compared as seen_by
from .fault_search import RUNS, FaultSearch
from .judging import Watched, counted, judged, unsure
from .kinds import Model
from .mending import repair_of
from .near_limit import near_the_limit
from .opening import seen_by_users, stopped_on_cpu
from .opening_repair import with_repair
from .pairs import OnnxPair, Pair, paired
from .stream_tried import with_stream_tried
from .trials import Outcome

FEW = 3  # generated samples for which there is more time
BLAMED = 3  # nodes behind which the error grows
SENSITIVITY = 10.0  # seconds for runs on rounded inputs
LEAST = 16  # runs with few nodes low that are worth beginning


def answer_request(request: Request, tell: Callable[[object], None]) -> None:
    """Does one request. What stops a search for nodes leaves the verdict standing."""
    given: list[CheckVerdict] = []

    def answer(verdict: CheckVerdict) -> None:
        given.append(verdict)
        tell(verdict.to_dict())

    try:
        run(request, answer)
    except (AmpError, MemoryError) as error:
        if not given or not given[-1].missed:
            memory = "it needs more memory than the check may take"
            answer(unchecked(error.message if isinstance(error, AmpError) else memory))


def run(request: Request, answer: Callable[[CheckVerdict], None]) -> None:
    """Compares two files, answers, and answers again when it knows which nodes are to blame, and what mends them."""
    until, lacking = time.monotonic() + request.whole, ""
    if request.target and not is_mindir(request.model):
        verdict, lacking = seen_by_users(request)
        if verdict is not None:
            answer(verdict)
            answer(with_repair(verdict, request, until))
            return
    pair = paired(request.reference, request.model, "cpu")
    if request.target and isinstance(pair, OnnxPair):
        lacking = lacking or stopped_on_cpu(pair.result.dataflow())
    count = max(request.samples, request.more)
    drawn = load_samples(pair.reference, request.data, count=count, dims=request.dims)
    judge(pair, drawn, request, lambda found: answer(replace(found, on_cpu=lacking)), request.reference, until)


def judge(
    pair: Pair, drawn: Samples, request: Request, answer: Callable[[CheckVerdict], None], source: Model,
    until: float | None = None,
) -> None:  # fmt: skip
    """The check of a pair that is not open yet, on samples. ``source``: what the reference was read from; ``until``: as
    `time.monotonic` tells it, when to end."""
    until = time.monotonic() + request.whole if until is None else until
    pair.open()
    drawn = drawn.fitted(pair.expected)
    if request.metric is not None:
        by_metric(request, pair, drawn.first(request.samples), answer, source, until)
        return
    start = time.monotonic()

    def on(outputs: list[Watched]) -> CheckVerdict:
        verdict = judged(outputs, request.tolerance, drawn.generated)
        return verdict if drawn.generated else replace(verdict, left=len(drawn) - verdict.samples)

    def so_far(outputs: list[Watched]) -> None:
        verdict = on(outputs)
        if not drawn.generated or verdict.error == math.inf:
            answer(verdict)  # which stands if there is no time for more

    outputs, moved = compared(pair, drawn, request, so_far)
    verdict = on(outputs)
    if drawn.generated and verdict.ok and not moved:
        verdict = unchecked("the outputs do not depend on the generated inputs, not by a digit: give --data")
    verdict = replace(verdict, seconds=round((time.monotonic() - start) / max(verdict.samples, 1), 3))
    if verdict.missed:
        answer(replace(verdict, why="the nodes to blame were not found in time"))
    else:
        answer(verdict)
    if not verdict.missed and verdict.tolerance is not None:
        verdict = vanished(verdict, pair, outputs)
        answer(verdict)
    if verdict.missed or verdict.doubtful:
        alone = from_itself(pair, drawn)
        if alone > request.tolerance:
            answer(unchecked(f"the float32 model differs from itself by {alone:.2g}, run twice on one input"))
            return
        verdict = replace(verdict, sensitivity=beyond_itself(pair, drawn, verdict))
        answer(verdict)
    again = functools.partial(watched_again, drawn.first(verdict.samples), request.tolerance)
    if not verdict.missed:
        if verdict.tolerance is not None and drawn.generated and isinstance(pair, OnnxPair):
            verdict = doubted(verdict, near_the_limit(pair, drawn, request.seconds / 4))
            answer(verdict)
        if verdict.doubtful:
            answer(with_stream_tried(verdict, source, request.recipe, pair, again, until))
        return
    finding = FaultSearch(pair, counting(outputs), request.tolerance, BLAMED, asked=False)
    answer_for(verdict, finding, drawn, again, request, answer, source, until)


def counting(outputs: list[Watched]) -> list[Agreement]:
    """Those that are judged."""
    heard = [seen.agreement for seen in outputs]
    return [output for output in heard if counted(output, heard)]


def watched_again(drawn: Samples, tolerance: float, pair: OnnxPair) -> Outcome:
    """How another model does on the same samples, by the same measure."""
    outputs: dict[str, Watched] = {}
    for feeds in drawn:
        expected, found = pair.both(feeds)
        for name, value in expected.items():
            outputs.setdefault(name, Watched(Agreement(name))).add(apart(value, found[name]))
    verdict = judged(list(outputs.values()), tolerance, drawn.generated)
    error = math.inf if verdict.error is None else verdict.error
    return Outcome(error, verdict.ok, pair, counting(list(outputs.values())))


def answer_for(
    verdict: CheckVerdict, finding: FaultSearch, drawn: Samples, again: Callable[[OnnxPair], Outcome], request: Request,
    answer: Callable[[CheckVerdict], None], source: Model, until: float,
) -> None:  # fmt: skip
    """Answers who is to blame for what was missed, and then what mends it, as far as there is time."""
    left = until - time.monotonic()
    finding.runs, finding.seconds = affordable(verdict.seconds, left / 2), left / 2
    finding.look(drawn, None)
    verdict = blamed(verdict, finding)
    answer(verdict)
    recipe = request.recipe
    if recipe is not None:
        found = repair_of(source, recipe, finding, again, drawn, until, verdict.seconds * verdict.samples)
        verdict = verdict if found is None else repaired(verdict, found)
        answer(verdict)
        answer(with_stream_tried(verdict, source, recipe, finding.pair, again, until))


def affordable(seconds: float, left: float) -> int:
    """How many runs of one sample the search for causes may take, by what both models took for one."""
    most = int(left / max(seconds, 1e-3))
    return 0 if most < LEAST else min(most, RUNS)


def by_metric(
    request: Request, pair: Pair, drawn: Samples, answer: Callable[[CheckVerdict], None], source: Model, until: float
) -> None:  # fmt: skip
    """Compares by a metric that was asked for, and answers."""
    tolerance, metric = request.tolerance, metric_of(request.metric or "", pair.roles())
    start = time.monotonic()
    outputs, overall = seen_by(map(pair.both, drawn), metric)
    seconds = round((time.monotonic() - start) / len(drawn), 3)
    heard = [output for output in outputs if output.counts]
    astray = next((output for output in outputs if output.astray), None)
    errors = {metric.name: overall.decisive} if overall is not None else {o.name: o.scores.decisive for o in heard}
    wrong = [output.name for output in heard if not output.within(tolerance)] if overall is None else []
    worst = max(wrong or errors, key=lambda name: errors[name])
    missed = bool(wrong or astray) or errors[worst] > tolerance
    error = math.inf if astray is not None else errors[worst]
    verdict = CheckVerdict(
        MISSED if missed else OK, error, tolerance, len(drawn), drawn.generated, astray.name if astray else worst,
        seconds=seconds,
    )  # fmt: skip
    answer(verdict)
    if missed:
        finding = FaultSearch(pair, outputs, tolerance, BLAMED, asked=False, metric=metric)
        again = Comparison(drawn, metric, tolerance).again
        answer_for(verdict, finding, drawn, again, request, answer, source, until)


def compared(
    pair: Pair, drawn: Samples, request: Request, so_far: Callable[[list[Watched]], None]
) -> tuple[list[Watched], bool]:
    """The outputs over the samples, over as many as there is time for, one at least; whether any differs by sample.

    Of generated samples more are run where those that were asked for leave it open. ``so_far`` hears of them after each
    sample."""
    outputs: dict[str, Watched] = {}
    first: dict[str, bytes] = {}
    moved = False
    start = time.monotonic()
    for number, feeds in enumerate(drawn, 1):
        expected, found = pair.both(feeds)
        for name, value in expected.items():
            outputs.setdefault(name, Watched(Agreement(name))).add(apart(value, found[name]))
            content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            moved |= first.setdefault(name, content) != content
        if outputs:
            so_far(list(outputs.values()))
        spent = time.monotonic() - start
        undecided = bool(outputs) and unsure(list(outputs.values()), request.tolerance)
        thirds = 3 if not drawn.generated or number < FEW else 2 if undecided else 1
        if spent + spent / number > request.seconds * thirds / 3 or (number >= request.samples and not undecided):
            break
    if not any(is_judged(seen.agreement) for seen in outputs.values()):
        raise AmpError("AMP209", "the outputs have no elements on these inputs")
    return list(outputs.values()), moved


def from_itself(pair: Pair, drawn: Samples) -> float:
    """How much the reference's outputs change when it is run again, as those of a model do that draws numbers."""
    feeds = next(iter(drawn))
    first, second = pair.expected(feeds), pair.expected(feeds)
    found = (apart(value, second[name]) for name, value in first.items())
    return max((each.error for each in found if each.floating and not each.silent), default=0.0)


def is_judged(found: Agreement) -> bool:
    """Whether an output says anything: where all of it is astray, there is nothing finite to compare."""
    return bool(found.compared or found.astray or found.silent or found.reason)


def beyond_itself(pair: Pair, drawn: Samples, verdict: CheckVerdict) -> float | None:
    """How much the rounding of the inputs alone changes, where it is more than the tolerance."""
    low = pair.low[0] if pair.low else "float16"
    number = max(1, min(verdict.samples, int(SENSITIVITY / max(verdict.seconds, 1e-3))))
    _, found = sensitivity(pair.expected, itertools.islice(drawn, number), low)
    return found if found > (verdict.tolerance or 0.0) else None


def doubted(verdict: CheckVerdict, near: str) -> CheckVerdict:
    """The verdict, doubtful where a value comes near the limit."""
    return replace(verdict, near=near, outcome=DOUBTFUL if near else verdict.outcome)


def vanished(verdict: CheckVerdict, pair: Pair, outputs: list[Watched]) -> CheckVerdict:
    """The verdict, doubtful where an output is too small for float16."""
    found = vanishing([seen.agreement for seen in outputs], pair.roles()) if "float16" in pair.low else ""
    return replace(verdict, vanishing=found, outcome=DOUBTFUL if found else verdict.outcome)


def blamed(verdict: CheckVerdict, finding: FaultSearch) -> CheckVerdict:
    """The verdict with the node where values stop being finite, or behind which the error grows most."""
    suspect = next(iter(finding.suspects), None)
    if suspect is None:
        return verdict
    place = " ".join(filter(None, (suspect.operator, suspect.node, f"in {suspect.inside}" * bool(suspect.inside))))
    suggested = dict.fromkeys(pattern for found in finding.suspects for pattern in found.patterns)
    chaotic = verdict.sensitivity is not None
    return replace(verdict, first=place, why=suspect.why, suggested=() if chaotic else tuple(suggested))


def repaired(verdict: CheckVerdict, found: Mended) -> CheckVerdict:
    """The verdict with what mends it in the place of what was suggested, or with why there is nothing."""
    if found.repair is None:
        return replace(verdict, unrepaired=found.none)
    return replace(verdict, mended_by=found.repair.patterns, repaired_error=found.repair.error, suggested=())
