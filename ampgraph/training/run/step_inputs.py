"""The batches that a training step takes: arrays by input name, checked on the host before the step runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from ...core.arrays import Array, Feeds
from ...core.errors import AmpError, is_whole
from ...runtime.data import first_nan, load_inputs, refuse_missing
from ...runtime.ports import Port, check_feeds, contradiction
from ..forward.losses import ClassInput
from ..step.training_step import StepLayout, TrainingStep
from .dataset import Batches, Dataset, Normalized, Stream, TrainingData, load_folder, rows_at_once, stays_on_disk

IGNORED = -100  # the label of a place that does not count, as in torch.nn.functional.cross_entropy


class StepInputs:
    """The inputs of a training step beside its state, as `ports` by name, and checks of what is given for them.
    ``parts``: how many micro-batches share a batch. Where a step has a fixed batch size, that is the micro-batches', so
    a batch is as many times larger."""

    def __init__(self, step: TrainingStep, parts: int = 1) -> None:
        self.layout: StepLayout = step.layout
        self.parts = parts
        found = {value.name: value for value in step.model.graph.inputs}
        self.ports = {name: _port(found[name], parts) for name in step.layout.inputs}

    def checked(self, batch: Feeds) -> dict[str, Array]:
        """A batch for a training step as arrays of the step's types. Raises AmpError AMP503 where it does not fit."""
        return _check_batch(self.layout, self.ports, batch)

    def dataset(self, data: TrainingData) -> Dataset:
        """Training data in any form as a checked `Dataset`; a `Dataset` as it is, unchecked. Of an .npz file arrays
        that are no inputs are left out, files of a folder are memory-mapped, and an iterable of batches is gone through
        once, to check and to count them. Raises AmpError AMP503 where arrays are missing, do not fit, hold NaN or
        differ in their number of samples, and what reading files raises."""
        if isinstance(data, Dataset):
            return data
        if isinstance(data, Normalized):
            return self.dataset(cast("TrainingData", data.data)).then(*data.rows(self.ports, self.layout.labels))
        where = os.fspath(data) if isinstance(data, (str, os.PathLike)) else ""
        try:
            return self._load(data, where)
        except AmpError as error:
            raise AmpError(error.code, error.message, where=error.where or where, hint=error.hint) from None

    def _load(self, data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Batches, where: str) -> Dataset:
        """Training data as a checked `Dataset`; ``where``: the path that was given as ``data``, "" for none."""
        if where and stays_on_disk(where):
            return self._dataset_of_files(load_folder(where, self.ports, self.layout.labels))
        if isinstance(data, Iterable) and not isinstance(data, (str, Mapping)):
            return self._stream(data)
        arrays: object = load_inputs(where, self.ports, self.ports, "the step") if where else data
        if not isinstance(arrays, Mapping):
            hint = f"a path of an .npz file or a folder, or a dictionary of {', '.join(self.ports)}"
            raise AmpError("AMP503", f"data is a {type(data).__name__}", hint=hint)
        count = self._count(arrays)
        if any(_holds_exactly(self.ports[name], array) for name, array in arrays.items() if name in self.ports):
            return self._dataset_of_files({name: np.asarray(array) for name, array in arrays.items()})
        whole = self._check_samples(arrays)
        _refuse_nan(whole)
        return Dataset(whole, count)

    def _dataset_of_files(self, arrays: Mapping[str, Array]) -> Dataset:
        """Training data of which only the rows of a batch are converted, when they are read: arrays in files, and
        integers for a float32 input. All rows are checked now, some at a time."""
        arrays = {name: array for name, array in arrays.items() if name in self.ports}
        made = Dataset(arrays, self._count(arrays), self._prepare)
        for rows in made.in_order(rows_at_once(arrays), whole=False):
            _refuse_nan(rows)
        return made

    def _prepare(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Rows of training data as the step takes them, checked: of the step's types, and of its shape where only axes
        are split or merged (flat samples, axes of length 1)."""
        made = {}
        for name, array in rows.items():
            port = self.ports[name]
            sizes = [size for size in port.shape[1:] if isinstance(size, int)]
            if len(sizes) == len(port.shape) - 1 and _only_flatter(sizes, array.shape[1:]):
                array = array.reshape(len(array), *sizes)
            made[name] = np.asarray(array, np.float32) if _holds_exactly(port, array) else array
            if made[name].dtype.byteorder == ">":
                made[name] = made[name].astype(made[name].dtype.newbyteorder("="))
        return self._check_samples(made)

    def _stream(self, data: Iterable[object]) -> Dataset:
        """Training data from an iterable of batches, which is gone through once to check every batch and to count the
        samples. Raises AmpError AMP503 for an iterator, which could not be gone through again."""
        if iter(data) is data:
            hint = "give an object that begins anew every time that it is iterated: a list, a DataLoader"
            raise AmpError("AMP503", f"data is a {type(data).__name__}, which one epoch uses up", hint=hint)
        count = 0
        for given in data:
            batch = self._arrays_of_batch(given)
            _refuse_nan(batch)
            count += self._count(batch)
        if not count:
            raise AmpError("AMP503", "data gives no batch", hint="every batch is a dictionary, or a row of arrays")
        return Stream({}, count, source=data, named=self._arrays_of_batch)

    def _arrays_of_batch(self, given: object) -> dict[str, Array]:
        """The arrays of one batch of an iterable by input name, checked: the batch is a mapping, or a row in the order
        of the inputs; tensors of torch become arrays."""
        if isinstance(given, (tuple, list)) and len(given) == len(self.ports):
            given = dict(zip(self.ports, given, strict=True))
        if not isinstance(given, Mapping):
            hint = f"a dictionary or a row of {', '.join(self.ports)}"
            raise AmpError("AMP503", f"a batch of data is a {type(given).__name__}", hint=hint)
        return self._prepare({name: np.asarray(array) for name, array in given.items() if name in self.ports})

    def _count(self, arrays: Mapping[str, ArrayLike]) -> int:
        """The number of samples in training data. Raises AmpError AMP503 where arrays are missing or differ in it."""
        refuse_missing(self.ports, arrays, "the step", "")
        sizes = {name: np.shape(array)[0] if np.ndim(array) else 0 for name, array in arrays.items()}
        if not sizes:
            raise AmpError("AMP503", "the step takes no data", hint="build it from a graph with an input")
        first, count = next(iter(sizes.items()))
        for name, size in sizes.items():
            if size != count:
                message = f"'{first}' has {count} samples and '{name}' {size}"
                raise AmpError("AMP503", message, hint="the first axis of every array counts the samples")
        return count

    def _check_samples(self, arrays: Feeds) -> dict[str, Array]:
        """Samples of training data as arrays of the step's types, checked, any number of them."""
        any_size = {n: Port(n, p.dtype, (None, *p.shape[1:]) if p.shape else ()) for n, p in self.ports.items()}
        return _check_batch(self.layout, any_size, arrays)

    def check_batch_size(self, size: int) -> int:
        """A batch size as an int. Raises AmpError AMP503 for one that is no number from 1, that the step, exported at
        another one, does not take, or that is below the number of micro-batches."""
        if not is_whole(size) or size < 1:
            raise AmpError("AMP503", f"batch size {size} is not a whole number from 1", hint="for example 64")
        for port in self.ports.values():
            fixed = port.shape[0] if port.shape else None
            if isinstance(fixed, int) and fixed != size:
                message = f"input '{port.name}' takes {fixed} samples at once, not {size}"
                raise AmpError("AMP503", message, hint=f"--batch-size {fixed}, or export with a dynamic batch")
        if size < self.parts:
            message = f"a batch of {size} is too small for {self.parts} micro-batches"
            raise AmpError("AMP503", message, hint="take larger batches, or a smaller --accumulate")
        return int(size)


def _only_flatter(one: Sequence[int], other: Sequence[int]) -> bool:
    """A training step's inputs: whether one of two shapes is the other with neighbouring axes merged, so that a reshape
    keeps the meaning: [28, 28] and [784], not [3, 32, 32] and [32, 32, 3]. It is where the products of leading sizes of
    one shape are all among those of the other."""
    ends = [{math.prod(sizes[: count + 1]) for count in range(len(sizes))} | {1} for sizes in (one, other)]
    return math.prod(one) == math.prod(other) and (ends[0] <= ends[1] or ends[1] <= ends[0])


def _refuse_nan(arrays: Mapping[str, Array]) -> None:
    """Raises AmpError AMP503 for training samples with a NaN: it makes weights NaN, or has steps skipped."""
    for name, array in arrays.items():
        place = first_nan(array)
        if place is not None:
            raise AmpError("AMP503", f"'{name}' is NaN at {place}", hint="leave such samples out, or fill them")


def _check_batch(layout: StepLayout, ports: Mapping[str, Port], batch: Feeds) -> dict[str, Array]:
    """A batch for a training step as arrays of its types. Raises AmpError AMP503 for an input that is missing, unknown,
    empty or does not fit its port, sizes of one name that differ, and labels that are no class."""
    if not isinstance(batch, Mapping):
        message = f"a batch is a dictionary of arrays, not a {type(batch).__name__}"
        raise AmpError("AMP503", message, hint=f"give {', '.join(ports)} by name")
    _refuse_label_rows(layout, ports, batch)
    arrays = check_feeds(
        ports, {name: _to_port_type(ports[name], a) if name in ports else a for name, a in batch.items()}, set()
    )
    if different := contradiction(ports, arrays):
        raise AmpError("AMP503", different, hint="feed rows that belong together")
    empty = next((name for name, array in arrays.items() if not array.size), None)
    if empty is not None:
        raise AmpError("AMP503", f"input '{empty}' is empty", hint="feed at least one sample")
    for row in (*layout.class_inputs, ClassInput(layout.labels, layout.classes, IGNORED)):
        if row.name in arrays and arrays[row.name].dtype.kind == "i":
            _check_labels(arrays[row.name], row)
    return arrays


def _to_port_type(port: Port, value: object) -> object:
    """A training step's inputs: other integers as int64 and float64 or float16 as float32, where ``port`` takes that;
    anything else stays what it is. Raises AmpError AMP503 for finite numbers beyond float32."""
    if not isinstance(value, np.ndarray):
        return value
    if port.dtype == "int64" and value.dtype.kind in "iu" and np.can_cast(value.dtype, np.int64):
        return value.astype(np.int64)
    if port.dtype == "float32" and value.dtype in (np.float64, np.float16):
        with np.errstate(over="ignore"):
            made = value.astype(np.float32)
        if np.isinf(made).any() and not np.isinf(value).any():
            message = f"'{port.name}' reaches {np.abs(value).max():.3g}, and float32 ends at 3.4e38"
            raise AmpError("AMP503", message, hint="scale the data down")
        return made
    return value


def _refuse_label_rows(layout: StepLayout, ports: Mapping[str, Port], batch: Feeds) -> None:
    """A training step's inputs: raises AmpError AMP503 for labels that are a row for each sample (probabilities, or one
    number) where the step wants the number of the class."""
    port, labels = ports.get(layout.labels), np.asarray(batch.get(layout.labels, 0))
    if port is not None and port.dtype == "int64" and labels.ndim == len(port.shape) + 1:
        message = f"'{layout.labels}' has a row for each sample, and the number of its class is wanted"
        one = f"{layout.labels}[..., 0] if the row is that number"
        hint = one if labels.shape[-1] == 1 else f"{layout.labels}.argmax(-1) if the row is chances"
        raise AmpError("AMP503", message, hint=hint)


def _check_labels(labels: Array, row: ClassInput) -> None:
    """A training step's inputs: raises AmpError AMP503 for a label that is neither a class of ``row`` nor its ignored
    one, and says where it is."""
    wrong = labels < 0
    if row.classes:
        wrong |= labels >= row.classes
    if row.ignored is not None:
        wrong &= labels != row.ignored
    if wrong.any():
        place = [int(index) for index in np.argwhere(wrong)[0]]
        message = f"label {labels[tuple(place)]} at {place} of '{row.name}' is not a class"
        classes = f"classes are 0 to {row.classes - 1}" if row.classes else "classes are 0 upwards"
        more = "" if row.ignored is None else f"; {row.ignored} leaves a place out of the loss"
        raise AmpError("AMP503", message, hint=classes + more)


def _holds_exactly(port: Port, array: object) -> bool:
    """A training step's inputs: whether ``array`` holds integers for a float32 input, of a type whose numbers float32
    all holds exactly (8 or 16 bits), as pixels are."""
    is_small_int = isinstance(array, np.ndarray) and array.dtype.kind in "iu" and np.can_cast(array.dtype, np.float32)
    return port.dtype == "float32" and is_small_int


def _port(value: ir.Value, parts: int) -> Port:
    """A training step's inputs: one of them as a whole batch must have it: name, numpy type, sizes (None or a name
    where open). A fixed batch size, which is that of a micro-batch, is taken ``parts`` times."""
    sizes: tuple[int | str | None, ...] = ()
    if value.shape is not None:
        sizes = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    if sizes and isinstance(sizes[0], int):
        sizes = (sizes[0] * parts, *sizes[1:])
    dtype = "float32" if value.dtype is None else value.dtype.numpy().name
    return Port(value.name or "", dtype, sizes)
