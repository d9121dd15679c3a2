"""torch's exporter reads its library of functions anew for each export, half a second: here once in a process."""

from __future__ import annotations

import copy
import functools
from typing import Any


def read_once() -> None:
    """Keeps what was read first; each export gets a copy of its own, to which it may add functions."""
    from torch.onnx._internal.exporter import _registration

    registry = _registration.ONNXRegistry
    read = functools.cache(registry.from_torchlib)

    def from_torchlib(*words: Any, **more: Any) -> Any:
        made = copy.copy(read(*words, **more))
        made.functions = {target: list(known) for target, known in made.functions.items()}
        return made

    registry.from_torchlib = staticmethod(from_torchlib)  # type: ignore[method-assign]
