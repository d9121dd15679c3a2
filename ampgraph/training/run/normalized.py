"""Data whose numbers are brought to a common scale on their way to the step: (x scale - mean) / std, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from ...core.arrays import Array
from ...core.errors import AmpError, is_number
from ...runtime.ports import Port

HINT = "--normalize MEAN,STD, each one number or one for each channel: '0.49 0.48 0.45,0.25 0.24 0.26'"
HINTS = {"--normalize": HINT, "--scale": "--scale FACTOR, a number or a fraction: 1/255"}


@dataclass(frozen=True)
class Normalized:
    """Training data of any kind, of which a float32 input becomes (x scale - mean) / std; labels stay what they are.

    ``mean`` and ``std``: one number, or one for each channel: along axis 1 of the input, or its last one, whichever has
    that size. ``input``: which one, where there are several. Raises AmpError AMP325 for numbers that make no sense.
    """

    data: object
    scale: float = 1.0
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    input: str = ""

    def __post_init__(self) -> None:
        mean, std = _finite_numbers("mean", self.mean), _finite_numbers("std", self.std)
        if not is_number(self.scale) or not math.isfinite(self.scale) or not self.scale:
            raise AmpError("AMP325", f"scale={self.scale} cannot scale data", hint="--scale 1/255")
        if min(std) <= 0:
            raise AmpError("AMP325", f"std={min(std):g} divides the data, and is not above 0", hint=HINT)
        if len(mean) > 1 < len(std) != len(mean):
            raise AmpError("AMP325", f"there are {len(mean)} means and {len(std)} deviations", hint=HINT)
        for name, value in (("mean", mean), ("std", std)):
            object.__setattr__(self, name, value)

    def rows(
        self, ports: Mapping[str, Port], labels: str
    ) -> tuple[Callable[[Mapping[str, Array]], dict[str, Array]], str]:
        """What is done to rows of data, and words that tell it. Raises AmpError AMP325 where it cannot be done."""
        name = self._chosen([name for name, port in ports.items() if port.dtype == "float32" and name != labels])
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        shape = [1] * len(ports[name].shape)
        if (count := max(mean.size, std.size)) > 1:
            shape[_channel_axis(ports[name], count)] = count
        factor, offset = ((self.scale / std) + 0 * mean).astype(np.float32), (0 - mean / std).astype(np.float32)
        factor, offset = factor.reshape(shape), offset.reshape(shape)

        def normalized(rows: Mapping[str, Array]) -> dict[str, Array]:
            return {**rows, name: rows[name] * factor + offset}

        return normalized, f"{name}: {self.scale!r} {self.mean} {self.std}"

    def _chosen(self, names: Sequence[str]) -> str:
        """The input that is normalised: the one named, or the only float32 one; AmpError AMP325 otherwise."""
        if self.input:
            if self.input not in names:
                message = f"'{self.input}' is not a float32 input to normalise"
                raise AmpError("AMP325", message, hint=f"there are: {', '.join(names) or 'none'}")
            return self.input
        if len(names) != 1:
            message = f"{len(names) or 'no'} inputs can be normalised" + (f": {', '.join(names)}" if names else "")
            raise AmpError("AMP325", message, hint="name it: --normalize INPUT=MEAN,STD, --scale INPUT=1/255")
        return names[0]


def normalized(data: str, normalize: Iterable[str] | None, scales: Iterable[str] | None) -> str | Normalized:
    """A path, normalised by the words of a command line: ``[INPUT=]MEAN,STD`` and ``[INPUT=]FACTOR``.

    Raises AmpError AMP325.
    """
    factors = dict(_input_and_rest("--scale", text) for text in scales or ())
    centres = dict(_input_and_rest("--normalize", text) for text in normalize or ())
    made: str | Normalized = data
    for name in dict.fromkeys((*factors, *centres)):
        mean, comma, std = centres.get(name, "0,1").partition(",")
        if not comma:
            raise AmpError("AMP325", f"--normalize {mean} is not MEAN,STD", hint=HINT)
        scale = _parse_factor("--scale", factors.get(name, "1"))
        made = Normalized(made, scale, _parse_row(mean), _parse_row(std), name)
    return made


def _input_and_rest(option: str, text: str) -> tuple[str, str]:
    """INPUT and the rest of an option's text INPUT=REST; the name is empty where none is given."""
    name, equals, rest = text.rpartition("=")
    if equals and not name:
        raise AmpError("AMP325", f"{option} {text} names no input", hint=f"{option} INPUT={rest}")
    return name.strip(), rest


def _parse_row(text: str) -> list[float]:
    """The numbers of a text, separated by spaces."""
    return [_parse_factor("--normalize", word) for word in text.split()]


def _parse_factor(option: str, text: str) -> float:
    """A number, or a fraction like 1/255."""
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise AmpError("AMP325", f"{option}: '{text}' is not a number", hint=HINTS[option]) from None


def _finite_numbers(name: str, given: float | Sequence[float]) -> tuple[float, ...]:
    """``mean`` or ``std`` as a tuple of finite numbers; AmpError AMP325 names the option otherwise."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    numbers: list[object] = list(cast("Iterable[object]", given)) if several else [given]
    if not numbers or not all(is_number(number) and math.isfinite(cast(float, number)) for number in numbers):
        raise AmpError("AMP325", f"{name}={given!r} is neither a number nor one for each channel", hint=HINT)
    return tuple(float(cast(float, number)) for number in numbers)


def _channel_axis(port: Port, count: int) -> int:
    """The axis of the channels. Raises AmpError AMP325 where none or two may be it."""
    found = {axis for axis in (1, len(port.shape) - 1) if 0 < axis < len(port.shape) and port.shape[axis] == count}
    if len(found) == 1:
        return found.pop()
    sizes = ", ".join(str(size) for size in port.shape)
    why = "two axes have that size" if found else "neither axis 1 nor the last one has that size"
    hint = "give one number for all, or normalise in the module"
    raise AmpError("AMP325", f"{count} channels, and '{port.name}' is [{sizes}]: {why}", hint=hint)
