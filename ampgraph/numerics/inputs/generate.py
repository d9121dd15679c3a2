"""Inputs for a model that comes without data: seeded, the same on every machine, and such that it can run on them.

All numbers come from integer arithmetic on PCG64's raw stream, which numpy keeps stable: no libm, no rounding order.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array, DType
from ...core.dataflow import Dataflow
from ...core.errors import AmpError
from .kinds import KINDS, PLAIN, SCALES, Kinds, made
from .numbers import Numbers
from .pictures import is_picture
from .roles import InputReader, Reading
from .sizes import GraphInput, Place, Sizes
from .tables import Table, table_of
from .text import reads_text

PLAIN_INTEGERS = 10  # numbers below it, where nothing says what an integer is for
HIDDEN = -1e4  # in a mask that is added: zero after Softmax, and within float16
HIGH = 10_000  # a limit that lets all pass
STEPS = 1000  # of a diffusion's schedule
LARGEST = 1 << 31  # bytes of one input


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
    table: Table | None = None


class Generator:
    """Makes sample after sample for the inputs of a model. Raises AmpError AMP503 for an input that cannot be made."""

    def __init__(
        self, flow: Dataflow, ports: Sequence[GraphInput], seed: int, dims: Mapping[str, int] | None = None,
        learnt: Mapping[Place, int] | None = None,
    ) -> None:  # fmt: skip
        """``dims`` and ``learnt``: as `Sizes` has them."""
        self.seed, self.flow, self.kinds = seed, flow, Kinds(flow)
        self.sizes = Sizes(ports, dims or {}, learnt or {}, reads_text(flow))
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

    def places(self) -> dict[Place, int]:
        """The sizes that were guessed, by input and axis."""
        shapes = {source.port.name: source.shape for source in self.sources}
        return {(name, axis): shapes[name][axis] for name, axis in self.sizes.open()}

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
        if found.limit:
            last = 0 if found.limit == "below" else HIGH
            return InputFill(port, shape, "constant", f"{last}, a limit from {found.limit}", last, last)
        if found.positive:
            return InputFill(port, shape, "uniform", "uniform in (0, 1)")
        if "timestep" in name:
            return InputFill(port, shape, "integer", f"whole numbers below {STEPS}", 0, STEPS - 1)
        if found.bounded:  # a float that becomes an index
            last = max(found.last, found.first)
            return InputFill(port, shape, "integer", f"whole numbers up to {last} ({found.table})", found.first, last)
        kind, note = self.kinds.of(port, shape)
        table = table_of(self.flow, port.value, shape[-1]) if kind == PLAIN and 0 < len(shape) <= 3 else None
        if table is not None:
            note = "about the means that the model takes off, with its deviations, 4 and 1/16 of them"
        return InputFill(port, shape, kind, note, table=table)

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
        if limit.bits == 8 and limit.min == 0 and is_picture(shape):
            return InputFill(port, shape, "pixels", "pictures of 0 to 255")
        if limit.bits == 8:
            return InputFill(port, shape, "integer", "all numbers of its type", int(limit.min), int(limit.max))
        last = PLAIN_INTEGERS - 1
        if not shape and found.equals is not None and found.equals > last:
            return InputFill(port, shape, "constant", f"{found.equals}, as the model asks", found.equals, found.equals)
        return InputFill(port, shape, "integer", f"whole numbers from {first} to {first + last}", first, first + last)

    # -- and what is fed ----------------------------------------------------------------------------------------------

    def _make(self, source: InputFill, index: int) -> Array:
        shape, kind = source.shape, source.kind
        numbers = Numbers(self.seed, index, zlib.crc32(source.port.name.encode()))
        if kind == "uniform":
            array = numbers.uniform(shape) + np.float32(2.0**-25)
        elif kind == "boolean":
            array = numbers.integers(0, 1, shape)
        elif source.table is not None:
            array = source.table.rows(numbers, shape, SCALES[index % len(SCALES)])
        elif kind in KINDS:
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
        return np.asarray(np.asarray(array).astype(numpy_type(source.port.dtype)).reshape(shape), order="C")

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
