"""What a .mindir file takes and gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..core.arrays import Array, Feeds, Result
from ..core.errors import AmpError, nearest
from ..core.low_types import numpy_type
from ..formats.mindir import io as mindir_io
from ..formats.mindir.schema import ELEMENT_TYPES, TENSOR, TENSORS
from .ports import Port, array_of

UNKNOWN_RANK = (-2,)  # how MindSpore writes a shape of which nothing is known
TENSOR_KINDS = (TENSOR, TENSORS)


@runtime_checkable
class Tensor(Protocol):
    """A tensor of MindSpore, on the host or on a device."""

    @property
    def dtype(self) -> object: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def asnumpy(self) -> Array: ...


@dataclass(frozen=True)
class MindirPorts:
    """What a file takes and gives. Inputs bear the names of the arguments that were exported, in their order; outputs,
    which have no names of their own in MindIR, are ``output0``, ``output1``, ... (a tuple counts by its elements)."""

    inputs: dict[str, Port]
    outputs: dict[str, Port]
    prefix: str  # what the file writes before every name
    low: frozenset[str]  # float16, bfloat16: those that occur among the stored and computed tensors

    def check(self, feeds: Feeds) -> dict[str, Array | Tensor]:
        """The feeds as arrays, or Tensors as they are, in the order of the file. Raises AmpError AMP503."""
        given: dict[str, Result] = {}
        for word, value in feeds.items():
            name = word.removeprefix(self.prefix)
            if name not in self.inputs:
                hint = nearest(name, list(self.inputs)) or f"there are: {', '.join(self.inputs)}"
                raise AmpError("AMP503", f"no input '{word}'", hint=hint)
            if name in given:
                raise AmpError("AMP503", f"input '{name}' is given twice", hint="by its short or its full name")
            given[name] = value
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise AmpError("AMP503", f"no value for input '{missing[0]}'", hint=f"feed {', '.join(self.inputs)}")
        return {name: _fitting(port, given[name]) for name, port in self.inputs.items()}


def _fitting(port: Port, value: object) -> Array | Tensor:
    """The value as an array of the port's type; a mindspore Tensor stays where it is."""
    fed: Array | Tensor = value if isinstance(value, Tensor) else _array(port, value)
    found, shape = str(fed.dtype).lower(), tuple(fed.shape)
    if found != port.dtype:
        hint = f"array.astype('{port.dtype}') if its values fit"
        raise AmpError("AMP503", f"input '{port.name}' takes {port} but {found} was fed", hint=hint)
    if not _admits(port, shape):
        message = f"input '{port.name}' takes {port} but the array fed has shape {list(shape)}"
        raise AmpError("AMP503", message, hint="export with Tensor(shape=[None, ...]) for sizes that vary")
    return fed


def _array(port: Port, value: object) -> Array:
    array = array_of(port, value)
    if port.dtype == "bfloat16" and (array.dtype == np.dtype("V2") or array.dtype.name == "bfloat16"):
        return array.view(np.uint16).view(numpy_type("bfloat16"))  # numpy files and MindSpore have types of their own
    return array


def _port(name: str, dtype: str, dims: tuple[int, ...]) -> Port:
    ranked = dims != UNKNOWN_RANK
    return Port(name, dtype, tuple(None if dim == -1 else dim for dim in dims) if ranked else (), ranked)


def _admits(port: Port, shape: tuple[int, ...]) -> bool:
    """Whether an array of that shape may be fed."""
    if not port.ranked:
        return True
    return len(shape) == len(port.shape) and all(w in (None, g) for w, g in zip(port.shape, shape, strict=True))


def read_ports(path: str | os.PathLike[str]) -> tuple[MindirPorts, Any]:
    """What a file takes and gives, and its ModelProto.

    Raises AmpError AMP1xx for the file, AMP502 for an input that is not a tensor.
    """
    model = mindir_io.load(path).model
    prefix = f"{model.graph.name}:"
    inputs = [_input(value, value.name.removeprefix(prefix), path) for value in model.graph.input]
    found: list[Any] = []
    for value in model.graph.output:
        found += value.tensor or _leaves(value.attr_info)
    outputs = [
        _port(f"output{index}", ELEMENT_TYPES.get(tensor.data_type, "other"), tuple(tensor.dims))
        for index, tensor in enumerate(found)
    ]
    low = _low_types(model)
    return MindirPorts({p.name: p for p in inputs}, {p.name: p for p in outputs}, prefix, low), model


def _low_types(model: Any) -> frozenset[str]:
    graphs = (model.graph, *model.functions)
    kinds = {tensor.data_type for graph in graphs for tensor in graph.parameter}
    nodes = (node for graph in graphs for node in graph.node)
    kinds |= {tensor.data_type for node in nodes for entry in node.attribute for tensor in entry.tensors}
    return frozenset({ELEMENT_TYPES.get(kind, "") for kind in kinds} & {"float16", "bfloat16"})


def _leaves(info: Any) -> Iterator[Any]:
    """The tensors of a tuple, however deep."""
    if info.type in TENSOR_KINDS:
        yield from info.tensors
    for value in info.values:
        yield from _leaves(value)


def _input(value: Any, name: str, path: Any) -> Port:
    if len(value.tensor) != 1:
        hint = "export a network whose arguments are tensors"
        raise AmpError("AMP502", f"input '{name}' is a tuple or a number, not a tensor", where=str(path), hint=hint)
    kind = ELEMENT_TYPES.get(value.tensor[0].data_type, "")
    if not kind or kind == "string":
        raise AmpError("AMP502", f"'{name}' has a type that cannot be fed", where=str(path), hint="export numbers")
    return _port(name, kind, tuple(value.tensor[0].dims))
