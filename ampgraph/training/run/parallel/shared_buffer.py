"""A buffer that torch owns: ONNX Runtime writes its tensors and torch.distributed sums it, and nothing is copied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....core.arrays import Array
from ....core.errors import AmpError
from ....core.installing import pip_install
from ....runtime.devices import import_onnxruntime
from ....runtime.onnxruntime_session import OrtTensor
from ..flat_buffer import FlatBuffer

if TYPE_CHECKING:
    import torch


class SharedBuffer(FlatBuffer):
    """``tensor`` is the whole buffer in torch, ``view`` one of its tensors. Raises AmpError AMP501 for an ONNX Runtime
    that shares no memory."""

    tensor: torch.Tensor

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], memory: str) -> None:
        super().__init__(shapes, memory)
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}

    def _held(self, zeros: Array, memory: str) -> OrtTensor:
        import torch

        self.tensor = torch.zeros(zeros.shape, device=memory)
        kind = import_onnxruntime().OrtValue
        if not hasattr(kind, "from_dlpack"):
            message = "this ONNX Runtime has no OrtValue.from_dlpack, and shares no memory with torch"
            raise AmpError("AMP501", message, hint=pip_install("cpu" if memory == "cpu" else "gpu") + " --upgrade")
        value: OrtTensor = kind.from_dlpack(self.tensor)
        return value

    def view(self, name: str) -> torch.Tensor:
        """One tensor of the buffer, where it lies."""
        start, shape = self.starts[name], self.shapes[name]
        return self.tensor[start : start + math.prod(shape)].view(shape)


def as_torch(value: OrtTensor) -> torch.Tensor:
    """A tensor of ONNX Runtime, where it lies."""
    from torch.utils.dlpack import from_dlpack

    shared: torch.Tensor = from_dlpack(value)
    return shared


def from_torch(tensor: torch.Tensor) -> OrtTensor:
    """A tensor of torch, where it lies."""
    value: OrtTensor = import_onnxruntime().OrtValue.from_dlpack(tensor)
    return value


def low_copy(tensor: torch.Tensor, kind: str) -> torch.Tensor | None:
    """Room for a tensor in a low type; None for float32."""
    import torch

    return None if kind == "float32" else torch.empty_like(tensor, dtype=getattr(torch, kind))
