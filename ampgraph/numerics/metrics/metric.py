"""A metric: what says how far the outputs of one sample are from the reference's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from ...core.arrays import Array, Result
from ...core.errors import AmpError, nearest
from ...core.graph import LOW
from ...core.metric_names import CUSTOM, METRICS, OVER_ALL
from . import custom, sorts
from .agreement import Apart, apart, is_float
from .detections import WIDTHS, Pairing, paired
from .judged import Judged
from .roles import LOGARITHMS, NUMBERS, PROBABILITIES, ROWS

Outputs = Mapping[str, Result]
NEEDS = {
    "argmax": "an axis of classes", "logits": "an axis of classes", "tokens": "integers",
    "detections": "rows of boxes, [n, 4] to [n, 7],",
}  # fmt: skip
SAMPLE = ""  # the name under which stands what is said of a sample as a whole


class Metric(Protocol):
    """``over_all``: errors are shares, whose mean over the samples is judged."""

    name: str
    over_all: bool

    def judge(self, reference: Outputs, result: Outputs) -> dict[str, Judged]:
        """What it says of each output that it is about, or of the whole sample under the name `SAMPLE`."""
        ...


def metric_of(given: str | custom.Function | None, roles: Mapping[str, str] | None = None) -> Metric:
    """A metric by name, by the place of a function, or by the function itself; ``auto`` for None.

    ``roles``: what `roles_of` says of the reference's outputs. Raises AmpError AMP312 for an unknown name.
    """
    if given is None or (isinstance(given, str) and given in METRICS):
        return Named(given or "auto", roles or {})
    if callable(given):
        return Custom(getattr(given, "__name__", "function"), given)
    if not isinstance(given, str) or ":" not in given:
        hint = nearest(str(given), list(METRICS)) or f"{', '.join(METRICS)}; or {CUSTOM}"
        raise AmpError("AMP312", f"unknown metric '{given}'", hint=hint)
    return Custom(given, custom.loaded(given))


class Custom:
    """A function of the user's own; see `custom.Function`."""

    over_all = False

    def __init__(self, name: str, function: custom.Function) -> None:
        self.name, self._function = name, function

    def judge(self, reference: Outputs, result: Outputs) -> dict[str, Judged]:
        ours, theirs = ({name: _plain(value) for name, value in side.items()} for side in (reference, result))
        return {SAMPLE: Judged(custom.error_of(self._function, self.name, ours, theirs), sort=self.name)}


def _plain(value: Result) -> Result:
    """Low types as float32, which every library knows."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype.name in LOW else value


class Named:
    """One of METRICS."""

    def __init__(self, name: str, roles: Mapping[str, str]) -> None:
        self.name, self.over_all, self._roles = name, name in OVER_ALL, roles
        self._sorts: dict[str, str] = {}  # by output, as its first sample shows it

    def judge(self, reference: Outputs, result: Outputs) -> dict[str, Judged]:
        """Raises AmpError AMP312 where the metric is about none of the outputs."""
        judged = self._sets(reference, result)
        for name, want in reference.items():
            if name not in judged and self._about(want):
                judged[name] = self._one(name, want, result[name])
        if not judged and reference:
            hint = "use --metric l2, or auto, which judges each output as what it is"
            raise AmpError("AMP312", f"no output has {NEEDS[self.name]} for metric {self.name}", hint=hint)
        return judged

    def _about(self, want: Result) -> bool:
        if self.name in ("argmax", "logits"):
            return sorts.has_classes(want)
        if self.name == "tokens":
            return isinstance(want, np.ndarray) and want.dtype.kind in "iu"
        return self.name != "detections"

    def _one(self, name: str, want: Result, got: Result) -> Judged:
        found = apart(want, got)
        by_name: dict[str, Callable[[], Judged]] = {
            "l2": lambda: sorts.numbers(found),
            "max": lambda: sorts.largest(found, want),
            "cosine": lambda: sorts.cosine(found),
            "argmax": lambda: sorts.argmax(found, want, got),
            "probabilities": lambda: sorts.probabilities(found),
            "logits": lambda: sorts.logits(found, want, got),
            "tokens": lambda: sorts.tokens(found, want, got),
            "auto": lambda: self._by_sort(name, found, want, got),
        }
        return by_name[self.name]()

    def _by_sort(self, name: str, found: Apart, want: Result, got: Result) -> Judged:
        sort = self._sorts.setdefault(name, self._sort(name, found, want))
        if sort == PROBABILITIES:
            return sorts.probabilities(found)
        if sort == LOGARITHMS:
            return sorts.log_probabilities(found, want, got)
        return sorts.tokens(found, want, got) if sort == sorts.TOKENS else sorts.numbers(found, scaled=True)

    def _sort(self, name: str, found: Apart, want: Result) -> str:
        """What an output is: as the graph says, if its values can be that, or as they show by themselves."""
        if isinstance(want, np.ndarray) and want.dtype.kind in "iu":
            return sorts.TOKENS
        if not found.floating or found.nested:
            return NUMBERS
        role = self._roles.get(name, NUMBERS)
        if role == LOGARITHMS:
            return LOGARITHMS if bool((np.asarray(want) <= sorts.SUM).all()) else NUMBERS
        likely = sorts.within_one(want) if role == PROBABILITIES else sorts.sums_to_one(want)
        return PROBABILITIES if likely else NUMBERS

    # -- rows as sets -------------------------------------------------------------------------------------------------

    def _sets(self, reference: Outputs, result: Outputs) -> dict[str, Judged]:
        """The outputs that hold detections: boxes, and what stands beside them row by row."""
        if self.name not in ("auto", "detections"):
            return {}
        names = [n for n in reference if self.name == "detections" or self._roles.get(n) == ROWS]
        arrays = {n: (reference[n], result[n]) for n in names if _both_arrays(reference[n], result[n])}
        boxes = next((name for name, (want, got) in arrays.items() if _boxes(want, got)), None)
        if boxes is None:
            return {}
        return _judged_rows(boxes, arrays)


def _both_arrays(want: Result, got: Result) -> bool:
    return isinstance(want, np.ndarray) and isinstance(got, np.ndarray)


def _boxes(want: Array, got: Array) -> bool:
    """Whether two arrays hold rows of boxes, [n, k] or [batch, n, k]."""
    alike = want.ndim == got.ndim and want.ndim in (2, 3) and want.shape[-1] == got.shape[-1]
    batch = want.ndim == 2 or want.shape[0] == got.shape[0]
    return alike and batch and is_float(want) and is_float(got) and want.shape[-1] in WIDTHS


def _judged_rows(boxes: str, arrays: Mapping[str, tuple[Array, Array]]) -> dict[str, Judged]:
    """Each output of the set, its rows beside their partners."""
    depth = arrays[boxes][0].ndim - 1
    sizes = [side.shape[:depth] for side in arrays[boxes]]
    beside = {
        name: both
        for name, both in arrays.items()
        if all(a.shape[:depth] == s for a, s in zip(both, sizes, strict=True))
    }
    flat = {n: [_in_batches(a, depth) for a in both] for n, both in beside.items()}
    classes = [n for n, (want, got) in beside.items() if want.ndim == depth and _whole(want) and _whole(got)]
    count = len(flat[boxes][0])
    ours, theirs = flat[boxes]
    pairings = [
        paired(_wide(ours[b]), _wide(theirs[b]), *([flat[n][i][b] for n in classes] for i in (0, 1)))
        for b in range(count)
    ]
    judged = {name: _aligned(both, pairings) for name, both in flat.items()}
    for name, (want, got) in arrays.items():
        if name not in judged and _counts(want, got, pairings):
            judged[name] = Judged(float(np.abs(want - got).sum()), float(want.sum()) or 1.0, sort="counts")
    return judged


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _in_batches(array: Array, depth: int) -> Array:
    return array if depth == 2 else array[None]


def _whole(array: Array) -> bool:
    return array.dtype.kind in "iu" or bool((array == np.round(array)).all())


def _aligned(both: list[Array], pairings: Iterable[Pairing]) -> Judged:
    parts = [pairing.aligned(both[0][b], both[1][b]) for b, pairing in enumerate(pairings)]
    found = apart(*(np.concatenate(side) for side in zip(*parts, strict=True)))
    rows = [pairing.paired for pairing in pairings]
    whole = sum(pair[0] for pair in rows), sum(pair[1] for pair in rows)
    judged = sorts.numbers(found) if found.floating else sorts.by_error(found)
    return replace(judged, sort="detections", paired=whole)


def _counts(want: Array, got: Array, pairings: list[Pairing]) -> bool:
    """Whether integers say how many rows there are."""
    if want.dtype.kind not in "iu" or want.size != len(pairings) or got.size != want.size:
        return False
    sides = zip((want, got), zip(*(pairing.rows for pairing in pairings), strict=True), strict=True)
    return all(side.reshape(-1).tolist() == list(rows) for side, rows in sides)
