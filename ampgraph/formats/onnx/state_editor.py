"""The editor of an ONNX model, with the verbs for state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import Dataflow, Value
from .editor import OnnxEditor
from .states import States
from .types import dtype_name
from .variants import Variants


class OnnxStateEditor(OnnxEditor):
    """`core.graph.StateEditor` on handles of the dataflow, over the verbs of `core.graph.NodeEditor`."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants, done: Callable[[], None]) -> None:
        super().__init__(model, flow, variants, done)
        self._states = States(model.graph, self.handles.fresh, self._op)

    def state(self, name: str, init: Array) -> Value:
        """A new input of the main graph with a first value."""
        self._edited = True
        return self._handle(self._states.state(name, init))

    def keep(self, value: Value) -> Value:
        """A stored tensor of the main graph becomes an input whose first value it is."""
        self._edited = True
        self._states.keep(self.handles.value(value))
        return value

    def commit(self, after: Mapping[Value, Value], when: Value | None = None) -> dict[str, str]:
        """The next values come out; the old ones again where ``when`` is false."""
        self._edited = True
        natives = {self.handles.value(old): self.handles.value(new) for old, new in after.items()}
        return self._states.commit(natives, None if when is None else self.handles.value(when))

    def _op(self, kind: str, *inputs: ir.Value) -> ir.Value:
        """An operator of the main graph behind what it reads; its result has the type of its last input."""
        found = [self._handle(value) for value in inputs]
        return self.handles.value(self.add(kind, found, [found[-1].dtype], scope=0)[0])

    def _handle(self, native: ir.Value) -> Value:
        return self.handles.handle(native, 0, dtype_name(native.dtype))
