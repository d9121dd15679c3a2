"""What a model is run on: samples from files, from a program, or generated where there are none."""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.arrays import Array, Result
from ...core.dataflow import NONE, Dataflow
from ...core.errors import AmpError, NoMemory, Unmatched, first_line, is_whole, nearest
from ...core.graph import Graph
from ...core.low_types import numpy_type
from ...formats import adapters
from ...formats.kinds import Model, is_graph
from ...runtime.data import arrays_by_input, load_npz, refuse_missing, unreadable_error
from ...runtime.ports import Port, check_feeds
from .generate import Generator
from .painted import EDGE
from .sizes import GraphInput, Place
from .states import CachePair, ReachedStates, pairs_by_name

HINTS = 12  # sizes of weights that an input may have
MOST_SAMPLES = 1_000_000  # that can be asked for
COUNT = 8  # samples that are generated where nobody says how many
MOST = 256  # samples that are kept of an iterable where nobody says how many: it may have no end

Feeds = dict[str, Array]
Learnt = Mapping[Place, int]


@dataclass(frozen=True)
class Samples:
    """The samples to run a model on: feeds (arrays by input name), one after the other, as often as asked for.

    Attributes:
        generated: whether they were made up; ``notes``: lines for the report on where they are from.
        _start: begins another pass over all ``_count`` samples, which gives the same ones.
        _resized: of generated samples: makes them with sizes that were learnt; also gives the sizes it still guesses.
        _hints: sizes of stored tensors, tried where a guessed size fails; ``_states``: inputs fed by the run before.
        _wide: as `is_wide`; ``_counted``: whether an integer input may count rows of the others.
    """

    generated: bool
    notes: tuple[str, ...]
    _count: int = field(repr=False)
    _start: Callable[[], Iterator[Feeds]] = field(repr=False)
    _resized: Callable[[Learnt], tuple[Samples, Learnt]] | None = field(default=None, repr=False)
    _hints: tuple[int, ...] = field(default=(), repr=False)
    _states: tuple[CachePair, ...] = field(default=(), repr=False)
    _wide: Callable[[int], bool] = field(default=lambda index: False, repr=False)
    _counted: bool = field(default=False, repr=False)

    def is_wide(self, index: int) -> bool:
        """Whether sample ``index`` was generated with larger numbers than usual, as real ones may be larger too."""
        return self._wide(index)

    def without_wide(self) -> Samples:
        """The samples that are not wide (`is_wide`). To be asked after `fit_to`, which may make all samples anew."""
        kept = [not self._wide(index) for index in range(self._count)]
        if all(kept):
            return self
        some = lambda: itertools.compress(self._start(), kept)  # noqa: E731  # a generator has no length
        return replace(self, _count=sum(kept), _start=some, _wide=lambda index: False)

    def fit_to(self, run: Callable[[Feeds], Mapping[str, Result]]) -> Samples:
        """The samples as the model takes them: unchanged if they were given; generated ones with sizes with which it
        runs, and with the states that it reaches.

        ``run`` runs the model on one sample, and gives its outputs. Raises AmpError AMP504 where no sizes are found.
        """
        fitting = self._with_sizes_that_run(run)._with_first_integers(run)
        if not self._states:
            return fitting
        names = " and ".join(f"'{pair.past}'" for pair in self._states)
        said = f"{names}: zero at first, then what the model makes of the sample before"
        states = ReachedStates(fitting, self._states, run)
        return replace(fitting, notes=(*fitting.notes, said), _start=lambda: iter(states))

    def _with_first_integers(self, run: Callable[[Feeds], object]) -> Samples:
        """Generated samples, which all get the integers of the first one where ``run`` fails on the second: integers
        that count rows of other inputs must fit these. The first sample is taken to run."""
        two = list(itertools.islice(self, 2)) if self._counted else []
        if len(two) < 2:
            return self
        held = {name: array for name, array in two[0].items() if array.dtype.kind in "iu"}
        try:
            run(two[1])
        except AmpError as error:
            if error.code != "AMP504" or isinstance(error, NoMemory):
                raise
            start = self._start
            return replace(self, _start=lambda: ({**feeds, **held} for feeds in start()))
        return self

    def _with_sizes_that_run(self, run: Callable[[Feeds], object]) -> Samples:
        """Generated samples with sizes of open dimensions with which ``run`` does not fail, found by trying; given
        samples, and those of which no size was guessed, as they are. Raises AmpError AMP504 where none are found."""
        if self._resized is None or not self._resized({})[1]:
            return self
        resized = self._resized

        def attempt(learnt: Learnt) -> tuple[str, Learnt]:
            samples, places = resized(learnt)
            try:
                run(next(iter(samples)))
            except AmpError as error:
                if error.code != "AMP504" or isinstance(error, NoMemory):
                    raise
                return error.message, places
            return "", places

        learnt, failure = sizes_that_run(attempt, self._hints)
        if learnt is None:
            raise AmpError("AMP504", f"no generated input fits: {failure}", hint="give --data, or sizes with --dim")
        return resized(learnt)[0]

    def first(self, number: int) -> Samples:
        """The first ``number`` samples, or all if there are fewer. To be asked after `fit_to`, which forgets it."""
        return replace(self, _count=min(number, self._count), _start=lambda: itertools.islice(self._start(), number))

    def within(self, number: int, seconds: float) -> Samples:
        """The first ``number`` samples; each pass over them ends after ``seconds``, but gives one at least."""

        def some() -> Iterator[Feeds]:
            until = time.monotonic() + seconds
            for place, feeds in enumerate(self.first(number)):
                if place and time.monotonic() > until:
                    return
                yield feeds

        return replace(self.first(number), _start=some)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Feeds]:
        return self._start()


def load_samples(
    model: Model | Graph,
    data: object = None,
    count: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    lacking: Collection[str] = (),
) -> Samples:
    """The samples to run a model on.

    Args:
        model: what `ampgraph.convert` takes, or a Graph of `ampgraph.formats`.
        data: None (inputs are generated from ``seed``), or
            an .npz file: one sample, but N where every input's array has one more dimension in front, or N times the
            leading size that the model fixes (``[1, 3, 224, 224]`` and 32 images). Where the model leaves its leading
            size open, all rows are one sample;
            a folder of .npz files: one sample each, in the order of their names, read one at a time;
            a mapping from input names to arrays: as a file; or an iterable of such mappings, a sample each. A list or
            tuple is used as it is. Anything else (a generator, a DataLoader) is read once, and its arrays are copied
            and kept in memory, since another pass may give other samples: ``count`` of them, or 256.
            Arrays that are no inputs, such as labels, are left out, and ``notes`` says so.
        count: how many samples at most; all if None, and 8 where they are generated.
        seed: for generated inputs.
        dims: sizes of symbolic dimensions, for generated inputs.
        lacking: inputs that data may leave out.

    Raises:
        AmpError: AMP101 (a path that cannot be read), AMP108 (not an .npz, an empty folder, no samples), AMP310 (a
            dimension that the model does not have), AMP503 (an array that is missing, does not fit the model, has no
            rows or holds NaN; an input that cannot be generated). Of a folder and of a list the first sample is looked
            at now, the others when their turn comes.
    """
    count, seed = _check_count_and_seed(count, seed)
    graph = model if is_graph(model) else adapters.load(model)[0]
    check_dims(graph, dims or {})
    flow, ports = _flow_and_inputs(graph)
    if data is None:
        return _generate_samples(flow, ports, COUNT if count is None else count, seed, dims or {})
    inputs = Inputs(
        {p.name: p for p in ports},
        frozenset(p.name for p in ports if _has_default(flow, p) or p.name in lacking),
        frozenset(p.name for p in ports if flow.shape(p.value) is None),
    )
    if isinstance(data, (str, os.PathLike)):
        return _from_path(data, inputs, count)
    if isinstance(data, Mapping):
        return _from_arrays(data, "data", inputs, count)
    if isinstance(data, (list, tuple)):
        return _from_list(data, inputs, count)
    if isinstance(data, Iterable) and not hasattr(data, "__array__"):
        return _from_iterable(data, inputs, count)
    message = f"cannot take samples from a {type(data).__name__}"
    hint = f"give an .npz file, a folder of them, or an iterable of mappings such as {inputs.example}"
    raise AmpError("AMP108", message, hint=hint)


def _check_count_and_seed(count: int | None, seed: int) -> tuple[int | None, int]:
    """Samples: ``count`` (None: not said) and ``seed`` as Python's integers, which may come as numpy's. AmpError AMP503
    for what is no whole number, and for a count that is not 1 to `MOST_SAMPLES`."""
    if count is not None and not (is_whole(count) and 0 < count <= MOST_SAMPLES):
        hint = f"ask for a whole number, 1 to {MOST_SAMPLES:,}"
        raise AmpError("AMP503", f"{count!r} samples are asked for", hint=hint)
    if not is_whole(seed):
        raise AmpError("AMP503", f"seed {seed!r} is not a whole number", hint="for example 0")
    return None if count is None else int(count), int(seed)


def check_dims(graph: Graph, dims: Mapping[str, int]) -> None:
    """Samples: raises AmpError AMP310 where ``dims``, sizes by dimension, name a dimension that the model does not have
    or a size that is no whole number from 1 on."""
    names = sorted(graph.dimensions()) if dims else []
    there = f"there are: {', '.join(names[:8])}" if names else "all its dimensions are numbers"
    for name, size in dims.items():
        if name not in names:
            message = f"--dim {name}: the model has no dimension of that name"
            raise Unmatched("AMP310", message, hint=nearest(str(name), names) or there, word=f"{name}={size}")
        if not is_whole(size) or size < 1:
            raise AmpError("AMP310", f"--dim {name}={size!r} is not a size", hint=f"for example --dim {name}=8")


def _flow_and_inputs(graph: Any) -> tuple[Dataflow, list[GraphInput]]:
    """Samples: a graph's dataflow, prepared in place, and its inputs, also initializers that callers may replace."""
    graph.prepare()
    flow = graph.dataflow()
    ports = []
    for value in flow.scopes[0].inputs:
        item = flow.values[value]
        dtype = "" if item.container else {"string": "object"}.get(item.dtype, item.dtype)
        ports.append(GraphInput(item.name, dtype, tuple(flow.shape(value) or ()), value=value))
    return flow, ports


def _has_default(flow: Dataflow, port: GraphInput) -> bool:
    """Whether an input is a weight that a caller may override (models of IR version 3)."""
    native = flow.values[port.value].native
    return hasattr(native, "is_initializer") and native.is_initializer()


def _generate_samples(
    flow: Dataflow, ports: list[GraphInput], count: int, seed: int, dims: Mapping[str, int]
) -> Samples:
    """Generated samples, ``count`` of them, for the inputs ``ports`` but those with a default; ``dims``: the user's
    sizes. Where a guessed size fails, sizes of stored tensors are hints."""
    needed = [port for port in ports if not _has_default(flow, port)]
    weights = (flow.values[v] for op in flow.ops for v in op.inputs if v != NONE and flow.values[v].weight)
    sizes = (size for item in weights for size in flow.shape(item.id) or () if isinstance(size, int) and size > 1)

    def resized(learnt: Learnt) -> tuple[Samples, Learnt]:
        made = Generator(flow, needed, seed, dims, learnt)
        drawn = Samples(True, made.notes(count), count, lambda: map(made.sample, range(count)), resized)
        return replace(drawn, _wide=made.is_wide, _counted=made.may_count_rows()), made.places()

    hints = tuple(itertools.islice(dict.fromkeys(sizes), HINTS))
    return replace(resized({})[0], _hints=hints, _states=tuple(_fed_back_states(flow, needed)))


def _fed_back_states(flow: Dataflow, ports: Sequence[GraphInput]) -> Iterator[CachePair]:
    """Samples: the float inputs that take an output of the run before, each with that output, by their names; caches
    that grow from step to step are left out."""
    outputs = (flow.values[v] for v in flow.scopes[0].outputs)
    given = {item.name: Port(item.name, item.dtype, tuple(flow.shape(item.id) or ())) for item in outputs}
    taken = {port.name: port for port in ports if "float" in port.dtype}
    for pair in pairs_by_name(taken, given):
        sizes = zip(taken[pair.past].shape, given[pair.present].shape, strict=True)
        if pair.axis is None and not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
            yield pair


# -- the user's: files, folders, mappings, iterables ------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model by name, which the user's samples are checked against."""

    ports: Mapping[str, Port]
    optional: frozenset[str]  # that a sample may leave out
    unranked: frozenset[str]  # whose rank the file does not say: their arrays are one sample, never split

    @property
    def example(self) -> str:
        """What a sample of all inputs looks like, ``{'x': array}``, for a hint."""
        return f"{{{', '.join(f'{name!r}: array' for name in self.ports)}}}"

    def missing(self, arrays: Mapping[str, object]) -> list[str]:
        """The inputs of the model that have neither an array in the sample nor a default."""
        return [name for name in self.ports if name not in arrays and name not in self.optional]

    def check_sample(self, arrays: Mapping[str, object], where: str) -> Feeds:
        """The feeds of a sample: its arrays that are inputs, in the types and shapes that the model declares.

        Raises AmpError AMP503 for one that is missing, does not fit, or holds NaN, and where no input has rows. A
        float32 array for a float16 or bfloat16 input is rounded: files cannot name the latter.
        """
        ports = {name: port for name, port in self.ports.items() if name in arrays or name not in self.optional}
        refuse_missing(ports, arrays, "the model", where)
        feeds = {name: _to_feed(port, arrays[name], where) for name, port in ports.items()}
        try:
            feeds = check_feeds(ports, feeds, set())
        except AmpError as error:
            raise AmpError(error.code, error.message, where=where, hint=error.hint) from None
        self._refuse_no_rows(feeds, where)
        for name, array in feeds.items():
            _refuse_nan(name, array, where)
        return feeds

    def read(self, path: Path) -> dict[str, Array]:
        """The arrays of an .npz file by name, not yet checked; names as `arrays_by_input` mends them."""
        return arrays_by_input(load_npz(path), self.ports, [name for name in self.ports if name not in self.optional])

    def check_item(self, item: object, index: int) -> Feeds:
        """The feeds of sample ``index`` of a list or iterable, by `check_sample`. AmpError AMP503 for no mapping."""
        if not isinstance(item, Mapping):
            message = f"sample {index} is a {type(item).__name__}, not a mapping of input names to arrays"
            raise AmpError("AMP503", message, hint=f"give {self.example}")
        return self.check_sample(item, f"sample {index}")

    def _refuse_no_rows(self, feeds: Feeds, where: str) -> None:
        """Raises AmpError AMP503 where all inputs with an open number of rows have 0: one may, as a cache at first."""
        open_ones = [n for n, array in feeds.items() if np.ndim(array) and not _fixes_rows(self.ports[n].shape)]
        if open_ones and not any(len(feeds[name]) for name in open_ones):
            message = f"input '{open_ones[0]}' has 0 rows: nothing would be compared or measured"
            raise AmpError("AMP503", message, where=where, hint="give at least one row")


def _fixes_rows(shape: tuple[int | str | None, ...]) -> bool:
    """Samples: whether the model fixes the number of rows, the first size; -1 leaves it open."""
    return bool(shape) and isinstance(shape[0], int) and shape[0] >= 0


def _from_arrays(arrays: Mapping[str, object], where: str, inputs: Inputs, count: int | None) -> Samples:
    """Samples of one set of arrays by name, split where all of them hold several samples: the first ``count``, all for
    None. All are checked at once; ``where``: the file or "data", for notes and messages."""
    held = {name: _to_array(name, arrays[name], where) for name in inputs.ports if name in arrays}
    parts = None if inputs.missing(arrays) else _split_sizes(held, inputs)
    if parts is None:
        feeds = inputs.check_sample(arrays, where)
        return Samples(False, _notes(where, 1, 1, held, arrays), 1, lambda: iter([dict(feeds)]))
    number, steps = parts
    wanted = min(number, count or number)

    def part(index: int) -> Feeds:
        cut = {n: a[index] if steps[n] == 0 else a[index * steps[n] : (index + 1) * steps[n]] for n, a in held.items()}
        return inputs.check_sample(cut, f"{where}, sample {index}")

    for index in range(wanted):
        part(index)  # a mistake is told before anything runs
    return Samples(False, _notes(where, wanted, number, held, arrays), wanted, lambda: map(part, range(wanted)))


def _split_sizes(held: Mapping[str, Array], inputs: Inputs) -> tuple[int, dict[str, int]] | None:
    """How many samples arrays by input hold, and how many rows of each are one sample (0: an array has a dimension more
    than its input, which counts the samples). None where all of it is one sample."""
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


def _from_path(given: str | os.PathLike[str], inputs: Inputs, count: int | None) -> Samples:
    """Samples from an .npz file, which may hold several, or a folder of files with one each; ``count`` at most."""
    if not os.fspath(given):
        raise AmpError("AMP101", "no path is given for the data", hint="name an .npz file, or a folder of them")
    path = Path(given)
    try:
        folder = path.is_dir()
        files = sorted(f for f in path.iterdir() if f.suffix == ".npz" and f.is_file()) if folder else []
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from None
    if not folder:
        return _from_arrays(inputs.read(path), str(path), inputs, count)
    if not files:
        hint = "put one .npz file for each sample in it"
        raise AmpError("AMP108", "the folder holds no .npz file", where=str(path), hint=hint)
    chosen = files[:count]
    first = inputs.read(chosen[0])
    notes = _notes(str(path), len(chosen), len(files), inputs.check_sample(first, str(chosen[0])), first)
    return Samples(False, notes, len(chosen), lambda: (inputs.check_sample(inputs.read(f), str(f)) for f in chosen))


def _from_list(data: Sequence[Mapping[str, object]], inputs: Inputs, count: int | None) -> Samples:
    """Samples from a list of mappings, the first ``count`` or all for None; only the first of them is checked now."""
    if not data:
        raise _no_sample()
    wanted = data[:count]
    notes = _notes("the iterable", len(wanted), len(data), inputs.check_item(data[0], 0), data[0])
    return Samples(False, notes, len(wanted), lambda: (inputs.check_item(item, i) for i, item in enumerate(wanted)))


def _from_iterable(data: Iterable[Mapping[str, object]], inputs: Inputs, count: int | None) -> Samples:
    """Samples of an iterable, the first ``count`` (None: `MOST`), copied: another pass may give others, or none."""
    try:
        source = iter(data)
        size = len(data) if isinstance(data, Sized) else 0
    except TypeError as error:
        message = f"cannot take samples from a {type(data).__name__}: {first_line(error)}"
        raise AmpError("AMP108", message, hint=f"give a list of mappings such as {inputs.example}") from None
    kept: list[Feeds] = []
    names: dict[Any, None] = {}
    for index, item in enumerate(itertools.islice(source, MOST if count is None else count)):
        feeds = inputs.check_item(item, index)
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


def _no_sample() -> AmpError:
    """The error for samples to run a model on that hold nothing."""
    return AmpError("AMP108", "the data holds no sample", hint="give at least one mapping of input names to arrays")


def _notes(where: str, used: int, found: int, held: Mapping[str, Result], arrays: Iterable[Any]) -> tuple[str, ...]:
    """Notes on the user's samples: how many of those ``found`` are used, and which of ``arrays`` no input takes;
    ``held``: arrays that an input takes, by name, ``where``: what they are from."""
    message = [f"{used} sample{'s' * (used != 1)} from {where}" + (f" (of {found})" if found != used else "")]
    left = [str(name) for name in arrays if name not in held]
    return (*message, f"left out, as no input has the name: {', '.join(left)}") if left else tuple(message)


def _to_array(name: str, value: Result, where: str) -> Array:
    """What the user gave for input ``name`` of a sample as an array; AmpError AMP503 for rows of unequal lengths."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged rows; a tensor on another device
        message = f"the value of input '{name}' is not an array: {first_line(error)}"
        raise AmpError("AMP503", message, where=where, hint="give numbers that np.asarray takes") from None


def _to_feed(port: Port, value: Result, where: str) -> Result:
    """What the user gave for an input of a sample as an array: float32 rounded where the input is float16 or bfloat16,
    any other type left for `check_feeds`; a mapping as it is for an input that is no tensor."""
    if not port.dtype and isinstance(value, Mapping):
        return value
    array = _to_array(port.name, value, where)
    if port.dtype in ("float16", "bfloat16") and array.dtype == np.float32:
        with np.errstate(over="ignore"):
            return array.astype(numpy_type(port.dtype))
    return array


def _refuse_nan(name: str, array: Result, where: str) -> None:
    """Raises AmpError AMP503 for NaN in the user's samples; infinities are let through, since masks have them."""
    if not isinstance(array, np.ndarray) or not (array.dtype.kind in "fc" or array.dtype.name == "bfloat16"):
        return
    bad = np.isnan(array if array.dtype.kind in "fc" else array.astype(np.float32))
    if bad.any():
        first = [int(i) for i in np.argwhere(bad)[0]]
        message = f"input '{name}' holds NaN: {int(bad.sum()):,} of {array.size:,} elements, the first at {first}"
        raise AmpError("AMP503", message, where=where, hint="repair the data: NaN in makes NaN out")


# -- sizes with which a model runs, learnt from what a runtime says of its failure ------------------------------------

TRIALS = 48  # runs that fail early, mostly
LARGEST, ROWS = 4096, 64  # of a size, and of one in front
SECONDS = 60.0  # for all of them
MARGINS = (1, 1.02, 1.05, 1.08, 1.12, 1.16, 1.2, 1.25, 1.3, 1.4)  # of the sides of a picture
RESHAPED = 1 << 22  # of a size by the shapes of a Reshape
COMMON = (32, 1, 2, 8, 16, 48, 224, 256, 80, 128, 512, 640)  # tried where no number in a message helps

_SOURCE = re.compile(r"\S*\.(?:h|cc|cpp|cu)\b\S*|0x[0-9a-fA-F]+|'[^']*'")
_RESHAPED = re.compile(r"Input shape:\{([\d,]+)\}, requested shape:\{([\d,]+)\}")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\w)")


def sizes_that_run(
    attempt: Callable[[Learnt], tuple[str, Learnt]], hints: Sequence[int] = ()
) -> tuple[Learnt | None, str]:
    """Generated samples: the sizes by place with which an attempt succeeds, and ""; or None, and the first failure.

    ``attempt`` runs a model with some sizes learnt; it gives what that failed with, empty if it did not, and the sizes
    of all open places. A failure elsewhere than before is a step forward, from where the search goes on. ``hints``:
    sizes that the model is made of, as not every message has numbers.
    """
    first, places = attempt({})
    if not first:
        return {}, ""
    trials, start = 1, time.monotonic()  # below, of each step: sizes learnt, those still to try, its failure
    seen: set[frozenset[tuple[Place, int]]] = {frozenset()}
    work: list[tuple[dict[Place, int], Iterator[dict[Place, int]], str]] = [
        ({}, propose_sizes(first, places, hints), first)
    ]
    while work and trials < TRIALS and time.monotonic() - start < SECONDS:
        learnt, proposed, failure = work[-1]
        change = next(proposed, None)
        if change is None:
            work.pop()
            continue
        wanted = {**learnt, **change}
        if frozenset(wanted.items()) in seen:
            continue
        seen.add(frozenset(wanted.items()))
        trials += 1
        message, places = attempt(wanted)
        if not message:
            return wanted, ""
        if _failed_place(message) != _failed_place(failure):
            work.append((wanted, propose_sizes(message, places, hints), message))
    return None, first


def propose_sizes(message: str, places: Learnt, hints: Sequence[int] = ()) -> Iterator[dict[Place, int]]:
    """Sizes of generated samples to try after a run failed with ``message``, likeliest first, each as new sizes by
    place: one place changed as many times as a Reshape wants more elements, to a number of the message, or in the ratio
    of two of them; then to one of ``hints``.

    ``places``: the sizes of that run. Inner axes come before the first ones (rows), of which all change together
    before single ones, as inputs of one batch."""
    said = message.rpartition("Status Message:")[2]
    numbers = list(dict.fromkeys(int(n) for n in _NUMBER.findall(_SOURCE.sub(" ", said))))
    numbers.sort(key=lambda number: number == 1)  # which broadcasts, and says little
    inner = {place: size for place, size in places.items() if place[1]}
    rows = {place: size for place, size in places.items() if place not in inner}
    for some in (inner, rows):
        if some is rows and len(rows) > 1:
            yield from (dict.fromkeys(rows, n) for n in (*numbers, *COMMON[:4]) if 1 < n <= ROWS)
        yield from _square_sizes(some, numbers)
        yield from _sizes_as_reshaped(some, said)
        for propose in (_numbers_beside, _smaller_in_ratio, lambda *_: (*hints, *COMMON)):
            for place, size in some.items():
                most = LARGEST if some is inner else ROWS
                yield from ({place: n} for n in propose(size, numbers) if n != size and 0 < n <= most)


def _numbers_beside(size: int, numbers: list[int]) -> list[int]:
    """Sizes of generated samples: the numbers of a failure's message, if ``size`` is one of them: another may be the
    size that was wanted. Else none."""
    return numbers if size in numbers else []


def _smaller_in_ratio(size: int, numbers: list[int]) -> list[int]:
    """Sizes of generated samples: whole ones that are to ``size`` as a number of a message is to a larger one: what is
    computed from ``size``, half of it say, had ``got`` elements where ``wanted`` were to be."""
    pairs = [(got, wanted) for got in numbers for wanted in numbers if got > wanted > 0]
    return [size * wanted // got for got, wanted in pairs if not size * wanted % got]


def _sizes_as_reshaped(places: Learnt, said: str) -> Iterator[dict[Place, int]]:
    """Sizes of generated samples: places of one size together, then each by itself, as many times as large as a Reshape
    wants more elements than it has."""
    for shapes in _RESHAPED.findall(said):
        got, wanted = (math.prod(map(int, shape.split(","))) for shape in shapes)
        sizes = {place: size * wanted // got for place, size in places.items() if got and not size * wanted % got}
        sizes = {place: size for place, size in sizes.items() if 0 < size <= RESHAPED}
        for size in dict.fromkeys(sizes.values()):
            yield {place: size for place in sizes if sizes[place] == size}
        yield from ({place: size} for place, size in sizes.items())


def _square_sizes(places: Learnt, numbers: list[int]) -> Iterator[dict[Place, int]]:
    """Sizes of generated samples: both sides of square pictures, such that they are in the ratio of two numbers of a
    message, of which one is a whole part of a side and the other neither half nor twice as large; then such that their
    area is in the ratio of two, or larger by some `MARGINS`: what Convs and pools leave of a side is rounded down."""
    sides = [pair for pair in itertools.combinations(places, 2) if pair[0][0] == pair[1][0]]
    largest = sorted(set(numbers), reverse=True)
    for one, other in (pair for pair in sides if places[pair[0]] == places[pair[1]] >= EDGE):
        side = places[one]
        parts = [(got, wanted) for got, wanted in itertools.permutations(numbers, 2) if 1 < got < side]
        for got, wanted in parts:
            if got < 2 * wanted < 4 * got and not side % got:
                yield dict.fromkeys((one, other), side // got * wanted)
        counts = [(got, wanted) for got, wanted in itertools.combinations(largest, 2) if got > side and wanted > 0]
        for got, wanted in counts:  # of elements, more than a side has
            least = side * math.sqrt(wanted / got)
            lengths = [int(least * more) for more in MARGINS]
            yield from ({one: length, other: length} for length in lengths if length >= EDGE)


def _failed_place(message: str) -> str:
    """Where a run with generated samples failed: the operators that the message names, or the message without its
    numbers if it names none. Two attempts that fail at one place give the same text."""
    nodes = re.findall(r"running (\S+ node)\. Name:'([^']*)'", message)
    return " ".join(" ".join(node) for node in nodes) or _NUMBER.sub("", message)
