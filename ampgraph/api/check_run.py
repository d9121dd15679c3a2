"""What the child of a check runs: a strict run beside the reference, and the nodes to blame where it misses.

It reads its request from one file and writes verdicts to another, a line of JSON each: the last whole line counts, so
that a search for nodes that crashes leaves the verdict standing.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from ..core.dataflow import NONE, Dataflow
from ..core.errors import AmpError
from ..core.ranges import HIGHEST
from ..core.verdict import DOUBTFUL, MISSED, OK, CheckVerdict, unchecked
from ..numerics.inputs.sample_set import Samples
from ..numerics.inputs.samples import load_samples
from ..numerics.metrics.agreement import Agreement, apart
from ..numerics.metrics.metric import metric_of
from ..numerics.metrics.sensitivity import sensitivity
from ..numerics.metrics.vanishing import vanishing
from ..numerics.ranges.calibrate import measured_ranges
from ..oplists.traits import has
from .fault_search import RUNS, FaultSearch
from .judging import Watched, counted, judged, unsure
from .pairs import OnnxPair, Pair, paired
from .verify import compared as seen_by

MEASURED = 12  # samples of which every value is looked at
NEAR = 4  # generated inputs that come so close to the end of the type say that real ones may pass it
FEW = 3  # generated samples for which there is more time
BLAMED = 3  # nodes behind which the error grows
SEARCH, LEAST = 20.0, 16  # seconds for runs with few nodes low, and how many of them are worth beginning


@dataclass(frozen=True)
class Request:
    """What a child is asked: two files, where samples are, how many, how right the result has to be, the limits.

    Attributes:
        data: an .npz file or a folder of them; None generates.
        seconds: when to stop taking samples.
        memory: bytes that the process may hold.
        metric: as `verify` takes it by name; None for the check's own measure.
        more: how many generated samples where the first leave it open.
    """

    reference: str
    model: str
    data: str | None
    samples: int
    dims: dict[str, int]
    tolerance: float
    seconds: float
    memory: int
    metric: str | None = None
    more: int = 0

    def to_json(self) -> str:
        """For the child."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(path: str) -> Request:
        """What the parent wrote."""
        with open(path, encoding="utf-8") as file:
            return Request(**json.load(file))


def main(request_path: str, result_path: str) -> None:
    """Does one request."""
    request = Request.read(request_path)
    limit_memory(request.memory)
    with open(result_path, "w", encoding="utf-8") as file:

        def answer(verdict: CheckVerdict) -> None:
            file.write(json.dumps(verdict.to_dict()) + "\n")
            file.flush()

        try:
            run(request, answer)
        except AmpError as error:
            answer(unchecked(error.message))
        except MemoryError:
            answer(unchecked("it needs more memory than the check may take"))


def limit_memory(size: int) -> None:
    """Allocations beyond ``size`` bytes fail, where the system can do that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if sys.platform == "linux":  # elsewhere the limit counts nothing, or address space that is only reserved
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def run(request: Request, answer: Callable[[CheckVerdict], None]) -> None:
    """Compares two files, answers, and answers again when it knows which nodes are to blame."""
    pair = paired(request.reference, request.model, "cpu")
    count = max(request.samples, request.more)
    judge(pair, load_samples(pair.reference, request.data, count=count, dims=request.dims), request, answer)


def judge(pair: Pair, drawn: Samples, request: Request, answer: Callable[[CheckVerdict], None]) -> None:
    """The check of a pair that is not open yet, on samples."""
    pair.open()
    drawn = drawn.fitted(pair.expected)
    if request.metric is not None:
        by_metric(request.metric, pair, drawn.first(request.samples), request.tolerance, answer)
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
    if not verdict.missed:
        if verdict.tolerance is not None and drawn.generated and isinstance(pair, OnnxPair):
            answer(doubted(verdict, near_the_limit(pair, drawn, request.seconds / 4)))
        return
    heard = [seen.agreement for seen in outputs]
    runs = affordable(verdict.seconds)
    finding = FaultSearch(
        pair, [o for o in heard if counted(o, heard)], request.tolerance, BLAMED, asked=False, runs=runs, seconds=SEARCH
    )
    finding.look(drawn, None)
    answer(blamed(verdict, finding))


def affordable(seconds: float) -> int:
    """How many runs of one sample the search for causes may take, by what both models took for one."""
    most = int(SEARCH / max(seconds, 1e-3))
    return 0 if most < LEAST else min(most, RUNS)


def by_metric(name: str, pair: Pair, drawn: Samples, tolerance: float, answer: Callable[[CheckVerdict], None]) -> None:
    """Compares by a metric that was asked for, and answers."""
    metric = metric_of(name, pair.roles())
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
        runs = affordable(seconds)
        finding = FaultSearch(
            pair, outputs, tolerance, BLAMED, asked=False, metric=metric, runs=runs, seconds=SEARCH
        )  # fmt: skip
        finding.look(drawn, None)
        answer(blamed(verdict, finding))


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
    if not any(seen.agreement.compared or seen.agreement.silent or seen.agreement.reason for seen in outputs.values()):
        raise AmpError("AMP209", "the outputs have no elements on these inputs")
    return list(outputs.values()), moved


def from_itself(pair: Pair, drawn: Samples) -> float:
    """How much the reference's outputs change when it is run again, as those of a model do that draws numbers."""
    feeds = next(iter(drawn))
    first, second = pair.expected(feeds), pair.expected(feeds)
    found = (apart(value, second[name]) for name, value in first.items())
    return max((each.error for each in found if each.floating and not each.silent), default=0.0)


def beyond_itself(pair: Pair, drawn: Samples, verdict: CheckVerdict) -> float | None:
    """How much the rounding of the inputs alone changes, where it is more than the tolerance."""
    low = pair.low[0] if pair.low else "float16"
    number = max(1, min(verdict.samples, int(SEARCH / 2 / max(verdict.seconds, 1e-3))))
    _, found = sensitivity(pair.expected, itertools.islice(drawn, number), low)
    return found if found > (verdict.tolerance or 0.0) else None


def doubted(verdict: CheckVerdict, near: str) -> CheckVerdict:
    """The verdict, doubtful where a value comes near the limit."""
    return replace(verdict, near=near, outcome=DOUBTFUL if near else verdict.outcome)


def vanished(verdict: CheckVerdict, pair: Pair, outputs: list[Watched]) -> CheckVerdict:
    """The verdict, doubtful where an output is too small for float16."""
    found = vanishing([seen.agreement for seen in outputs], pair.roles()) if "float16" in pair.low else ""
    return replace(verdict, vanishing=found, outcome=DOUBTFUL if found else verdict.outcome)


def near_the_limit(pair: OnnxPair, drawn: Samples, seconds: float) -> str:
    """The low value that comes closest to the end of float16, where real inputs may pass it; empty if none is near.

    ``seconds``: when to begin with no sample more. Negative numbers count where a
    product makes them: elsewhere masks are large ones.
    """
    ranges = measured_ranges(pair.source, drawn.within(MEASURED, seconds))
    kept, end = _held_low(pair.result.dataflow()), HIGHEST["float16"]
    known = {name: ranges.values[name] for name in kept if name in ranges.values}
    size = {name: max(found.high, -found.low if kept[name] else 0.0) for name, found in known.items()}
    name = max((name for name in size if size[name] < end), key=lambda name: size[name], default="")
    if not name or size[name] * NEAR <= end:
        return ""
    plural = "s" * (ranges.samples != 1)
    return f"'{name}' reaches {size[name]:,.0f} of {end:,.0f} on {ranges.samples} generated input{plural}"


def _held_low(flow: Dataflow) -> dict[str, bool]:
    """The names of float16 values, and of what a Cast makes of one: an output has its name behind it. True for what a
    product makes."""
    low = {
        value.id: has(flow.ops[value.producer].role, "products") if value.producer != NONE else False
        for value in flow.values
        if value.dtype == "float16"
    }
    low |= {
        v: low[op.inputs[0]] for op in flow.ops if has(op.role, "casts") and op.inputs[0] in low for v in op.outputs
    }
    return {flow.values[v].name: made for v, made in low.items()}


def blamed(verdict: CheckVerdict, finding: FaultSearch) -> CheckVerdict:
    """The verdict with the node where values stop being finite, or behind which the error grows most."""
    suspect = finding.born or next(iter(finding.growth), None)
    if suspect is None:
        return verdict
    place = " ".join(filter(None, (suspect.operator, suspect.node, f"in {suspect.inside}" * bool(suspect.inside))))
    others = [] if finding.born else [pattern for found in finding.growth for pattern in found.repair]
    return replace(verdict, first=place, why=suspect.why, repair=tuple(dict.fromkeys((*suspect.repair, *others))))
