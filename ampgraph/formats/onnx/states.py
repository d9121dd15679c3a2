"""State of a step in an ONNX graph: inputs with a first value, and outputs that hold the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array


class States:
    """The verbs of `core.graph.StateEditor` on values of onnx_ir.

    ``fresh``: gives a name that nothing has; ``op``: adds an operator, by its kind and inputs, behind all others."""

    def __init__(self, graph: ir.Graph, fresh: Callable[[str], str], op: Callable[..., ir.Value]) -> None:
        self.graph, self._fresh, self._op = graph, fresh, op

    def state(self, name: str, init: Array) -> ir.Value:
        """A new input with a first value."""
        name, init = self._fresh(name), np.asarray(init)
        kind, shape = ir.TensorType(ir.DataType.from_numpy(init.dtype)), ir.Shape(init.shape)
        value = ir.Value(name=name, type=kind, shape=shape, const_value=ir.tensor(init, name=name))
        self.graph.initializers[name] = value
        return self.keep(value)

    def keep(self, value: ir.Value) -> ir.Value:
        """An initializer becomes an input whose first value it is."""
        assert value.is_initializer()
        if not value.is_graph_input():
            self.graph.inputs.append(value)
        return value

    def commit(self, after: Mapping[ir.Value, ir.Value], when: ir.Value | None = None) -> dict[str, str]:
        """Each next value, or the old one again where ``when`` is false, is an output of its own.

        A runtime copies through an Identity what somebody else reads too: an output takes the value itself, if it may.
        """
        found: dict[str, str] = {}
        for old, new in after.items():
            chosen = new if when is None else self._op("Where", when, new, old)
            output = chosen if _may_be_named(chosen) else self._op("Identity", chosen)
            output.name, output.type, output.shape = self._fresh(f"next/{old.name}"), old.type, old.shape
            self.graph.outputs.append(output)
            found[old.name or ""] = output.name
        return found


def _may_be_named(value: ir.Value) -> bool:
    """Whether nobody else has named a value; what an Identity gives on may be a gradient too."""
    node = value.producer()
    return node is not None and node.op_type != "Identity" and not value.is_graph_output()
