"""What the child of a check runs: a strict run beside the reference, the judgement, the nodes to blame for a miss.

It answers more than once, and the last answer counts, so that a search for nodes that crashes leaves the verdict
standing.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.arrays import Result
from ..core.dataflow import NONE, Dataflow
from ..core.errors import AmpError, NoMemory
from ..core.graph import LOW, is_mindir
from ..core.low_types import low_type
from ..core.progress import Progress, silent
from ..core.ranges import Ranges
from ..core.recipe import Recipe
from ..core.verdict import DOUBTFUL, MISSED, CheckVerdict, unchecked
from ..formats.adapters import load_onnx
from ..numerics.comparison import Outcome
from ..numerics.inputs.generate import SCALES
from ..numerics.inputs.samples import Samples, load_samples
from ..numerics.metrics.agreement import compare_outputs, sensitivity, vanishing_output
from ..numerics.metrics.metric import metric_of, own_metric
from ..numerics.metrics.verdict import GIVE_DATA, Compared
from ..numerics.pairs import OnnxPair, Pair, make_pair
from ..numerics.ranges.calibrate import measured_ranges
from ..numerics.search import RUNS
from ..numerics.trace.fault_search import FaultSearch
from ..oplists.traits import has
from ..runtime.opening import CPU, is_fault, opening_refusal, stopped_on_cpu
from .kinds import Model
from .mending import repair_of, with_stream_tried
from .steps import Job
from .steps import run as converted

FEW = 3  # generated samples for which there is more time
BLAMED = 3  # nodes behind which the error grows
SENSITIVITY = 10.0  # seconds for runs on rounded inputs
LEAST = 16  # runs with few nodes low that are worth beginning
VERIFY = "ampgraph verify MODEL RESULT runs it without limits"
SIZES = "give --data, or sizes with --dim"
MORE_MEMORY = "--check-memory GB allows more"
Answer = Callable[[CheckVerdict], None]


@dataclass(frozen=True)
class Request:
    """Two files, where samples are, how many, how right the result has to be, how long all may take.

    Attributes:
        data: an .npz file or a folder of them; None generates.
        seconds: when to stop taking samples.
        metric: as `verify` takes it by name; None for the check's own measure.
        more: how many generated samples where the first leave it open.
        whole: seconds that all of it may take, the search for a repair included.
        recipe: what the model was converted with, for a search for repairs; None where nobody asked for one, or that is
            not all that made it.
        target: for which the model was converted; empty where that is not known, and nothing is said of opening.
    """

    reference: str
    model: str
    data: str | None
    samples: int
    dims: dict[str, int]
    tolerance: float
    seconds: float
    metric: str | None = None
    more: int = 0
    whole: float = 60.0
    recipe: Recipe | None = None
    target: str = ""


def answer_request(request: Request, tell: Callable[[object], None]) -> None:
    """What the child of the check does: one request; tells verdicts, and as rows how far it is. What stops a search for
    nodes leaves the verdict standing."""
    given: list[CheckVerdict] = []

    def answer(verdict: CheckVerdict) -> None:
        given.append(verdict)
        tell(verdict.to_dict())

    try:
        run(request, answer, lambda *far: tell(far))
    except (AmpError, MemoryError) as error:
        if given and (given[-1].missed or given[-1].doubtful):
            return
        if isinstance(error, (NoMemory, MemoryError)):
            answer(unchecked("it needs more memory than the check may take", MORE_MEMORY))
        else:
            answer(unchecked(error.message, error.hint or VERIFY))


def run(request: Request, answer: Answer, progress: Progress = silent) -> None:
    """What the child of the check does: compares two files, answers, and answers again when it knows which nodes are to
    blame, and what mends them."""
    until, lacking = time.monotonic() + request.whole, ""
    if request.target and not is_mindir(request.model):
        verdict, lacking = seen_by_users(request)
        if verdict is not None:
            answer(verdict)
            answer(_opening_repaired(verdict, request, until))
            return
    pair = make_pair(request.reference, request.model, "cpu")
    if request.target and isinstance(pair, OnnxPair):
        lacking = lacking or stopped_on_cpu(pair.result.dataflow())
    count = max(request.samples, request.more)
    drawn = load_samples(pair.reference, request.data, count=count, dims=request.dims)
    given = lambda found: answer(replace(found, on_cpu=lacking))  # noqa: E731
    judge(pair, drawn, request, given, request.reference, until, progress)


def judge(
    pair: Pair, drawn: Samples, request: Request, answer: Answer, source: Model, until: float | None = None,
    progress: Progress = silent,
) -> None:  # fmt: skip
    """The check of a pair that is not open yet, on samples. ``source``: what the reference was read from; ``until``: as
    `time.monotonic` tells it, when to end."""
    until = time.monotonic() + request.whole if until is None else until
    pair.open()
    own = request.metric is None
    metric = own_metric(drawn.generated, pair.roles()) if own else metric_of(request.metric, pair.roles())
    seen = Compared(metric, numbers_first=own)
    CheckRun(request, pair, drawn.fit_to(pair.run_reference), source, answer, until, seen, progress).check(own)


@dataclass
class CheckRun:
    """One check, what is known so far, and what was ``seen`` of the outputs."""

    request: Request
    pair: Pair
    drawn: Samples
    source: Model
    answer: Answer
    until: float
    seen: Compared
    progress: Progress
    verdict: CheckVerdict = field(default_factory=lambda: unchecked("it has not begun", VERIFY))
    overflow: str = ""  # on inputs that are wider than usual, which are left out then

    def _say(self, **more: Any) -> None:
        """From the child of the check: answers with the verdict on what is known so far, and that more may follow."""
        self.verdict = replace(self.verdict, **more)
        self.answer(self.verdict)

    def check(self, own: bool) -> None:
        """Of as many samples as there is time for, and as are needed to be sure. ``own``: by the check's own measure,
        which looks for doubts; a metric is taken at its word."""
        start = time.monotonic()
        moved = self._compare(own)
        self.verdict = self._judged()
        if own and self.drawn.generated and self.verdict.ok and not moved:
            self.verdict = unchecked("the outputs do not depend on the generated inputs, not by a digit", GIVE_DATA)
        silent = self.seen.mostly_silent()
        if own and self.drawn.generated and self.verdict.ok and 2 * len(silent) > len(self.seen.outputs):
            names = f"'{silent[0]}'" + (f" and {len(silent) - 1} more outputs" if len(silent) > 1 else "")
            why = f"the float32 model itself is not finite on most of the generated inputs, at {names}"
            self.verdict = unchecked(why, GIVE_DATA)
        seconds = round((time.monotonic() - start) / max(self.verdict.samples, 1), 3)
        self._say(seconds=seconds, why="the nodes to blame were not found in time" if self.verdict.missed else "")
        self.verdict = replace(self.verdict, why="")
        if own and not self._doubted():
            return
        if self.verdict.missed:
            self._explain(FaultSearch(self.pair, self.seen, self.request.tolerance, BLAMED, asked=False))
        elif self.verdict.doubtful:
            self._try_stream()

    def _doubted(self) -> bool:
        """Adds further doubts to the check's verdict; False where the model draws random numbers: nothing is known."""
        known, generated = self.verdict.tolerance is not None, self.drawn.generated
        if not self.verdict.missed and known and "float16" in self.pair.low:
            self._doubt(vanishing=vanishing_output(self.seen.outputs, self.pair.roles()))
        if self.verdict.missed or self.verdict.doubtful:
            alone = self._from_itself()
            if alone > self.request.tolerance:
                self.answer(self._unsteady(alone))
                return False
            self._say(sensitivity=self._beyond_itself())
        if not self.verdict.missed and known and generated and isinstance(self.pair, OnnxPair):
            self.progress("looking for values near the end of float16", 0, 0)
            usual, seconds = self.drawn.without_wide(), self.request.seconds / 4
            self._doubt(near=self.overflow or near_the_limit(self.pair, usual, seconds))
        return True

    def _unsteady(self, apart: float) -> CheckVerdict:
        """The verdict of the check on a float32 model that is so far apart from itself: it draws random numbers, or its
        inputs have sizes that leave parts of it empty."""
        why = f"the float32 model differs from itself by {apart:.2g}, run twice on one input"
        pair = self.pair
        draws = not isinstance(pair, OnnxPair) or any(has(op.role, "random") for op in pair.source.dataflow().ops)
        if draws or not self.drawn.generated:
            return unchecked(why, "--metric with a function of yours can judge what is random")
        return unchecked(
            f"{why}, and draws no random numbers: its generated inputs may have sizes that it does not take", SIZES
        )

    def _judged(self) -> CheckVerdict:
        """The verdict of the check on what was seen so far; of the user's samples also how many were not run."""
        verdict = self.seen.verdict(self.request.tolerance, self.drawn.generated)
        return verdict if self.drawn.generated else replace(verdict, left=len(self.drawn) - verdict.samples)

    def _doubt(self, **why: str) -> None:
        """Answers ``doubtful``, where there is a reason to doubt an ok verdict of the check."""
        self._say(**why, outcome=DOUBTFUL if any(why.values()) else self.verdict.outcome)

    def _compare(self, own: bool) -> bool:
        """Check of a conversion: compares the outputs of reference and result over the samples, over as many as there
        is time for, one at least; whether any differs by sample, as far as one sample tells.

        Of generated samples more are run where those that were asked for leave it open; those that are wider than usual
        are left out where the result overflows on one. What stands if there is no time for more is answered after each
        sample."""
        request, generated, seen = self.request, self.drawn.generated, self.seen
        first: dict[str, bytes] = {}
        moved, number, start = False, 0, time.monotonic()
        for number, feeds in enumerate(self.drawn, 1):
            self.progress("checking", number - 1, max(number, min(request.samples, len(self.drawn))))
            expected, result = self.pair.run_both(feeds)
            if own and self.drawn.is_wide(number - 1) and (name := first_overflow(expected, result)):
                self.overflow = f"'{name}' is infinite on generated inputs {max(SCALES):g} times as large as usual"
                self.drawn, self.seen = self.drawn.without_wide(), replace(seen, whole=None, found={})
                return self._compare(own)
            seen.add(expected, result)
            for name, value in expected.items():
                content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
                moved |= first.setdefault(name, content) != content
            if seen.found:
                so_far = self._judged()
                if not generated or so_far.error == math.inf:
                    self.answer(so_far)
            spent = time.monotonic() - start
            undecided = own and bool(seen.found) and seen.unsure(request.tolerance)
            thirds = 3 if not generated or number < FEW else 2 if undecided else 1
            if spent + spent / number > request.seconds * thirds / 3 or (number >= request.samples and not undecided):
                break
        if not any(each.compared or each.nonfinite_mismatches or each.silent or each.reason for each in seen.outputs):
            raise AmpError("AMP209", "the outputs have no elements on these inputs")
        return moved or number == 1

    def _again(self, pair: OnnxPair) -> Outcome:
        """How another conversion does on the same samples, by the same measure."""
        found = replace(self.seen, whole=None, found={})
        for feeds in self.drawn.first(len(self.seen.errors)):
            found.add(*pair.run_both(feeds))
        verdict = found.verdict(self.request.tolerance, self.drawn.generated)
        error = math.inf if verdict.error is None else verdict.error
        return Outcome(error, verdict.ok, pair, found)

    def _from_itself(self) -> float:
        """Check of a conversion: the error of the reference run twice on the same data: not 0 with random numbers."""
        feeds = next(iter(self.drawn))
        first, second = self.pair.run_reference(feeds), self.pair.run_reference(feeds)
        found = (compare_outputs(value, second[name]) for name, value in first.items())
        return max((each.error for each in found if each.floating and not each.silent), default=0.0)

    def _beyond_itself(self) -> float | None:
        """Check of a conversion: how much the reference's outputs change by the rounding of the inputs alone, where
        that is more than the tolerance."""
        low = self.pair.low[0] if self.pair.low else "float16"
        number = max(1, min(self.verdict.samples, int(SENSITIVITY / max(self.verdict.seconds, 1e-3))))
        _, found = sensitivity(self.pair.run_reference, itertools.islice(self.drawn, number), low)
        return found if found > (self.verdict.tolerance or 0.0) else None

    # -- who is to blame ----------------------------------------------------------------------------------------------

    def _explain(self, finding: FaultSearch) -> None:
        """Answers who is to blame for what was missed, by a run that shows every value; where a repair is asked for, by
        a search, and then what mends it, as far as there is time."""
        left, recipe, verdict = self.until - time.monotonic(), self.request.recipe, self.verdict
        most = int(left / 2 / max(verdict.seconds, 1e-3)) if recipe is not None else 0  # runs that there is time for
        finding.runs, finding.seconds = 0 if most < LEAST else min(most, RUNS), left / 2
        finding.look(self.drawn, self.progress)
        self._say(**_blamed(verdict, finding))
        if recipe is None:
            return
        spent = verdict.seconds * verdict.samples
        self.progress("looking for a repair", 0, 0)
        found = repair_of(self.source, recipe, finding, self._again, self.drawn, self.until, spent)
        if found is not None and found.repair is not None:
            mended = {"mended_by": found.repair.patterns, "repaired_error": found.repair.error}
            self._say(**mended, suggested=(), sensitivity=None)  # what a repair mends is not chaotic
        else:
            self._say(unrepaired="" if found is None else found.none)
        self._try_stream()

    def _try_stream(self) -> None:
        """Check of a conversion: answers with the error that `--fp32-stream` would leave."""
        recipe, until = self.request.recipe, self.until
        self.answer(with_stream_tried(self.verdict, self.source, recipe, self.pair, self._again, until))


def _blamed(verdict: CheckVerdict, finding: FaultSearch) -> dict[str, Any]:
    """The verdict of the check on who is to blame: where values stop being finite, or the error grows most."""
    suspect = next(iter(finding.suspects), None)
    if suspect is None:
        return {}
    place = " ".join(filter(None, (suspect.operator, suspect.node, f"in {suspect.inside}" * bool(suspect.inside))))
    suggested = dict.fromkeys(pattern for found in finding.suspects for pattern in found.patterns)
    chaotic = verdict.sensitivity is not None
    return {"first": place, "why": suspect.why, "suggested": () if chaotic else tuple(suggested)}


def first_overflow(expected: Mapping[str, Result], result: Mapping[str, Result]) -> str:
    """Check of a conversion: the first output that is not finite where the reference is; empty if there is none."""
    return next(
        (name for name, value in expected.items() if compare_outputs(value, result[name]).nonfinite_mismatches), ""
    )


# -- low values near the end of float16 -------------------------------------------------------------------------------

MEASURED = 12  # samples of which every value is looked at
NEAR = 4  # generated inputs that come so close to the end of the type say that real ones may pass it: two of them
FEWEST, TEN_MORE = 2, 1.6  # over 29 trained models, ten more samples than two reached at most so many times as much
FAR = 16  # times: no more samples than the fewest


def near_the_limit(pair: OnnxPair, drawn: Samples, seconds: float) -> str:
    """Check of a conversion: the low value closest to the end of float16, which real inputs may pass; else empty.

    ``seconds``: when to begin with no sample more. Negative numbers count where a
    product makes them: elsewhere masks are large ones.
    """
    kept, end = _held_low(pair.result.dataflow()), low_type("float16").largest

    def sizes(ranges: Ranges) -> dict[str, float]:
        known = {name: ranges.values[name] for name in kept if name in ranges.values}
        return {name: max(found.high, -found.low if kept[name] else 0.0) for name, found in known.items()}

    def far(ranges: Ranges) -> bool:
        return ranges.samples >= FEWEST and FAR * max(sizes(ranges).values(), default=0.0) <= end

    ranges = measured_ranges(pair.source, drawn.within(MEASURED, seconds), enough=far)
    size = sizes(ranges)
    name = max((name for name in size if size[name] < end), key=lambda name: size[name], default="")
    if not name or size[name] * NEAR / TEN_MORE ** ((ranges.samples - FEWEST) / 10) <= end:
        return ""
    plural = "s" * (ranges.samples != 1)
    return f"'{name}' reaches {size[name]:,.0f} of {end:,.0f} on {ranges.samples} generated input{plural}"


def _held_low(flow: Dataflow) -> dict[str, bool]:
    """Check of a conversion: float16 values by name (outputs: what a Cast makes of them); whether a product does."""
    low = {
        value.id: has(flow.ops[value.producer].role, "products") if value.producer != NONE else False
        for value in flow.values
        if value.dtype == "float16"
    }
    low |= {
        v: low[op.inputs[0]] for op in flow.ops if has(op.role, "casts") and op.inputs[0] in low for v in op.outputs
    }
    return {flow.values[v].name: made for v, made in low.items()}


# -- files that do not open -------------------------------------------------------------------------------------------


def seen_by_users(request: Request) -> tuple[CheckVerdict | None, str]:
    """The verdict on a file that does not open though its reference does; and what to say of one that is right for its
    target, and that ONNX Runtime's CPU has no kernels for."""
    found = opening_refusal(request.model)
    if found is None:
        return None, ""
    if is_fault(found, request.reference, request.model, request.target):
        return CheckVerdict(MISSED, None, request.tolerance, refused=found.said, why=found.why), ""
    return None, f"ONNX Runtime's CPU does not open it: {found.said}" if found.lacks_kernel else ""


def _opening_repaired(verdict: CheckVerdict, request: Request, until: float) -> CheckVerdict:
    """The verdict on a file that ONNX Runtime refuses with the first kind of operators that, pinned to float32, lets it
    open: the rarest come first."""
    recipe, count, seconds = request.recipe, 0, 0.0
    if recipe is None:
        return verdict
    flow = load_onnx(request.model).dataflow()
    low = (op for op in flow.ops if any(flow.values[v].dtype in LOW for v in op.outputs if v >= 0))
    kinds = Counter(op.kind for op in low if not has(op.role, "casts"))
    for kind in sorted(kinds, key=lambda kind: (kinds[kind], kind)):
        start = time.monotonic()
        if start + seconds > until:
            return replace(verdict, unrepaired=f"none found in {count} conversions; the time is up")
        pattern, count = f"op:{kind}", count + 1
        if _opens(request, replace(recipe, fp32=(*recipe.fp32, pattern))):
            return replace(verdict, mended_by=(pattern,))
        seconds = max(seconds, time.monotonic() - start)
    return replace(verdict, unrepaired=f"none found in {count} conversions")


def _opens(request: Request, recipe: Recipe) -> bool:
    """Check of a conversion: whether ONNX Runtime opens what `convert` makes of the reference with a recipe."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        path = Path(folder) / "tried.onnx"
        try:
            converted(Job(request.reference, recipe)).graph.save(path)
            found = opening_refusal(str(path))
            return found is None or (found.lacks_kernel and request.target != CPU)
        except AmpError:  # the pattern is of a node that convert itself made
            return False
