"""A metric: what says how far the outputs of one sample are from the reference's, output by output or by a function of
the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ...core.arrays import Array, Result
from ...core.errors import AmpError, first_line, nearest
from ...core.graph import LOW
from ...core.metric_names import CUSTOM, METRICS, OVER_ALL
from .agreement import FLOOR, Judged, OutputDifference, compare_outputs, is_float
from .detections import WIDTHS, Pairing, are_whole, pair_rows
from .roles import LOGARITHMS, NUMBERS, PROBABILITIES, ROWS

Outputs = Mapping[str, Result]
Function: TypeAlias = Callable[[Outputs, Outputs], float]
"""``function(reference, result) -> error``: the outputs of one sample by name, as arrays (sequences as lists, maps as
dictionaries), float32 where a model has low ones. 0 says that they are alike, a larger number that they are further
apart; infinite misses every tolerance."""
NEEDS = {
    "argmax": "an axis of classes", "logits": "an axis of classes", "tokens": "integers",
    "detections": "rows of boxes, [n, 4] to [n, 7],",
}  # fmt: skip
SAMPLE = ""  # the name under which stands what is said of a sample as a whole
LIKELY = 0.1
"""The least norm that probabilities are measured against, all of an output together.

A tolerance of 1e-2 then allows an absolute error of 1e-3, float16's step at one: no more is known of a probability's
complement, or of the largest in its row. An output whose norm is larger is judged as numbers are.
"""
SUM = 1e-3  # by which a row of probabilities may miss one
DECIDED, SELDOM = 0.9, 0.1
"""Of rows of probabilities on generated inputs: those whose largest is below the first are undecided, and count as if a
tenth of the rows were so.

A model is sure of what it was trained for: of its own inputs few rows are undecided, of generated ones up to all, and
there any change of the scores, multiplied by p (1 - p), is one of the result. Over four readers of text, of which the
numbers were taken, rows above 0.9 had a fifth to a twentieth of the whole's error, on real inputs and generated ones.
"""
AWAY = 65504.0
"""The root mean square beyond which an output has run away: on generated inputs that the model was not made for, where
others stay within float16."""
THERE = 0.5
"""The least probability of what is there. Where none is, what a sigmoid makes is as far off as its argument is, in
numbers and not in digits: that says little of samples that have something to find."""
TOLD = 2.0**-14, 0.95
"""Probabilities whose log-odds float16 tells: more than its smallest normal number, and so far from one that its step
there is a hundredth of the complement."""
EDGES = 0.25
"""What p (1 - p) may be beside p on a map of events: over 25 maps of real inputs 0.0002 to 0.88, the middle one 0.32.

Where generated inputs show an error of 0.0025, a text detector is off by 0.044 on photographs."""
TOKENS = "tokens"


def own_metric(generated: bool, roles: Mapping[str, str] | None = None) -> Metric:
    """The check's own: relative L2; of generated samples, in which an output may nearly vanish, against its scale.

    ``roles``: as for `metric_of`."""
    return Metric(NUMBERS if generated else "l2", roles or {})


def metric_of(given: str | Function | None, roles: Mapping[str, str] | None = None) -> Metric:
    """A metric by name, by the place of a function, or by the function itself; ``auto`` for None.

    ``roles``: what `roles_of` says of the reference's outputs. Raises AmpError AMP312 for an unknown name.
    """
    if given is None or (isinstance(given, str) and given in METRICS):
        return Metric(given or "auto", roles or {})
    if callable(given):
        return Metric(getattr(given, "__name__", "function"), {}, given)
    if not isinstance(given, str) or ":" not in given:
        hint = nearest(str(given), list(METRICS)) or f"{', '.join(METRICS)}; or {CUSTOM}"
        raise AmpError("AMP312", f"unknown metric '{given}'", hint=hint)
    return Metric(given, {}, load_function(given))


@dataclass
class Metric:
    """One of METRICS by ``name``, or a ``function`` of the user's own, whose ``name`` says where it is defined.

    ``roles``: what the reference's outputs are, as `roles_of` says; ``sorts``: what "auto" takes each output for, which
    its first sample decides."""

    name: str
    roles: Mapping[str, str]
    function: Function | None = None
    sorts: dict[str, str] = field(default_factory=dict)

    @property
    def over_all(self) -> bool:
        """Whether this metric's errors are shares, whose mean over the samples is judged."""
        return self.function is None and self.name in OVER_ALL

    def judge(
        self, reference: Outputs, result: Outputs, parts: Mapping[str, OutputDifference] | None = None
    ) -> dict[str, Judged]:  # fmt: skip
        """What the metric says of each output that it is about, or of the whole sample under the name `SAMPLE`.

        ``parts``: what `compare_outputs` gives for each output; None: it is computed here. Raises AmpError AMP312 where
        the metric is about none of the outputs, and for a function that fails.
        """
        if self.function is not None:
            ours, theirs = ({name: _widen_low(value) for name, value in side.items()} for side in (reference, result))
            return {SAMPLE: Judged(_call_function(self.function, self.name, ours, theirs), sort=self.name)}
        judged = self._judge_detections(reference, result)
        for name, want in reference.items():
            if name not in judged and self._is_about(want):
                got = result[name]
                found = compare_outputs(want, got) if parts is None else parts[name]
                sort = self.name
                if sort == "auto":
                    sort = self.sorts.setdefault(name, self._sort_of(name, found, want))
                likely = sort == NUMBERS and self.roles.get(name) == PROBABILITIES
                absent = likely and _finds_nothing(want)
                tie = _tie_error(want, got, likely) if sort == NUMBERS and math.isfinite(found.error) else 0.0
                judged[name] = replace(_judge_as(sort, found, want, got), absent=absent, tie=tie)
        if not judged and reference:
            hint = "use --metric l2, or auto, which judges each output as what it is"
            raise AmpError("AMP312", f"no output has {NEEDS[self.name]} for metric {self.name}", hint=hint)
        return judged

    def _is_about(self, want: Result) -> bool:
        """Whether the metric has something to say of an output by itself: of one with classes for argmax and logits, of
        integers for tokens, of none for detections."""
        if self.name in ("argmax", "logits"):
            return _has_classes(want)
        if self.name == TOKENS:
            return isinstance(want, np.ndarray) and want.dtype.kind in "iu"
        return self.name != "detections"

    def _sort_of(self, name: str, found: OutputDifference, want: Result) -> str:
        """What the metric "auto" takes an output for: tokens if integers; probabilities or their logarithms if the
        graph says so and the numbers allow it, or if rows sum to one; else numbers."""
        if isinstance(want, np.ndarray) and want.dtype.kind in "iu":
            return TOKENS
        if not found.floating or found.nested:
            return NUMBERS
        role = self.roles.get(name, NUMBERS)
        if role == LOGARITHMS:
            return LOGARITHMS if bool((np.asarray(want) <= SUM).all()) else NUMBERS
        likely = _within_one(want) if role == PROBABILITIES else _sums_to_one(want)
        return PROBABILITIES if likely else NUMBERS

    def _judge_detections(self, reference: Outputs, result: Outputs) -> dict[str, Judged]:
        """Judges outputs that belong together as detections: boxes, and what stands beside them row by row; {} for none
        such. "auto" looks only at outputs that the graph says are selected rows."""
        if self.name not in ("auto", "detections"):
            return {}
        names = [n for n in reference if self.name == "detections" or self.roles.get(n) == ROWS]
        both = {n: (reference[n], result[n]) for n in names}
        arrays = {n: sides for n, sides in both.items() if all(isinstance(side, np.ndarray) for side in sides)}
        boxes = next((name for name, (want, got) in arrays.items() if _are_boxes(want, got)), None)
        return {} if boxes is None else _judge_rows(boxes, arrays)


# -- an output as what it is ------------------------------------------------------------------------------------------


def _judge_as(sort: str, found: OutputDifference, want: Result, got: Result) -> Judged:
    """Judges one output of one sample as ``sort``, one of METRICS or a role; ``found``: its difference by relative L2.

    That stands as it is for integers, sequences, maps, and for what cannot be compared."""
    if sort == TOKENS:
        return _token_error(found, np.asarray(want), np.asarray(got))
    if not found.floating or not math.isfinite(found.error) or (found.nested and sort != "cosine"):
        return _judge_by_error(found, "classes" if sort == "argmax" and not found.floating else "")  # integers
    if sort == "cosine":
        return Judged(1 - found.cosine if found.cosine is not None else float(found.error > 0), sort=sort)
    if sort == "max":
        array = np.asarray(want, np.float64)
        largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))
        return Judged(found.max_abs, largest or 1.0, sort="largest")
    if sort == "argmax":
        places = [np.asarray(x).argmax(_class_axis(np.asarray(want))) for x in (want, got)]
        return Judged(float(np.mean(places[0] != places[1])) if places[0].size else 0.0, sort="classes")
    if sort in ("logits", LOGARITHMS):  # what they are logarithms of
        turned = _softmax if sort == "logits" else np.exp
        found = compare_outputs(*(turned(np.asarray(x, np.float64)) for x in (want, got)))
        if not math.isfinite(found.error):
            return _judge_by_error(found)
    if sort in ("logits", LOGARITHMS, PROBABILITIES):
        return Judged(found.off, found.size, max(FLOOR, LIKELY / math.sqrt(max(found.compared, 1))), sort)
    off, undecided = _off_where_decided(found, want, got) if sort == NUMBERS else (found.off, False)
    undecided |= sort == NUMBERS and found.size > AWAY
    return Judged(off, found.size, FLOOR, "numbers", scaled=sort == NUMBERS, undecided=undecided)


def _off_where_decided(found: OutputDifference, want: Result, got: Result) -> tuple[float, bool]:
    """For a metric: the root mean square of an output's difference, and whether it has no row with a clear class. If
    its rows sum to one, those without a clear class weigh as at most the share `SELDOM` of all; else none is such."""
    if found.nonfinite_mismatches or not _sums_to_one(want):
        return found.off, False
    array, axis = np.asarray(want, np.float64), _class_axis(np.asarray(want))
    undecided = array.max(axis) < DECIDED
    share = float(undecided.mean())
    squares = np.square(array - np.asarray(got, np.float64)).sum(axis)
    weights = np.where(undecided, min(1.0, SELDOM / max(share, SELDOM)), 1.0)
    return math.sqrt(float((squares * weights).sum()) / array.size), bool(undecided.all())


def _judge_by_error(found: OutputDifference, sort: str = "") -> Judged:
    """By a metric: judged by the relative error alone; ``sort`` "": numbers or integers."""
    return Judged(found.error, sort=sort or ("numbers" if found.floating else "integers"))


def _token_error(found: OutputDifference, ours: Array, theirs: Array) -> Judged:
    """For a metric: the share of integers that differ, place by place; what one side lacks at the end of the last axis
    differs. ``found``: their difference, which has a reason where the shapes differ."""
    whole = ours.dtype.kind in "iu" and theirs.dtype.kind in "iu"
    if not found.reason or not whole or not ours.ndim == theirs.ndim > 0 or ours.shape[:-1] != theirs.shape[:-1]:
        return _judge_by_error(found, TOKENS)
    short, long = sorted((ours.shape[-1], theirs.shape[-1]))
    rows = math.prod(ours.shape[:-1])
    same = int((ours[..., :short] == theirs[..., :short]).sum())
    return Judged(1 - same / (rows * long) if rows * long else 0.0, sort=TOKENS)


def _softmax(wide: Array) -> Array:
    """For a metric: probabilities over the classes of float64 scores; NaN in a row whose largest is not finite."""
    axis = _class_axis(wide)
    top = wide.max(axis, keepdims=True)
    raised = np.exp(wide - np.where(np.isfinite(top), top, 0))
    whole: Array = raised / raised.sum(axis, keepdims=True)
    return whole


def _class_axis(array: Array) -> int:
    """For a metric: the axis of the classes: the second one of maps [N, C, H, W], else the last."""
    return 1 if array.ndim >= 4 else array.ndim - 1


def _has_classes(value: Result) -> bool:
    """For a metric: whether an output holds scores of more than one class, or classes as integers."""
    if value is None or isinstance(value, (list, dict)):
        return False
    array = np.asarray(value)
    return array.dtype.kind in "iu" or (is_float(array) and array.ndim > 0 and array.shape[_class_axis(array)] > 1)


def _tie_error(want: Result, got: Result, likely: bool) -> float:
    """For a metric: what the error of probabilities would be if one row were at a tie, its two likeliest classes 0.5
    each, or one event; of many events if p (1 - p) were `EDGES` of p by root mean square. 0.0 where the output does not
    tell it, and for other outputs. ``likely``: whether each element is the probability of an event.

    Log-odds are the difference of two scores, and rounding moves scores by as much wherever they are; probabilities
    near 0 and 1 hide that, and they are most of what generated inputs give. What log-odds are off is taken by root mean
    square over rows or events that are told (`TOLD`), weighted by the square of p (1 - p), by which it changes p."""
    if _sums_to_one(want):
        axis = _class_axis(np.asarray(want))
        ours, theirs = (np.moveaxis(np.asarray(x, np.float64), axis, -1) for x in (want, got))
        two = np.argpartition(ours, -2, -1)[..., -2:]
        (first, second), (one, other) = (np.moveaxis(np.take_along_axis(x, two, -1), -1, 0) for x in (ours, theirs))
        told, share = np.minimum(first, second) > TOLD[0], 0.0
    elif likely and _within_one(want):
        first, one = (np.asarray(x, np.float64) for x in (want, got))
        second, other, told, share = 1 - first, 1 - one, (first > TOLD[0]) & (first < TOLD[1]), EDGES
    else:
        return 0.0
    told &= (one > 0) & (other > 0)
    if not told.any():
        return 0.0
    first, second = first[told], second[told]
    off = np.log(one[told] / other[told]) - np.log(first / second)
    weights = np.square(first * second / np.square(first + second))
    return max(0.5 / math.sqrt(told.size), share) * math.sqrt(np.average(np.square(off), weights=weights))


def _within_one(value: Result) -> bool:
    """For a metric: whether an output holds floats, all from 0 to 1, as probabilities are."""
    array = np.asarray(value)
    return is_float(array) and bool(array.size) and bool(((array >= 0) & (array <= 1)).all())


def _finds_nothing(value: Result) -> bool:
    """For a metric: whether an output holds probabilities that are all below `THERE`, as of things that are absent."""
    return _within_one(value) and float(np.asarray(value).max()) < THERE


def _sums_to_one(value: Result) -> bool:
    """For a metric: whether an output holds the probabilities of classes: within 0 to 1, one together in every row."""
    if not _within_one(value) or not _has_classes(value):
        return False
    array = np.asarray(value, np.float64)
    return bool((np.abs(array.sum(_class_axis(array)) - 1) <= SUM).all())


# -- rows as sets -----------------------------------------------------------------------------------------------------


def _are_boxes(want: Array, got: Array) -> bool:
    """For a metric: whether two outputs hold rows of boxes, [n, k] or [batch, n, k]."""
    alike = want.ndim == got.ndim and want.ndim in (2, 3) and want.shape[-1] == got.shape[-1]
    batch = want.ndim == 2 or want.shape[0] == got.shape[0]
    return alike and batch and is_float(want) and is_float(got) and want.shape[-1] in WIDTHS


def _judge_rows(boxes: str, arrays: Mapping[str, tuple[Array, Array]]) -> dict[str, Judged]:
    """Judges detections, each output by its rows beside their partners; counts of rows too, other outputs not.

    ``arrays``: reference and result by output; ``boxes``: the one by which rows are paired, [n, k] or [batch, n, k]."""
    depth = arrays[boxes][0].ndim - 1
    sizes = [side.shape[:depth] for side in arrays[boxes]]
    beside = {
        name: both
        for name, both in arrays.items()
        if all(a.shape[:depth] == s for a, s in zip(both, sizes, strict=True))
    }
    flat = {n: [a if depth == 2 else a[None] for a in both] for n, both in beside.items()}
    classes = [n for n, (want, got) in beside.items() if want.ndim == depth and are_whole(want) and are_whole(got)]
    ours, theirs = flat[boxes]
    pairings = []
    for b in range(len(ours)):
        rows = (side[b].astype(np.float64) for side in (ours, theirs))
        rows_classes = ([flat[name][side][b] for name in classes] for side in (0, 1))
        pairings.append(pair_rows(*rows, *rows_classes))
    judged = {name: _judge_aligned(both, pairings) for name, both in flat.items()}
    for name, (want, got) in arrays.items():
        if name not in judged and _holds_row_counts(want, got, pairings):
            judged[name] = Judged(float(np.abs(want - got).sum()), float(want.sum()) or 1.0, sort="counts")
    return judged


def _judge_aligned(both: list[Array], pairings: Iterable[Pairing]) -> Judged:
    """Judges one output of detections (``both`` sides, [batch, n, ...]) by relative error after rows were paired, batch
    by batch; zeros stand beside a row without partner."""
    parts = [pairing.align(both[0][b], both[1][b]) for b, pairing in enumerate(pairings)]
    found = compare_outputs(*(np.concatenate(side) for side in zip(*parts, strict=True)))
    rows = [pairing.paired for pairing in pairings]
    together = sum(pair[0] for pair in rows), sum(pair[1] for pair in rows)
    return replace(_judge_as("l2", found, None, None), sort="detections", paired=together)


def _holds_row_counts(want: Array, got: Array, pairings: list[Pairing]) -> bool:
    """Of detections: whether integers say on both sides how many rows each batch of the others has."""
    if want.dtype.kind not in "iu" or want.size != len(pairings) or got.size != want.size:
        return False
    sides = zip((want, got), zip(*(pairing.rows for pairing in pairings), strict=True), strict=True)
    return all(side.reshape(-1).tolist() == list(rows) for side, rows in sides)


# -- a function of the user's own -------------------------------------------------------------------------------------


def load_function(text: str) -> Function:
    """The user's metric that ``module:function`` or ``file.py:function`` names.

    Raises AmpError AMP312 where there is none.
    """
    place, _, name = text.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # whatever a file of the user's own raises
        raise AmpError("AMP312", f"metric {text}: {_in_one_line(error)}", hint=f"give {CUSTOM}") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = ", ".join(n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n)))
        message = f"metric {text}: {place} has no function '{name}'"
        raise AmpError("AMP312", message, hint=f"it has {there}" if there else f"give {CUSTOM}")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> Result:
    """The module that a file with the user's metric makes when it runs. Raises what it raises, FileNotFoundError."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(f"ampgraph_metric_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def address_of(function: Function) -> str:
    """Where another process finds the function that is the user's metric, as `load_function` takes it; empty if
    nowhere: it is defined in a function or a session."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return ""
    home = sys.modules.get(module)
    if getattr(home, name, None) is not function:
        return ""
    file = getattr(home, "__file__", None)
    return f"{os.path.abspath(file)}:{name}" if module.startswith("ampgraph_metric_") and file else f"{module}:{name}"


def _call_function(function: Function, name: str, reference: Outputs, result: Outputs) -> float:
    """The error that the user's metric gives for one sample; ``name``: for messages. Raises AmpError AMP312 where it
    raises anything but an AmpError, or gives no number from 0 on."""
    try:
        found = function(dict(reference), dict(result))
    except AmpError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise AmpError(
            "AMP312", f"metric {name} raised {_in_one_line(error)}", hint="see its traceback in Python"
        ) from error
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or number < 0:
        message = f"metric {name} gives {found!r}, which is not an error of 0 or more"
        raise AmpError("AMP312", message, hint="return a float: 0 for alike, larger for further apart")
    return number


def _widen_low(value: Result) -> Result:
    """For the user's metric: an output with low types as float32, which every library knows; lists by element."""
    if isinstance(value, list):
        return [_widen_low(item) for item in value]
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype.name in LOW else value


def _in_one_line(error: BaseException) -> str:
    """An exception of the user's metric in one line."""
    return f"{type(error).__name__}: {first_line(error)}"
