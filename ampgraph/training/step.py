"""A training step as one ONNX graph: built from a forward graph, saved, loaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import AmpError
from .state import Entry

KEY = "ampgraph.step"
"""The model metadata that holds a `Layout`."""
VERSION = 1


@dataclass(frozen=True)
class ClassInput:
    """An input of class numbers: 0 .. ``classes`` - 1 (0 where that is not known), or ``ignored`` where that is one."""

    name: str
    classes: int
    ignored: int | None


@dataclass(frozen=True)
class Layout:
    """What the inputs and outputs of a step graph are for."""

    states: tuple[Entry, ...]
    inputs: tuple[str, ...]  # the batch, labels included
    labels: str = ""  # the input of the labels, where a loss was added
    classes: int = 0  # labels lie in 0 .. classes - 1, where that is known
    class_inputs: tuple[ClassInput, ...] = ()  # what the graph's own loss reads as labels, nothing but reshaped
    loss: str = ""
    finite: str = ""
    norm: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # level, dtype, optimizer, loss_scale, clip_norm, target
    version: int = VERSION

    def of(self, *kinds: str) -> list[Entry]:
        """The entries of some kinds, in order."""
        return [entry for entry in self.states if entry.kind in kinds]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str, where: str = "") -> Layout:
        """Raises AmpError AMP206 for what no step graph of ours says."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise AmpError(
                    "AMP206", f"is a step graph of version {data['version']}", where=where, hint="build it again"
                )
            states = tuple(Entry(**entry) for entry in data.pop("states"))
            read = tuple(ClassInput(**row) for row in data.pop("class_inputs", ()))
            return Layout(states, tuple(data.pop("inputs")), class_inputs=read, **data)
        except (KeyError, TypeError, ValueError) as error:
            told = "its description of the training step cannot be read"
            raise AmpError("AMP206", told, where=where, hint="build it again with ampgraph build-step") from error


@dataclass(frozen=True)
class TrainingStep:
    """``model``: the whole step. Inputs are the batch and the state, whose first values are in the model; outputs are
    the loss, whether all gradients were finite, and the next state."""

    model: ir.Model = field(repr=False)  # onnx_ir prints a graph node by node, as deep as it is
    layout: Layout

    @property
    def initial_state(self) -> dict[str, np.ndarray]:
        """The first value of every tensor of the state, by name."""
        found = self.model.graph.initializers
        return {entry.name: _numbers(found[entry.name]) for entry in self.layout.states}

    @property
    def parameters(self) -> list[str]:
        """Names of what is trained."""
        return [entry.name for entry in self.layout.of("parameter")]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model, whole or not at all."""
        from ..formats.onnx_format import OnnxGraph

        OnnxGraph(self.model).save(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TrainingStep:
        """Raises AmpError AMP1xx for the file, AMP206 for one that is no step graph."""
        from ..formats.onnx_format import OnnxGraph

        model = OnnxGraph.load(path).model
        return TrainingStep(model, layout_of(model, os.fspath(path)))


def layout_of(model: ir.Model, where: str = "") -> Layout:
    """What a step graph says of itself. Raises AmpError AMP206 for any other graph."""
    text = model.metadata_props.get(KEY)
    if text is None:
        hint = "build one: ampgraph build-step FORWARD.onnx --loss cross_entropy --optimizer adam -o STEP.onnx"
        raise AmpError("AMP206", "is not a training step", where=where, hint=hint)
    layout = Layout.from_json(text, where)
    graph = model.graph
    have = {value.name for value in graph.inputs}
    made = {value.name for value in graph.outputs}
    for entry in layout.states:
        if (
            entry.name not in have
            or entry.name not in graph.initializers
            or (entry.output and entry.output not in made)
        ):
            raise AmpError("AMP206", f"its state '{entry.name}' is missing", where=where, hint="build it again")
    return layout


def _numbers(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()
