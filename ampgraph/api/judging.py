"""The judgement of a check: right, doubtful or missed, by what was seen of each output over the samples.

On the user's samples the 90th percentile decides. Generated inputs are no real ones, and models are less sure of
themselves on them: an output that nearly vanishes in one sample is measured against a share of its size over all of
them, and it takes half of the samples to miss. Where fewer do, no more is known, and that is said: it is doubtful where
more than one of eight miss (of eight of the user's the worst decides), those that miss by far counting double, or where
more than one of eight come close: real inputs of trained models gave up to twice the error of generated ones.
"""

from __future__ import annotations

import math

from ..core.verdict import DOUBTFUL, MISSED, OK, CheckVerdict, unchecked
from ..numerics.metrics.agreement import QUANTILE, Agreement, quantile

FAR = 2  # how many times the tolerance is missed by far
EIGHT = 8  # samples of the user's, of which one that misses decides
CLOSE = 0.6  # of the tolerance: real samples may miss it where generated ones come this close
UNSURE = 0.25  # of the tolerance: generated samples that come no closer tell that others will not miss it


def counted(output: Agreement, outputs: list[Agreement]) -> bool:
    """Whether an output is judged: classes and indices, which flip where scores tie, only if there is no other."""
    return output.floating or not any(other.floating for other in outputs)


def judged(outputs: list[Agreement], tolerance: float, generated: bool) -> CheckVerdict:
    """Right, doubtful or missed, and by how much at which output."""
    heard = [output for output in outputs if counted(output, outputs)]
    number = len(heard[0].parts)
    heard = [output for output in heard if not output.mute]
    if not heard:
        return unchecked("the float32 model itself gives nothing finite on these inputs")
    errors = {output.name: _errors(output, generated) for output in heard}
    missed = [output for output in heard if _missed(output, tolerance, generated)]
    doubted = [output for output in heard if generated and _doubtful(errors[output.name], tolerance)]

    def size(output: Agreement, largest: bool) -> float:
        """The error that is reported: infinite for what is not finite, else the 90th percentile, or the largest."""
        return math.inf if output.astray else quantile(errors[output.name], 1.0 if largest else QUANTILE)

    worst = max(missed or doubted or heard, key=lambda output: size(output, generated))
    exceeded = sum(error > tolerance for error in errors[worst.name])
    outcome = MISSED if missed else DOUBTFUL if doubted else OK
    return CheckVerdict(
        outcome, size(worst, generated and outcome != OK), tolerance, number, generated, worst.name,
        reason=worst.reason if missed else "", exceeded=exceeded,
    )  # fmt: skip


def _errors(output: Agreement, generated: bool) -> list[float]:
    """Of each sample that says something."""
    return output.scaled_errors if generated else [p.error for p in output.parts if not p.silent or p.astray]


def _missed(output: Agreement, tolerance: float, generated: bool) -> bool:
    """Whether it is wrong."""
    if not generated:
        return not output.within(tolerance)
    errors = output.scaled_errors
    return bool(output.astray) or 2 * sum(error > tolerance for error in errors) >= max(len(errors), 1)


def _doubtful(errors: list[float], tolerance: float) -> bool:
    """Whether so many miss, or come so close, that one of the user's may miss."""
    missing = sum((error > tolerance) + (error > FAR * tolerance) for error in errors)
    close = sum(error > CLOSE * tolerance for error in errors)
    return any(count > 1 and count * EIGHT > len(errors) for count in (missing, close))


def unsure(outputs: list[Agreement], tolerance: float) -> bool:
    """Whether generated samples leave open how others would do: none misses clearly, and one comes close."""
    verdict = judged(outputs, tolerance, generated=True)
    return not verdict.missed and verdict.error is not None and verdict.error > UNSURE * tolerance
