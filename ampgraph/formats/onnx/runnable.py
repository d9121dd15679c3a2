"""What runs ask of an ONNX graph: a copy without functions, its border as declared, the file for a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ...core.dataflow import Dataflow
from ...core.runnable import Declared
from ..editable import EditableGraph
from . import io as onnx_io
from .shapes import sizes
from .strict_editor import OnnxStrictEditor
from .types import declared_type
from .wire import graph_file

if TYPE_CHECKING:
    from typing_extensions import Self


class RunnableOnnx(EditableGraph):
    """What `core.runnable.RunnableGraph` adds to a graph."""

    model: ir.Model

    def _of(self, model: ir.Model) -> Self:
        """A graph of the same kind."""
        return type(self)(model)  # type: ignore[arg-type]  # the class of the whole graph takes a model

    def flat(self) -> Self:
        """The graph without functions, itself where there are none: their formals have no types to rewrite."""
        if not self.model.functions:
            return self
        import onnx.inliner

        folder = self.folder()
        flat = onnx.inliner.inline_local_functions(onnx_io.to_proto(self.model))
        if flat.functions:  # a function of another opset is left alone unless its body may be converted
            flat = onnx.inliner.inline_local_functions(flat, convert_version=True)
        return self._of(onnx_io.deserialize(flat, Path(folder) if folder else None))

    def copied(self) -> Self:
        """A copy to edit; stored tensors are shared."""
        return self._of(self.model.clone())

    def declared(self) -> tuple[Sequence[Declared], Sequence[Declared]]:
        """Inputs and outputs as the file annotates them."""
        main = self.model.graph
        return [_declared(value) for value in main.inputs], [_declared(value) for value in main.outputs]

    def folder(self) -> str:
        """Where the data files of the model are; empty where it has none."""
        first = next(onnx_io.external_tensors(self.model), None)
        return "" if first is None else str(Path(first.base_dir).resolve())

    def content(self) -> bytes:
        """The file of a graph without functions, as a runtime takes it; weights in files beside it stay there."""
        main = self.model.graph
        stored = main.initializers.values()
        return graph_file(self.model.ir_version, self.model.opset_imports, main.inputs, main.outputs, main, stored)

    def strict_editor(self, flow: Dataflow) -> OnnxStrictEditor:
        """An editor over the newest dataflow of a graph without functions."""
        self.require_newest(flow)
        return OnnxStrictEditor(self.model, flow, self.edited)


def _declared(value: ir.Value) -> Declared:
    return Declared(value.name or "", *declared_type(value), tuple(sizes(value.shape or ())), value.is_initializer())
