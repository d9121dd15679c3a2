"""What the child of a check runs: a strict run beside the reference, and the nodes to blame where it misses.

It reads its request from one file and writes verdicts to another, a line of JSON each: the last whole line counts, so
that a search for nodes that crashes leaves the verdict standing.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from ..core.dataflow import Dataflow
from ..core.errors import AmpError
from ..core.ranges import HIGHEST
from ..core.verdict import MISSED, OK, CheckVerdict, unchecked
from ..numerics.inputs.samples import Samples, load_samples
from ..numerics.metrics.agreement import Agreement, apart
from ..numerics.ranges.calibrate import measured_ranges
from ..oplists.traits import has
from .fault_search import FaultSearch
from .pairs import OnnxPair, Pair, paired

NEAR = 16  # generated inputs that come so close to the end of the type say that real ones may pass it
BLAMED = 3  # nodes behind which the error grows


@dataclass(frozen=True)
class Request:
    """What a child is asked: two files, where samples are, how many, how right the result has to be, the limits.

    Attributes:
        data: an .npz file or a folder of them; None generates.
        seconds: when to stop taking samples.
        memory: bytes that the process may hold.
    """

    reference: str
    model: str
    data: str | None
    samples: int
    dims: dict[str, int]
    tolerance: float
    seconds: float
    memory: int

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
    """Compares, answers, and answers again when it knows which nodes are to blame."""
    pair = paired(request.reference, request.model, "cpu")
    drawn = load_samples(pair.reference, request.data, count=request.samples, dims=request.dims)
    pair.open()
    drawn = drawn.fitted(pair.probe)
    start = time.monotonic()
    outputs, moved = compared(pair, drawn, request.seconds)
    verdict = judged(outputs, request.tolerance, drawn.generated)
    if drawn.generated and verdict.ok and not moved:
        verdict = unchecked("the outputs do not depend on the generated inputs, not by a digit: give --data")
    verdict = replace(verdict, seconds=round((time.monotonic() - start) / max(verdict.samples, 1), 3))
    if not verdict.missed:
        answer(verdict)
        quick = verdict.seconds * verdict.samples < request.seconds / 4
        if isinstance(pair, OnnxPair) and verdict.ok and drawn.generated and quick:
            answer(replace(verdict, near=near_the_limit(pair, drawn)))
        return
    answer(replace(verdict, why="the nodes to blame were not found in time"))
    finding = FaultSearch(pair, [o for o in outputs if counted(o, outputs)], request.tolerance, BLAMED, asked=False)
    finding.look(drawn, None)
    answer(blamed(verdict, finding))


def compared(pair: Pair, drawn: Samples, seconds: float) -> tuple[list[Agreement], bool]:
    """The outputs over the samples, over as many as there is time for, one at least; whether any differs by sample."""
    outputs: dict[str, Agreement] = {}
    first: dict[str, bytes] = {}
    moved = False
    start = time.monotonic()
    for number, feeds in enumerate(drawn, 1):
        expected, found = pair.both(feeds)
        for name, value in expected.items():
            outputs.setdefault(name, Agreement(name)).add(apart(value, found[name]))
            content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            moved |= first.setdefault(name, content) != content
        spent = time.monotonic() - start
        if spent + spent / number > seconds:
            break
    if not any(output.compared or output.silent or output.reason for output in outputs.values()):
        raise AmpError("AMP209", "the outputs have no elements on these inputs")
    return list(outputs.values()), moved


def near_the_limit(pair: OnnxPair, drawn: Samples) -> str:
    """The low value that comes closest to the end of float16, where real inputs may pass it; empty if none is near.

    Negative numbers are left out: masks are large ones.
    """
    kept = _held_low(pair.result.dataflow())
    ranges = measured_ranges(pair.source, drawn)
    end = HIGHEST["float16"]
    low = {name: found.high for name, found in ranges.values.items() if name in kept and found.high < end}
    name = max(low, key=lambda name: low[name], default="")
    return f"'{name}' reaches {low[name]:,.0f} of {end:,.0f}" if name and low[name] * NEAR > end else ""


def _held_low(flow: Dataflow) -> set[str]:
    """The names of float16 values, and of what a Cast makes of one: an output has its name behind it."""
    low = {value.id for value in flow.values if value.dtype == "float16"}
    cast = {v for op in flow.ops if has(op.role, "casts") and op.inputs[0] in low for v in op.outputs}
    return {flow.values[v].name for v in low | cast}


def counted(output: Agreement, outputs: list[Agreement]) -> bool:
    """Whether an output is judged: classes and indices, which flip where scores tie, only if there is no other."""
    return output.floating or not any(other.floating for other in outputs)


def judged(outputs: list[Agreement], tolerance: float, generated: bool) -> CheckVerdict:
    """Right or missed, and by how much at which output."""
    heard = [output for output in outputs if counted(output, outputs)]
    number = len(heard[0].errors)
    if all(output.silent and not output.compared for output in heard):
        return unchecked("the float32 model itself gives nothing finite on these inputs")
    heard = [output for output in heard if not (output.silent and not output.compared and not output.astray)]
    missed = [output for output in heard if not output.within(tolerance)]
    worst = max(missed or heard, key=lambda output: math.inf if output.astray else output.p90)
    error = math.inf if worst.astray else worst.p90
    outcome = MISSED if missed else OK
    return CheckVerdict(outcome, error, tolerance, number, generated, worst.name, reason=worst.reason)


def blamed(verdict: CheckVerdict, finding: FaultSearch) -> CheckVerdict:
    """The verdict with the node where values stop being finite, or behind which the error grows most."""
    suspect = finding.born or next(iter(finding.growth), None)
    if suspect is None:
        return verdict
    place = " ".join(filter(None, (suspect.operator, suspect.node, f"in {suspect.inside}" * bool(suspect.inside))))
    others = [] if finding.born else [pattern for found in finding.growth for pattern in found.repair]
    return replace(verdict, first=place, why=suspect.why, repair=tuple(dict.fromkeys((*suspect.repair, *others))))
