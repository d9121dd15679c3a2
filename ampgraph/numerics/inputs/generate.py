"""Inputs for a model that comes without data: seeded, the same on every machine, and such that it can run on them.

All numbers come from integer arithmetic on PCG64's raw stream, which numpy keeps stable: no libm, no rounding order.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow, Op
from ...core.errors import AmpError
from ...core.low_types import numpy_type
from ...oplists.traits import has, traits
from .painted import RandomNumbers, draw_pictures, draw_sound, draw_spectrum, is_line, is_picture
from .roles import InputReader, Reading
from .sizes import GraphInput, Place, Sizes, is_channels_last, is_sound_name, last_slices, reads_text_lines

PLAIN_INTEGERS = 10  # numbers below it, where nothing says what an integer is for
HIDDEN = -1e4  # in a mask that is added: zero after Softmax, and within float16
HIGH = 10_000  # a limit that lets all pass
SCHEDULE = 1000  # of a diffusion's schedule
LARGEST = 1 << 31  # bytes of one input


@dataclass(frozen=True)
class InputFill:
    """How one input is made, in words and in numbers."""

    port: GraphInput
    shape: tuple[int, ...]
    kind: str  # which branch of `Generator._draw_input` makes it
    note: str  # for the report
    first: int = 0  # of whole numbers, both included
    last: int = 0
    pad: int | None = None  # of indices: stands in the tail that a mask hides
    inverted: bool = False  # a mask whose ones hide
    table: Table | None = None  # means and deviations that a scaler behind the input undoes
    seen: tuple[int, ...] = ()  # the picture's shape that the first product reads, where that is not ``shape``


class Generator:
    """Makes sample after sample for the inputs of a model. Raises AmpError AMP503 for an input that cannot be made."""

    def __init__(
        self, flow: Dataflow, ports: Sequence[GraphInput], seed: int, dims: Mapping[str, int] | None = None,
        learnt: Mapping[Place, int] | None = None,
    ) -> None:  # fmt: skip
        """``ports``: the inputs to make; ``dims``: sizes by dimension, the user's; ``learnt``: by place, from runs."""
        self.seed, self.flow = seed, flow
        turned = {port.name for port in ports if len(port.shape) == 4 and is_channels_last(flow, port.value)}
        self.sizes = Sizes(ports, dims or {}, learnt or {}, reads_text_lines(flow), last_slices(flow), turned)
        reader = InputReader(flow, self.sizes.size)
        self.sources = [self._fill_for(port, reader.read(port.value)) for port in ports]

    def notes(self, count: int) -> tuple[str, ...]:
        """Lines for the report on ``count`` generated samples: one on all, and one on each input."""
        lines = [f"inputs were generated: {count} sample{'s' * (count != 1)}, seed {self.seed}"]
        for source in self.sources:
            size = ", ".join(map(str, source.shape))
            lines.append(f"'{source.port.name}' {source.port.dtype} [{size}]: {source.note}")
        return tuple(lines)

    def sample(self, index: int) -> dict[str, Array]:
        """The feeds of generated sample ``index`` by input, always the same."""
        return {source.port.name: self._draw_input(source, index) for source in self.sources}

    def is_wide(self, index: int) -> bool:
        """Whether generated sample ``index`` has an input of plain or scaled numbers, drawn larger than usual."""
        scaled = any(source.kind == PLAIN or source.table is not None for source in self.sources)
        return scaled and SCALES[index % len(SCALES)] > 1

    def may_count_rows(self) -> bool:
        """Whether a generated input may count rows of another one: integers of which nothing says what they are for."""
        return len(self.sources) > 1 and any(source.kind == "counts" for source in self.sources)

    def places(self) -> dict[Place, int]:
        """The sizes of generated inputs that the user did not give, guessed or learnt, by input and axis."""
        shapes = {source.port.name: source.shape for source in self.sources}
        return {(name, axis): shapes[name][axis] for name, axis in self.sizes.open_places()}

    # -- what each input is -------------------------------------------------------------------------------------------

    def _fill_for(self, port: GraphInput, found: Reading) -> InputFill:
        """How an input is filled, by its type, its name and what the graph does with it (``found``). Raises AmpError
        AMP503 for no tensor, text, complex numbers, and more than `LARGEST` bytes."""
        shape, name = self.sizes.shape(port), port.name.lower()
        dtype = port.dtype
        if dtype in ("", "object", "string") or dtype.startswith("complex"):
            holds = "holds complex numbers" if "complex" in dtype else "holds text"
            what = holds if dtype else "is not a tensor"
            raise AmpError("AMP503", f"input '{port.name}' {what} and cannot be generated", hint="give --data")
        if math.prod(shape) * 8 > LARGEST:
            message = f"input '{port.name}' {list(shape)} is too large to generate"
            raise AmpError("AMP503", message, hint="give --data with what the model really gets")
        if "float" in dtype:
            return self._float_fill(port, shape, found)
        if dtype == "bool" and not (found.masks or "mask" in name):
            return InputFill(port, shape, "boolean", "random")
        if dtype == "bool" or found.masks or "mask" in name:
            return self._mask_fill(port, shape, found)
        return self._integer_fill(port, shape, found)

    def _float_fill(self, port: GraphInput, shape: tuple[int, ...], found: Reading) -> InputFill:
        """How a float input is filled, by what the graph says (``found``), its name and its shape, first match: mask,
        limit, numbers of 0 to 1, steps of time, whole numbers, pictures, sound, numbers about a scaler's means."""
        name = port.name.lower()
        if found.added:
            return InputFill(port, shape, "added", f"0, with a tail of {HIDDEN:g} in every other sample")
        if found.masks or "mask" in name:
            return self._mask_fill(port, shape, found)
        if found.limit:
            last = 0 if found.limit == "below" else HIGH
            return InputFill(port, shape, "constant", f"{last}, a limit from {found.limit}", last, last)
        if found.positive:
            return InputFill(port, shape, "uniform", "uniform in (0, 1)")
        if name == "dt" or name.endswith("_dt"):
            return InputFill(port, shape, "step", "a step of time, 1/32 to 1/16")
        if "timestep" in name:
            return InputFill(port, shape, "integer", f"whole numbers below {SCHEDULE}", 0, SCHEDULE - 1)
        if found.bounded:  # a float that becomes an index
            last = max(found.last, found.first)
            return InputFill(port, shape, "integer", f"whole numbers up to {last} ({found.table})", found.first, last)
        kind, note = _kind_of(self.flow, port, shape)
        if kind == PLAIN and (seen := _picture_shape(self.flow, port, shape)):
            kind, note = _kind_of(self.flow, port, seen)
            return InputFill(port, shape, kind, note, seen=seen)
        table = scaler_table(self.flow, port.value, shape) if shape and kind in REACHED else None
        if table is not None and (table.reaches(REACHED[kind]) or (kind == PLAIN and len(shape) <= 3)):
            note = "about the means that the model takes off, with its deviations, 4 and 1/16 of them"
            return InputFill(port, shape, kind, note, table=table)
        return InputFill(port, shape, kind, note)

    def _mask_fill(self, port: GraphInput, shape: tuple[int, ...], found: Reading) -> InputFill:
        """How a mask is filled: ones with a tail of zeros, the other way round where one means masked."""
        inverted = found.one_masks
        message = "zeros, with a tail of ones" if inverted else "ones, with a tail of zeros"
        return InputFill(port, shape, "mask", f"a mask: {message} in every other sample", inverted=inverted)

    def _integer_fill(self, port: GraphInput, shape: tuple[int, ...], found: Reading) -> InputFill:
        """How an integer input is filled: a size, positions, segments, lengths, indices of a table, steps of a
        schedule, bytes, or small numbers; a name counts before the bounds in ``found``, but for lengths and steps."""
        name, dtype = port.name.lower(), port.dtype
        limit = np.iinfo(dtype)
        first, last = max(found.first, 0), found.last
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
            return InputFill(
                port, shape, "integer", f"whole numbers below {SCHEDULE}", 0, min(SCHEDULE - 1, int(limit.max))
            )
        if limit.bits == 8 and limit.min == 0 and is_picture(shape):
            return InputFill(port, shape, "pixels", "pictures of 0 to 255")
        if limit.bits == 8:
            return InputFill(port, shape, "integer", "all numbers of its type", int(limit.min), int(limit.max))
        last = PLAIN_INTEGERS - 1
        if not shape and found.equals is not None and found.equals > last:
            return InputFill(port, shape, "constant", f"{found.equals}, as the model asks", found.equals, found.equals)
        return InputFill(port, shape, "counts", f"whole numbers from {first} to {first + last}", first, first + last)

    # -- and what is fed ----------------------------------------------------------------------------------------------

    def _draw_input(self, source: InputFill, index: int) -> Array:
        """The array that fills one input in sample ``index``, in the port's type; the same for a seed everywhere."""
        shape, kind = source.shape, source.kind
        numbers = RandomNumbers(self.seed, index, zlib.crc32(source.port.name.encode()))
        if kind == "uniform":
            array = numbers.uniform(shape) + np.float32(2.0**-25)
        elif kind == "step":  # forward, and of part of a second
            array = (numbers.uniform(shape) + 1) / 32
        elif kind == "boolean":
            array = numbers.integers(0, 1, shape)
        elif source.table is not None:
            array = source.table.rows(numbers, shape, SCALES[index % len(SCALES)])
        elif kind in KINDS:
            array = draw_kind(kind, numbers, source.seen or shape, index)
        elif kind in ("mask", "added"):
            kept = self._padding_mask(shape, index) != source.inverted
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
                array = np.where(self._padding_mask(shape, index), array, source.pad)
        return np.asarray(np.asarray(array).astype(numpy_type(source.port.dtype)).reshape(shape), order="C")

    def _padding_mask(self, shape: tuple[int, ...], index: int) -> Array:
        """A generated mask of ``shape``: True where it keeps, False for padding: a tail of the last axis, at most half
        of it, another one in each row of the first axis. Samples of even ``index`` have no padding.

        All inputs of one length agree, as a mask and the tokens under it must.
        """
        if not shape:
            return np.ones((), bool)
        total, rows = shape[-1], 1 if len(shape) == 1 else shape[0]
        lengths = np.full(rows, total, np.int64)
        if index % 2:
            lengths = RandomNumbers(self.seed, index, total).integers((total + 1) // 2, total, (rows,))
        column = lengths.reshape((rows,) + (1,) * (len(shape) - 1))
        return np.broadcast_to(np.arange(total) < column, shape)


# -- what kind of numbers: pictures, sound, spectra, plain ones -------------------------------------------------------

SOUND = 4000  # numbers that are surely no vector of features
SPECTRA = ("mel", "spec", "audio")  # in the names of what has bands of frequencies
BANDS = 32  # at least
SCALES = (1.0, 4.0, 1 / 16)  # of plain numbers, by sample
FAINT = 0.1  # a first product whose weights are so small takes numbers of 0 to 255
SHIFT = 8  # means of pictures of 0 to 1 are one at most, and normalised ones have none
TOLD = 6  # operators from an input to the first that tells
WAVES, PERIOD = 32, 64  # rows of a product that are looked at, and how long a wave is at least
PEAK, PURE = 5, 0.8  # frequencies in which a wave under a window has its power, and how much of it
LARGE = 1 << 22  # elements of weights that are looked at
# What becomes of pictures of 0 to 1, by sample: as means and deviations leave them. Readers of text take -1 to 1.
SHIFTS, SHIFTS_OF_LINES = ((4.6, -2.1), (1.0, 0.0), (2.0, -1.0)), ((2.0, -1.0), (1.0, 0.0), (2.0, -1.0))


PLAIN = "scaled"
KINDS = ("picture", "pixels", "sound", "spectrum", PLAIN)
# By kind, what numbers reach for which a scaler in front needs no others: bytes, inverted ones, and what is plain.
REACHED = {"picture": 512.0, "pixels": 512.0, PLAIN: max(SCALES)}


def _kind_of(flow: Dataflow, port: GraphInput, shape: tuple[int, ...]) -> tuple[str, str]:
    """Generated inputs: what a float one holds, a word of `KINDS`, by its name, ``shape`` and the operators that read
    it first; and the note on that for the report."""
    if _are_spectra(port, shape):
        return "spectrum", "spectra: of -1 to 1, logarithms, whitened"
    if is_picture(shape):
        if _takes_bytes(flow, port.value):
            return "pixels", "pictures of 0 to 255"
        return "picture", "pictures: of 0 to 1, of -1 to 1, normalised"
    length = shape[-1] if shape and len(shape) <= 3 else 0
    named = is_sound_name(port.name) and length >= SOUND // 10
    if length and (length >= SOUND or named or _is_sound(flow, port.value)):
        return "sound", "speech-like sound, tones, noise and silence"
    return PLAIN, "about standard normal, and of 4 and 1/16 times that"


def _picture_shape(flow: Dataflow, port: GraphInput, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Generated inputs: the shape to which the model turns one before a product reads it as a picture of one channel;
    () where none does. ``shape``: the input's own, of as many elements."""
    for op, read in _first_readers(flow, port.value):
        found = tuple(size for size in flow.shape(read) or () if isinstance(size, int))
        if (
            has(op.role, "products")
            and is_picture(found)
            and math.prod(found) == math.prod(shape) == found[-1] * found[-2]
        ):
            return found
    return ()


def _are_spectra(port: GraphInput, shape: tuple[int, ...]) -> bool:
    """Generated inputs: whether one is a spectrogram, by its name or an axis of frames, and its sizes: too many bands
    for a picture's colours, too few for sound."""
    words = SPECTRA if len(shape) > 3 else (*SPECTRA, "feature")
    over_time = any(isinstance(dim, str) and "frame" in dim.lower() for dim in port.shape[-2:])
    named = over_time or any(word in port.name.lower() for word in words)
    return named and len(shape) in (3, 4) and min(shape[-2:]) >= BANDS and shape[-1] < SOUND


def _takes_bytes(flow: Dataflow, value: int) -> bool:
    """Generated inputs: whether a picture is of 0 to 255, as the first operators scale it down: by numbers far from 1,
    or by a product whose weights are `FAINT`."""
    for op, read in _first_readers(flow, value):
        if has(op.role, "products"):
            gain = _product_gain(flow, op)
            if gain is not None:
                return gain < FAINT
        elif _scales_far(flow, op, read):
            return True
    return False


def _is_sound(flow: Dataflow, value: int) -> bool:
    """Generated inputs: whether one is sound: a Fourier transform reads it first, or a product that is one."""
    for op, _ in _first_readers(flow, value):
        if has(op.role, "transforms"):
            return _are_waves(flow, op) if has(op.role, "products") else True
    return False


def _are_waves(flow: Dataflow, op: Op) -> bool:
    """Generated inputs: whether a product's weights are waves, as of a Fourier transform: most outputs are made with
    few frequencies. Weights that are not stored, or larger than `LARGE`, are none."""
    array = _stored_numbers(flow, op.inputs[1] if len(op.inputs) > 1 else NONE, LARGE)
    if array is None or array.ndim < 2 or array.dtype.kind != "f":
        return False
    rows = array.T if has(op.role, "multiplies_matrices") else array.reshape(len(array), -1)
    rows = np.asarray(rows[:: max(1, len(rows) // WAVES)], np.float64)
    if rows.ndim != 2 or rows.shape[1] < PERIOD:
        return False
    power = np.sort(np.abs(np.fft.rfft(rows, axis=1)) ** 2, axis=1)
    return bool(np.median(power[:, -PEAK:].sum(1) / (power.sum(1) + 1e-30)) > PURE)


def _first_readers(flow: Dataflow, value: int) -> Iterator[tuple[Op, int]]:
    """Generated inputs: the operators that compute with an input first, each with the value of it that they read: the
    input, or what moves, joins, padding and pools make of it, `TOLD` operators deep at most."""
    work, seen = [(value, TOLD)], set()
    while work:
        value, steps = work.pop()
        for op in flow.readers(value) if steps else []:
            if op.id in seen:
                continue
            seen.add(op.id)
            if any(has(op.role, trait) for trait in ("passes_on", "joins", "pads", "sums_windows")):
                work += [(made, steps - 1) for made in op.outputs]
            else:
                yield op, value


def _scales_far(flow: Dataflow, op: Op, value: int) -> bool:
    """Generated inputs: whether an operator scales ``value`` by stored numbers whose largest is 64 or more, or 1/64 or
    less, or shifts it by `SHIFT` or more, as models do with pixels."""
    factors = _stored_numbers(flow, next((v for v in op.inputs[:2] if v not in (value, NONE)), NONE), 16)
    if factors is None or not (has(op.role, "scalings") or has(op.role, "cancels")):
        return False
    largest = float(np.abs(np.asarray(factors, np.float64)).max())
    return not 1 / 64 < largest < 64 if has(op.role, "scalings") else largest >= SHIFT


def _product_gain(flow: Dataflow, op: Op) -> float | None:
    """Scale of generated inputs: by how much a product enlarges independent numbers: the norm of the weights of one
    output, the median over all outputs. None for weights that are not stored, or of fewer than four axes.

    Networks keep their numbers about one: where the weights are far below it, what comes in is far above."""
    array = _stored_numbers(flow, op.inputs[1] if len(op.inputs) > 1 else NONE, LARGE)
    if array is None or array.ndim < 4:
        return None
    rows = np.asarray(array, np.float64).reshape(len(array), -1)
    return float(np.median(np.sqrt(np.square(rows).sum(1))))


def _stored_numbers(flow: Dataflow, value: int, most: int) -> Array | None:
    """Generated inputs: the numbers of a stored tensor of 1 to ``most`` elements; None for any other value."""
    item = flow.values[value] if value != NONE else None
    if item is None or not (item.weight or item.default) or not 0 < flow.weights.size(item) <= most:
        return None
    return flow.weights.array(item, most)


def draw_kind(kind: str, numbers: RandomNumbers, shape: tuple[int, ...], index: int) -> Array:
    """Generated inputs: float32 numbers of a kind (one of `KINDS`) for sample ``index``, which sets how large they are;
    pictures need a shape that `is_picture`."""
    if kind == "sound":
        return draw_sound(numbers, shape, index)
    if kind == "spectrum":
        return draw_spectrum(numbers, shape, index)
    if kind == PLAIN:
        return numbers.normal(shape) * np.float32(SCALES[index % len(SCALES)])
    field = draw_pictures(numbers, shape, index)
    if kind == "pixels":
        whole: Array = np.floor(field * np.float32(255))
        return whole
    shifts = SHIFTS_OF_LINES if is_line(shape) else SHIFTS
    span, least = shifts[index % len(shifts)]
    return field * np.float32(span) + np.float32(least)


# -- numbers before a scaler -------------------------------------------------------------------------------------------

SCALERS = 4  # operators from an input
WIDEST = 1 << 16  # means
SHARE = 0.1  # of a mean, which is the deviation where nothing tells one


@dataclass(frozen=True)
class Table:
    """For a generated input that the model standardises: the mean and the deviation of each column or channel, or of
    all numbers, float32; they broadcast over the input."""

    means: Array
    deviations: Array

    def rows(self, numbers: RandomNumbers, shape: tuple[int, ...], scale: float) -> Array:
        """Generated numbers of ``shape``, float32: normal, with these means, and ``scale`` times these deviations."""
        made: Array = self.means + self.deviations * numbers.normal(shape) * np.float32(scale)
        return made.astype(np.float32)

    def reaches(self, size: float) -> bool:
        """Of rows to generate: whether mean and deviation of some column add up to more than ``size``."""
        return float(np.max(abs(self.means) + self.deviations)) > size


def scaler_table(flow: Dataflow, value: int, shape: tuple[int, ...]) -> Table | None:
    """Rows to generate: the means and deviations that the first operators behind an input take off again (at most
    `SCALERS` scales and shifts by stored numbers, ``gain * x + offset`` together); None where none do."""
    gain, offset, steps = np.ones(()), np.zeros(()), 0
    while steps < SCALERS and (found := _first_affine(flow, value, shape)) is not None:
        op, factor, term = found
        gain, offset = gain * factor, offset * factor + term
        value, steps = op.outputs[0], steps + 1
    if not steps or not offset.any() or not np.all(gain) or not np.all(np.isfinite(offset / gain)):
        return None
    means = -offset / gain
    if np.all(gain == 1) and np.ptp(offset) == 0:  # log(x + 1) says nothing of a mean
        return None
    deviations = np.maximum(abs(means) * SHARE, SHARE) if np.all(gain == 1) else 1 / abs(gain)
    return Table(np.asarray(means, np.float32), np.asarray(deviations, np.float32))


def _first_affine(flow: Dataflow, value: int, shape: tuple[int, ...]) -> tuple[Op, Array, Array] | None:
    """Generated inputs: the first reader that scales a value and shifts it by stored numbers, as (reader, factor,
    term): it makes ``factor * value + term``. None where no reader does."""
    for op in flow.readers(value):
        if op.kind == "ai.onnx.ml::Scaler":  # (x - offset) * scale
            given = (flow.attribute(op, name) for name in ("scale", "offset"))
            gain, means = (np.asarray(() if numbers is None else numbers, np.float64) for numbers in given)
            if len(shape) and gain.shape == means.shape and gain.size in (1, shape[-1]):
                return op, gain, -means * gain
        if has(op.role, "stored_statistics") and op.inputs[0] == value:
            channels = (-1, *(1,) * (len(shape) - 2))
            rows = [_fitting_numbers(flow, v, shape, channels) for v in op.inputs[3:5]]
            if len(rows) == 2 and rows[0] is not None and rows[1] is not None:
                factor = 1 / np.sqrt(rows[1] + 1e-12)
                return op, factor, -rows[0] * factor
        if not has(op.role, "affine") or len(op.inputs) != 2:
            continue
        other = next((v for v in op.inputs if v != value), NONE)
        stored = _fitting_numbers(flow, other, shape)
        divides, subtracts = (bool(traits().positions(op.role, trait)) for trait in ("divides", "subtracts"))
        if stored is None or (other == op.inputs[0] and (divides or subtracts)):
            continue
        if has(op.role, "scalings"):
            return op, 1 / stored if divides else stored, np.zeros(())
        return op, np.ones(()), -stored if subtracts else stored
    return None


def _fitting_numbers(
    flow: Dataflow, value: int, shape: tuple[int, ...], by: tuple[int, ...] | None = None
) -> Array | None:
    """Generated inputs: stored numbers, float64, that shift or scale an input of ``shape``: one for all, or one for
    each place of one axis; reshaped to ``by`` if given. None for others, as a table of positions."""
    array = _stored_numbers(flow, value, WIDEST)
    if array is None or array.dtype.kind != "f":
        return None
    numbers = np.asarray(array, np.float64).reshape(array.shape if by is None else by)
    fits = (
        numbers.size == max(numbers.shape, default=1)
        and numbers.ndim <= len(shape)
        and all(size in (1, whole) for size, whole in zip(numbers.shape[::-1], shape[::-1], strict=False))
    )
    return numbers if fits else None
