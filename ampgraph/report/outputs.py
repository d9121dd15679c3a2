"""What a run gave, in a line for each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.shown import Data
from ..runtime.executed import ExecutedLayer, by_precision


@dataclass(frozen=True)
class Output(Data):
    """One output of a run: its type and shape, the range and mean of its finite elements (None where there are none, or
    it holds no numbers), how many are infinite or NaN."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    smallest: float | None
    largest: float | None
    mean: float | None
    infinite: int
    nan: int

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape)) or "scalar"
        line = f"{self.name}  {self.dtype} {sizes}"
        if self.smallest is not None:
            line += f"  {self.smallest:.6g} to {self.largest:.6g}, mean {self.mean:.6g}"
        if self.infinite or self.nan:
            line += f"  {self.infinite} infinite, {self.nan} NaN"
        return line


def layer_lines(layers: Sequence[ExecutedLayer]) -> list[str]:
    """A report's lines on what a runtime computed in which float type, constants, inputs and outputs left out, the most
    frequent kinds first: `104 bfloat16: 44 Transpose, 24 FullyConnected`."""
    return [
        f"{kinds.total()} {dtype}: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"
        for dtype, kinds in by_precision(layers).items()
    ]


def describe_outputs(outputs: Mapping[str, object]) -> list[Output]:
    """The report of a run: a row for every output by name; sequences and texts are described by their type alone."""
    return [_output_of(name, value) for name, value in outputs.items()]


def maps_in(value: object) -> list[Mapping[object, float]]:
    """Report of a run: the maps (label -> probability) of an output that is one or a list of them; else none."""
    items = value if isinstance(value, list) else [value]
    maps = [item for item in items if isinstance(item, Mapping)]
    return maps if len(maps) == len(items) else []


def _output_of(name: str, value: object) -> Output:
    """Report of a run: type, shape and extremes of one output; of maps those of their numbers."""
    maps = maps_in(value)
    if maps:
        array = np.asarray([list(item.values()) for item in maps])
        kind = f"sequence of {len(maps)} maps" if isinstance(value, list) else "map"
    elif isinstance(value, list):
        array, kind = np.empty(0, object), f"sequence of {len(value)}"
    else:
        array = np.asarray(value)
        kind = str(array.dtype)
    if array.dtype.kind not in "iufbV" or array.dtype.hasobject:
        return Output(name, kind, array.shape, None, None, None, 0, 0)
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    infinite, nan = int(np.isinf(numbers).sum()), int(np.isnan(numbers).sum())
    if not finite.size:
        return Output(name, kind, array.shape, None, None, None, infinite, nan)
    smallest, largest, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    return Output(name, kind, array.shape, smallest, largest, mean, infinite, nan)
