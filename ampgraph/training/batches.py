"""The data of a training: arrays by input name, checked on the host before a step runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import AmpError
from ..runtime.data import load_npz
from ..runtime.onnxruntime import Port, check_feeds
from .step import Layout, TrainingStep

IGNORED = -100  # a label that counts for nothing, as in torch.nn.functional.cross_entropy


class Feeds:
    """What a step takes beside its state."""

    def __init__(self, step: TrainingStep) -> None:
        self.layout: Layout = step.layout
        found = {value.name: value for value in step.model.graph.inputs}
        self.ports = {name: _port(found[name]) for name in step.layout.inputs}

    def checked(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The batch as arrays. Raises AmpError AMP503 for an input that is missing, unknown or does not fit."""
        labels = self.layout.labels
        if labels in batch and self.ports[labels].dtype == "int64":
            array = np.asarray(batch[labels])
            if array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64):
                batch = {**batch, labels: array.astype(np.int64)}  # smaller integers are the same numbers
        arrays = check_feeds(self.ports, batch, set())
        empty = next((name for name, array in arrays.items() if not array.size), None)
        if empty is not None:
            raise AmpError("AMP503", f"input '{empty}' is empty", hint="feed at least one sample")
        if labels in arrays and arrays[labels].dtype.kind == "i":
            self._check_labels(arrays[labels])
        return arrays

    def _check_labels(self, labels: np.ndarray) -> None:
        classes = self.layout.classes
        wrong = (labels < 0) & (labels != IGNORED)
        if classes:
            wrong |= labels >= classes
        if wrong.any():
            place = [int(index) for index in np.argwhere(wrong)[0]]
            told = f"label {labels[tuple(place)]} at {place} is no class"
            top = f"0 to {classes - 1}" if classes else "0 upwards"
            raise AmpError("AMP503", told, hint=f"classes are {top}; {IGNORED} leaves a place out of the loss")

    def dataset(self, data: Any) -> Dataset:
        """A whole data set: an .npz path, of which arrays that are no inputs are left out, or arrays by input name.

        Raises AmpError AMP503 where arrays are missing, do not fit, or differ in their number of samples.
        """
        where = os.fspath(data) if isinstance(data, (str, os.PathLike)) else ""
        arrays = load_npz(data) if where else data
        if not isinstance(arrays, Mapping):
            hint = f"a path of an .npz file, or a dictionary of {', '.join(self.ports)}"
            raise AmpError("AMP503", f"data is a {type(data).__name__}", hint=hint)
        missing = [name for name in self.ports if name not in arrays]
        if missing:
            hint = f"it holds {', '.join(list(arrays)[:8]) or 'nothing'}; the step takes {', '.join(self.ports)}"
            raise AmpError("AMP503", f"no array for input '{missing[0]}'", where=where, hint=hint)
        known = {name: array for name, array in arrays.items() if name in self.ports} if where else arrays
        sizes = {name: len(array) if np.ndim(array) else 0 for name, array in known.items()}
        first, count = next(iter(sizes.items()))
        for name, size in sizes.items():
            if size != count:
                told = f"'{first}' has {count} samples and '{name}' {size}"
                raise AmpError("AMP503", told, where=where, hint="the first axis of every array counts the samples")
        try:
            return Dataset(self._whole(known), count)
        except AmpError as error:
            raise AmpError(error.code, error.message, where=where or error.where, hint=error.hint) from None

    def _whole(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """All samples at once: the first axis may have any size."""
        free = Feeds.__new__(Feeds)
        free.layout = self.layout
        free.ports = {n: Port(n, p.dtype, (None, *p.shape[1:]) if p.shape else ()) for n, p in self.ports.items()}
        return free.checked(arrays)

    def check_batch_size(self, size: int) -> None:
        """Raises AmpError AMP503 for a size that the step, exported at another one, does not take."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise AmpError("AMP503", f"batch size {size} is not a whole number from 1", hint="for example 64")
        for port in self.ports.values():
            fixed = port.shape[0] if port.shape else None
            if isinstance(fixed, int) and fixed != size:
                told = f"input '{port.name}' takes {fixed} samples at once, not {size}"
                raise AmpError("AMP503", told, hint=f"--batch-size {fixed}, or export with a dynamic batch")


@dataclass(frozen=True)
class Dataset:
    """Arrays by input name; the first axis counts the samples."""

    arrays: Mapping[str, np.ndarray]
    samples: int

    def shuffled(self, batch_size: int, seed: int, epoch: int, skip: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The whole batches of an epoch in a random order, without the first ``skip``; what is left is dropped."""
        order = np.random.default_rng([seed, epoch]).permutation(self.samples)
        for number in range(skip, self.samples // batch_size):
            rows = order[number * batch_size : (number + 1) * batch_size]
            yield {name: array[rows] for name, array in self.arrays.items()}

    def in_order(self, batch_size: int, whole: bool) -> Iterator[dict[str, np.ndarray]]:
        """All samples from the first to the last; ``whole`` leaves out a last batch that is smaller."""
        end = self.samples - self.samples % batch_size if whole else self.samples
        for start in range(0, end, batch_size):
            yield {name: array[start : start + batch_size] for name, array in self.arrays.items()}


def _port(value: ir.Value) -> Port:
    sizes: tuple[int | str | None, ...] = ()
    if value.shape is not None:
        sizes = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    dtype = "float32" if value.dtype is None else value.dtype.numpy().name
    return Port(value.name or "", dtype, sizes)
