"""The report of `verify`, as data and as plain text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.json_types import JsonObject
from .lines import in_rows

if TYPE_CHECKING:
    from ..numerics.metrics.agreement import Agreement
    from ..numerics.trace.suspects import Suspect, TracedValue

REPAIRS, OPERANDS, FALLBACK = 4, 3, 8  # shown; --json has all


@dataclass(frozen=True)
class Verification:
    """What `verify` found. ``fallback``: (node, operator) that a device left to the CPU; ``traced``: the sample whose
    values were looked at, None where none was."""

    reference: str
    model: str
    device: str
    strict: bool
    run: str
    tolerance: float
    samples: int
    outputs: tuple[Agreement, ...]
    first_nonfinite: Suspect | None = None
    growth: tuple[Suspect, ...] = ()
    traced: int | None = None
    fallback: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every output is within the tolerance, and one has elements; see `Agreement.within`."""
        compared = any(output.compared for output in self.outputs)
        return compared and all(output.within(self.tolerance) for output in self.outputs)

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        born = self.first_nonfinite
        plain = {name: getattr(self, name) for name in ("reference", "model", "ok", "tolerance", "device", "strict")}
        return plain | {
            "run": self.run,
            "samples": self.samples,
            "outputs": [output.to_dict() for output in self.outputs],
            "first_nonfinite": None if born is None else born.to_dict(),
            "growth": [suspect.to_dict() for suspect in self.growth],
            "traced_sample": self.traced,
            "fallback": [{"node": node, "operator": operator} for node, operator in self.fallback],
            "notes": list(self.notes),
        }


def verification_lines(found: Verification) -> list[str]:
    """The report of `verify`."""
    rows = [("reference", found.reference), ("model", found.model), ("run", found.run)]
    rows += [("samples" if i == 0 else "", note) for i, note in enumerate(found.notes)]
    rows += _fallback(found)
    for output in found.outputs:
        rows.append(("output", f"{output.name}  {_verdict(output, found.tolerance)}"))
        rows += [("", line) for line in _figures(output)]
    if found.first_nonfinite is not None:
        rows += _suspect("not finite", "first at ", found.first_nonfinite)
    for i, suspect in enumerate(found.growth):
        rows += _suspect("" if i else "error grows", "at ", suspect)
    if found.traced is not None:
        rows.append(("", f"(nodes as sample {found.traced} shows them)"))
    rows.append(("verdict", _outcome(found)))
    return in_rows(rows)


def _outcome(found: Verification) -> str:
    missed = [output.name for output in found.outputs if not output.within(found.tolerance)]
    limit = f"{found.tolerance:g}"
    if not any(output.compared for output in found.outputs) and not missed:
        return "missed: nothing was compared, as every output is empty"
    if not missed:
        return f"ok: relative L2 within {limit} for 90 % of the samples, at every output"
    return f"missed: {', '.join(missed)} (tolerance {limit} on relative L2 for 90 % of the samples, nothing infinite)"


def _fallback(found: Verification) -> list[tuple[str, str]]:
    if found.strict or not found.fallback:
        return []
    kinds = Counter(operator for _, operator in found.fallback)
    named = ", ".join(f"{node} ({operator})" for node, operator in found.fallback[:FALLBACK])
    more = f" and {len(found.fallback) - FALLBACK} more" if len(found.fallback) > FALLBACK else ""
    message = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return [("on the CPU", f"{len(found.fallback)} nodes fell back: {message}"), ("", f"{named}{more}")]


def _verdict(output: Agreement, tolerance: float) -> str:
    if output.reason:
        return f"cannot be compared: {output.reason}"
    if output.silent and not output.compared:
        return "missed: the reference itself is not finite, in any element of any sample; nothing can be compared"
    if output.astray:
        return f"{output.astray:,} elements are not finite where the reference is, or the reverse"
    if not output.compared:
        return "no elements, nothing to compare"
    return "ok" if output.within(tolerance) else "missed"


def _figures(output: Agreement) -> list[str]:
    if not output.compared and not output.astray and not output.reason:
        return [f"{output.infinite:,} infinite, {output.nan:,} NaN"] if output.silent else []
    errors = (output.median, output.p90, output.worst)
    message = ", ".join(
        f"{'infinite' if math.isinf(error) else f'{error:.2e}'} {word}"
        for error, word in zip(errors, ("median", "90th percentile", "worst"), strict=True)
    )
    lines = [f"relative L2 {message}"]
    rest = [] if output.cosine is None and output.astray else [f"max abs {output.max_abs:.3g}"]
    if output.cosine is not None:
        rest.append(f"cosine {output.cosine:.7g}")
    if output.same_argmax is not None:
        same, rows = output.same_argmax
        rest.append(f"argmax {100 * same / rows:.4g} % of {rows:,}")
    rest.append(f"{output.infinite:,} infinite, {output.nan:,} NaN" if output.infinite or output.nan else "all finite")
    lines.append("; ".join(rest))
    if output.silent:
        count = f"{len(output.silent):,} of {len(output.errors):,} samples left out"
        lines.append(f"{count}: the reference itself is not finite there")
    return lines


def _suspect(title: str, word: str, suspect: Suspect) -> list[tuple[str, str]]:
    place = ", ".join(
        part
        for part in (
            suspect.operator,
            suspect.dtype,
            f"layer {suspect.layer}" if suspect.layer else "",
            f"inside {suspect.inside}" if suspect.inside else "",
        )
        if part
    )
    rows = [(title, f"{word}{suspect.node} ({place}): {suspect.why}")]
    for sort, operands in (("in", suspect.reads), ("out", suspect.makes)):
        rows += [("", f"  {sort:<4}{_operand(operand)}") for operand in operands[:OPERANDS]]
    if suspect.repair:
        more = len(suspect.repair) - REPAIRS
        message = " ".join(suspect.repair[:REPAIRS]) + (f"  and {more} more, see --json" if more > 0 else "")
        rows.append(("", f"  repair: {message}"))
    rows += [("", f"  or: {hint}") for hint in suspect.hints]
    return rows


def _operand(operand: TracedValue) -> str:
    message = f"{operand.name}  {operand.dtype}  {_span(operand.range)}"
    if operand.reference is not None and _span(operand.reference) != _span(operand.range):
        message += f"; reference {_span(operand.reference)}"
    return message


def _span(found: object) -> str:
    smallest, largest = getattr(found, "smallest", None), getattr(found, "largest", None)
    infinite, nan = getattr(found, "infinite", 0), getattr(found, "nan", 0)
    message = "nothing finite" if smallest is None else f"{smallest:.4g} to {largest:.4g}"
    return message + (f", {infinite:,} infinite" if infinite else "") + (f", {nan:,} NaN" if nan else "")
