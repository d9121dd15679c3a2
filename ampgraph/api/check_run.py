"""What the child of a check runs: a strict run beside the reference, and the nodes to blame where it misses.

It answers more than once, and the last answer counts, so that a search for nodes that crashes leaves the verdict
standing.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.verdict import DOUBTFUL, MISSED, OK, CheckVerdict, unchecked
from ..numerics.inputs.samples import Samples, load_samples
from ..numerics.metrics.agreement import Agreement, apart, sensitivity, vanishing
from ..numerics.metrics.metric import metric_of
from .check_request import Request
from .comparison import Comparison
from .comparison import compared as seen_by
from .fault_search import RUNS, FaultSearch
from .judging import counted, judged, unsure
from .kinds import Model
from .mending import Outcome, repair_of, with_repair, with_stream_tried
from .near_limit import near_the_limit
from .opening import seen_by_users, stopped_on_cpu
from .pairs import OnnxPair, Pair, paired

FEW = 3  # generated samples for which there is more time
BLAMED = 3  # nodes behind which the error grows
SENSITIVITY = 10.0  # seconds for runs on rounded inputs
LEAST = 16  # runs with few nodes low that are worth beginning
Answer = Callable[[CheckVerdict], None]


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


def run(request: Request, answer: Answer) -> None:
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
    pair: Pair, drawn: Samples, request: Request, answer: Answer, source: Model, until: float | None = None
) -> None:
    """The check of a pair that is not open yet, on samples. ``source``: what the reference was read from; ``until``: as
    `time.monotonic` tells it, when to end."""
    until = time.monotonic() + request.whole if until is None else until
    pair.open()
    check = CheckRun(request, pair, drawn.fitted(pair.expected), source, answer, until)
    if request.metric is None:
        check.by_own_measure()
    else:
        check.by_metric(request.metric)


@dataclass
class CheckRun:
    """One check, what is known so far, and what was seen of the outputs."""

    request: Request
    pair: Pair
    drawn: Samples
    source: Model
    answer: Answer
    until: float
    verdict: CheckVerdict = field(default_factory=lambda: unchecked("it has not begun"))
    outputs: list[Agreement] = field(default_factory=list)

    def _say(self, **more: Any) -> None:
        """Answers what is known, and more."""
        self.verdict = replace(self.verdict, **more)
        self.answer(self.verdict)

    # -- the check's own measure --------------------------------------------------------------------------------------

    def by_own_measure(self) -> None:
        start, tolerance = time.monotonic(), self.request.tolerance
        moved = self._compare()
        self.verdict = self._judged()
        if self.drawn.generated and self.verdict.ok and not moved:
            self.verdict = unchecked("the outputs do not depend on the generated inputs, not by a digit: give --data")
        seconds = round((time.monotonic() - start) / max(self.verdict.samples, 1), 3)
        self._say(seconds=seconds, why="the nodes to blame were not found in time" if self.verdict.missed else "")
        self.verdict = replace(self.verdict, why="")
        if not self.verdict.missed and self.verdict.tolerance is not None and "float16" in self.pair.low:
            self._doubt(vanishing=vanishing(self.outputs, self.pair.roles()))
        if self.verdict.missed or self.verdict.doubtful:
            alone = self._from_itself()
            if alone > tolerance:
                self.answer(unchecked(f"the float32 model differs from itself by {alone:.2g}, run twice on one input"))
                return
            self._say(sensitivity=self._beyond_itself())
        if self.verdict.missed:
            self._explain(FaultSearch(self.pair, counting(self.outputs), tolerance, BLAMED, asked=False), self._again)
            return
        if self.verdict.tolerance is not None and self.drawn.generated and isinstance(self.pair, OnnxPair):
            self._doubt(near=near_the_limit(self.pair, self.drawn, self.request.seconds / 4))
        if self.verdict.doubtful:
            self.answer(
                with_stream_tried(self.verdict, self.source, self.request.recipe, self.pair, self._again, self.until)
            )

    def _judged(self) -> CheckVerdict:
        verdict = judged(self.outputs, self.request.tolerance, self.drawn.generated)
        return verdict if self.drawn.generated else replace(verdict, left=len(self.drawn) - verdict.samples)

    def _doubt(self, **why: str) -> None:
        """Answers, doubtful where there is a reason."""
        self._say(**why, outcome=DOUBTFUL if any(why.values()) else self.verdict.outcome)

    def _compare(self) -> bool:
        """Sees the outputs over the samples, over as many as there is time for, one at least; whether any differs by
        sample.

        Of generated samples more are run where those that were asked for leave it open. What stands if there is no time
        for more is answered after each sample."""
        request, generated, found = self.request, self.drawn.generated, dict[str, Agreement]()
        first: dict[str, bytes] = {}
        moved, start = False, time.monotonic()
        for number, feeds in enumerate(self.drawn, 1):
            for name, value in _see(found, self.pair, feeds).items():
                content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
                moved |= first.setdefault(name, content) != content
            self.outputs = list(found.values())
            if self.outputs:
                so_far = self._judged()
                if not generated or so_far.error == math.inf:
                    self.answer(so_far)
            spent = time.monotonic() - start
            undecided = bool(self.outputs) and unsure(self.outputs, request.tolerance)
            thirds = 3 if not generated or number < FEW else 2 if undecided else 1
            if spent + spent / number > request.seconds * thirds / 3 or (number >= request.samples and not undecided):
                break
        if not any(each.compared or each.astray or each.silent or each.reason for each in self.outputs):
            raise AmpError("AMP209", "the outputs have no elements on these inputs")
        return moved

    def _again(self, pair: OnnxPair) -> Outcome:
        """How another model does on the same samples, by the same measure."""
        found: dict[str, Agreement] = {}
        for feeds in self.drawn.first(self.verdict.samples):
            _see(found, pair, feeds)
        verdict = judged(list(found.values()), self.request.tolerance, self.drawn.generated)
        error = math.inf if verdict.error is None else verdict.error
        return Outcome(error, verdict.ok, pair, counting(list(found.values())))

    def _from_itself(self) -> float:
        """How much the reference's outputs change when it is run again, as those of a model do that draws numbers."""
        feeds = next(iter(self.drawn))
        first, second = self.pair.expected(feeds), self.pair.expected(feeds)
        found = (apart(value, second[name]) for name, value in first.items())
        return max((each.error for each in found if each.floating and not each.silent), default=0.0)

    def _beyond_itself(self) -> float | None:
        """How much the rounding of the inputs alone changes, where it is more than the tolerance."""
        low = self.pair.low[0] if self.pair.low else "float16"
        number = max(1, min(self.verdict.samples, int(SENSITIVITY / max(self.verdict.seconds, 1e-3))))
        _, found = sensitivity(self.pair.expected, itertools.islice(self.drawn, number), low)
        return found if found > (self.verdict.tolerance or 0.0) else None

    # -- a metric that was asked for ----------------------------------------------------------------------------------

    def by_metric(self, name: str) -> None:
        tolerance, metric = self.request.tolerance, metric_of(name, self.pair.roles())
        drawn, start = self.drawn.first(self.request.samples), time.monotonic()
        self.outputs, overall = seen_by(map(self.pair.both, drawn), metric)
        seconds = round((time.monotonic() - start) / len(drawn), 3)
        heard = [output for output in self.outputs if output.counts]
        astray = next((output for output in self.outputs if output.astray), None)
        errors = {metric.name: overall.decisive} if overall is not None else {o.name: o.scores.decisive for o in heard}
        wrong = [output.name for output in heard if not output.within(tolerance)] if overall is None else []
        worst = max(wrong or errors, key=lambda name: errors[name])
        missed = bool(wrong or astray) or errors[worst] > tolerance
        self.verdict = CheckVerdict(
            MISSED if missed else OK, errors[worst] if astray is None else math.inf, tolerance, len(drawn),
            drawn.generated, worst if astray is None else astray.name, seconds=seconds,
        )  # fmt: skip
        self._say()
        if missed:
            self.drawn = drawn
            finding = FaultSearch(self.pair, self.outputs, tolerance, BLAMED, asked=False, metric=metric)
            self._explain(finding, Comparison(drawn, metric, tolerance).again)

    # -- who is to blame ----------------------------------------------------------------------------------------------

    def _explain(self, finding: FaultSearch, again: Callable[[OnnxPair], Outcome]) -> None:
        """Answers who is to blame for what was missed, and then what mends it, as far as there is time."""
        left, recipe, verdict = self.until - time.monotonic(), self.request.recipe, self.verdict
        finding.runs, finding.seconds = affordable(verdict.seconds, left / 2), left / 2
        finding.look(self.drawn, None)
        self._say(**_blamed(verdict, finding))
        if recipe is None:
            return
        found = repair_of(
            self.source, recipe, finding, again, self.drawn, self.until, verdict.seconds * verdict.samples
        )
        if found is not None and found.repair is not None:
            self._say(mended_by=found.repair.patterns, repaired_error=found.repair.error, suggested=())
        else:
            self._say(unrepaired="" if found is None else found.none)
        self.answer(with_stream_tried(self.verdict, self.source, recipe, finding.pair, again, self.until))


def _see(found: dict[str, Agreement], pair: Pair, feeds: Any) -> dict[str, Any]:
    """Adds how far the outputs of one sample are apart; the reference's."""
    expected, result = pair.both(feeds)
    for name, value in expected.items():
        found.setdefault(name, Agreement(name)).add(apart(value, result[name]))
    return expected


def counting(outputs: list[Agreement]) -> list[Agreement]:
    """Those that are judged."""
    return [output for output in outputs if counted(output, outputs)]


def affordable(seconds: float, left: float) -> int:
    """How many runs of one sample the search for causes may take, by what both models took for one."""
    most = int(left / max(seconds, 1e-3))
    return 0 if most < LEAST else min(most, RUNS)


def _blamed(verdict: CheckVerdict, finding: FaultSearch) -> dict[str, Any]:
    """The node where values stop being finite, or behind which the error grows most."""
    suspect = next(iter(finding.suspects), None)
    if suspect is None:
        return {}
    place = " ".join(filter(None, (suspect.operator, suspect.node, f"in {suspect.inside}" * bool(suspect.inside))))
    suggested = dict.fromkeys(pattern for found in finding.suspects for pattern in found.patterns)
    chaotic = verdict.sensitivity is not None
    return {"first": place, "why": suspect.why, "suggested": () if chaotic else tuple(suggested)}
