"""The judgement of a check: right, doubtful or missed, by what was seen of each output over the samples.

On the user's samples the 90th percentile decides. Generated inputs are no real ones, and models are less sure of
themselves on them: an output that nearly vanishes in one sample is measured against a share of its size over all of
them, and it takes half of the samples to miss. Where fewer do, no more is known, and that is said: it is doubtful where
more than one of eight miss (of eight of the user's the worst decides), those that miss by far counting double, or where
more than one of eight come close: real inputs of trained models gave up to twice the error of generated ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..core.verdict import DOUBTFUL, MISSED, OK, CheckVerdict, unchecked
from ..numerics.metrics.agreement import FLOOR, Agreement, Apart
from ..numerics.metrics.judged import QUANTILE, SCALE_SHARE, quantile, scale_of

FAR = 2  # how many times the tolerance is missed by far
EIGHT = 8  # samples of the user's, of which one that misses decides
CLOSE = 0.6  # of the tolerance: real samples may miss it where generated ones come this close
UNSURE = 0.25  # of the tolerance: generated samples that come no closer tell that others will not miss it


@dataclass
class Watched:
    """One output over the samples."""

    agreement: Agreement
    parts: list[Apart] = field(default_factory=list)

    def add(self, found: Apart) -> None:
        """Takes in another sample."""
        self.parts.append(found)
        self.agreement.add(found)

    @property
    def heard(self) -> list[Apart]:
        """Those that say something."""
        return [part for part in self.parts if not part.silent or part.astray]

    @property
    def mute(self) -> bool:
        """Whether the reference gives nothing finite anywhere, and the result nothing else."""
        return not self.heard or (not self.agreement.compared and self.agreement.silent == set(range(len(self.parts))))

    def errors(self, generated: bool) -> list[float]:
        """Of each sample that says something."""
        if not generated:
            return [part.error for part in self.heard]
        least = max(FLOOR, SCALE_SHARE * scale_of(part.size for part in self.heard if part.compared))
        return [_error(part, least) for part in self.heard]

    def missed(self, tolerance: float, generated: bool) -> bool:
        """Whether it is wrong."""
        agreement = self.agreement
        if not generated:
            return not agreement.within(tolerance)
        errors = self.errors(generated)
        return bool(agreement.astray) or 2 * sum(error > tolerance for error in errors) >= max(len(errors), 1)


def _error(part: Apart, least: float) -> float:
    """Against the output's size in the sample, ``least`` where that is smaller; as it is where no size is known."""
    sized = part.size and math.isfinite(part.error)
    return float(part.off / max(part.size, least) if sized else part.error)


def counted(output: Agreement, outputs: list[Agreement]) -> bool:
    """Whether an output is judged: classes and indices, which flip where scores tie, only if there is no other."""
    return output.floating or not any(other.floating for other in outputs)


def judged(outputs: list[Watched], tolerance: float, generated: bool) -> CheckVerdict:
    """Right, doubtful or missed, and by how much at which output."""
    all_of_them = [seen.agreement for seen in outputs]
    heard = [seen for seen in outputs if counted(seen.agreement, all_of_them)]
    number = len(heard[0].parts)
    heard = [seen for seen in heard if not seen.mute]
    if not heard:
        return unchecked("the float32 model itself gives nothing finite on these inputs")
    missed = [seen for seen in heard if seen.missed(tolerance, generated)]
    doubted = [seen for seen in heard if generated and _doubtful(seen.errors(generated), tolerance)]
    worst = max(missed or doubted or heard, key=lambda seen: _size(seen, generated, generated))
    exceeded = sum(error > tolerance for error in worst.errors(generated))
    outcome = MISSED if missed else DOUBTFUL if doubted else OK
    error = _size(worst, generated, generated and outcome != OK)
    return CheckVerdict(
        outcome, error, tolerance, number, generated, worst.agreement.name,
        reason=worst.agreement.reason if missed else "", exceeded=exceeded,
    )  # fmt: skip


def _doubtful(errors: list[float], tolerance: float) -> bool:
    """Whether so many miss, or come so close, that one of the user's may miss."""
    missing = sum((error > tolerance) + (error > FAR * tolerance) for error in errors)
    close = sum(error > CLOSE * tolerance for error in errors)
    return any(count > 1 and count * EIGHT > len(errors) for count in (missing, close))


def _size(seen: Watched, generated: bool, largest: bool = False) -> float:
    """The error that is reported: infinite for what is not finite, else the 90th percentile, or the largest."""
    errors = seen.errors(generated)
    return math.inf if seen.agreement.astray else quantile(errors, 1.0 if largest else QUANTILE)


def unsure(outputs: list[Watched], tolerance: float) -> bool:
    """Whether generated samples leave open how others would do: none misses clearly, and one comes close."""
    verdict = judged(outputs, tolerance, generated=True)
    return not verdict.missed and verdict.error is not None and verdict.error > UNSURE * tolerance
