"""Samples of the user's: files, folders, mappings, iterables, held against what a model takes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.arrays import Array, Result
from ...core.errors import AmpError, first_line
from ...runtime.data import cannot_read, load_npz
from ...runtime.ports import Port, check_feeds
from .generate import numpy_type
from .sample_set import Feeds, Samples

MOST = 256  # samples that are kept of an iterable where nobody says how many: it may have no end


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model, and those that may be left out."""

    ports: dict[str, Port]
    optional: frozenset[str]
    unranked: frozenset[str]  # whose shape the file does not say: they are never split

    @property
    def example(self) -> str:
        """What a sample looks like."""
        return f"{{{', '.join(f'{name!r}: array' for name in self.ports)}}}"

    def missing(self, arrays: Mapping[str, object]) -> list[str]:
        """The inputs that have neither an array nor a default."""
        return [name for name in self.ports if name not in arrays and name not in self.optional]

    def checked(self, arrays: Mapping[str, object], where: str) -> Feeds:
        """The arrays that are inputs, of the types and shapes that the model declares.

        Raises AmpError AMP503 for one that is missing, does not fit, or holds NaN, and where no input has rows. A
        float32 array for a float16 or bfloat16 input is rounded: files cannot name the latter.
        """
        ports = {name: port for name, port in self.ports.items() if name in arrays or name not in self.optional}
        if missing := self.missing(arrays):
            held = ", ".join(map(str, list(arrays)[:8])) or "nothing"
            hint = f"it holds {held}; the model takes {', '.join(ports)}"
            raise AmpError("AMP503", f"no array for input '{missing[0]}'", where=where, hint=hint)
        feeds = {name: _fed(port, arrays[name], where) for name, port in ports.items()}
        try:
            feeds = check_feeds(ports, feeds, set())
        except AmpError as error:
            raise AmpError(error.code, error.message, where=where, hint=error.hint) from None
        self._refuse_no_rows(feeds, where)
        for name, array in feeds.items():
            _refuse_nan(name, array, where)
        return feeds

    def _refuse_no_rows(self, feeds: Feeds, where: str) -> None:
        """One input may be empty, as a cache is at first, but not all that have rows."""
        open_ones = [n for n, array in feeds.items() if np.ndim(array) and not _fixed(self.ports[n].shape)]
        if open_ones and not any(len(feeds[name]) for name in open_ones):
            message = f"input '{open_ones[0]}' has 0 rows: nothing would be compared or measured"
            raise AmpError("AMP503", message, where=where, hint="give at least one row")


def from_arrays(arrays: Mapping[str, object], where: str, inputs: Inputs, count: int | None) -> Samples:
    """One set of arrays, split where all of them hold several samples."""
    held = {name: _array(name, arrays[name], where) for name in inputs.ports if name in arrays}
    parts = None if inputs.missing(arrays) else _parts(held, inputs)
    if parts is None:
        feeds = inputs.checked(arrays, where)
        return Samples(False, _notes(where, 1, 1, held, arrays), 1, lambda: iter([dict(feeds)]))
    number, steps = parts
    wanted = min(number, count or number)

    def part(index: int) -> Feeds:
        cut = {n: a[index] if steps[n] == 0 else a[index * steps[n] : (index + 1) * steps[n]] for n, a in held.items()}
        return inputs.checked(cut, f"{where}, sample {index}")

    for index in range(wanted):
        part(index)  # a mistake is told before anything runs
    return Samples(False, _notes(where, wanted, number, held, arrays), wanted, lambda: map(part, range(wanted)))


def _parts(held: Mapping[str, Array], inputs: Inputs) -> tuple[int, dict[str, int]] | None:
    """(how many samples, rows of each array in one; 0: the first dimension counts samples), None for one sample."""
    number, steps = 0, {}
    for name, array in held.items():
        shape = inputs.ports[name].shape
        if name in inputs.unranked:
            return None
        if array.ndim == len(shape) + 1:
            mine, step = array.shape[0], 0
        elif array.ndim == len(shape) and shape and isinstance(shape[0], int) and shape[0] > 0:
            mine, rest = divmod(array.shape[0], shape[0])
            step = shape[0]
            if rest or mine < 2:
                return None
        else:
            return None
        if number not in (0, mine):
            return None
        number, steps[name] = mine, step
    return (number, steps) if number else None


def from_path(given: str | os.PathLike[str], inputs: Inputs, count: int | None) -> Samples:
    """Samples from a file or a folder."""
    if not os.fspath(given):
        raise AmpError("AMP101", "no path is given for the data", hint="name an .npz file, or a folder of them")
    path = Path(given)
    try:
        folder = path.is_dir()
        files = sorted(f for f in path.iterdir() if f.suffix == ".npz" and f.is_file()) if folder else []
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from None
    return _folder(path, files, inputs, count) if folder else from_arrays(load_npz(path), str(path), inputs, count)


def _folder(path: Path, files: list[Path], inputs: Inputs, count: int | None) -> Samples:
    if not files:
        hint = "put one .npz file for each sample in it"
        raise AmpError("AMP108", "the folder holds no .npz file", where=str(path), hint=hint)
    chosen = files[:count]
    first = load_npz(chosen[0])
    notes = _notes(str(path), len(chosen), len(files), inputs.checked(first, str(chosen[0])), first)
    return Samples(False, notes, len(chosen), lambda: (inputs.checked(load_npz(f), str(f)) for f in chosen))


def from_list(
    data: list[Mapping[str, object]] | tuple[Mapping[str, object], ...], inputs: Inputs, count: int | None
) -> Samples:
    if not data:
        raise _no_sample()
    wanted = min(len(data), count or len(data))

    def samples() -> Iterator[Feeds]:
        return (inputs.checked(_mapping(item, i, inputs), f"sample {i}") for i, item in enumerate(data[:wanted]))

    return Samples(False, _notes("the iterable", wanted, len(data), next(samples()), data[0]), wanted, samples)


def from_iterable(data: Iterable[Mapping[str, object]], inputs: Inputs, count: int | None) -> Samples:
    """Read once and copied: another pass may give other samples or none, and a buffer may be filled again."""
    try:
        source = iter(data)
        size = len(data) if isinstance(data, Sized) else 0
    except TypeError as error:
        message = f"cannot take samples from a {type(data).__name__}: {first_line(error)}"
        raise AmpError("AMP108", message, hint=f"give a list of mappings such as {inputs.example}") from None
    most = MOST if count is None else count
    kept: list[Feeds] = []
    names: dict[Any, None] = {}
    for index, item in enumerate(itertools.islice(source, most)):
        feeds = inputs.checked(_mapping(item, index, inputs), f"sample {index}")
        kept.append({name: array.copy() if isinstance(array, np.ndarray) else array for name, array in feeds.items()})
        names = names or dict.fromkeys(item)
    if not kept:
        raise _no_sample()
    more = count is None and len(kept) == MOST and next(source, None) is not None
    found = size if len(kept) == count and size > count else len(kept)
    notes = _notes("the iterable", len(kept), found, kept[0], names)
    if more:
        hint = "a list is used to its end; or say how many"
        notes = (notes[0], f"the iterable has more than {MOST} samples, the rest was not read: {hint}", *notes[1:])
    return Samples(False, notes, len(kept), lambda: map(dict, kept))


def _mapping(item: Any, index: int, inputs: Inputs) -> Mapping[str, Result]:
    if not isinstance(item, Mapping):
        message = f"sample {index} is a {type(item).__name__}, not a mapping of input names to arrays"
        raise AmpError("AMP503", message, hint=f"give {inputs.example}")
    return item


def _no_sample() -> AmpError:
    return AmpError("AMP108", "the data holds no sample", hint="give at least one mapping of input names to arrays")


def _notes(where: str, used: int, found: int, held: Mapping[str, Result], arrays: Iterable[Any]) -> tuple[str, ...]:
    message = [f"{used} sample{'s' * (used != 1)} from {where}" + (f" (of {found})" if found != used else "")]
    left = [str(name) for name in arrays if name not in held]
    return (*message, f"left out, as no input has the name: {', '.join(left)}") if left else tuple(message)


def _fixed(shape: tuple[int | str | None, ...]) -> bool:
    """Whether the model says how many rows there are."""
    return bool(shape) and isinstance(shape[0], int) and shape[0] >= 0


def _array(name: str, value: Result, where: str) -> Array:
    """What was given for an input as an array; a sequence stays one in an array of objects."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged rows; a tensor on another device
        message = f"what is given for input '{name}' is no array: {first_line(error)}"
        raise AmpError("AMP503", message, where=where, hint="give numbers that np.asarray takes") from None


def _fed(port: Port, value: Result, where: str) -> Result:
    """What is given for an input as the model takes it; a map for what is no tensor stays one."""
    if not port.dtype and isinstance(value, Mapping):
        return value
    return _rounded(_array(port.name, value, where), port.dtype)


def _rounded(array: Array, dtype: str) -> Array:
    if dtype in ("float16", "bfloat16") and array.dtype == np.float32:
        with np.errstate(over="ignore"):
            return array.astype(numpy_type(dtype))
    return array


def _refuse_nan(name: str, array: Result, where: str) -> None:
    """Raises AmpError AMP503 for NaN in data; infinities are let through, since masks have them."""
    if not isinstance(array, np.ndarray) or not (array.dtype.kind in "fc" or array.dtype.name == "bfloat16"):
        return
    bad = np.isnan(array if array.dtype.kind in "fc" else array.astype(np.float32))
    if bad.any():
        first = [int(i) for i in np.argwhere(bad)[0]]
        message = f"input '{name}' holds NaN: {int(bad.sum()):,} of {array.size:,} elements, the first at {first}"
        raise AmpError("AMP503", message, where=where, hint="repair the data: NaN in makes NaN out")
