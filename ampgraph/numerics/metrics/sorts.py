"""How far one output of one sample is from its reference, by what the output is."""

from __future__ import annotations

import math

import numpy as np

from ...core.arrays import Array, Result
from .agreement import FLOOR, Apart, apart, is_float
from .judged import Judged

LIKELY = 0.1
"""The least norm that probabilities are measured against, all of an output together.

A tolerance of 1e-2 then allows an absolute error of 1e-3, float16's step at one: no more is known of a probability's
complement, or of the largest in its row. An output whose norm is larger is judged as numbers are.
"""
SUM = 1e-3  # by which a row of probabilities may miss one
TOKENS, INTEGERS = "tokens", "integers"


def by_error(found: Apart, sort: str = "") -> Judged:
    """An error that has no floor of its own: of integers, sequences, maps, and of what cannot be compared."""
    return Judged(found.error, sort=sort or ("numbers" if found.floating else INTEGERS))


def numbers(found: Apart, scaled: bool = False) -> Judged:
    """Root mean square of the difference over that of the reference, or over the floor; see `Judged`."""
    if not found.floating or found.nested or not math.isfinite(found.error):
        return by_error(found)
    return Judged(found.off, found.size, FLOOR, "numbers", scaled)


def probabilities(found: Apart, sort: str = "probabilities") -> Judged:
    """As numbers, with the floor that `LIKELY` says."""
    if not found.floating or found.nested or not math.isfinite(found.error):
        return by_error(found)
    return Judged(found.off, found.size, max(FLOOR, LIKELY / math.sqrt(max(found.compared, 1))), sort)


def logits(found: Apart, want: Result, got: Result) -> Judged:
    """Their softmax over the classes, as probabilities."""
    if not found.floating or found.nested or not math.isfinite(found.error):
        return by_error(found)
    return probabilities(apart(softmax(np.asarray(want)), softmax(np.asarray(got))), "logits")


def log_probabilities(found: Apart, want: Result, got: Result) -> Judged:
    """What they are logarithms of."""
    if not found.floating or found.nested or not math.isfinite(found.error):
        return by_error(found)
    return probabilities(apart(*(np.exp(np.asarray(x, np.float64)) for x in (want, got))), "log probabilities")


def largest(found: Apart, want: Result) -> Judged:
    """The largest difference over the largest magnitude."""
    if not found.floating or found.nested or not math.isfinite(found.error):
        return by_error(found)
    array = np.asarray(want, np.float64)
    return Judged(found.max_abs, float(np.abs(array[np.isfinite(array)]).max(initial=0)) or 1.0, sort="largest")


def cosine(found: Apart) -> Judged:
    """1 - cosine similarity."""
    if not found.floating or not math.isfinite(found.error):
        return by_error(found)
    return Judged(1 - found.cosine if found.cosine is not None else float(found.error > 0), sort="cosine")


def argmax(found: Apart, want: Result, got: Result) -> Judged:
    """The share of places where another class is the largest; of integers, which are classes, those that differ."""
    if not found.floating or found.nested or not math.isfinite(found.error):
        return by_error(found, "" if found.floating else "classes")
    axis = class_axis(np.asarray(want))
    places = [np.asarray(x).argmax(axis) for x in (want, got)]
    return Judged(float(np.mean(places[0] != places[1])) if places[0].size else 0.0, sort="classes")


def tokens(found: Apart, want: Result, got: Result) -> Judged:
    """The share of integers that differ, place by place; where one side ends earlier along the last axis, what it lacks
    differs."""
    ours, theirs = np.asarray(want), np.asarray(got)
    if not found.reason or not sequences(ours, theirs):
        return by_error(found, TOKENS)
    short, long = sorted((ours.shape[-1], theirs.shape[-1]))
    rows = math.prod(ours.shape[:-1])
    same = int((ours[..., :short] == theirs[..., :short]).sum())
    return Judged(1 - same / (rows * long) if rows * long else 0.0, sort=TOKENS)


def sequences(want: Array, got: Array) -> bool:
    """Whether two arrays of integers are alike but for the length of their last axis."""
    whole = want.dtype.kind in "iu" and got.dtype.kind in "iu"
    return whole and want.ndim == got.ndim > 0 and want.shape[:-1] == got.shape[:-1]


# -- what values tell -------------------------------------------------------------------------------------------------


def softmax(array: Array) -> Array:
    """Over the classes."""
    axis = class_axis(array)
    wide = array.astype(np.float64)
    top = wide.max(axis, keepdims=True)
    raised = np.exp(wide - np.where(np.isfinite(top), top, 0))
    whole: Array = raised / raised.sum(axis, keepdims=True)
    return whole


def class_axis(array: Array) -> int:
    """The second axis of maps [N, C, H, W], else the last."""
    return 1 if array.ndim >= 4 else array.ndim - 1


def has_classes(value: Result) -> bool:
    """Whether an output says which class is where, or holds classes."""
    if value is None or isinstance(value, (list, dict)):
        return False
    array = np.asarray(value)
    return array.dtype.kind in "iu" or (is_float(array) and array.ndim > 0 and array.shape[class_axis(array)] > 1)


def within_one(value: Result) -> bool:
    """Whether an array's numbers all lie between 0 and 1."""
    array = np.asarray(value)
    return is_float(array) and bool(array.size) and bool(((array >= 0) & (array <= 1)).all())


def sums_to_one(value: Result) -> bool:
    """Whether an array holds the probabilities of classes: within 0 to 1, one together in every row."""
    if not within_one(value) or not has_classes(value):
        return False
    array = np.asarray(value, np.float64)
    return bool((np.abs(array.sum(class_axis(array)) - 1) <= SUM).all())
