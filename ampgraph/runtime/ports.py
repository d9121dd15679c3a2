"""What a model takes and gives, and arrays that are to fit it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..core.arrays import Array, Feeds, Result
from ..core.errors import AmpError, first_line, nearest
from ..core.low_types import numpy_type
from ..core.runnable import Declared

if TYPE_CHECKING:
    from ..formats.adapters import OnnxGraph


@dataclass(frozen=True)
class Port:
    """What a session takes or gives: its element type, ``""`` for no tensor, and its sizes: a name, or None for any.

    ``ranked``: whether the file says how many sizes there are; ``shape`` is empty where it does not. None where an
    empty one may mean either, as ONNX Runtime shows a scalar for an unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    ranked: bool | None = None

    def __str__(self) -> str:
        if self.ranked is False:
            return f"{self.dtype} of any shape"
        return f"{self.dtype} [{', '.join('any' if d is None else str(d) for d in self.shape)}]"

    def admits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape may be fed to an input. Symbolic sizes are left to the runtime."""
        if not (self.shape or self.ranked):
            return True
        pairs = zip(shape, self.shape, strict=False)
        fixed = all(declared == given for given, declared in pairs if isinstance(declared, int))
        return fixed and len(shape) == len(self.shape)


class Tensor(Protocol):
    """What a session of MindSpore takes and gives: its tensor, on the host or on a device."""

    @property
    def dtype(self) -> object: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def asnumpy(self) -> Array: ...


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives; ``optional``: inputs with a default value."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    optional: frozenset[str] = frozenset()


def interface_of(graph: OnnxGraph) -> Interface:
    """The inputs and outputs of a graph as its file declares them."""
    inputs, outputs = graph.declared()
    ports = {value.name: port_of(value) for value in inputs if not value.stored}
    optional = frozenset(value.name for value in inputs if value.stored)
    return Interface(ports, {value.name: port_of(value) for value in outputs}, optional)


def port_of(value: Declared) -> Port:
    """An input or output that a file declares, as a session has it; one that is no tensor has no type."""
    if value.container:
        return Port(value.name, "", ())
    return Port(value.name, {"string": "object"}.get(value.dtype, value.dtype), value.shape)


def names_of_outputs(ports: Collection[str], wanted: Sequence[str] | None) -> list[str]:
    """The outputs that a session's run is asked for: ``wanted``, all for None. AmpError AMP503 for one not there."""
    for name in wanted or ():
        if name not in ports:
            hint = nearest(name, list(ports)) or f"there are: {', '.join(ports)}"
            raise AmpError("AMP503", f"no output '{name}'", hint=hint)
    return list(ports if wanted is None else wanted)


def check_feeds(ports: Mapping[str, Port], feeds: Feeds, optional: Collection[str]) -> dict[str, Result]:
    """The feeds of a session as contiguous arrays; tensors of MindSpore stay where they are. All of ``ports`` must be
    fed; ``optional`` inputs may be, unchecked. Raises AmpError AMP503 for an unknown, missing or unfitting one."""
    for name in feeds:
        if name not in ports and name not in optional:
            hint = nearest(name, list(ports)) or f"there are: {', '.join(ports)}"
            raise AmpError("AMP503", f"no input '{name}'", hint=hint)
    missing = [name for name in ports if name not in feeds]
    if missing:
        raise AmpError("AMP503", f"no value for input '{missing[0]}'", hint=f"feed {', '.join(ports)}")
    return {name: _fitting_array(ports[name], value) if name in ports else value for name, value in feeds.items()}


def contradiction(ports: Mapping[str, Port], feeds: Mapping[str, Result]) -> str:
    """Where a symbolic size has two values in the arrays that a session is fed, in words for a hint; "" if nowhere.
    Exporters reuse names: it may be no mistake."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, port in ports.items():
        given_shape = np.shape(feeds[name]) if port.shape and name in feeds else ()
        for given, declared in zip(given_shape, port.shape, strict=False):
            if isinstance(declared, str):
                held, first = sizes.setdefault(declared, (given, name))
                if held != given:
                    return f"'{declared}' is {held} in input '{first}' and {given} in '{name}'"
    return ""


def _fitting_array(port: Port, value: Any) -> Any:
    """What is fed to a session as an array, which must have the port's type and fixed sizes; AmpError AMP503 for
    others. A tensor of MindSpore, and what is fed to a port of no type, as they are."""
    if not port.dtype:
        return value  # a sequence or a map: the runtime looks at it
    try:
        fed: Array | Tensor = value if hasattr(value, "asnumpy") else np.asarray(value, order="C")
    except ValueError as error:
        message = f"the value of input '{port.name}' is not an array: {first_line(error)}"
        raise AmpError("AMP503", message, hint=f"feed {port}") from None
    found, wanted = getattr(fed.dtype, "name", str(fed.dtype).lower()), port.dtype
    if wanted == "bfloat16" and isinstance(fed, np.ndarray) and (fed.dtype.kind == "V" or found == "bfloat16"):
        fed, found = fed.view(np.uint16).view(numpy_type(wanted)), wanted  # numpy's files and others have own types
    if found != wanted and wanted != "object":
        said = fed.dtype if isinstance(fed, np.ndarray) else found
        hint = f"array.astype('{wanted}') if its values fit"
        raise AmpError("AMP503", f"input '{port.name}' takes {port} but {said} was fed", hint=hint)
    if not port.admits(fed.shape):
        message = f"input '{port.name}' takes {port} but the array fed has shape {list(fed.shape)}"
        raise AmpError("AMP503", message, hint="see `ampgraph inspect` for the model, np.load for the data")
    return fed


# -- what takes and gives them ----------------------------------------------------------------------------------------


class Session(Protocol):
    """A model that was opened once and is run often."""

    @property
    def inputs(self) -> Mapping[str, Port]:
        """What the session may be fed, in the order of the model."""
        ...

    @property
    def outputs(self) -> Mapping[str, Port]:
        """What a run of the session gives, in the order of the model."""
        ...

    @property
    def required(self) -> Sequence[str]:
        """The inputs that must be fed, as they have no value of their own."""
        ...

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
        """The outputs by name, all or some: arrays, and for outputs that are no tensors what the runtime has.

        Raises AmpError AMP503 for feeds that do not fit and for an output that is not there, AMP504 where it stops.
        """
        ...
