"""Runs of a model beside its reference, and the one verdict on them that check, verify, tune and repairs share."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...core.arrays import Result
from ...core.errors import AmpError
from ...core.files import write_error
from ...core.verdict import CLOSE, DOUBTFUL, MISSED, OK, CheckVerdict, unchecked
from .agreement import (
    SCALE_SHARE,
    Agreement,
    Judged,
    OutputDifference,
    Scores,
    compare_outputs,
    deciding_part,
    part_error,
)
from .metric import SAMPLE, Metric, Outputs
from .parts import PART

# On the user's samples the 90th percentile decides, or the mean of shares. Generated inputs are no real ones, and
# models are less sure of themselves on them: it takes half of the samples to miss. Where fewer do, no more is known:
# doubtful is where more than one of eight miss (of eight of the user's the worst decides), those that miss by far
# counting double, or where more than one of eight come close (real inputs of trained models gave up to twice the
# error), or where the usual error is too large for a critical answer: the smallest one, or a tie of classes.
FAR = 2  # how many times the tolerance is missed by far
SIX = 6  # generated samples of which half say that the result misses; of fewer, all
EIGHT = 8  # samples of the user's, of which one that misses decides
UNSURE = 0.25  # of the tolerance: generated samples that come no closer tell that others will not miss it
SMALL = 0.6  # of an output's scale: an answer below it is small, as one near zero
CLEAR = 0.75  # of generated samples: where fewer miss, more of them may still be right by half
GIVE_DATA = "give --data"


@dataclass
class Compared:
    """Some runs of a model and of its reference, sample by sample.

    Attributes:
        metric: what judges a sample.
        numbers_first: classes and indices, which flip where scores tie, count only if there is no other output.
        whole: what the metric says of samples as a whole, where it does that.
        found: each output over the samples, by name.
    """

    metric: Metric
    numbers_first: bool = False
    whole: Agreement | None = None
    found: dict[str, Agreement] = field(default_factory=dict)

    def add(self, expected: Outputs, result: Outputs) -> float:
        """Takes in the outputs of another sample; returns its largest error.

        Raises AmpError AMP312 where the metric is about none of the outputs, or fails.
        """
        parts = {name: compare_outputs(value, result[name]) for name, value in expected.items()}
        judged = self.metric.judge(expected, result, parts)
        if SAMPLE in judged:
            self.whole = self.whole or Agreement(self.metric.name)
            error = judged[SAMPLE].error()
            self.whole.add(OutputDifference(error, error, compared=1), judged[SAMPLE])
        for name, part in parts.items():
            output = self.found.setdefault(name, Agreement(name, over_all=self.metric.over_all))
            output.counts = name in judged
            output.add(part, judged.get(name))
        return max((one.error() for one in judged.values()), default=0.0)

    @property
    def outputs(self) -> list[Agreement]:
        """Each output over the samples; its ``counts`` says whether it is judged, which this sets."""
        outputs = list(self.found.values())
        if self.numbers_first:
            floating = any(output.floating for output in outputs)
            for output in outputs:
                output.counts = output.floating or not floating
        return outputs

    @property
    def overall(self) -> Scores | None:
        """What the metric says of samples as a whole, where it does that."""
        return None if self.whole is None else self.whole.scores

    @property
    def _judged(self) -> list[Agreement]:
        """The outputs whose errors count; the samples as a whole where the metric judges them so."""
        return [self.whole] if self.whole is not None else [output for output in self.outputs if output.counts]

    @property
    def _must_be_finite(self) -> list[Agreement]:
        """The outputs that must be finite where the reference is."""
        return self.outputs if self.whole is not None else self._judged

    @property
    def errors(self) -> list[float]:
        """The largest error of each sample; infinite where a value is not finite that should be."""
        largest = map(max, zip(*(output.held_errors for output in self._judged), strict=True))
        infinite = (
            any(part.nonfinite_mismatches for part in parts)
            for parts in zip(*(o.parts for o in self._must_be_finite), strict=True)
        )
        return [math.inf if wrong else error for error, wrong in zip(largest, infinite, strict=True)]

    @property
    def error(self) -> float:
        """What is held against a tolerance: the largest error of an output; infinite where one is not finite."""
        if any(output.nonfinite_mismatches for output in self._must_be_finite):
            return math.inf
        return max((output.held.decisive for output in self._judged), default=0.0)

    def within(self, tolerance: float) -> bool:
        """Whether a tolerance is met at every output that counts."""
        return all_within(self.outputs, self.overall, tolerance)

    def error_of(self, expected: Outputs, result: Outputs) -> float:
        """The largest error of another run on one of the samples, against the scales of all; it is not added itself."""
        parts = {name: compare_outputs(value, result[name]) for name, value in expected.items()}
        if any(parts[output.name].nonfinite_mismatches for output in self._must_be_finite):
            return math.inf
        judged, scales = self.metric.judge(expected, result, parts), {o.name: o.scale for o in self._judged}
        scored = {name: one for name, one in judged.items() if name in scales or name == SAMPLE}
        shares = [part_error(each, parts[o.name]) / PART for o in self._judged for each, _ in o.by_part]
        return max((*shares, *(one.error(scales.get(name, 0.0)) for name, one in scored.items())), default=0.0)

    def distance(self, expected: Outputs, result: Outputs) -> float:
        """How far the worst output of another run on a sample is from the reference's by relative L2, whatever the
        metric: a share of places says nothing of small errors."""
        found = [compare_outputs(expected[output.name], result[output.name]) for output in self._must_be_finite]
        return max((math.inf if each.nonfinite_mismatches else each.error for each in found), default=0.0)

    # -- the verdict --------------------------------------------------------------------------------------------------

    def verdict(self, tolerance: float, generated: bool, moved: Collection[int] = ()) -> CheckVerdict:
        """The verdict on all samples: right, doubtful or missed, and by how much at which output; unchecked where the
        reference gives nothing finite. ``generated``: whether the samples are: with ``numbers_first`` half decide.
        ``moved``: those on which the reference itself moves as far by a rounding: such a one may be doubted alone."""
        lenient = generated and self.numbers_first
        scored = [output for output in self._judged if not output.mute]
        scored += [output for output in self._must_be_finite if output.nonfinite_mismatches and output not in scored]
        if not scored:
            return unchecked("the float32 model itself gives nothing finite on these inputs", GIVE_DATA)
        missed = [output for output in scored if _misses(output, tolerance, lenient, moved)]
        doubted = [output for output in scored if lenient and _is_doubtful(output, tolerance)]
        outcome = MISSED if missed else DOUBTFUL if doubted else OK

        def size(output: Agreement, largest: bool) -> float:
            """The error that is reported: infinite for what is not finite, else what decides, or the largest."""
            return math.inf if output.nonfinite_mismatches else output.held.worst if largest else output.held.decisive

        worst = max(missed or doubted or scored, key=lambda output: size(output, lenient))
        part = deciding_part(worst) if outcome != OK else None
        critical, tied = max(map(_critical_error, scored)) if lenient else (0.0, False)
        name, times = (worst.name, 1.0) if part is None else (f"{worst.name}{part[0]}", PART)
        error = times * size(worst, lenient and outcome != OK)
        return CheckVerdict(
            outcome, error, times * tolerance, len(worst.parts), generated, name,
            reason=worst.reason if missed else "", exceeded=sum(error > tolerance for error in worst.held.errors),
            relative=self.numbers_first, worst=times * worst.held.worst,
            critical=times * critical, at_a_tie=tied,
        )  # fmt: skip

    def mostly_silent(self) -> list[str]:
        """The outputs of which the reference gives nothing finite in more than half of the samples."""
        return [each.name for each in self.outputs if 2 * len(each.silent) > len(each.parts)]

    def unsure(self, tolerance: float) -> bool:
        """Whether generated samples leave open how others would do: some miss, but not nearly all, or one comes close,
        or a critical answer may.

        A search that ended as soon as half of them miss would end at every half that comes by chance."""
        verdict = self.verdict(tolerance, generated=True)
        if verdict.missed:
            return verdict.error != math.inf and verdict.exceeded < CLEAR * verdict.samples
        return verdict.error is not None and (verdict.error > UNSURE * tolerance or verdict.critical > tolerance)


def all_within(outputs: Sequence[Agreement], overall: Scores | None, tolerance: float) -> bool:
    """Whether what was compared meets a tolerance: every output, or the samples as a whole.

    By outputs: every one is within it, and at least one has something to compare: finite elements, or rows that are to
    be paired, even if none found its partner. By samples as a whole where the metric judges these (``overall``): that
    is within it, and no output is infinite or NaN that should not be.
    """
    if overall is not None:
        return overall.decisive <= tolerance and not any(output.nonfinite_mismatches for output in outputs)
    compared = any(output.compared or output.paired is not None for output in outputs)
    return compared and all(output.within(tolerance) for output in outputs)


def _misses(output: Agreement, tolerance: float, lenient: bool, moved: Collection[int]) -> bool:
    """For the verdict: whether an output misses the tolerance, or is not finite where it should be. ``lenient``: as for
    generated samples, only if half of them miss (all of fewer than `SIX`, one alone by far), of which no sample is
    counted that the reference moves on by itself (``moved``) or that has nothing of what the output tells."""
    if output.nonfinite_mismatches or not lenient:
        return bool(output.nonfinite_mismatches) or not output.within(tolerance)
    errors = output.held.errors
    needed = len(errors) / 2 if len(errors) >= SIX else max(len(errors), 1)
    limit = FAR * tolerance if len(errors) == 1 else tolerance  # one alone is no half of others
    untold = output.informative([each.absent or number in moved for number, each in enumerate(output.judged)])
    return sum(error > limit and not none for error, none in zip(errors, untold, strict=True)) >= needed


def _is_doubtful(output: Agreement, tolerance: float) -> bool:
    """For the verdict of the check: whether so many generated samples miss (twice counted if by far), or come so close,
    that one of the user's may miss: more than one, and more than one of `EIGHT`."""
    errors = output.held.errors
    missing = sum((error > tolerance) + (error > FAR * tolerance) for error in errors)
    close = sum(error > CLOSE * tolerance for error in errors)
    many = any(count > 1 and count * EIGHT > len(errors) for count in (missing, close))
    return many or (len(errors) == 1 and missing > 0) or _critical_error(output)[0] > tolerance


def _critical_error(output: Agreement) -> tuple[float, bool]:
    """For the verdict of the check: what the usual difference of an output would be beside a critical answer, and
    whether that is a tie.

    Of probabilities that is a tie of classes, of numbers the smallest answer of `SIX` samples or more (at least
    `SCALE_SHARE` of the output's scale), as far off as answers below the scale are: medians both. Not less than the
    error of any sample whose answer is small."""
    scale, tied = output.scale, [one for one in output.judged if one.tie]
    ties = [one.tie for one in tied if not one.absent] or [one.tie for one in tied]
    told = [(one, e) for one, e in zip(output.judged, output.held_errors, strict=False) if _is_told(one)]
    below = [one for one, _ in told if one.size <= scale]
    found = [(e, False) for one, e in told if one.size < SMALL * scale]
    if ties:
        found.append((median(ties), True))
    elif len(told) >= SIX and below:
        least = max(min(one.size for one in below), SCALE_SHARE * scale, below[0].least)
        found.append((median(one.off for one in below) / least, False))
    return max(found, default=(0.0, False))


def _is_told(judged: Judged) -> bool:
    """For a critical answer of the check: whether a sample tells something of others."""
    return judged.scaled and math.isfinite(judged.off) and not (judged.undecided or judged.absent)


# -- what a reference gave, for runs of several models beside it ------------------------------------------------------

IN_MEMORY = 256 << 20  # bytes of the reference's outputs


class References:
    """The reference's outputs by sample; in a file once they are too many for memory."""

    def __init__(self, folder: Path) -> None:
        self._outputs: list[dict[str, Result]] = []
        self._spill = folder / "expected.bin"
        self._held = 0

    def __getitem__(self, sample: int) -> dict[str, Result]:
        return self._outputs[sample]

    def add(self, outputs: Outputs, metric: Metric) -> None:
        """Keeps the reference's outputs for the next sample.

        Raises AmpError: AMP312 when the metric is about none of them, AMP503 when one of them says nothing.
        """
        about = metric.judge(outputs, outputs)
        silent = next((name for name in about if name and compare_outputs(outputs[name], outputs[name]).silent), None)
        if silent is not None:
            message = f"the float32 model's own output '{silent}' is nowhere finite in sample {len(self._outputs)}"
            raise AmpError("AMP503", message, hint="leave that sample out: there is nothing to tune for")
        self._outputs.append({name: self._store_output(value) for name, value in outputs.items()})

    def _store_output(self, value: Any) -> Any:
        """Stores an output of the reference, an array or a list of such (a sequence); gives it back as held: in memory,
        beyond `IN_MEMORY` bytes of all outputs in a file. None and texts are given back as they are."""
        if isinstance(value, list):
            return [self._store_output(item) for item in value]
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return value
        if self._held + value.nbytes <= IN_MEMORY:
            self._held += value.nbytes
            return value
        try:
            with open(self._spill, "ab") as file:
                start = file.tell()
                value.tofile(file)
        except OSError as error:
            raise write_error(self._spill, error) from error
        return np.memmap(self._spill, value.dtype, "r", start, value.shape)
