"""Measured ranges as data: of every float32 value its extremes and how its magnitudes are spread. JSON both ways."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .arrays import Array
from .dataflow import NONE, Dataflow, Value
from .errors import AmpError
from .files import read_text, text_file
from .json_types import JsonObject, json_line
from .low_types import low_type
from .sketches import markup, table

SHOWN = 20  # values in a notebook
FORMAT = 2  # 1 had keys in which a name could look like a scope
PART = 1 << 20  # elements looked at together: temporaries stay small
BIAS = 127  # of float32's exponent
ZERO, INFINITE = 0, 255  # the exponent fields of zeros and subnormals, and of infinities and NaN
NEAR = 2.0**-12
"""How far a number that scales a whole tensor may move when it is rounded: half as far as a float16 number at most."""


@dataclass
class Range:
    """What was seen of one float32 value, over all samples.

    ``low`` and ``high`` are its finite extremes (0 where there was none). ``elements`` counts all that were seen,
    ``zeros`` and ``nonfinite`` (infinities and NaN) parts of them. ``exponents`` counts the rest, finite elements that
    are not zero, by exponent: e for magnitudes in [2**e, 2**(e+1)), float32's subnormals under -127.
    """

    low: float = 0.0
    high: float = 0.0
    elements: int = 0
    zeros: int = 0
    nonfinite: int = 0
    exponents: dict[int, int] = field(default_factory=dict)

    @property
    def absmax(self) -> float:
        """The largest finite magnitude that was measured."""
        return max(-self.low, self.high)

    @property
    def _finite(self) -> bool:
        """Whether a finite element was measured at all."""
        return self.elements > self.nonfinite

    def overflows(self, dtype: str, margin: float = 2.0) -> bool:
        """Whether ``margin`` times the largest magnitude that was measured is beyond the low type's largest number."""
        return self.absmax * margin > low_type(dtype).largest

    def vanishing_share(self, dtype: str) -> float:
        """Of the measured elements that are finite and not zero, the share (0 to 1) that a low type rounds to zero; 0
        where there are none. For bfloat16 float32's own subnormals count as kept."""
        lowest = round(float(np.log2(low_type(dtype).smallest_subnormal))) - 1  # half of it is rounded to zero
        total = sum(self.exponents.values())
        lost = sum(count for exponent, count in self.exponents.items() if exponent < lowest)
        return lost / total if total else 0.0

    def scaled(self, exponent: int) -> Range:
        """The measured range of the elements times 2^-exponent; below 2^-126 they count as subnormals (-127), never as
        0."""
        factor = 2.0**-exponent
        exponents: Counter[int] = Counter()
        for e, count in self.exponents.items():
            exponents[max(e - exponent, -BIAS)] += count
        return replace(self, low=self.low * factor, high=self.high * factor, exponents=dict(exponents))

    def add(self, other: Range) -> None:
        """Takes in what another run of the same value saw: widens the extremes and adds the counts."""
        if other._finite:
            self.low = min(self.low, other.low) if self._finite else other.low
            self.high = max(self.high, other.high) if self._finite else other.high
        self.elements += other.elements
        self.zeros += other.zeros
        self.nonfinite += other.nonfinite
        for exponent, count in other.exponents.items():
            self.exponents[exponent] = self.exponents.get(exponent, 0) + count


def measure(array: Array) -> Range:
    """The `Range` of one array of any shape, taken as float32, in one pass over pieces of it."""
    found = Range()
    flat = np.ascontiguousarray(array, np.float32).reshape(-1)
    for start in range(0, flat.size, PART):
        found.add(_measure_piece(flat[start : start + PART]))
    return found


def _measure_piece(part: Array) -> Range:
    """The `Range` of one piece, a vector of float32; exponents are counted by their bits, without a logarithm."""
    fields = (part.view(np.uint32) >> np.uint32(23)) & np.uint32(255)
    counts = np.bincount(fields.astype(np.intp), minlength=256)
    nonfinite = int(counts[INFINITE])
    nonzero = int(np.count_nonzero(part))
    zeros = part.size - nonzero
    low = high = 0.0
    finite = part[np.isfinite(part)] if nonfinite else part
    if finite.size:
        low, high = float(finite.min()), float(finite.max())
    exponents = {int(e) - BIAS: int(counts[e]) for e in np.flatnonzero(counts[1:INFINITE]) + 1}
    if counts[ZERO] > zeros:
        exponents[-BIAS] = int(counts[ZERO]) - zeros
    return Range(low, high, int(part.size), zeros, nonfinite, exponents)


@dataclass(repr=False)
class Ranges:
    """The measured ranges of one model's float32 values. They hold for any model that has ``digest``.

    Attributes:
        digest: of the model that was measured (`Graph.digest`).
        samples: how many runs it were.
        values: `value_key` of a value -> its range.
        notes: where the samples are from, and what could not be observed, a sentence each.
    """

    digest: str
    samples: int = 0
    values: dict[str, Range] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def add(self, key: str, array: Array) -> None:
        """Measures one more array of the value that has this `value_key`."""
        self.values.setdefault(key, Range()).add(measure(array))

    def check(self, digest: str) -> None:
        """Raises AmpError AMP403 unless the ranges were measured on a model with this digest."""
        if self.digest != digest:
            message = "the ranges were measured on another model"
            hint = "measure this one (--data), with the same --opset; large weights may differ, all else may not"
            raise AmpError("AMP403", message, hint=hint)

    def scaled(self, renamed: Mapping[str, tuple[str, int]]) -> Ranges:
        """These ranges after values of the main graph were renamed and scaled: the old names are gone. ``renamed``: old
        name -> (new name, e) of a value, measured or not, that holds 2^-e of what it held."""
        old_keys = {escaped(name) for name in renamed}
        values = {key: known for key, known in self.values.items() if key not in old_keys}
        for name, (new_name, exponent) in renamed.items():
            known = self.values.get(escaped(name))
            if known is not None:
                values[escaped(new_name)] = known.scaled(exponent)
        return replace(self, values=values)

    # -- to look at ---------------------------------------------------------------------------------------------------

    def _widest(self) -> list[tuple[str, Range]]:
        """(key, range) of the values with the largest magnitudes, the largest first, as many as notebooks show."""
        return sorted(self.values.items(), key=lambda item: -item[1].absmax)[:SHOWN]

    def __repr__(self) -> str:
        widest = "".join(f", up to {held.absmax:.4g} in '{name}'" for name, held in self._widest()[:1])
        samples = f"{self.samples:,} sample{'' if self.samples == 1 else 's'}"
        return f"Ranges({len(self.values):,} values of {samples}{widest})"

    def _repr_html_(self) -> str:
        """For notebooks: the values that reach furthest."""
        rows = [
            (name, f"{held.low:.4g}", f"{held.high:.4g}", f"{100 * held.vanishing_share('float16'):.3g} %")
            for name, held in self._widest()
        ]
        return f"<p>{markup(repr(self))}</p>{table(('value', 'least', 'largest', 'lost to zero in float16'), rows)}"

    def to_dict(self) -> JsonObject:
        """Plain data for JSON, as in `to_json`."""
        found: JsonObject = json.loads(self.to_json())
        return found

    # -- JSON ---------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The ranges as text, a value a line; the same ranges give the same text."""
        head = {"ampgraph_ranges": FORMAT, "digest": self.digest, "samples": self.samples, "notes": list(self.notes)}
        parts = [f'"{key}": {json_line(value)}' for key, value in head.items()]
        rows = (f"{json_line(key)}: {json_line(_row_of_range(found))}" for key, found in self.values.items())
        return "{" + ",\n".join([*parts, '"values": {\n' + ",\n".join(rows) + "}"]) + "}\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the ranges to a file, whole or not at all. Raises AmpError AMP105."""
        with text_file(path, self.to_json):
            pass

    @staticmethod
    def from_json(text: str, where: str = "ranges") -> Ranges:
        """Reads ranges back. Raises AmpError AMP401 for any other text; ``where`` it is from, for the message."""
        try:
            data = json.loads(text)
            if data["ampgraph_ranges"] != FORMAT:
                message = f"ranges format {data['ampgraph_ranges']} is not {FORMAT}"
                raise AmpError("AMP401", message, where=where, hint="measure again with this version")
            values = {str(key): _range_from_row(row) for key, row in data["values"].items()}
            return Ranges(str(data["digest"]), int(data["samples"]), values, tuple(map(str, data["notes"])))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            hint = "write them with `ampgraph convert MODEL --data DIR --ranges-out FILE`"
            raise AmpError("AMP401", "are not ranges of ampgraph", where=where, hint=hint) from error

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Ranges:
        """Reads a file of ranges. Raises AmpError AMP401."""
        return Ranges.from_json(read_text(path, "ranges"), str(path))


def _row_of_range(found: Range) -> list[Any]:
    """A measured range as a row in JSON: [low, high, elements, zeros, nonfinite, first exponent, counts from there]."""
    first, last = min(found.exponents, default=0), max(found.exponents, default=-1)
    counts = [found.exponents.get(e, 0) for e in range(first, last + 1)]
    return [found.low, found.high, found.elements, found.zeros, found.nonfinite, first, counts]


def _range_from_row(row: Any) -> Range:
    """A measured range from its row in JSON; ValueError where that is none."""
    low, high, elements, zeros, nonfinite, first, counts = row
    whole = [elements, zeros, nonfinite, first, *counts]
    if not all(isinstance(n, int) for n in whole) or min(whole[:3]) < 0 or not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("not a range")
    exponents = {first + place: count for place, count in enumerate(counts) if count}
    return Range(float(low), float(high), elements, zeros, nonfinite, exponents)


# -- stored tensors beside the range of a low type ---------------------------------------------------------------------


def exceeds(flow: Dataflow, value: Value, limit: float, floor: float | None = None) -> bool:
    """For planner and conversion: whether a finite element of a stored tensor is larger in magnitude than ``limit``,
    once all that is below ``floor`` is raised to it (None: nothing is)."""
    for part in flow.weights.chunks(value):
        magnitude = np.abs(part) if floor is None else np.abs(np.maximum(part, floor))
        if magnitude.max(initial=0) > limit and (magnitude[np.isfinite(magnitude)] > limit).any():
            return True
    return False


# -- which value is meant ---------------------------------------------------------------------------------------------


def value_key(flow: Dataflow, value: int) -> str:
    """The key by which ranges name a value: its name, behind names of results of the calls and control-flow nodes
    around it, the outermost first: ``loop_out.body > y``.

    The key has no index in it, so that it stays when nodes are inserted or replaced around the value. A backslash
    stands before each ">" and "\\" of a name, so that " > " separates scopes alone."""
    item = flow.values[value]
    return f"{_scope_key(flow, item.scope)}{escaped(item.name)}"


def escaped(name: str) -> str:
    """A name as a part of a `value_key`, by which `Ranges` name a value."""
    return name.replace("\\", "\\\\").replace(">", "\\>")


def _scope_key(flow: Dataflow, scope: int) -> str:
    """The front part of a `value_key`, up to the last " > ": the bodies and functions around a value, each by the first
    named result of its node, else the node's name, and which body it is; "" for the main graph."""
    here = flow.scopes[scope]
    if here.op == NONE:
        return ""
    op = flow.ops[here.op]
    made = next((flow.values[v].name for v in op.outputs if flow.values[v].name), op.name)
    part = here.path.rpartition(".")[2] if here.kind == "body" else ""
    return f"{_scope_key(flow, here.parent)}{escaped(made)}{f'.{part}' if part else ''} > "


def ranges_by_value(flow: Dataflow, measured: Mapping[str, Range]) -> dict[int, Range]:
    """Measured ranges by `value_key`, as in `Ranges.values`, as ranges by the id of a dataflow's value."""
    keys = {key.rpartition(" > ")[2] for key in measured}  # most values need no key of their own
    found = {}
    for value in flow.values:
        if escaped(value.name) in keys and (held := measured.get(value_key(flow, value.id))) is not None:
            found[value.id] = held
    return found
