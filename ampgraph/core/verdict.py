"""What the check behind a conversion found: right, doubtful, missed, or not checked and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .json_types import Json, JsonObject
from .repairs import fp32_options, options_text
from .shown import Data, with_old_names

OK, DOUBTFUL, MISSED, UNCHECKED = "ok", "doubtful", "missed", "not checked"
ALL = "none found: only all of it in float32 helps"
SIMULATED = "simulated on the CPU: each tensor rounded to its type, no kernel of the target run"
QUANTILE = 0.9  # the share of the samples whose largest error is compared with the tolerance
CLOSE = 0.6  # of the tolerance: real samples may miss it where generated ones come this close
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2}  # bfloat16 has three bits less


def chaotic_in_itself(sensitivity: float, output: str = "") -> str:
    """A verdict's words on a model that no low type suits. ``sensitivity``: the error by rounding its inputs alone."""
    place = f" at '{output}'" if output else ""
    changed = f"rounding its inputs alone changes it by {sensitivity:.2g}{place}"
    return f"the model is chaotic in itself: {changed}, whatever is float32 inside; judge it by its task (--metric)"


class PrecisionWarning(UserWarning):
    """The warning of a conversion that missed its tolerance, or may; ``verdict`` says by how much, and advises."""

    def __init__(self, verdict: CheckVerdict) -> None:
        self.verdict = verdict
        super().__init__(str(verdict))


@dataclass(frozen=True)
class CheckVerdict(Data):
    """The outcome of a check.

    Attributes:
        outcome: ``ok``; ``missed``; ``doubtful``: right on most generated inputs, but not on all, or close to the
            tolerance, or with a value near the end of the low type, or with an output that vanishes in it;
            ``not checked``.
        error: the largest error of an output, at the 90th percentile of the samples; infinite where a value is not
            finite that should be; None where nothing was compared. ``worst``: the same output's on the worst sample.
        tolerance: what it was compared with.
        relative: whether the error is the relative L2, not a metric that was asked for.
        samples: how many were run, ``generated`` or the user's; ``exceeded``: how many of them missed the tolerance;
            ``left``: of the user's, those that there was no time for.
        output: the output with that error.
        first: the node to blame, with its operator; ``why`` it is.
        mended_by: with `--repair`, patterns of ``fp32`` that mend it: it was converted and run on the same samples;
            ``repaired_error`` is what was left. ``repair``: the same as options of `convert`.
        suggested: patterns to try, where nothing was found that mends it; ``unrepaired``: why. ``suggestion``: the same
            as options.
        pinned: what was pinned to float32 after a check that did not say ok: a pattern of `--fp32`, or why, for each
            node.
        refused: why ONNX Runtime does not open the file as its users do, though it opens what it was made from; nothing
            was compared then.
        on_cpu: what ONNX Runtime's CPU has no low kernels for, which is not a fault on another target.
        reason: why nothing was checked, and ``remedy`` what to do; or why nothing could be compared.
        near: a low value that comes near the end of float16 on generated inputs, on how many; they are no real ones.
        vanishing: an output so small that float16 has none of it left, though the measure's floor calls that right.
        sensitivity: where it is beyond the tolerance by itself: what the rounding of the inputs alone changes.
        seconds: what a sample took, the reference's run and the strict one.
        critical: what the usual difference would be beside a critical answer, which few generated inputs give: two
            classes that are equally likely (``at_a_tie``), or the smallest of all; 0.0 where the samples do not tell.
        stream: what `--fp32-stream` leaves of the error, where that was tried on the same samples and is less.
    """

    outcome: str
    error: float | None = None
    tolerance: float | None = None
    samples: int = 0
    generated: bool = False
    output: str = ""
    first: str = ""
    why: str = ""
    mended_by: tuple[str, ...] = ()
    repaired_error: float | None = None
    suggested: tuple[str, ...] = ()
    unrepaired: str = ""
    pinned: tuple[str, ...] = ()
    refused: str = ""
    reason: str = ""
    near: str = ""
    vanishing: str = ""
    sensitivity: float | None = None
    exceeded: int = 0
    left: int = 0
    seconds: float = 0.0
    stream: float | None = None
    on_cpu: str = ""
    remedy: str = ""
    relative: bool = False
    worst: float | None = None
    critical: float = 0.0
    at_a_tie: bool = False

    @property
    def ok(self) -> bool:
        """Whether the result was checked and found right."""
        return self.outcome == OK

    @property
    def missed(self) -> bool:
        """Whether the result was checked and found wrong."""
        return self.outcome == MISSED

    @property
    def doubtful(self) -> bool:
        """Whether the check could not tell whether the result is right; the attribute ``outcome`` has the cases."""
        return self.outcome == DOUBTFUL

    @property
    def overflows(self) -> bool:
        """Whether a low value overflows on the generated inputs of a check, or comes near the end of its type."""
        infinite = self.missed and self.error == math.inf and not (self.reason or self.refused)
        return self.generated and (infinite or bool(self.near))

    @property
    def inexact(self) -> bool:
        """Whether a check found the error too large, or so large that it may be on other inputs, but finite."""
        doubted = self.doubtful and not (self.near or self.vanishing)
        return (self.missed or doubted) and self.error is not None and math.isfinite(self.error)

    @property
    def nearest(self) -> float:
        """How near a check on generated inputs came to missing: the larger one of its worst sample's error and that of
        a critical answer, as a share of the tolerance. 0.0 for other checks."""
        if not (self.generated and self.relative and self.worst is not None and self.tolerance):
            return 0.0
        return max(self.worst, self.critical) / self.tolerance

    @property
    def repair(self) -> tuple[str, ...]:
        """Of the verdict of a check: options of `convert` that mend the result."""
        return fp32_options(self.mended_by)

    @property
    def suggestion(self) -> tuple[str, ...]:
        """Of the verdict of a check: options of `convert` to try."""
        return fp32_options(self.suggested)

    @property
    def passes_require(self) -> bool:
        """Whether the verdict of a check lets a conversion with ``--check require`` pass: it is right or doubtful."""
        return self.outcome in (OK, DOUBTFUL)

    @property
    def inputs_in_words(self) -> str:
        """Of the verdict of a check: how many inputs it ran on, generated or the user's."""
        word = "generated input" if self.generated else "sample"
        late = f" ({self.left} more would take too long)" if self.left else ""
        return f"{self.samples} {word}{'' if self.samples == 1 else 's'}{late}"

    def __str__(self) -> str:
        """One line: what was found, and what to do."""
        return "; ".join(filter(None, [self.finding, self.advice]))

    @property
    def finding(self) -> str:
        """What the check found, in a line: the outcome, whether the model is chaotic in itself, what the CPU lacks."""
        by_itself = "" if self.sensitivity is None else chaotic_in_itself(self.sensitivity)
        return "; ".join(filter(None, [self._outcome_in_words(), by_itself, self.on_cpu]))

    def _outcome_in_words(self) -> str:
        """The first part of a verdict's `finding`: the outcome with its figures."""
        if self.outcome == UNCHECKED:
            return f"not checked: {self.reason}"
        if self.refused:
            return ", ".join(filter(None, [f"MISSED: ONNX Runtime does not open it: {self.refused}", self.why]))
        size = "infinite" if self.error is None or math.isinf(self.error) else f"{self.error:.2g}"
        if self.ok:
            held = f", repaired: {len(self.pinned)} pinned to float32 ({self.pinned[0]} ...)" if self.pinned else ""
            return f"ok: {self.inputs_in_words}, {self._accepted_error(size)}{held} ({SIMULATED})"
        error = self._questioned_error(f"{'relative L2 ' if self.relative else ''}error {size}")
        if self.doubtful:
            return f"DOUBTFUL: {'; '.join(self._doubts(error))}"
        first = f"first at {self.first}" if self.first else ""
        return ", ".join(filter(None, [f"MISSED: {error}", self.reason, first]))

    def _questioned_error(self, size: str) -> str:
        """Of a missed or doubtful verdict: error (``size``), place, inputs, tolerance, how many samples are above."""
        above = f", {self.exceeded} of {self.samples} above it" if 0 < self.exceeded < self.samples else ""
        # an ok verdict may have so many above: say why this one is doubtful
        if above and self.doubtful and self.exceeded * 8 <= self.samples:
            if (self.error or 0.0) > 2 * (self.tolerance or 0.0):
                above += " by far"
            else:
                above += "" if self.is_critical else ", others close to it"
        return f"{size} at '{self.output}' on {self.inputs_in_words}, tolerance {self.tolerance:g}{above}"

    def _doubts(self, error: str) -> list[str]:
        """What makes a verdict doubtful, a sentence each. ``error``: the sentence of `_questioned_error`."""
        doubts = []
        if self.exceeded:
            doubts.append(error)
        elif not (self.near or self.vanishing or self.is_critical):
            doubts.append(f"{error}: real ones may miss it")
        if self.is_critical:
            doubts += [] if self.exceeded else [error]
            where = "where two classes are equally likely" if self.at_a_tie else "relative to answers near zero"
            doubts.append(f"it would be {self.critical:.2g} {where}, which real inputs may give")
        if self.near:
            doubts.append(f"{self.near} and may overflow on real ones")
        if self.vanishing:
            doubts.append(f"{self.vanishing} on {self.inputs_in_words}")
        return doubts

    @property
    def is_critical(self) -> bool:
        """Whether the usual difference is too large beside critical answers."""
        return self.relative and self.tolerance is not None and self.critical > self.tolerance

    def _accepted_error(self, size: str) -> str:
        """Of an ok verdict: the error (``size``), the worst sample's, the tolerance, and how many samples are above."""
        limit = "" if self.tolerance is None else f", tolerance {self.tolerance:g}"
        if not self.relative:
            return f"error {size}{limit}"
        most = math.ceil(QUANTILE * self.samples)
        others = self.samples - most
        if others and self.worst is not None:
            which = f"worst of the other {others}" if others > 1 else "other"
            size += f" on {most} and {self.worst:.2g} on the {which}"
        above = ""
        if self.exceeded:
            share = "1 in 8" if self.generated else "1 in 10"
            above = f"; {self.exceeded} of {self.samples} above it, which passes: up to {share} may be"
        return f"relative L2 error up to {size}{limit}{above}"

    @property
    def advice(self) -> str:
        """What the verdict of a check advises to do, in a sentence; empty where nothing has to be done."""
        if self.outcome == UNCHECKED:
            return self.remedy
        stream = f"--fp32-stream (tried: error {self.stream:.2g})" if self.stream is not None else ""
        if self.doubtful:
            options = [stream] if stream else []
            if self.generated:
                data = "--data DIR, your own samples as .npz files, by whose values types are then chosen and checked"
                options.insert(0, data)
            return f"convert again with {', or with '.join(options)}" if options else ""
        if not self.missed:
            return ""
        if self.repair:
            tried = "it opens" if self.refused else f"error {self.repaired_error or 0.0:.2g}"
            return f"convert again with {options_text(self.repair)} (tried: {tried})"
        advice = [f"try {options}" for options in (options_text(self.suggestion), stream) if options]
        if self.unrepaired:
            return "; ".join([f"no repair is known: {self.unrepaired}", *advice])
        if self.sensitivity is None:
            advice.insert(0, "convert again with --repair, which searches what must be float32")
        return ", or ".join(advice)

    def to_dict(self) -> JsonObject:
        """The verdict of a check as plain data for JSON; an infinite error is null, and ``outcome`` says which way."""
        more: JsonObject = {"repair": self.repair, "suggestion": self.suggestion}
        for name, error in (("error", self.error), ("worst", self.worst)):
            more[name] = error if error is not None and math.isfinite(error) else None
        return with_old_names(self, {**asdict(self), **more})

    @staticmethod
    def from_dict(data: Mapping[str, Json]) -> CheckVerdict:
        """The verdict of a check from `to_dict`'s data, as a child process sends it. Raises KeyError for other data."""
        known: dict[str, Any] = {field.name: data[field.name] for field in fields(CheckVerdict)}
        known |= {name: tuple(known[name]) for name in ("mended_by", "suggested", "pinned")}
        if data["outcome"] == MISSED and data["error"] is None and not data.get("refused"):
            known["error"] = math.inf
        return CheckVerdict(**known)


def unchecked(reason: str, remedy: str) -> CheckVerdict:
    """The `CheckVerdict` where nothing could be checked: why, and as ``remedy`` what to do about it."""
    return CheckVerdict(UNCHECKED, reason=reason, remedy=remedy)
