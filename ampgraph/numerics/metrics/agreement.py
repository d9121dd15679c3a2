"""How far an output is from its reference over many samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

import numpy as np

from ...core.arrays import Array, Result
from ...core.json_types import JsonObject
from ...core.low_types import numpy_type
from ...core.shown import Data, with_old_names
from ...core.verdict import QUANTILE
from .parts import PART, OutputPart, Slices, parts_of, slices_of
from .roles import LOGARITHMS, PROBABILITIES

SCALE_SHARE = 0.1
"""Of an output's own scale: what a sample is measured against at least.

At a tolerance of 1e-2 that allows 1e-3 of the scale, float16's step there (2^-10): an output whose samples are around 5
is not asked to be nearer to zero, in the one sample where it nearly vanishes, than float16 knows numbers of
its size. The scale is the median over the samples of their root mean squares, which no single large sample moves.
"""
Told = TypeVar("Told")
ENOUGH = 0.25  # of the samples: so many that are decided tell of the others


@dataclass(frozen=True)
class Judged:
    """What a metric says of one output of one sample: ``off``, the size of the difference, and ``size``, that of the
    reference, in one unit, whose quotient is the error.

    Attributes:
        least: what ``off`` is measured against at least.
        sort: what the output was taken for, as the report names it: "numbers", "tokens", ...
        scaled: whether the output's scale over the samples is a floor as well.
        undecided: whether it says nothing of others: probabilities without a clear class in any row, or numbers that
            run away.
        absent: whether it is probabilities of things of which none is there.
        tie: what the error of probabilities would be where the two likeliest classes were equally likely, or an event
            as likely as not; 0.0 where they do not say it.
        paired: rows that have a partner, of how many on both sides together; None where rows are not paired.
    """

    off: float
    size: float = 1.0
    least: float = 0.0
    sort: str = ""
    scaled: bool = False
    undecided: bool = False
    absent: bool = False
    tie: float = 0.0
    paired: tuple[int, int] | None = None

    def error(self, scale: float = 0.0) -> float:
        """The error of one output of one sample: ``off`` over the largest of ``size``, ``least`` and, where it is
        ``scaled``, `SCALE_SHARE` of the output's ``scale``. Infinite for a difference where all three are 0."""
        size = max(self.size, self.least, SCALE_SHARE * scale if self.scaled else 0.0)
        if not size:
            return math.inf if self.off else 0.0
        return self.off / size


def quantile(errors: Sequence[float], share: float) -> float:
    """For a metric: a quantile of errors, always one that occurred: the 90th percentile of 8 is the eighth."""
    return sorted(errors)[max(0, math.ceil(share * len(errors)) - 1)]


class Spread(Data):
    """Errors of many samples, by quantiles of those that count."""

    def counting(self) -> list[float]:
        """The errors of the samples that say something about an output."""
        raise NotImplementedError

    @property
    def median(self) -> float:
        """The median of an output's errors that count."""
        return quantile(self.counting(), 0.5)

    @property
    def p90(self) -> float:
        """The 90th percentile of an output's errors that count."""
        return quantile(self.counting(), QUANTILE)

    @property
    def worst(self) -> float:
        """The largest error of an output that counts."""
        return max(self.counting())


@dataclass
class Scores(Spread):
    """The errors of all samples by one metric. ``over_all``: their mean is judged, else the 90th percentile."""

    name: str
    errors: list[float] = field(default_factory=list)
    over_all: bool = False

    def counting(self) -> list[float]:
        """The errors of all samples by a metric."""
        return self.errors

    @property
    def decisive(self) -> float:
        """The error that is compared with the tolerance: the mean, or the 90th percentile."""
        return sum(self.errors) / len(self.errors) if self.over_all else self.p90

    def to_dict(self) -> JsonObject:
        """A metric's errors as plain data for JSON; null stands for an infinite error."""
        figures = {"median": self.median, "p90": self.p90, "worst": self.worst, "judged": self.decisive}
        return {name: value if math.isfinite(value) else None for name, value in figures.items()}


# Of an output's root mean square: float16's step at one. Smaller outputs are probabilities near zero or differences of
# numbers around one, and are not known better than that: a change in their own digits is no error of the model.
FLOOR = 1e-3


@dataclass(frozen=True)
class OutputDifference:
    """How one output of one sample differs from the reference's.

    ``error`` is the root mean square of the difference over that of the reference, of what is finite in it, and over
    ``FLOOR`` where the reference is smaller; infinite where one element is not finite in the result or the reverse, and
    where the reference has elements of which none is finite; for anything but floating types the share of elements that
    differ. ``off`` and ``size`` are its numerator and denominator before the floor. ``cosine`` and ``same_argmax``
    (rows, of how many) are None where they make no sense.
    """

    error: float
    max_abs: float
    cosine: float | None = None
    same_argmax: tuple[int, int] | None = None
    infinite: int = 0
    nan: int = 0
    nonfinite_mismatches: int = 0  # elements that are not finite on one side alone, or differ in kind
    reason: str = ""  # why nothing could be compared
    compared: int = 0  # elements, finite ones alone
    silent: bool = False  # the reference has elements, and none is finite: it says nothing
    floating: bool = False  # numbers; else classes, indices, truth values
    off: float = 0.0
    size: float = 0.0
    nested: bool = False  # a sequence or a map: the worst of what it holds
    slices: tuple[Slices, ...] = field(default=(), repr=False, compare=False)


def compare_outputs(reference: Result, result: Result) -> OutputDifference:
    """Compares an output with the reference's: arrays, maps, sequences of them, or nothing (an empty optional). What
    differs in shape or kind has an infinite error and a reason."""
    if isinstance(reference, list) or isinstance(result, list):
        return _compare_sequences(reference, result)
    if isinstance(reference, dict) or isinstance(result, dict):
        return _compare_maps(reference, result)
    if reference is None or result is None:
        return OutputDifference(0, 0) if reference is result else _incomparable("one of the two is empty")
    want, got = np.asarray(reference), np.asarray(result)
    if want.shape != got.shape:
        return _incomparable(f"shape {list(got.shape)} instead of {list(want.shape)}", is_float(want))
    if is_float(want) and is_float(got):
        return _compare_floats(want, got)
    differ = int((want != got).sum())
    return OutputDifference(differ / want.size if want.size else 0.0, float(differ > 0), compared=want.size)


def _incomparable(reason: str, floating: bool = False) -> OutputDifference:
    """Error between outputs that cannot be compared by numbers: infinite, and ``reason`` says why."""
    return OutputDifference(math.inf, math.inf, reason=reason, floating=floating)


def is_float(array: Array) -> bool:
    """Whether an output holds floating numbers, bfloat16 among them."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _compare_maps(reference: Result, result: Result) -> OutputDifference:
    """Error between two outputs that are maps: by their keys, the values of all of them as one array."""
    if not isinstance(reference, dict) or not isinstance(result, dict) or set(reference) != set(result):
        return _incomparable("maps of different keys")
    return replace(
        compare_outputs(*(np.asarray([found[key] for key in reference]) for found in (reference, result))), nested=True
    )


def _compare_sequences(reference: Result, result: Result) -> OutputDifference:
    """Error between two outputs that are sequences, element by element: that of the worst one, counts added up.
    Elements of which the reference gives nothing finite count where all are such, or numbers are lost in them."""
    if not isinstance(reference, list) or not isinstance(result, list) or len(reference) != len(result):
        return _incomparable("sequences of different lengths")
    parts = [compare_outputs(a, b) for a, b in zip(reference, result, strict=True)]
    if not parts:
        return OutputDifference(0, 0, nested=True)
    counts = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("infinite", "nan", "nonfinite_mismatches", "compared")
    }
    silent = not counts["compared"] and any(part.silent for part in parts)
    informative = parts if silent else [part for part in parts if not part.silent or part.nonfinite_mismatches]
    worst = max(informative, key=lambda part: part.error)
    floating = any(part.floating for part in parts)
    return OutputDifference(
        worst.error, max(p.max_abs for p in parts), **counts, reason=worst.reason, silent=silent, floating=floating,
        nested=True,
    )  # fmt: skip


def _compare_floats(reference: Array, result: Array) -> OutputDifference:
    """Error between two float arrays of one shape: relative L2 over what is finite in both, infinite unless infinities
    and NaN agree. The norm has a floor, so that zeros may differ by a little."""
    want, got = reference.astype(np.float64), result.astype(np.float64)
    known, finite = np.isfinite(want), np.isfinite(got)
    alike = (want == got) | (np.isnan(want) & np.isnan(got))
    mismatches = int((~alike & ~(known & finite)).sum())
    infinite, nan = int(np.isinf(got).sum()), int(np.isnan(got).sum())
    kept = known & finite
    a, b = want[kept], got[kept]
    scale = float(np.abs(a).max(initial=0.0)) or 1.0  # squares of huge numbers must not overflow
    norm, other, off = (float(np.linalg.norm(x / scale)) for x in (a, b, a - b))
    silent = bool(want.size) and not known.any()
    root = float(kept.sum()) ** 0.5
    smallest = FLOOR * root / scale
    error = math.inf
    if not (mismatches or silent):
        error = off / max(norm, smallest) if kept.any() else 0.0
    cosine = None
    if norm and other:
        cosine = max(-1.0, min(1.0, float(a / scale @ (b / scale)) / (norm * other)))
    largest = float(np.abs(a - b).max(initial=0))
    same = _same_argmax(want, got)
    rms = scale / (root or 1.0)
    slices = slices_of(want, want - got) if kept.all() else ()
    return OutputDifference(
        error, largest, cosine, same, infinite, nan, mismatches, compared=int(kept.sum()), silent=silent, floating=True,
        off=off * rms, size=norm * rms, slices=slices,
    )  # fmt: skip


def _same_argmax(want: Array, got: Array) -> tuple[int, int] | None:
    """Of two outputs: how many rows along the last axis have their largest element at the same place, of how many; None
    for rows of one element, or none. A NaN agrees with nothing.

    Rows whose largest element is not finite in the reference are not counted: they say nothing of the result."""
    if not want.ndim or want.shape[-1] < 2 or not want.size:
        return None
    rows = np.isfinite(want.max(-1))
    same = rows & (want.argmax(-1) == got.argmax(-1)) & ~np.isnan(got).any(-1)
    return (int(same.sum()), int(rows.sum())) if rows.any() else None


def part_error(part: OutputPart, found: OutputDifference) -> float:
    """The relative error of a part of an output in one sample, compared as ``found``; 0 where the part is not in it."""
    slices = next((each for each in found.slices if each.axis == part.axis), None)
    return part.error(slices, FLOOR) if slices is not None and len(slices.size) > part.places.max() else 0.0


@dataclass
class Agreement(Spread):
    """One output over all samples: what was seen of each (``parts``), and what a metric says of each (``judged``, empty
    where none was asked for).

    ``counts``: whether the metric is about it; ``over_all``: whether the mean over the samples is judged; ``compared``:
    finite elements, ``nonfinite_mismatches``: those that are not finite on one side alone.
    """

    name: str
    parts: list[OutputDifference] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    counts: bool = True
    over_all: bool = False
    compared: int = 0
    infinite: int = 0
    nan: int = 0
    nonfinite_mismatches: int = 0
    floating: bool = False

    def add(self, found: OutputDifference, judged: Judged | None = None) -> None:
        """Takes in the difference of another sample, and what a metric says of it, always or never."""
        self.parts.append(found)
        self.compared += found.compared
        self.infinite += found.infinite
        self.nan += found.nan
        self.nonfinite_mismatches += found.nonfinite_mismatches
        self.floating |= found.floating
        if judged is not None:
            self.judged.append(judged)

    @property
    def errors(self) -> list[float]:
        """Relative L2 of an output in each sample."""
        return [part.error for part in self.parts]

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Root mean squares of the difference and of the reference, of each sample with numbers."""
        return [(part.off, part.size) for part in self.parts if part.size and math.isfinite(part.error)]

    @property
    def silent(self) -> set[int]:
        """Samples in which the reference has nothing finite; quantiles are over the others."""
        return {i for i, part in enumerate(self.parts) if part.silent}

    @property
    def mute(self) -> bool:
        """Whether the reference gives nothing finite in any sample."""
        return not self.compared and len(self.silent) == len(self.parts)

    @property
    def reason(self) -> str:
        """Why an output could not be compared in the first sample where the metric could not either; "" for none."""
        known = [bool(judged) and math.isfinite(judged.off) for judged in self.judged] or [False] * len(self.parts)
        return next((p.reason for p, told in zip(self.parts, known, strict=True) if p.reason and not told), "")

    @property
    def max_abs(self) -> float:
        """The largest difference of two elements of an output, over all samples."""
        return max((part.max_abs for part in self.parts), default=0.0)

    @property
    def cosine(self) -> float | None:
        """The smallest cosine between both outputs in a sample; None where no sample has one."""
        return min((part.cosine for part in self.parts if part.cosine is not None), default=None)

    @property
    def same_argmax(self) -> tuple[int, int] | None:
        """Over all samples: rows of an output whose largest element is at the same place on both sides, of how many;
        None where no sample has such rows."""
        known = [part.same_argmax for part in self.parts if part.same_argmax is not None]
        return (sum(same for same, _ in known), sum(rows for _, rows in known)) if known else None

    def counting(self) -> list[float]:
        """Errors of the samples that say something: a reference of nothing but infinities does not."""
        return self.informative(self.errors)

    def informative(self, numbers: list[Told]) -> list[Told]:
        """Of ``numbers``, one for each sample: those of the samples that say something: whose reference is finite
        somewhere, and which are decided if `ENOUGH` are. All of them where no sample says anything."""
        silent = self.silent
        heard = [i for i in range(len(numbers)) if i not in silent]
        decided = [i for i in heard if not (i < len(self.judged) and self.judged[i].undecided)]
        kept = decided if len(decided) >= ENOUGH * len(heard) else heard
        return [numbers[i] for i in kept] or numbers

    @property
    def judged_errors(self) -> list[float]:
        """Each sample's error by the metric, or relative L2 where none was asked for."""
        scale = self.scale
        return [judged.error(scale) for judged in self.judged] or self.errors

    @property
    def held_errors(self) -> list[float]:
        """Sample by sample, what is compared with the tolerance: the output's error, or that of its worst part over
        `PART` if that is larger."""
        worst = [max(errors, default=0.0) for errors in zip(*(found for _, found in self.by_part), strict=True)]
        shares = worst or [0.0] * len(self.parts)
        return [max(error, share / PART) for error, share in zip(self.judged_errors, shares, strict=True)]

    @property
    def by_part(self) -> list[tuple[OutputPart, list[float]]]:
        """The parts of an output that is judged as numbers, each with its relative L2 in each sample (0: not there)."""
        if not (self.counts and self.judged and all(judged.sort == "numbers" for judged in self.judged)):
            return []
        return [(p, [part_error(p, one) for one in self.parts]) for p in parts_of([one.slices for one in self.parts])]

    @property
    def scale(self) -> float:
        """The output's scale by the metric: the median ``size`` of samples that can be compared; 0.0 without any."""
        both = zip(self.judged, self.parts, strict=False)
        told = self.informative([judged.size if part.compared else math.inf for judged, part in both])
        sizes = [size for size in told if math.isfinite(size)]
        return float(median(sizes)) if sizes else 0.0

    @property
    def held(self) -> Scores:
        """The spread of `held_errors`, which decides whether the tolerance is met."""
        return replace(self.scores, errors=self.informative(self.held_errors))

    @property
    def scores(self) -> Scores:
        """The errors by the metric."""
        sort = self.judged[0].sort if self.judged else "numbers" if self.floating else "integers"
        return Scores(sort, self.informative(self.judged_errors), self.over_all)

    @property
    def paired(self) -> tuple[int, int] | None:
        """Rows that found a partner in the other model, of how many, where rows are paired."""
        found = [judged.paired for judged in self.judged if judged.paired is not None]
        return (sum(pair[0] for pair in found), sum(pair[1] for pair in found)) if found else None

    def within(self, tolerance: float) -> bool:
        """Whether the error of 9 of 10 samples is within it and nothing is infinite or NaN that should not be.

        Never where the reference has nothing finite in any sample; always where the metric is not about it.
        """
        mute = bool(self.silent) and not self.compared
        return not self.counts or (
            not (self.nonfinite_mismatches or self.reason or mute) and self.held.decisive <= tolerance
        )

    def to_dict(self) -> JsonObject:
        """The agreement of an output as plain data for JSON; null stands for an error without measure."""
        errors = {"median": self.median, "p90": self.p90, "worst": self.worst}
        same = None if self.same_argmax is None else self.same_argmax[0] / self.same_argmax[1]
        found: JsonObject = {
            "name": self.name,
            "relative_l2": {key: value if math.isfinite(value) else None for key, value in errors.items()},
            "judged_as": self.scores.name if self.counts else None,
            "error": self.scores.to_dict() if self.counts else None,
            "rows_paired": None if self.paired is None else list(self.paired),
            "parts": {part.name: quantile(errors, QUANTILE) for part, errors in self.by_part},
            "errors": [value if math.isfinite(value) else None for value in self.errors],
            "max_abs": self.max_abs if math.isfinite(self.max_abs) else None,
            "cosine": self.cosine,
            "argmax_agreement": same,
            "infinite": self.infinite,
            "nan": self.nan,
            "nonfinite_mismatches": self.nonfinite_mismatches,
            "compared": self.compared,
            "silent_samples": sorted(self.silent),
            "reason": self.reason,
        }
        return with_old_names(self, found)


def deciding_part(output: Agreement) -> tuple[str, list[float]] | None:
    """The part by which an output is held against the tolerance: name, errors by sample; None if the whole decides."""
    part, errors = max(output.by_part, key=lambda found: quantile(found[1], QUANTILE), default=(None, [0.0]))
    if part is None or quantile(errors, QUANTILE) / PART < output.held.decisive:
        return None
    return part.name, errors


# -- what a model is like, whatever is low in it ----------------------------------------------------------------------


def sensitivity(
    run: Callable[[dict[str, Result]], Mapping[str, Result]], samples: Iterable[dict[str, Result]], dtype: str
) -> tuple[str, float]:
    """How sensitive a model is by itself: what the rounding of its inputs alone, all else in float32, does to it.

    Where that passes a tolerance, the model is chaotic: no choice of precision inside it brings it below, as long as
    its inputs come in a low type or are not known better than one.

    Returns the output that changes most, and its error at the 90th percentile of the samples; ("", 0.0) for none.
    ``run`` runs the float32 model. Samples without a floating input, or with one beyond ``dtype``, tell nothing.
    """
    outputs: dict[str, Agreement] = {}
    for _, expected, found in runs_on_rounded_inputs(run, samples, dtype):
        for name, value in expected.items():
            outputs.setdefault(name, Agreement(name)).add(compare_outputs(value, found[name]))
    floating = [output for output in outputs.values() if output.floating and output.compared]
    worst = max(floating, key=lambda output: output.p90, default=None)
    return ("", 0.0) if worst is None or not math.isfinite(worst.p90) else (worst.name, worst.p90)


def runs_on_rounded_inputs(
    run: Callable[[dict[str, Result]], Mapping[str, Result]], samples: Iterable[dict[str, Result]], dtype: str
) -> Iterator[tuple[int, Mapping[str, Result], Mapping[str, Result]]]:
    """For the sensitivity of a model: the place of each sample that tells something, with the outputs on its inputs as
    they are and rounded to ``dtype``. ``run``: runs the float32 model. The others tell nothing, as in `sensitivity`."""
    for place, feeds in enumerate(samples):
        rounded = {name: _round_to(value, dtype) for name, value in feeds.items()}
        same = all(rounded[name] is feeds[name] for name in feeds)
        if not same and all(map(_is_finite, rounded.values())):
            yield place, run(feeds), run(rounded)


def _round_to(value: Result, dtype: str) -> Result:
    """For the sensitivity of a model: a float array rounded to a low type and back; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.dtype.itemsize < 4:
        return value
    with np.errstate(over="ignore"):
        return value.astype(numpy_type(dtype)).astype(value.dtype)


def _is_finite(value: Result) -> bool:
    """For the sensitivity of a model: whether a rounded input holds no infinity and no NaN."""
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.isfinite(value).all())


SMALL_ROLES = (PROBABILITIES, LOGARITHMS)  # one at most, and as near to zero as they like
LOST = 0.1  # of the size of an output below the floor


def vanishing_output(outputs: Iterable[Agreement], roles: Mapping[str, str]) -> str:
    """For the verdict: a sentence on the first output that is too small for float16 ("" for none), which the measure's
    floor calls right.

    It is below the measure's floor in every sample, and half of the samples lose a tenth of it or more. ``roles``: what
    `roles_of` says of the outputs; probabilities may be that small.
    """
    for output in outputs:
        largest = max((size for _, size in output.sizes), default=FLOOR)
        if largest >= FLOOR or roles.get(output.name) in SMALL_ROLES:
            continue
        lost = median(off / size for off, size in output.sizes)
        if lost >= LOST:
            share = "all" if lost >= 1 else f"{lost:.0%}"
            return f"'{output.name}' vanishes in float16: {share} of it is lost, which is {largest:.2g} at most"
    return ""
