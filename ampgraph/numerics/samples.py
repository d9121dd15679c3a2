"""What a model is run on: samples from files, from a program, or generated where there are none."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..dataflow import Dataflow
from ..errors import AmpError
from ..formats import adapters
from ..runtime.data import load_npz
from ..runtime.onnxruntime import Port as Declared
from ..runtime.onnxruntime import check_feeds
from .generate import Generator, Port, numpy_type

COUNT = 8  # samples that are generated where nobody says how many
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Samples:
    """Feeds (arrays by input name), one after the other, as often as asked for. ``notes`` say where they are from."""

    generated: bool
    notes: tuple[str, ...]
    _count: int = field(repr=False)
    _start: Callable[[], Iterator[Feeds]] = field(repr=False)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Feeds]:
        return self._start()


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a model, and those that may be left out."""

    ports: dict[str, Declared]
    optional: frozenset[str]
    unranked: frozenset[str]  # whose shape the file does not say: they are never split

    def missing(self, arrays: Mapping[str, Any]) -> list[str]:
        """The inputs that have neither an array nor a default."""
        return [name for name in self.ports if name not in arrays and name not in self.optional]

    def checked(self, arrays: Mapping[str, Any], where: str) -> Feeds:
        """The arrays that are inputs, of the types and shapes that the model declares.

        Raises AmpError AMP503 for one that is missing, does not fit, or holds NaN. A float32 array for a float16 or
        bfloat16 input is rounded: files cannot name the latter.
        """
        ports = {name: port for name, port in self.ports.items() if name in arrays or name not in self.optional}
        if missing := self.missing(arrays):
            held = ", ".join(list(arrays)[:8]) or "nothing"
            hint = f"it holds {held}; the model takes {', '.join(ports)}"
            raise AmpError("AMP503", f"no array for input '{missing[0]}'", where=where, hint=hint)
        feeds = {name: _rounded(arrays[name], port.dtype) for name, port in ports.items()}
        try:
            feeds = check_feeds(ports, feeds, set())
        except AmpError as error:
            raise AmpError(error.code, error.message, where=where, hint=error.hint) from None
        for name, array in feeds.items():
            _refuse_nan(name, array, where)
        return feeds


def load_samples(
    model: Any,
    data: Any = None,
    count: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> Samples:
    """The samples to run a model on.

    Args:
        model: what `ampgraph.convert` takes, or a Graph of `ampgraph.formats`.
        data: None (inputs are generated from ``seed``), or
            an .npz file: one sample, but N where every input's array has one more dimension in front, or N times the
            leading size that the model fixes (``[1, 3, 224, 224]`` and 32 images). Where the model leaves its leading
            size open, all rows are one sample;
            a folder of .npz files: one sample each, in the order of their names, read one at a time;
            a mapping from input names to arrays: as a file; or an iterable of such mappings, a sample each.
            Arrays that are no inputs, such as labels, are left out, and ``notes`` says so.
        count: how many samples at most; all if None, and 8 where they are generated.
        seed: for generated inputs.
        dims: sizes of symbolic dimensions, for generated inputs.

    Raises:
        AmpError: AMP101 (no such file), AMP108 (not an .npz, an empty folder, no samples), AMP503 (an array that is
            missing, does not fit the model or holds NaN; an input that cannot be generated). Of a folder and of an
            iterable the first sample is looked at now, the others when their turn comes.
    """
    if count is not None and count < 1:
        raise AmpError("AMP503", f"{count} samples are asked for", hint="ask for 1 or more")
    flow, ports = _ports(model)
    if data is None:
        return _generated(flow, ports, COUNT if count is None else count, seed, dims)
    inputs = _Inputs(
        {p.name: Declared(p.name, p.dtype, p.shape) for p in ports},
        frozenset(p.name for p in ports if _has_default(flow, p)),
        frozenset(p.name for p in ports if flow.shape(p.value) is None),
    )
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        return _folder(path, inputs, count) if path.is_dir() else _arrays(load_npz(path), str(path), inputs, count)
    if isinstance(data, Mapping):
        return _arrays(data, "data", inputs, count)
    if isinstance(data, Iterable):
        return _iterable(data, inputs, count)
    told = f"cannot take samples from a {type(data).__name__}"
    raise AmpError("AMP108", told, hint="give an .npz file, a folder of them, or an iterable of mappings")


def _ports(model: Any) -> tuple[Dataflow, list[Port]]:
    """The dataflow of a model and its inputs, weights that are listed as inputs among them."""
    graph = model if hasattr(model, "dataflow") else adapters.load(model)[0]
    graph.prepare()
    flow = graph.dataflow()
    ports = []
    for value in flow.scopes[0].inputs:
        item = flow.values[value]
        dtype = "" if item.container else {"string": "object"}.get(item.dtype, item.dtype)
        ports.append(Port(item.name, dtype, tuple(flow.shape(value) or ()), value))
    return flow, ports


def _has_default(flow: Dataflow, port: Port) -> bool:
    """Whether an input is a weight that a caller may override (models of IR version 3)."""
    native = flow.values[port.value].native
    return hasattr(native, "is_initializer") and native.is_initializer()


def _generated(flow: Dataflow, ports: list[Port], count: int, seed: int, dims: Mapping[str, int] | None) -> Samples:
    needed = [port for port in ports if not _has_default(flow, port)]
    generator = Generator(flow, needed, seed, dims)
    return Samples(True, generator.notes(count), count, lambda: map(generator.sample, range(count)))


# -- files and programs -----------------------------------------------------------------------------------------------


def _arrays(arrays: Mapping[str, Any], where: str, inputs: _Inputs, count: int | None) -> Samples:
    """One set of arrays, split where all of them hold several samples."""
    held = {name: np.asarray(arrays[name]) for name in inputs.ports if name in arrays}
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


def _parts(held: Mapping[str, np.ndarray], inputs: _Inputs) -> tuple[int, dict[str, int]] | None:
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


def _folder(path: Path, inputs: _Inputs, count: int | None) -> Samples:
    files = sorted(file for file in path.iterdir() if file.suffix == ".npz" and file.is_file())
    if not files:
        hint = "put one .npz file for each sample in it"
        raise AmpError("AMP108", "the folder holds no .npz file", where=str(path), hint=hint)
    chosen = files[:count]
    first = load_npz(chosen[0])
    notes = _notes(str(path), len(chosen), len(files), inputs.checked(first, str(chosen[0])), first)
    return Samples(False, notes, len(chosen), lambda: (inputs.checked(load_npz(f), str(f)) for f in chosen))


def _iterable(data: Iterable[Any], inputs: _Inputs, count: int | None) -> Samples:
    """Read again each time where it has a length; what a generator gives is kept."""
    kept = data if isinstance(data, Sized) else list(itertools.islice(data, count))
    found = len(kept)
    if not found:
        raise AmpError("AMP108", "the data holds no sample", hint="give at least one mapping of input names to arrays")
    wanted = min(found, count or found)

    def samples() -> Iterator[Feeds]:
        for index, item in enumerate(itertools.islice(iter(kept), wanted)):
            if not isinstance(item, Mapping):
                told = f"sample {index} is a {type(item).__name__}, not a mapping of input names to arrays"
                raise AmpError("AMP503", told, hint=f"give {{{', '.join(map(repr, inputs.ports))}: array}}")
            yield inputs.checked(item, f"sample {index}")

    held = next(samples())
    return Samples(False, _notes("the iterable", wanted, found, held, next(iter(kept))), wanted, samples)


def _notes(where: str, used: int, found: int, held: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[str, ...]:
    told = [f"{used} sample{'s' * (used != 1)} from {where}" + (f" (of {found})" if found != used else "")]
    left = [name for name in arrays if name not in held]
    return (*told, f"left out, as no input has the name: {', '.join(left)}") if left else tuple(told)


def _rounded(value: Any, dtype: str) -> Any:
    array = np.asarray(value)
    if dtype in ("float16", "bfloat16") and array.dtype == np.float32:
        with np.errstate(over="ignore"):
            return array.astype(numpy_type(dtype))
    return array


def _refuse_nan(name: str, array: Any, where: str) -> None:
    """Raises AmpError AMP503 for NaN in data; infinities are let through, since masks have them."""
    if not isinstance(array, np.ndarray) or not (array.dtype.kind in "fc" or array.dtype.name == "bfloat16"):
        return
    bad = np.isnan(array if array.dtype.kind in "fc" else array.astype(np.float32))
    if bad.any():
        first = [int(i) for i in np.argwhere(bad)[0]]
        told = f"input '{name}' holds NaN: {int(bad.sum()):,} of {array.size:,} elements, the first at {first}"
        raise AmpError("AMP503", told, where=where, hint="repair the data: NaN in makes NaN out")
