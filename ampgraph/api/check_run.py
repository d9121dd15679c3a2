"""What the child process of a check runs: the result strictly beside its reference, then the search for nodes to blame.

It answers with a verdict more than once, and the last one counts: the verdict is answered before the search for nodes
begins, so that it stands even if the search crashes or is killed.
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
from ..core.verdict import DOUBTFUL, MISSED, QUANTILE, TOLERANCES, CheckVerdict, unchecked
from ..formats.adapters import load_onnx
from ..numerics.comparison import Outcome
from ..numerics.inputs.generate import SCALES
from ..numerics.inputs.samples import Samples, load_samples
from ..numerics.metrics.agreement import compare_outputs, quantile, runs_on_rounded_inputs, vanishing_output
from ..numerics.metrics.metric import metric_of, own_metric
from ..numerics.metrics.verdict import GIVE_DATA, Compared
from ..numerics.pairs import OnnxPair, Pair, make_pair
from ..numerics.ranges.calibrate import measured_ranges
from ..numerics.search import RUNS
from ..numerics.trace.fault_search import FaultSearch
from ..oplists.traits import has
from ..runtime.opening import CPU, is_fault, opening_refusal, stopped_on_cpu
from .kinds import Model
from .mending import find_repair, try_stream
from .steps import Job, run_job

FEW = 3  # generated samples: fewer may take all the time for samples, more two thirds of it in doubt, else one third
BLAMED = 3  # nodes that are named at most
SENSITIVITY = 10.0  # seconds for runs on rounded inputs
LEAST = 16  # runs with few nodes low: the search for a repair does not begin if there is time for fewer
VERIFY = "ampgraph verify MODEL RESULT runs it without limits"
SIZES = "give --data, or sizes with --dim"
MORE_MEMORY = "--check-memory GB allows more"
Answer = Callable[[CheckVerdict], None]


@dataclass(frozen=True)
class Request:
    """What the child of a check is asked to do.

    Attributes:
        reference, model: the files of the float32 model and of what it was converted to.
        data: an .npz file or a folder of them; None generates samples.
        samples: how many samples to run.
        dims: sizes of symbolic dimensions by name, for generated samples.
        tolerance: the error that the outputs must keep to.
        seconds: how long samples may be run.
        metric: a name or an address as `verify` takes it; None for the check's own measure.
        more: up to how many generated samples to run while they leave the verdict open; 0 for no more than ``samples``.
        whole: seconds that all of it may take, the search for a repair included.
        recipe: what the model was converted with; None for no search for a repair.
        target: what the model was converted for; "" to compare only, without a look at whether users can open the file.
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
    """Runs a request in the child process of a check.

    ``tell`` is given verdicts as dicts, the last of which counts, and tuples for a `Progress`. After a verdict that is
    missed or doubtful an error (in the search for nodes to blame) leaves it standing, else it means "not checked"."""
    given: list[CheckVerdict] = []

    def answer(verdict: CheckVerdict) -> None:
        given.append(verdict)
        tell(verdict.to_dict())

    try:
        check_files(request, answer, lambda *far: tell(far))
    except (AmpError, MemoryError) as error:
        if given and (given[-1].missed or given[-1].doubtful):
            return
        if isinstance(error, (NoMemory, MemoryError)):
            answer(unchecked("it needs more memory than the check may take", MORE_MEMORY))
        else:
            answer(unchecked(error.message, error.hint or VERIFY))


def check_files(request: Request, answer: Answer, progress: Progress = silent) -> None:
    """In the child of a check: compares two files, answers, and answers again when it knows which nodes are to blame,
    and what mends them. A file that ONNX Runtime refuses, though not its reference, has missed without being run."""
    until, on_cpu = time.monotonic() + request.whole, ""
    if request.target and not is_mindir(request.model):
        verdict, on_cpu = verdict_on_opening(request)
        if verdict is not None:
            answer(verdict)
            answer(_repair_opening(verdict, request, until))
            return
    pair = make_pair(request.reference, request.model, "cpu")
    if request.target and isinstance(pair, OnnxPair):
        on_cpu = on_cpu or stopped_on_cpu(pair.result.dataflow())
    count = max(request.samples, request.more)
    drawn = load_samples(pair.reference, request.data, count=count, dims=request.dims)
    answer_with_cpu = lambda verdict: answer(replace(verdict, on_cpu=on_cpu))  # noqa: E731
    check_pair(pair, drawn, request, answer_with_cpu, request.reference, until, progress)


def check_pair(
    pair: Pair, drawn: Samples, request: Request, answer: Answer, source: Model, until: float | None = None,
    progress: Progress = silent,
) -> None:  # fmt: skip
    """Checks a pair on samples, and answers verdicts; opens the pair, so that it must not be open yet.

    ``source``: what the reference was read from, to convert it anew; ``until``: the time of `time.monotonic` at which
    to end, by default ``request.whole`` seconds from now."""
    until = time.monotonic() + request.whole if until is None else until
    pair.open()
    own = request.metric is None
    metric = own_metric(drawn.generated, pair.roles()) if own else metric_of(request.metric, pair.roles())
    seen = Compared(metric, numbers_first=own)
    CheckRun(request, pair, drawn.fit_to(pair.run_reference), source, answer, until, seen, progress).check(own)


@dataclass
class CheckRun:
    """One check of an open pair: ``seen`` holds the outputs of both models on the samples so far, ``verdict`` is what
    was answered last. ``drawn`` loses the samples wider than usual where the result overflows on one, which
    ``overflow`` says then; ``source`` and ``until``: as `check_pair` takes them."""

    request: Request
    pair: Pair
    drawn: Samples
    source: Model
    answer: Answer
    until: float
    seen: Compared
    progress: Progress
    verdict: CheckVerdict = field(default_factory=lambda: unchecked("it has not begun", VERIFY))
    overflow: str = ""

    def _answer_with(self, **fields: Any) -> None:
        """In the child of the check: puts fields into the verdict on what is known so far, and answers with it."""
        self.verdict = replace(self.verdict, **fields)
        self.answer(self.verdict)

    def check(self, own: bool) -> None:
        """Runs the check: compares, answers, then looks for doubts, for nodes to blame and for a repair, and answers
        again after each. ``own``: by the check's own measure; by a metric of the user's nothing is doubted."""
        start = time.monotonic()
        outputs_vary = self._compare(own)
        self.verdict = self._verdict_so_far()
        if own and self.drawn.generated and self.verdict.ok:
            self.verdict = self._verdict_on_inputs(outputs_vary)
        seconds = round((time.monotonic() - start) / max(self.verdict.samples, 1), 3)
        # what stands if the search for the nodes is killed
        why = "the nodes to blame were not found in time" if self.verdict.missed else ""
        self._answer_with(seconds=seconds, why=why)
        self.verdict = replace(self.verdict, why="")
        if own and not self._add_doubts():
            return
        if self.verdict.missed:
            self._explain(FaultSearch(self.pair, self.seen, self.request.tolerance, BLAMED, asked=False))
        elif self.verdict.doubtful:
            self._try_stream()

    def _verdict_on_inputs(self, outputs_vary: bool) -> CheckVerdict:
        """The check's ok verdict, or "not checked" where generated inputs prove nothing: no output varies with them, or
        the float32 model is not finite on them."""
        if not outputs_vary:
            return unchecked("the outputs do not depend on the generated inputs, not by a digit", GIVE_DATA)
        nonfinite = self.seen.mostly_silent()
        if 2 * len(nonfinite) <= len(self.seen.outputs):
            return self.verdict
        names = f"'{nonfinite[0]}'" + (f" and {len(nonfinite) - 1} more outputs" if len(nonfinite) > 1 else "")
        why = f"the float32 model itself is not finite on most of the generated inputs, at {names}"
        return unchecked(why, GIVE_DATA)

    def _add_doubts(self) -> bool:
        """Looks for reasons to doubt the check's verdict, and answers with each. False where the float32 model differs
        from itself by more than the tolerance: then "not checked" is answered, and nothing more is to be looked for."""
        compared, generated = self.verdict.tolerance is not None, self.drawn.generated
        if not self.verdict.missed and compared and "float16" in self.pair.low:
            self._answer_doubt(vanishing=vanishing_output(self.seen.outputs, self.pair.roles()))
        if self.verdict.missed or self.verdict.doubtful:
            error = self._error_against_itself()
            if error > self.request.tolerance:
                self.answer(self._verdict_on_unsteady(error))
                return False
            self._answer_with(**self._fields_on_chaos())
        if not self.verdict.missed and compared and generated and isinstance(self.pair, OnnxPair):
            self.progress("looking for values near the end of float16", 0, 0)
            usual, seconds = self.drawn.without_wide(), self.request.seconds / 4
            self._answer_doubt(near=self.overflow or near_the_limit(self.pair, usual, seconds))
        return True

    def _verdict_on_unsteady(self, error: float) -> CheckVerdict:
        """The check's verdict "not checked" on a float32 model that differs from itself by ``error``: it draws random
        numbers, or else its generated inputs may have sizes that leave parts of it empty."""
        why = f"the float32 model differs from itself by {error:.2g}, run twice on one input"
        pair = self.pair
        draws = not isinstance(pair, OnnxPair) or any(has(op.role, "random") for op in pair.source.dataflow().ops)
        if draws or not self.drawn.generated:
            return unchecked(why, "--metric with a function of yours can judge what is random")
        why += ", and draws no random numbers: its generated inputs may have sizes that it does not take"
        return unchecked(why, SIZES)

    def _verdict_so_far(self) -> CheckVerdict:
        """The verdict of the check on the samples so far; of the user's also how many were not run (``left``)."""
        verdict = self.seen.verdict(self.request.tolerance, self.drawn.generated)
        return verdict if self.drawn.generated else replace(verdict, left=len(self.drawn) - verdict.samples)

    def _answer_doubt(self, **reasons: str) -> None:
        """In the child of the check: answers "doubtful" if there is a reason; each by its field, "" for none."""
        self._answer_with(**reasons, outcome=DOUBTFUL if any(reasons.values()) else self.verdict.outcome)

    def _compare(self, own: bool) -> bool:
        """Check of a conversion: compares both models on one sample at least, and on as many more as there is time for.
        Returns whether an output of the reference differs by sample; True after one, which does not tell.

        More generated samples than asked for are run while the verdict is open. By the check's ``own`` measure, where
        the result overflows on a sample wider than usual, it begins again without those. The verdict so far is answered
        after each sample of the user's, and after a generated one where the error is infinite. Raises AmpError AMP209
        where no output has elements."""
        request, generated, seen = self.request, self.drawn.generated, self.seen
        first: dict[str, bytes] = {}  # by output: the reference's content on the first sample
        outputs_vary, number, start = False, 0, time.monotonic()
        for number, feeds in enumerate(self.drawn, 1):
            self.progress("checking", number - 1, max(number, min(request.samples, len(self.drawn))))
            expected, result = self.pair.run_both(feeds)
            overflowing = first_overflow(expected, result) if own and self.drawn.is_wide(number - 1) else ""
            if overflowing:
                inputs = f"generated inputs {max(SCALES):g} times as large as usual"
                self.overflow = f"'{overflowing}' is infinite on {inputs}"
                self.drawn, self.seen = self.drawn.without_wide(), replace(seen, whole=None, found={})
                return self._compare(own)
            seen.add(expected, result)
            for name, value in expected.items():
                content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
                outputs_vary |= first.setdefault(name, content) != content
            if seen.found:
                so_far = self._verdict_so_far()
                if not generated or so_far.error == math.inf:
                    self.answer(so_far)
            undecided = own and bool(seen.found) and seen.unsure(request.tolerance)
            if number >= request.samples and not undecided:
                break
            thirds = 2 if undecided else 1
            if not generated or number < FEW:
                thirds = 3
            spent = time.monotonic() - start
            if spent + spent / number > request.seconds * thirds / 3:
                break
        if not any(each.compared or each.nonfinite_mismatches or each.silent or each.reason for each in seen.outputs):
            raise AmpError("AMP209", "the outputs have no elements on these inputs")
        return outputs_vary or number == 1

    def _compare_other(self, pair: OnnxPair) -> Outcome:
        """How another conversion does on the samples that this check has run, by the same measure. The error is
        infinite where nothing could be compared."""
        found = replace(self.seen, whole=None, found={})
        for feeds in self.drawn.first(len(self.seen.errors)):
            found.add(*pair.run_both(feeds))
        verdict = found.verdict(self.request.tolerance, self.drawn.generated)
        error = math.inf if verdict.error is None else verdict.error
        return Outcome(error, verdict.ok, pair, found)

    def _error_against_itself(self) -> float:
        """Check of a conversion: the largest error between two runs of the reference on the first sample. It is not 0
        where the model draws random numbers."""
        feeds = next(iter(self.drawn))
        first, second = self.pair.run_reference(feeds), self.pair.run_reference(feeds)
        found = (compare_outputs(value, second[name]) for name, value in first.items())
        return max((each.error for each in found if each.floating and not each.silent), default=0.0)

    def _fields_on_chaos(self) -> dict[str, Any]:
        """The fields of a check's verdict on a model that is sensitive by itself: the 90th percentile of what rounding
        its inputs alone changes, where it is beyond the tolerance. Generated samples on which that is beyond the usual
        tolerance too can be doubted, not missed: they say nothing of the conversion."""
        low = self.pair.low[0] if self.pair.low else "float16"
        number = max(1, min(self.verdict.samples, int(SENSITIVITY / max(self.verdict.seconds, 1e-3))))
        runs = runs_on_rounded_inputs(self.pair.run_reference, itertools.islice(self.drawn, number), low)
        errors = {place: self.seen.error_of(expected, found) for place, expected, found in runs}
        errors = {place: error for place, error in errors.items() if math.isfinite(error)}
        found, tolerance = quantile(list(errors.values()), QUANTILE) if errors else 0.0, self.request.tolerance
        if found <= tolerance:
            return {"sensitivity": None}
        found *= (self.verdict.tolerance or tolerance) / tolerance  # in units of the part that decides
        if not (self.verdict.missed and self.drawn.generated):
            return {"sensitivity": found}
        moved = {place for place, error in errors.items() if error > max(tolerance, TOLERANCES[low])}
        return {"sensitivity": found, "outcome": self.seen.verdict(tolerance, generated=True, moved=moved).outcome}

    # -- who is to blame ----------------------------------------------------------------------------------------------

    def _explain(self, finding: FaultSearch) -> None:
        """In the child of a check that missed: answers with the nodes to blame, found by a run that shows every value.
        Where a repair is asked for (the request has a recipe), half of the time left goes to a search by runs with few
        nodes low, then the answer says what mends the result, or why nothing does, and what a float32 stream leaves."""
        left, recipe, verdict = self.until - time.monotonic(), self.request.recipe, self.verdict
        most = 0 if recipe is None else int(left / 2 / max(verdict.seconds, 1e-3))  # runs that there is time for
        finding.runs, finding.seconds = 0 if most < LEAST else min(most, RUNS), left / 2
        finding.look(self.drawn, self.progress)
        self._answer_with(**_fields_on_blame(verdict, finding))
        if recipe is None:
            return
        spent = verdict.seconds * verdict.samples
        self.progress("looking for a repair", 0, 0)
        found = find_repair(self.source, recipe, finding, self._compare_other, self.drawn, self.until, spent)
        if found is not None and found.repair is not None:
            mended = {"mended_by": found.repair.patterns, "repaired_error": found.repair.error}
            self._answer_with(**mended, suggested=(), sensitivity=None)  # what a repair mends is not chaotic
        else:
            self._answer_with(unrepaired="" if found is None else found.none)
        self._try_stream()

    def _try_stream(self) -> None:
        """Check of a conversion: answers with the error that `--fp32-stream` would leave, where that is worth its
        Casts; else, or without a recipe to convert by, with the verdict as it is."""
        recipe, until = self.request.recipe, self.until
        self.answer(try_stream(self.verdict, self.source, recipe, self.pair, self._compare_other, until))


def _fields_on_blame(verdict: CheckVerdict, finding: FaultSearch) -> dict[str, Any]:
    """The fields of a check's verdict on who is to blame: the first suspect, and patterns of all to pin. Nothing is
    suggested for a model that is sensitive by itself; no fields where nobody is to blame."""
    if not finding.suspects:
        return {}
    suspect = finding.suspects[0]
    body = f"in {suspect.inside}" if suspect.inside else ""
    place = " ".join(filter(None, (suspect.operator, suspect.node, body)))
    patterns = dict.fromkeys(pattern for found in finding.suspects for pattern in found.patterns)
    suggested = tuple(patterns) if verdict.sensitivity is None else ()
    return {"first": place, "why": suspect.why, "suggested": suggested}


def first_overflow(expected: Mapping[str, Result], result: Mapping[str, Result]) -> str:
    """Check of a conversion: the first output of ``result`` that is not finite where ``expected``, the reference's, is;
    "" if there is none. Both map names of outputs to arrays."""
    return next(
        (name for name, value in expected.items() if compare_outputs(value, result[name]).nonfinite_mismatches), ""
    )


# -- low values near the end of float16 -------------------------------------------------------------------------------

MEASURED = 12  # samples that are measured at most
NEAR = 4  # real inputs may reach so many times what two generated samples reach
FEWEST, TEN_MORE = 2, 1.6  # over 29 trained models, ten samples more than two reached at most 1.6 times as much
FAR = 16  # where so many times the largest value is still below the end of the type, real inputs do not pass it


def near_the_limit(pair: OnnxPair, drawn: Samples, seconds: float) -> str:
    """Check of a conversion: a text on the float16 value that comes closest to the largest number of the type, so close
    that real inputs may pass it; "" where none does.

    The reference is measured on ``drawn``, which are generated; after ``seconds`` no further sample is begun. The more
    samples were measured, the closer a value may come. Negative numbers count only where a product makes them: in other
    places large ones are masks."""
    by_product, end = _float16_values(pair.result.dataflow()), low_type("float16").largest

    def sizes(ranges: Ranges) -> dict[str, float]:
        found = {name: ranges.values[name] for name in by_product if name in ranges.values}
        return {name: max(span.high, -span.low if by_product[name] else 0.0) for name, span in found.items()}

    def far(ranges: Ranges) -> bool:
        return ranges.samples >= FEWEST and FAR * max(sizes(ranges).values(), default=0.0) <= end

    ranges = measured_ranges(pair.source, drawn.within(MEASURED, seconds), enough=far)
    size = sizes(ranges)
    name = max((name for name in size if size[name] < end), key=lambda name: size[name], default="")
    margin = NEAR / TEN_MORE ** ((ranges.samples - FEWEST) / 10)
    if not name or size[name] * margin <= end:
        return ""
    plural = "s" * (ranges.samples != 1)
    return f"'{name}' reaches {size[name]:,.0f} of {end:,.0f} on {ranges.samples} generated input{plural}"


def _float16_values(flow: Dataflow) -> dict[str, bool]:
    """Check of a conversion: for each float16 value of the result, by name, whether a product makes it. What a Cast
    makes of one counts too, under its own name: a float32 output of the model has the name that the reference knows."""
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


def verdict_on_opening(request: Request) -> tuple[CheckVerdict | None, str]:
    """Check of a conversion: whether users can open the file: the verdict "missed" where it does not open and its
    reference does, else None; and what ONNX Runtime's CPU says where it only lacks a kernel, else ""."""
    found = opening_refusal(request.model)
    if found is None:
        return None, ""
    if is_fault(found, request.reference, request.model, request.target):
        return CheckVerdict(MISSED, None, request.tolerance, refused=found.said, why=found.why), ""
    return None, f"ONNX Runtime's CPU does not open it: {found.said}" if found.lacks_kernel else ""


def _repair_opening(verdict: CheckVerdict, request: Request, until: float) -> CheckVerdict:
    """Check of a file that ONNX Runtime refuses: its verdict, with the first kind of operators that, pinned to float32,
    lets the file open, or why none was found ``until`` the time of `time.monotonic`. The kinds with the fewest low
    nodes are tried first. Without a recipe in the request nothing is tried."""
    recipe = request.recipe
    if recipe is None:
        return verdict
    flow = load_onnx(request.model).dataflow()
    low = (op for op in flow.ops if any(flow.values[v].dtype in LOW for v in op.outputs if v >= 0))
    nodes = Counter(op.kind for op in low if not has(op.role, "casts"))
    longest = 0.0  # seconds that a trial took
    for tried, kind in enumerate(sorted(nodes, key=lambda kind: (nodes[kind], kind))):
        start = time.monotonic()
        if start + longest > until:
            return replace(verdict, unrepaired=f"none found in {tried} conversions; the time is up")
        pattern = f"op:{kind}"
        if _opens_with(request, replace(recipe, fp32=(*recipe.fp32, pattern))):
            return replace(verdict, mended_by=(pattern,))
        longest = max(longest, time.monotonic() - start)
    return replace(verdict, unrepaired=f"none found in {len(nodes)} conversions")


def _opens_with(request: Request, recipe: Recipe) -> bool:
    """Check of a conversion: whether ONNX Runtime opens what `convert` makes of the reference with a recipe. A kernel
    that the CPU lacks counts only for the CPU's target. False where ``recipe`` cannot be followed."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        path = Path(folder) / "tried.onnx"
        try:
            run_job(Job(request.reference, recipe)).graph.save(path)
            found = opening_refusal(str(path))
            return found is None or (found.lacks_kernel and request.target != CPU)
        except AmpError:  # the pattern is of a node that convert itself made
            return False
