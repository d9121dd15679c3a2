"""Training data (in memory, in memory-mapped files, or from an iterable), their batches, and their normalisation.

A folder of training data holds NAME.npy, .npz and idx files (as MNIST has them), which are memory-mapped, each also
with .gz behind; and tables, .csv.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import math
import os
import re
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from ...core.arrays import Array
from ...core.errors import AmpError, first_line, is_number
from ...runtime.data import arrays_by_input, read_header, unreadable_error
from ...runtime.ports import Port

Batches: TypeAlias = Iterable[Mapping[str, ArrayLike] | Sequence[ArrayLike]]
Prepare: TypeAlias = Callable[[Mapping[str, Array]], dict[str, Array]]
PIECE = 1 << 24  # bytes of the samples that are read together


def unchanged(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The `Prepare` of training data that need none."""
    return dict(arrays)


@dataclass(frozen=True)
class Dataset:
    """Training data that are there as a whole: arrays by input name, whose first axis counts the ``samples``.
    ``prepare`` turns rows of the arrays into what the step takes (types, axes, normalisation); it keeps the names."""

    arrays: Mapping[str, Array]
    samples: int
    prepare: Prepare = unchanged
    note: str = ""  # what `prepare` does beyond types and axes, for the digest: a line for each `then`

    def then(self, more: Prepare, note: str) -> Dataset:
        """The same training data, with ``more`` done to their rows after `prepare`; ``note`` says that in the
        digest."""
        first = self.prepare
        return replace(self, prepare=lambda rows: more(first(rows)), note=f"{self.note}{note}\n")

    def digest(self) -> str:
        """A digest of the training data in hex: names, types, sizes, numbers, and what is done to them."""
        made = hashlib.blake2b(self.note.encode(), digest_size=16)
        for name, array in sorted(self.arrays.items()):
            made.update(f"{name}:{array.dtype}:{list(array.shape)}\n".encode())
            step = rows_at_once({name: array})
            for start in range(0, len(array), step):
                made.update(np.ascontiguousarray(array[start : start + step]).reshape(-1).view(np.uint8).data)
        return made.hexdigest()

    def shuffled(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0, *, last: bool = False
    ) -> Iterator[Mapping[str, Array]]:
        """The batches of training data of an epoch (from 0), in an order that follows from ``seed`` and ``epoch``
        alone, without the first ``skip``; ``last``: with the smaller batch at the end."""
        order = np.random.default_rng([seed, epoch]).permutation(self.samples)
        end = self.samples if last else self.samples - self.samples % batch_size
        for start in range(skip * batch_size, end, batch_size):
            yield LazyBatch(self, order[start : start + batch_size])

    def in_order(self, batch_size: int, whole: bool) -> Iterator[dict[str, Array]]:
        """The batches of training data from the first sample to the last; ``whole`` leaves out a smaller last one."""
        end = self.samples - self.samples % batch_size if whole else self.samples
        for start in range(0, end, batch_size):
            yield self.prepare({name: array[start : start + batch_size] for name, array in self.arrays.items()})


class LazyBatch(Mapping[str, Array]):
    """A batch of training data: ``rows`` (numbers of samples), read from disk and prepared only when they are asked
    for. Where several processes share a batch, each reads its own `part`. As a mapping it reads all of them, once."""

    def __init__(self, data: Dataset, rows: Array) -> None:
        self._data, self._rows = data, rows
        self._whole: dict[str, Array] = {}  # all rows, prepared; empty until somebody asks for an array

    @property
    def samples(self) -> int:
        """The number of samples in this batch of training data, read or not."""
        return len(self._rows)

    def part(self, start: int, end: int) -> dict[str, Array]:
        """The samples ``start`` to ``end`` (not included) of this batch of training data, as the step takes them."""
        rows = self._rows[start:end]
        return self._data.prepare({name: array[rows] for name, array in self._data.arrays.items()})

    def column(self, name: str) -> Array | None:
        """One array of this batch of training data in the step's type, not otherwise prepared; None for an unknown
        name."""
        made = self.part(0, 1).get(name)
        return None if made is None else self._data.arrays[name][self._rows].astype(made.dtype)

    def __getitem__(self, name: str) -> Array:
        self._whole = self._whole or self.part(0, self.samples)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data.arrays)

    def __len__(self) -> int:
        return len(self._data.arrays)


@dataclass(frozen=True)
class Stream(Dataset):
    """Training data from an iterable of batches of any sizes, in its own order: they are regrouped into batches of the
    size that is asked for, and never held as a whole. ``arrays`` is empty; ``prepare`` is not used."""

    source: Iterable[object] = ()
    named: Callable[[object], dict[str, Array]] = lambda batch: {}  # what `source` gives -> prepared arrays by name

    def digest(self) -> str:
        """What stands for a digest of a stream of training data: its size and what is done to it (its order may
        vary)."""
        return f"stream of {self.samples}" + self.note

    def then(self, more: Prepare, note: str) -> Dataset:
        """The same stream of training data, with ``more`` done to its batches at the end; ``note`` says that in the
        digest."""
        named = self.named
        return replace(self, named=lambda given: more(named(given)), note=f"{self.note}{note}\n")

    def shuffled(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0, *, last: bool = False
    ) -> Iterator[Mapping[str, Array]]:
        """The batches of a stream of training data in its own order, which cannot be shuffled, without the first
        ``skip``; ``last``: with the smaller batch at the end."""
        for number, batch in enumerate(self.in_order(batch_size, whole=not last)):
            if number >= skip:
                yield batch

    def in_order(self, batch_size: int, whole: bool) -> Iterator[dict[str, Array]]:
        """The batches of a stream of training data, regrouped to ``batch_size`` samples each; ``whole`` leaves out a
        smaller last one."""
        held: list[dict[str, Array]] = []  # what has come and is not given out yet: less than a batch
        for given in self.source:
            held.append(self.named(given))
            count = sum(_rows(part) for part in held)
            if count >= batch_size:
                rows = {name: np.concatenate([part[name] for part in held]) for name in held[0]}
                end = count - count % batch_size
                for start in range(0, end, batch_size):
                    yield {name: array[start : start + batch_size] for name, array in rows.items()}
                held = [{name: array[end:] for name, array in rows.items()}] if end < count else []
        if held and not whole:
            yield {name: np.concatenate([part[name] for part in held]) for name in held[0]}


def rows_at_once(arrays: Mapping[str, Array]) -> int:
    """Of training data on disk: how many samples are read together, `PIECE` bytes with every number counted as float32
    at least."""
    widths = [array[:1].size * max(array.dtype.itemsize, 4) for array in arrays.values() if len(array)]
    return max(1, PIECE // max(sum(widths), 1))


def _rows(part: Mapping[str, Array]) -> int:
    """The number of samples in a batch."""
    return len(next(iter(part.values())))


# -- files -------------------------------------------------------------------------------------------------------------

IDX = re.compile(r"[-._]idx\d?([-._]ubyte)?$")
LARGE = 1 << 26  # bytes of an .npz file that is mapped
HINT = "it takes NAME.npy, .npz, .csv and idx files, each also with .gz, where NAME is an input of the step"
DAMAGED = (ValueError, EOFError, SyntaxError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
READ = 1 << 20  # bytes of a member that are read together for its checksum
ENCRYPTED = 1  # the bit of a member's flags


def stays_on_disk(text: str) -> bool:
    """Of training data: whether a path is for `load_folder`: a folder, a pattern of files, a table (.csv), or an .npz
    file that is too large to be read whole."""
    path = Path(text)
    name = path.name.removesuffix(".gz")
    if path.is_file():
        return name.endswith(".csv") or (name.endswith(".npz") and path.stat().st_size >= LARGE)
    return path.is_dir() or (not path.exists() and any(sign in path.name for sign in "*?["))


def load_folder(text: str, inputs: Collection[str], labels: str) -> dict[str, Array]:
    """Training data by input name: of a file, of a folder, or of the files that a pattern like ``mnist/train-*`` finds.
    An idx file whose name is no input holds ``labels`` (the name of that input, "" for none) if it has one axis, else
    the only other input; files of other kinds are passed over. That no input is missing is left to the caller. Raises
    AmpError AMP101 for no such files or one that cannot be read, AMP108 for a damaged one, AMP503 for two arrays of one
    name."""
    given = Path(text)
    paths = [given] if given.is_file() else sorted(given.iterdir() if given.is_dir() else map(Path, glob.glob(text)))
    found: dict[str, Array] = {}
    for path in paths:
        for name, array in _read_arrays(path, inputs, labels).items():
            if name in inputs and name in found:
                hint = f"name the files of one set by a pattern: '{path.parent}/{path.name[:5]}*'"
                raise AmpError("AMP503", f"two files hold '{name}', the second is {path.name}", where=text, hint=hint)
            found[name] = array
    if not found:
        raise AmpError("AMP101", "holds no arrays", where=text, hint=HINT)
    return arrays_by_input(found, inputs, inputs)


def _read_arrays(path: Path, inputs: Collection[str], labels: str) -> dict[str, Array]:
    """The training data in one file, by the name of the file or of the array in it; empty for a file of another kind.
    ``inputs`` and ``labels`` as in `load_folder`. Raises AmpError AMP101 for a file that cannot be read, AMP108 for a
    damaged one."""
    name = path.name.removesuffix(".gz")
    if not name.endswith((".npy", ".npz", ".csv")) and not IDX.search(name):
        return {}
    try:
        with open_unpacked(path) as file:
            if name.endswith(".npz"):
                return mapped_npz(file)
            if name.endswith(".csv"):
                return _read_table(file, inputs, labels)
            array = mapped_npy(file) if name.endswith(".npy") else mapped_idx(file)
        stem, others = IDX.sub("", name.removesuffix(".npy")), [one for one in inputs if one != labels]
        if stem in inputs or name.endswith(".npy"):
            return {stem: array}
        if labels and array.ndim == 1:
            return {labels: array}
        return {others[0] if len(others) == 1 else stem: array}
    except OSError as error:
        raise unreadable_error(path, error) from None
    except DAMAGED as error:
        message = f"is not an array, or is damaged: {first_line(error)}"
        raise AmpError("AMP108", message, where=str(path), hint=HINT) from None


def _read_table(file: IO[bytes], inputs: Collection[str], labels: str) -> dict[str, Array]:
    """The training data in a table (.csv), by input name: a column whose name is an input is that input, [samples]. Of
    the other columns the last one holds ``labels`` ("" for none) where no column has that name, and the rest together
    are the only other input, [samples, columns] in float32. Whole labels become int64. Raises ValueError for a cell
    that is no number."""
    first = file.readline().decode().strip()
    names = [name.strip(" \"'") for name in first.split(",")]
    if re.fullmatch(r"[-+.,\deE\s]+", first):  # numbers: there are no names
        names = [""] * len(names)
        file.seek(0)
    columns = dict(enumerate(np.loadtxt(file, delimiter=",", ndmin=2, unpack=True)))
    found = {name: columns.pop(place) for place, name in enumerate(names) if name in inputs}
    if labels and labels not in found:
        found[labels] = columns.pop(max(columns))
    if labels in found and np.all(found[labels] == np.rint(found[labels])):
        found[labels] = found[labels].astype(np.int64)
    others = [name for name in inputs if name not in found]
    if columns and len(others) == 1:
        found[others[0]] = np.stack(list(columns.values()), 1).astype(np.float32)
    return found


def open_unpacked(path: Path) -> IO[bytes]:
    """Opens a file of training data; one that is compressed (.gz) is unpacked to a temporary file first."""
    if path.suffix != ".gz":
        return open(path, "rb")
    with gzip.open(path) as packed:
        return _unpack(packed)


def mapped_npy(file: IO[bytes], end: int | None = None) -> Array:
    """Training data on disk: the .npy array that begins at the file's position and ends at ``end`` (None: with the
    file), memory-mapped. Raises one of `DAMAGED` for bytes that are no such array."""
    shape, dtype, fortran = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which could run code")
    return _map_array(file, dtype, shape, "F" if fortran else "C", end)


def mapped_npz(file: IO[bytes]) -> dict[str, Array]:
    """Training data on disk: the arrays of an .npz file by name, memory-mapped; each is read through once, for its
    checksum. Raises one of `DAMAGED` for a damaged file."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                found[info.filename.removesuffix(".npy")] = _npz_member(archive, info, file)
    return found


def mapped_idx(file: IO[bytes]) -> Array:
    """Training data on disk: the array of an idx file, memory-mapped. Raises ValueError for another or a damaged file.
    The format, as MNIST's page has it: two zero bytes, the type, the number of axes, their sizes as big-endian uint32,
    the numbers."""
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in IDX_TYPES or not start[3]:
        raise ValueError("its first bytes are not those of idx")
    sizes = np.frombuffer(file.read(4 * start[3]), ">u4")
    if len(sizes) != start[3]:
        raise ValueError("it is cut short")
    return _map_array(file, np.dtype(IDX_TYPES[start[2]]), tuple(map(int, sizes)), "C")


def _npz_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes]) -> Array:
    """Training data on disk: one array of an .npz archive, memory-mapped in ``file``, which is the archive's, where it
    is stored without compression; else in a temporary file that it is unpacked to."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
        with archive.open(info) as member, _unpack(member) as unpacked:
            return mapped_npy(unpacked)
    with archive.open(info) as member:
        while member.read(READ):  # zipfile compares the checksum at the end
            pass
    file.seek(info.header_offset + 26)  # the local header's sizes of name and extra field, which it may have alone
    start = info.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
    file.seek(start)
    return mapped_npy(file, start + info.file_size)


def _unpack(packed: IO[bytes] | gzip.GzipFile) -> IO[bytes]:
    """Training data on disk: unpacks a compressed file into a temporary one, which can be mapped and stands at its
    start; the caller closes it."""
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    shutil.copyfileobj(packed, unpacked)
    unpacked.flush()
    unpacked.seek(0)
    return unpacked


def _map_array(
    file: IO[bytes], dtype: np.dtype[np.generic], shape: tuple[int, ...], order: str, end: int | None = None
) -> Array:
    """Training data on disk: the numbers from the file's position to ``end`` (None: to the end of the file), mapped as
    an array in C or F ``order``. Raises ValueError where the header says another size."""
    start = file.tell()
    size = (file.seek(0, 2) if end is None else end) - start
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError("its size is not what its header says")
    if not size:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", start, shape, "F" if order == "F" else "C")


# -- normalisation of data on their way to the step --------------------------------------------------------------------

ROW = "--normalize MEAN,STD, each one number or one for each channel: '0.49 0.48 0.45,0.25 0.24 0.26'"
HINTS = {"--normalize": ROW, "--scale": "--scale FACTOR, a number or a fraction: 1/255"}


@dataclass(frozen=True)
class Normalized:
    """Training data of any kind, of which a float32 input becomes (x scale - mean) / std; labels stay what they are.
    ``mean`` and ``std``: one number, or one for each channel: along axis 1 of the input, or its last one, whichever has
    that size. ``input``: which one, where there are several. Raises AmpError AMP325 for numbers that make no sense."""

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
            raise AmpError("AMP325", f"std={min(std):g} divides the data, and is not above 0", hint=ROW)
        if len(mean) > 1 < len(std) != len(mean):
            raise AmpError("AMP325", f"there are {len(mean)} means and {len(std)} deviations", hint=ROW)
        for name, value in (("mean", mean), ("std", std)):
            object.__setattr__(self, name, value)

    def rows(
        self, ports: Mapping[str, Port], labels: str
    ) -> tuple[Callable[[Mapping[str, Array]], dict[str, Array]], str]:
        """What normalises rows of training data for a step that takes ``ports``, and a text that says it, for the
        digest. ``labels``: the input that is never normalised. Raises AmpError AMP325 where it cannot be done."""
        name = self._chosen([name for name, port in ports.items() if port.dtype == "float32" and name != labels])
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        shape = [1] * len(ports[name].shape)
        mean, std = np.broadcast_arrays(mean, std)
        if mean.size > 1:
            shape[_channel_axis(ports[name], mean.size)] = mean.size
        factor = (self.scale / std).astype(np.float32).reshape(shape)
        offset = (0 - mean / std).astype(np.float32).reshape(shape)

        def normalized(rows: Mapping[str, Array]) -> dict[str, Array]:
            return {**rows, name: rows[name] * factor + offset}

        return normalized, f"{name}: {self.scale!r} {self.mean} {self.std}"

    def _chosen(self, names: Sequence[str]) -> str:
        """The input that is normalised, of the float32 inputs ``names``: `input`, or the only one. Raises AmpError
        AMP325 for no such input, or several."""
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
    """A path of training data with the normalisation that a command line asks for: texts ``[INPUT=]MEAN,STD`` of
    --normalize and ``[INPUT=]FACTOR`` of --scale; the path alone for none of them. Raises AmpError AMP325 for a text of
    another form."""
    factors = dict(_input_and_rest("--scale", text) for text in scales or ())
    centres = dict(_input_and_rest("--normalize", text) for text in normalize or ())
    made: str | Normalized = data
    for name in dict.fromkeys((*factors, *centres)):
        mean, comma, std = centres.get(name, "0,1").partition(",")
        if not comma:
            raise AmpError("AMP325", f"--normalize {mean} is not MEAN,STD", hint=ROW)
        scale = _parse_factor("--scale", factors.get(name, "1"))
        made = Normalized(made, scale, _parse_row(mean), _parse_row(std), name)
    return made


def _input_and_rest(option: str, text: str) -> tuple[str, str]:
    """Training data's normalisation: splits the text [INPUT=]REST of an option into INPUT ("" for none) and REST."""
    name, equals, rest = text.rpartition("=")
    if equals and not name:
        raise AmpError("AMP325", f"{option} {text} names no input", hint=f"{option} INPUT={rest}")
    return name.strip(), rest


def _parse_row(text: str) -> list[float]:
    """Training data's normalisation: the numbers of MEAN or STD in --normalize, separated by spaces."""
    return [_parse_factor("--normalize", word) for word in text.split()]


def _parse_factor(option: str, text: str) -> float:
    """Training data's normalisation: the number that a command-line option says, also as a fraction: 1/255. Raises
    AmpError AMP325, which names the ``option``, for another text."""
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise AmpError("AMP325", f"{option}: '{text}' is not a number", hint=HINTS[option]) from None


def _finite_numbers(name: str, given: float | Sequence[float]) -> tuple[float, ...]:
    """Training data's normalisation: what was given as ``mean`` or ``std`` (``name``), as a tuple of finite numbers.
    Raises AmpError AMP325 for anything else."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    numbers: list[object] = list(cast("Iterable[object]", given)) if several else [given]
    if not numbers or not all(is_number(number) and math.isfinite(cast(float, number)) for number in numbers):
        raise AmpError("AMP325", f"{name}={given!r} is neither a number nor one for each channel", hint=ROW)
    return tuple(float(cast(float, number)) for number in numbers)


def _channel_axis(port: Port, count: int) -> int:
    """Training data's normalisation: which axis of a port has ``count`` channels, 1 or the last. Raises AmpError AMP325
    where neither has, or both."""
    found = {axis for axis in (1, len(port.shape) - 1) if 0 < axis < len(port.shape) and port.shape[axis] == count}
    if len(found) == 1:
        return found.pop()
    sizes = ", ".join(str(size) for size in port.shape)
    why = "two axes have that size" if found else "neither axis 1 nor the last one has that size"
    hint = "give one number for all, or normalise in the module"
    raise AmpError("AMP325", f"{count} channels, and '{port.name}' is [{sizes}]: {why}", hint=hint)


TrainingData: TypeAlias = str | os.PathLike[str] | Mapping[str, ArrayLike] | Dataset | Normalized | Batches
"""A path (see `load_folder`), arrays by input name, or an iterable that gives batches every time it is iterated."""
