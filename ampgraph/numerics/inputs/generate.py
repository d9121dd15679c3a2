"""Inputs for a model that comes without data: seeded, the same on every machine, and such that it can run on them.

All numbers come from integer arithmetic on PCG64's raw stream, which numpy keeps stable: no libm, no rounding order.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.arrays import Array, DType
from ...core.dataflow import NONE, Dataflow
from ...core.errors import AmpError
from .likely import LIKELY, Likely, made
from .numbers import Numbers
from .roles import InputReader, Reading

BATCH, SEQUENCE, PAST, IMAGE, CHANNELS = 2, 16, 8, 64, 3
PLAIN_INTEGERS = 10  # numbers below it, where nothing says what an integer is for
HIDDEN = -1e4  # in a mask that is added: zero after Softmax, and within float16
STEPS = 1000  # of a diffusion's schedule
LARGEST = 1 << 31  # bytes of one input

_WORD = re.compile(r"[A-Za-z_.][\w.]*")
_SUM = re.compile(r"[\w.\s+\-*/()]+")


@dataclass(frozen=True)
class GraphInput:
    """A graph input: ``dtype`` as numpy names it, sizes that are names or None where any will do."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    value: int = NONE


@dataclass
class Sizes:
    """One size for each symbolic dimension, by its name and by where it stands."""

    ports: Sequence[GraphInput]
    given: Mapping[str, int] = field(default_factory=dict)
    batch: int = BATCH
    known: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = dict(self.given)
        places: dict[str, tuple[GraphInput, int]] = {}
        for port in self.ports:
            for axis, dim in enumerate(port.shape):
                if isinstance(dim, str) and not _is_anonymous(dim):
                    places.setdefault(dim, (port, axis))
        later = [name for name in places if _is_sum(name) or self._is_total(name)]
        for name, (port, axis) in places.items():
            if name not in self.known and name not in later:
                self.known[name] = self._guess(name, port, axis)
        for name in later:
            if name not in self.known:
                self.known[name] = self._sum(name)

    def size(self, dim: int | str | None) -> int:
        """The size of a dimension of any value; a name that no input has counts as a sequence."""
        if isinstance(dim, int):
            return dim
        if dim is None:
            return SEQUENCE
        return self.known[dim] if dim in self.known else self._sum(dim) if _is_sum(dim) else SEQUENCE

    def shape(self, port: GraphInput) -> tuple[int, ...]:
        """The sizes of an input."""
        return tuple(self._size_of(port, axis, dim) for axis, dim in enumerate(port.shape))

    def _size_of(self, port: GraphInput, axis: int, dim: int | str | None) -> int:
        unnamed = dim is None or (isinstance(dim, str) and _is_anonymous(dim) and dim not in self.known)
        return self._guess("", port, axis) if unnamed else self.size(dim)

    @property
    def past(self) -> int:
        """How much of a sequence came before."""
        return next((size for name, size in self.known.items() if self._is_past(name)), 0)

    def _is_past(self, name: str) -> bool:
        if _is_sum(name) or "total" in name.lower():
            return False
        holders = [p for p in self.ports if name in p.shape]
        only_past = bool(holders) and all(p.name.lower().startswith(("past", "cache_")) for p in holders)
        return "past" in name.lower() or (only_past and all(p.shape[0] != name for p in holders))

    def _is_total(self, name: str) -> bool:
        """The past and the present together, as a mask has it."""
        holders = [p for p in self.ports if name in p.shape]
        mask_only = bool(holders) and all("mask" in p.name.lower() and p.shape[-1] == name for p in holders)
        has_past = any(isinstance(d, str) and self._is_past(d) for p in self.ports for d in p.shape)
        return has_past and not self._is_past(name) and ("total" in name.lower() or (mask_only and not _is_sum(name)))

    def _sum(self, name: str) -> int:
        if not _is_sum(name):
            tokens = [p.shape[-1] for p in self.ports if "ids" in p.name.lower() and p.shape]
            return self.past + self.size(tokens[0] if tokens else "")
        names = sorted(set(_WORD.findall(name)), key=len, reverse=True)
        text = _WORD.sub(lambda m: str(self.known.get(m.group(), SEQUENCE)), name)
        number = _evaluate(text) if names else None
        return SEQUENCE if number is None else max(number, 1)

    def _guess(self, name: str, port: GraphInput, axis: int) -> int:
        word, rank = name.lower(), len(port.shape)
        if name and self._is_past(name):
            return PAST
        if "batch" in word:
            return self.batch
        if any(part in word for part in ("seq", "len", "time", "token", "frame", "step")):
            return SEQUENCE
        if "height" in word or "width" in word:
            return IMAGE
        if "channel" in word:
            return CHANNELS
        if axis == 0:
            return self.batch
        if rank >= 4 and "float" in port.dtype and not port.name.lower().startswith("past"):
            return IMAGE if axis >= 2 or isinstance(port.shape[-1], int) else CHANNELS
        return SEQUENCE


def _is_anonymous(name: str) -> bool:
    """Whether a dimension's name is none: paddle2onnx writes ``?`` for every size that is open."""
    return not any(sign.isalnum() for sign in name)


def _is_sum(name: str) -> bool:
    """Whether a dimension's name is arithmetic: ``past + seq``."""
    return bool(_SUM.fullmatch(name)) and any(sign in name for sign in ("+", "*", "//", " - "))


def _evaluate(text: str) -> int | None:
    """Sums and products of whole numbers, left to right by precedence; None for anything else."""
    total = 0
    for sign, term in re.findall(r"([+-]?)\s*([^+-]+)", text):
        product = 1
        for operation, factor in re.findall(r"(//|\*|/)?\s*(\d+)", term):
            if operation in ("//", "/"):
                if not int(factor):
                    return None
                product //= int(factor)
            else:
                product *= int(factor)
        if re.sub(r"[\d\s*/]", "", term):
            return None
        total += -product if sign == "-" else product
    return total


@dataclass(frozen=True)
class InputFill:
    """How one input is made, in words and in numbers."""

    port: GraphInput
    shape: tuple[int, ...]
    kind: str
    note: str
    first: int = 0
    last: int = 0
    pad: int | None = None
    inverted: bool = False


class Generator:
    """Makes sample after sample for the inputs of a model. Raises AmpError AMP503 for an input that cannot be made."""

    def __init__(
        self, flow: Dataflow, ports: Sequence[GraphInput], seed: int, dims: Mapping[str, int] | None = None,
        likely: bool = False,
    ) -> None:  # fmt: skip
        """``likely``: one row, and images, sound and several magnitudes where an input looks as if it took them."""
        self.seed, self.likely = seed, Likely(flow) if likely else None
        given = dict(dims or {})
        if self.likely is not None:
            given = {**self.likely.lengths(ports), **given}
        self.sizes = Sizes(ports, given, 1 if likely else BATCH)
        reader = InputReader(flow, self.sizes.size)
        self.sources = [self._source(port, reader.read(port.value)) for port in ports]

    def notes(self, count: int) -> tuple[str, ...]:
        """One line on all, and one on each input."""
        lines = [f"inputs were generated: {count} sample{'s' * (count != 1)}, seed {self.seed}"]
        for source in self.sources:
            size = ", ".join(map(str, source.shape))
            lines.append(f"'{source.port.name}' {source.port.dtype} [{size}]: {source.note}")
        return tuple(lines)

    def sample(self, index: int) -> dict[str, Array]:
        """The feeds of sample ``index``, always the same."""
        return {source.port.name: self._make(source, index) for source in self.sources}

    # -- what each input is -------------------------------------------------------------------------------------------

    def _source(self, port: GraphInput, found: Reading) -> InputFill:
        shape, name = self.sizes.shape(port), port.name.lower()
        dtype = port.dtype
        if dtype in ("", "object", "string") or dtype.startswith("complex"):
            what = "is no tensor" if not dtype else f"holds {'text' if 'complex' not in dtype else 'complex numbers'}"
            raise AmpError("AMP503", f"input '{port.name}' {what} and cannot be generated", hint="give --data")
        if math.prod(shape) * 8 > LARGEST:
            message = f"input '{port.name}' {list(shape)} is too large to generate"
            raise AmpError("AMP503", message, hint="give --data with what the model really gets")
        if "float" in dtype:
            return self._float(port, shape, found)
        if dtype == "bool" and not (found.masks or "mask" in name):
            return InputFill(port, shape, "boolean", "random")
        if dtype == "bool" or found.masks or "mask" in name:
            return self._mask(port, shape, found)
        return self._integer(port, shape, found)

    def _float(self, port: GraphInput, shape: tuple[int, ...], found: Reading) -> InputFill:
        name = port.name.lower()
        if found.added:
            return InputFill(port, shape, "added", f"0, with a tail of {HIDDEN:g} in every other sample")
        if found.masks or "mask" in name:
            return self._mask(port, shape, found)
        if found.positive:
            return InputFill(port, shape, "uniform", "uniform in (0, 1)")
        if "timestep" in name:
            return InputFill(port, shape, "integer", f"whole numbers below {STEPS}", 0, STEPS - 1)
        if found.bounded:  # a float that becomes an index
            last = max(found.last, found.first)
            return InputFill(port, shape, "integer", f"whole numbers up to {last} ({found.table})", found.first, last)
        if self.likely is not None:
            return InputFill(port, shape, *self.likely.kind(port.name, port.value, shape))
        return InputFill(port, shape, "normal", "about standard normal")

    def _mask(self, port: GraphInput, shape: tuple[int, ...], found: Reading) -> InputFill:
        inverted = found.one_masks
        message = "zeros, with a tail of ones" if inverted else "ones, with a tail of zeros"
        return InputFill(port, shape, "mask", f"a mask: {message} in every other sample", inverted=inverted)

    def _integer(self, port: GraphInput, shape: tuple[int, ...], found: Reading) -> InputFill:
        name, dtype = port.name.lower(), port.dtype
        limit = np.iinfo(dtype)
        first, last = max(found.first, 0 if found.first <= 0 else found.first), found.last
        within = f"up to {last} ({found.table})" if found.bounded else ""
        if found.size:
            return InputFill(port, shape, "constant", f"1, as {found.size} takes a size from it", 1, 1)
        if "position" in name:
            last = last if found.bounded else int(limit.max) - 1
            return InputFill(port, shape, "positions", "counts up", first, last)
        if "token_type" in name or "segment" in name:
            last = min(last, 1)
            return InputFill(port, shape, "segments", f"zeros, then {max(last, 0)}", 0, max(last, 0))
        if found.length or (not found.bounded and ("length" in name or name.endswith(("_len", "_lens")))):
            longest = found.length or self.sizes.size("")
            return InputFill(port, shape, "integer", f"lengths up to {longest}", 1, longest)
        if found.bounded:
            last = min(max(last, first), int(limit.max))
            pad = found.equals if found.equals is not None and first <= found.equals <= last else None
            tail = f", {pad} in the tail of every other sample" if pad is not None else ""
            return InputFill(port, shape, "index", f"indices {within}{tail}", first, last, pad)
        if "timestep" in name:
            return InputFill(port, shape, "integer", f"whole numbers below {STEPS}", 0, min(STEPS - 1, int(limit.max)))
        if limit.bits == 8:
            return InputFill(port, shape, "integer", "all numbers of its type", int(limit.min), int(limit.max))
        last = PLAIN_INTEGERS - 1
        return InputFill(port, shape, "integer", f"whole numbers from {first} to {first + last}", first, first + last)

    # -- and what is fed ----------------------------------------------------------------------------------------------

    def _make(self, source: InputFill, index: int) -> Array:
        shape, kind = source.shape, source.kind
        numbers = Numbers(self.seed, index, zlib.crc32(source.port.name.encode()))
        if kind == "normal":
            array = numbers.normal(shape)
        elif kind == "uniform":
            array = numbers.uniform(shape) + np.float32(2.0**-25)
        elif kind == "boolean":
            array = numbers.integers(0, 1, shape)
        elif kind in LIKELY:
            array = made(kind, numbers, shape, index)
        elif kind in ("mask", "added"):
            kept = self._kept(shape, index) != source.inverted
            array = np.where(kept, 0.0, HIDDEN) if kind == "added" else kept
        elif kind == "positions":
            span = source.last - source.first + 1
            count = self.sizes.past + np.arange(shape[-1] if shape else 1, dtype=np.int64)
            array = np.broadcast_to(source.first + count % span, shape) if shape else source.first + count[0] % span
        elif kind == "segments":
            length = shape[-1] if shape else 1
            array = np.broadcast_to((np.arange(length) >= (length + 1) // 2) * source.last, shape)
        else:
            array = numbers.integers(source.first, source.last, shape)
            if source.pad is not None:
                array = np.where(self._kept(shape, index), array, source.pad)
        return np.ascontiguousarray(np.asarray(array).astype(numpy_type(source.port.dtype)).reshape(shape))

    def _kept(self, shape: tuple[int, ...], index: int) -> Array:
        """Which places of the last axis are no padding: all in even samples, a tail is in odd ones.

        All inputs of one length agree, as a mask and the tokens under it must."""
        if not shape:
            return np.ones((), bool)
        total, rows = shape[-1], shape[0] if len(shape) > 1 else 1
        lengths = np.full(rows, total, np.int64)
        if index % 2:
            lengths = Numbers(self.seed, index, total).integers((total + 1) // 2, total, (rows,))
        column = lengths.reshape((rows,) + (1,) * (len(shape) - 1)) if len(shape) > 1 else lengths
        return np.broadcast_to(np.arange(total) < column, shape)


def numpy_type(name: str) -> DType:
    """A numpy type by name; bfloat16 and its like are those of ml_dtypes, whatever else was registered under a name."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))
