"""Many float32 tensors in one buffer of the device: sessions write and read the parts, and a sum is one operation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...core.arrays import Array
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import OrtTensor

ALIGNED = 16  # numbers: parts begin at multiples of 64 bytes


class IoBinding(Protocol):
    """What is asked of onnxruntime.IOBinding, which has no types."""

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: object, shape: list[int], buffer_ptr: int
    ) -> None: ...
    def bind_output(
        self, name: str, device_type: str, device_id: int, element_type: object, shape: list[int], buffer_ptr: int
    ) -> None: ...
    def bind_ortvalue_input(self, name: str, ortvalue: OrtTensor) -> None: ...


class GraphSession(Protocol):
    """What is asked of onnxruntime.InferenceSession."""

    def io_binding(self) -> object: ...
    def run_with_iobinding(self, iobinding: object) -> None: ...


@dataclass(frozen=True)
class BufferPart:
    """A part of a buffer, or the whole in another shape; ``held`` keeps the memory alive, ``kind`` is its type: numpy's
    or the number of ONNX's."""

    held: OrtTensor
    memory: str
    shape: tuple[int, ...]
    address: int
    kind: object = np.float32

    def bind_input(self, binding: IoBinding, name: str) -> None:
        binding.bind_input(name, self.memory, 0, self.kind, list(self.shape), self.address)

    def bind_output(self, binding: IoBinding, name: str) -> None:
        binding.bind_output(name, self.memory, 0, self.kind, list(self.shape), self.address)


class FlatBuffer:
    """``value`` is the whole buffer, a vector that torch.from_dlpack shares; ``parts`` are its tensors by name."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], memory: str) -> None:
        starts: dict[str, int] = {}
        end = 0
        for name, shape in shapes.items():
            starts[name] = end
            end += -(-math.prod(shape) // ALIGNED) * ALIGNED
        zeros = np.zeros(max(end, 1), np.float32)  # the gaps are added too: they must be numbers
        self.starts = starts
        self.value = self._held(zeros, memory)
        start = self.value.data_ptr()
        self.parts = {
            name: BufferPart(self.value, memory, tuple(shape), start + 4 * starts[name])
            for name, shape in shapes.items()
        }

    def _held(self, zeros: Array, memory: str) -> OrtTensor:
        """The buffer, in memory of ONNX Runtime."""
        kind = import_onnxruntime().OrtValue
        made: Any = kind.ortvalue_from_shape_and_type(zeros.shape, np.float32, memory, 0)
        made.update_inplace(zeros)
        value: OrtTensor = made
        return value


def bind_given(binding: IoBinding, name: str, value: OrtTensor | BufferPart) -> None:
    """An input that is on the device already."""
    if isinstance(value, BufferPart):
        value.bind_input(binding, name)
    else:
        binding.bind_ortvalue_input(name, value)
