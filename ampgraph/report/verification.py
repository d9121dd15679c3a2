"""The report of `verify`, as data and as plain text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..core.json_types import JsonObject
from ..core.metric_names import OVER_ALL
from ..core.repairs import Repair, RepairOutcome, options_text
from ..core.shown import Shown, json_fields, json_value, plural
from ..core.sketches import Html, heading, heights, markup, table
from ..numerics.decoding import StepError
from ..numerics.metrics.agreement import Agreement, Scores, deciding_part
from ..numerics.metrics.parts import PART
from ..numerics.metrics.verdict import all_within
from ..numerics.quantized import QuantizedParts
from ..numerics.trace.suspects import Suspect, TracedValue
from ..runtime.executed import ExecutedLayer
from .lines import Rows, first, in_rows, titled
from .outputs import layer_lines

SORTS = {
    "numbers": "relative L2", "integers": "elements that differ,", "tokens": "elements that differ,",
    "classes": "other classes,", "detections": "detections, pair by pair,",
}  # fmt: skip
OPERANDS, FALLBACK, STEPS, SHOWN = 3, 8, 9, 5  # shown; --json has all


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """What `verify` found. ``run``: how the models were executed, in words; ``first_nonfinite``: the first node that
    gives infinity or NaN; ``growth``: nodes where the error grows; ``fallback``: (node, operator) that a device left to
    the CPU; ``traced``: the number of the sample whose values were looked at, or the place of the step over all
    samples, None where none was; ``overall``: what a metric of the user's own says."""

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
    metric: str = "l2"
    overall: Scores | None = None
    steps: tuple[StepError, ...] = ()
    quantized: QuantizedParts | None = None
    left: float | None = None  # the error that is left of the traced sample with the nodes of ``growth`` in float32
    errors: Mapping[str, float] = field(default_factory=dict)  # node -> the error behind it in the traced sample
    mended: RepairOutcome | None = None  # the search for a repair, where there was one
    layers: tuple[ExecutedLayer, ...] = ()  # that the model became where a target's runtime executed it

    @property
    def repair(self) -> Repair | None:
        """In the report of `verify`: the repair that was tried and mends the model, if there is one."""
        return None if self.mended is None else self.mended.repair

    @property
    def worst_step(self) -> StepError | None:
        """In the report of `verify`: the step with the largest error; None where models did not run step by step."""
        return max(self.steps, key=lambda step: step.error, default=None)

    @property
    def ok(self) -> bool:
        """Whether `verify` found the error within the tolerance, at all outputs (`all_within`) and all steps."""
        late = any(step.error > self.tolerance for step in self.steps)
        return not late and all_within(self.outputs, self.overall, self.tolerance)

    @property
    def verdict(self) -> str:
        """Whether a model computes what its reference does within the tolerance, and where it does not, in a line."""
        return _last_line(self)

    def to_dict(self) -> JsonObject:
        """What `verify` found, as plain data for JSON."""
        names = ("reference", "model", "ok", "tolerance", "device", "strict", "run", "samples", "metric", "overall")
        return json_fields(self, *names, "outputs", "first_nonfinite", "growth") | {
            "traced_sample": self.traced,
            "fallback": [{"node": node, "operator": operator} for node, operator in self.fallback],
            **json_fields(self, "notes", "repair"),
            "repairs_tried": 0 if self.mended is None else self.mended.tried,
            "error_without_growth": json_value(self.left),
            "quantized": json_value(self.quantized or None),
            **json_fields(self, "steps", "layers"),
        }

    def lines(self) -> list[str]:
        """The text that `verify` prints, by lines."""
        rows = [("reference", self.reference), ("model", self.model), ("run", self.run)]
        rows += titled("layers", layer_lines(self.layers)) + titled("samples", self.notes) + _fallback_rows(self)
        rows += [("quantized", str(self.quantized))] if self.quantized else []
        rows += [("metric", f"{self.metric}  {_quantiles_text(self.overall)}")] if self.overall is not None else []
        for output in self.outputs:
            rows += titled("output", [f"{output.name}  {_output_verdict(output, self)}", *_output_lines(output)])
        rows += _step_rows(self)
        if self.first_nonfinite is not None:
            rows += titled("not finite", _suspect_lines("first at ", self.first_nonfinite, self.repair is None))
        growth = [line for suspect in self.growth for line in _suspect_lines("made at ", suspect, self.repair is None)]
        rows += titled("error", growth)
        if self.left is not None:
            rows.append(
                ("", f"with all of these in float32 the error is {_error_text(self.left)}, as runs of parts tell")
            )
        if self.traced is not None:
            sample, step = divmod(self.traced, len(self.steps) or 1)
            place = f"step {step} of sample {sample}" if self.steps else f"sample {self.traced}"
            rows.append(("", f"(nodes as {place} shows them)"))
        return in_rows([*rows, *_repair_rows(self), ("verdict", self.verdict)])

    def _overview(self) -> Iterable[Html]:
        """The top of the page of `verify`: the verdict, the error of each output, and that along the graph."""
        rows: list[tuple[str, ...]] = []
        for one in self.outputs:
            found = (one.scores.median, one.scores.p90, one.scores.worst) if one.judged else ()
            cells = [*map(_error_text, found)] or ["", "", ""]
            rows.append((one.name, _ok_or_missed(one.within(self.tolerance)), *cells, _error_bars(one, self)))
        verdict = f"{self.model} against {self.reference}: {_ok_or_missed(self.ok)}, tolerance {self.tolerance:g}"
        yield heading(verdict, f" on {plural(self.samples, 'sample')} ({self.run})")
        yield table(("output", "verdict", "median", "90th percentile", "worst", "by sample"), rows)
        yield _errors_along_graph(self)


def _repair_rows(found: Verification) -> Rows:
    """The report's rows on repairs: what was tried and mends the model, or why nothing does; none without a search."""
    if found.mended is None:
        return []
    if found.repair is None:
        return [("repair", found.mended.none)]
    result = f"tried with {found.repair.recipe}: error {_error_text(found.repair.error)} on the same inputs"
    return [("repair", options_text(found.repair.options)), ("", result)]


def _last_line(found: Verification) -> str:
    """The verdict of the report of `verify`: ok or missed, at which outputs or steps, and the tolerance."""
    missed = [output.name for output in found.outputs if not output.within(found.tolerance)]
    limit = f"{found.tolerance:g}"
    over = "on average" if found.metric in OVER_ALL else "for 90 % of the samples"
    if found.overall is not None:
        finite = ", and nothing infinite" if any(output.nonfinite_mismatches for output in found.outputs) else ""
        return f"{'ok' if found.ok else 'missed'}: {found.metric} within {limit} {over}{finite}"
    late = [step for step in found.steps if step.error > found.tolerance]
    if late and not missed:
        return f"missed: {plural(len(late), 'step')}, first step {late[0].step} (tolerance {limit} on the error {over})"
    if not found.ok and not missed:
        return "missed: nothing was compared, as every output is empty"
    kinds = {output.scores.name for output in found.outputs if output.counts}
    error = "relative L2" if kinds <= {"numbers"} else "the error"
    if not missed:
        every = "every output" if all(output.counts for output in found.outputs) else "every output that has one"
        return f"ok: {error} within {limit} {over}, at {every}"
    return f"missed: {', '.join(missed)} (tolerance {limit} on {error} {over}, nothing infinite)"


def _step_rows(found: Verification) -> Rows:
    """The report's rows on steps: the worst one, and the errors of at most `STEPS`, from the first to the last at even
    distances; none where models did not run step by step."""
    worst = found.worst_step
    if worst is None:
        return []
    count = len(found.steps)
    places: Iterable[int] = range(count)
    if count > STEPS:
        places = sorted({round(i * (count - 1) / (STEPS - 1)) for i in range(STEPS)})
    text = ", ".join(f"{i}: {_error_text(found.steps[i].error)}" for i in places)
    return titled("steps", [f"worst {_error_text(worst.error)} at step {worst.step}, output {worst.output}", text])


def _quantiles_text(scores: Scores) -> str:
    """Report of `verify`: the median (of a share the mean), the 90th percentile and the worst error as text."""
    middle = f"{_error_text(scores.decisive)} on average" if scores.over_all else f"{_error_text(scores.median)} median"
    return f"{middle}, {_error_text(scores.p90)} 90th percentile, {_error_text(scores.worst)} worst"


def _error_text(error: float) -> str:
    """An error as the report of `verify` shows it."""
    return "infinite" if math.isinf(error) else f"{error:.2e}"


def _fallback_rows(found: Verification) -> Rows:
    """The report's rows on nodes that ran on the CPU though another device was asked for."""
    if found.strict or not found.fallback:
        return []
    kinds = Counter(operator for _, operator in found.fallback)
    nodes = [f"{node} ({operator})" for node, operator in found.fallback]
    message = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return titled("on the CPU", [f"{len(nodes)} nodes fell back: {message}", first(nodes, FALLBACK)])


def _output_verdict(output: Agreement, found: Verification) -> str:
    """The report's word on one output: ok or missed, or why it was not judged."""
    if output.reason:
        return f"cannot be compared: {output.reason}"
    if output.silent and not output.compared:
        return "missed: the reference itself is not finite, in any element of any sample; nothing can be compared"
    if output.nonfinite_mismatches:
        return f"{output.nonfinite_mismatches:,} elements are not finite where the reference is, or the reverse"
    if not output.compared and not output.paired:
        return "no elements, nothing to compare"
    if not output.counts:
        return "not judged" + ("" if found.overall is not None else f": metric {found.metric} is not about it")
    return "ok" if output.within(found.tolerance) else "missed"


def _output_lines(output: Agreement) -> list[str]:
    """The report's lines on one output: errors by its own measure and relative L2, the part that decides, paired rows,
    details, samples left out; at most what is not finite where nothing was compared."""
    if not output.compared and not output.nonfinite_mismatches and not output.reason and not output.paired:
        return [f"{output.infinite:,} infinite, {output.nan:,} NaN"] if output.silent else []
    scores = output.scores
    title = SORTS.get(scores.name, scores.name)
    lines = [f"{title} {_quantiles_text(scores)}"] if output.judged else []
    if output.floating and (scores.name != "numbers" or not output.judged):
        lines.append(f"relative L2 {_quantiles_text(Scores('', output.errors))}")
    part = deciding_part(output)
    if part is not None:
        name, errors = part
        title = f"{output.name}{name}, a part of its own scale with {PART:g} times the tolerance:"
        lines.append(f"{title} relative L2 {_quantiles_text(Scores('', errors))}")
    if output.paired is not None:
        lines.append(f"{output.paired[0]:,} of {output.paired[1]:,} rows have a partner in the other model")
    lines.append("; ".join(_details(output)))
    if output.silent:
        count = f"{len(output.silent):,} of {len(output.errors):,} samples left out"
        lines.append(f"{count}: the reference itself is not finite there")
    return lines


def _details(output: Agreement) -> list[str]:
    """What else the report says of an output: of numbers the largest difference, cosine, argmax and what is not finite;
    of anything else the share of elements that differ, which is its error (`OutputDifference`).

    The largest difference says nothing where no two numbers could be compared: no cosine, and elements that are finite
    on one side alone.
    """
    if not output.floating:
        share = sum(error for error in output.errors if math.isfinite(error)) / max(len(output.errors), 1)
        return [f"{100 * share:.4g} % of the elements differ, on average"]
    rest = [] if output.cosine is None and output.nonfinite_mismatches else [f"max abs {output.max_abs:.3g}"]
    if output.cosine is not None:
        rest.append(f"cosine {output.cosine:.7g}")
    if output.same_argmax is not None:
        same, rows = output.same_argmax
        rest.append(f"argmax {100 * same / rows:.4g} % of {rows:,}")
    rest.append(f"{output.infinite:,} infinite, {output.nan:,} NaN" if output.infinite or output.nan else "all finite")
    return rest


def _suspect_lines(word: str, suspect: Suspect, suggests: bool) -> list[str]:
    """The report's lines on a node to blame, which begin with ``word``: where it is and why, its operands, what to try.
    ``suggests``: whether to print options to try."""
    layer = f"layer {suspect.layer}" if suspect.layer else ""
    inside = f"inside {suspect.inside}" if suspect.inside else ""
    place = ", ".join(filter(None, (suspect.operator, suspect.dtype, layer, inside)))
    lines = [f"{word}{suspect.node} ({place}): {suspect.why}"]
    for sort, operands in (("in", suspect.reads), ("out", suspect.makes)):
        lines += [f"  {sort:<4}{_operand_line(operand)}" for operand in operands[:OPERANDS]]
    if suspect.suggestion and suggests:
        lines.append(f"  try: {options_text(suspect.suggestion)}")
    return lines + [f"  or: {hint}" for hint in suspect.hints]


def _operand_line(operand: TracedValue) -> str:
    """A line of the report on an operand: name, type and range, and the reference's range where that is another."""
    message = f"{operand.name}  {operand.dtype}  {_range_in_words(operand.range)}"
    if operand.reference is not None and _range_in_words(operand.reference) != _range_in_words(operand.range):
        message += f"; reference {_range_in_words(operand.reference)}"
    return message


def _range_in_words(found: object) -> str:
    """Report of `verify`: the range of a tensor in words, and how much in it is not finite. ``found``: any object with
    ``smallest`` and ``largest`` (absent or None where nothing is finite), ``infinite`` and ``nan`` (counts)."""
    smallest, largest = getattr(found, "smallest", None), getattr(found, "largest", None)
    infinite, nan = getattr(found, "infinite", 0), getattr(found, "nan", 0)
    message = "nothing finite" if smallest is None else f"{smallest:.4g} to {largest:.4g}"
    return message + (f", {infinite:,} infinite" if infinite else "") + (f", {nan:,} NaN" if nan else "")


# -- for notebooks --------------------------------------------------------------------------------------------------


def _ok_or_missed(met: bool) -> str:
    """For a table of the report: ``ok`` where the tolerance is met, else ``missed``."""
    return "ok" if met else "missed"


def _error_bars(output: Agreement, found: Verification) -> Html:
    """The page's picture of an output's errors above zero, a bar a sample, and the tolerance; empty without any."""
    errors = [error for error in output.judged_errors if math.isfinite(error) and error > 0]
    words = f"error of each of {plural(len(errors), 'sample')}; the line is the tolerance"
    return heights(errors, found.tolerance, words, 160, 30) if errors and found.tolerance > 0 else Html("")


def _errors_along_graph(found: Verification) -> Html:
    """The page's picture of the error behind each node, in their order, and the tolerance; empty without errors."""
    errors = {name: error for name, error in found.errors.items() if math.isfinite(error) and error > 0}
    if not errors or found.tolerance <= 0:
        return Html("")
    worst = max(errors, key=lambda name: errors[name])
    words = f"error behind each of {len(errors):,} nodes, in their order; the largest is {errors[worst]:.2e} at {worst}"
    picture = heights(list(errors.values()), found.tolerance, f"{words}; the line is the tolerance")
    return Html(f"<p>{markup(words)}</p>{picture}")
