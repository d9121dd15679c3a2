"""A training step as one ONNX graph: the model, the `StepLayout` that says what its inputs and outputs are for, saving
and loading; and the result of running it once."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Generic, SupportsFloat, TypeVar

import onnx
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError
from ...core.json_types import Json, JsonObject  # noqa: F401  an alias names the other
from ...core.plan import Note
from ...core.typed import reader
from ...formats.onnx import io as onnx_io
from ..forward.losses import ClassInput
from .packed_forward import ORIGINAL
from .state_tensors import COUNTER, SCALE, SCHEDULE, StateTensor

KEY = "ampgraph.step"
"""The model metadata that holds a `StepLayout`."""
VERSION = 1


@dataclass(frozen=True)
class Run:
    """Parameters that a training step's update moves together, as one vector, by names of the graph.

    Args:
        parameters: side by side in the vector, in this order.
        slots: of the optimizer, each as long as the whole vector.
        averages: the running average of each parameter, or none at all.
        gradients: what the gradients hand to the update: values that side by side are as long as the vector.
        whole: the optimizer is one of the user, which may read elements together, so the vector must not be cut.
    """

    parameters: tuple[str, ...]
    slots: tuple[str, ...]
    averages: tuple[str, ...]
    gradients: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True)
class StepLayout:
    """What the inputs and outputs of a training step's graph are for, by name; "" or empty for what it has not got."""

    states: tuple[StateTensor, ...]
    inputs: tuple[str, ...]  # the batch, labels included
    labels: str = ""  # the input of the labels, where a loss was added
    classes: int = 0  # labels lie in 0 .. classes - 1, where that is known
    class_inputs: tuple[ClassInput, ...] = ()  # what the graph's own loss reads as labels, nothing but reshaped
    loss: str = ""  # the output of the loss, without the loss scale
    finite: str = ""  # the output that says whether all gradients were finite
    norm: str = ""  # the output of the norm of all gradients, where it is clipped
    groups: tuple[tuple[str, float], ...] = ()  # pattern and learning rate of each, where there are several
    parts: tuple[tuple[str, str], ...] = ()  # name and output of each part of a loss of several, without its weight
    whole_batch: str = ""  # why micro-batches cannot share a batch; empty where they can
    runs: tuple[Run, ...] = ()
    moved: tuple[tuple[str, tuple[str, ...]], ...] = ()  # value handed to the update, and the running states it follows
    options: JsonObject = field(default_factory=dict)  # level, dtype, optimizer, loss_scale, clip_norm, target
    version: int = VERSION

    def of(self, *kinds: str) -> list[StateTensor]:
        """The state tensors of a training step that are of these kinds, in its order."""
        return [entry for entry in self.states if entry.kind in kinds]

    def find(self, kind: str, stem: str) -> str:
        """The name of the training step's state of a kind that is called ``stem``, or ``stem_1`` where the forward
        graph had that name; "" for none."""
        return next((e.name for e in self.of(kind) if re.fullmatch(rf"{stem}(_\d+)?", e.name)), "")

    @property
    def scale(self) -> str:
        """The name of the training state that is the loss scale; "" for none."""
        return self.find(SCALE, "step/scale")

    @property
    def count(self) -> str:
        """The name of the training state that counts the updates; "" for none."""
        return self.find(COUNTER, "step/count")

    @property
    def rates(self) -> str:
        """The name of the training state that is the table of learning rates (of the first group); "" for none."""
        return self.find(SCHEDULE, "step/learning_rates")

    @property
    def rate_tables(self) -> list[tuple[str, str]]:
        """The names of the training state that is the table of learning rates, and of the number of its last row, of
        each group in their order."""
        ends = ["", *(f"/{number}" for number in range(1, len(self.groups)))]
        found = [(f"step/learning_rates{end}", f"step/last_rate{end}") for end in ends]
        found = [(self.find(SCHEDULE, table), self.find(SCHEDULE, last)) for table, last in found]
        return [(table, last) for table, last in found if table and last]

    def to_json(self) -> str:
        """The layout as the text in the training step's metadata; shapes that the graph says itself are left out."""
        data = asdict(self)
        for entry in data["states"]:
            if entry["shape"] is None:
                del entry["shape"]
        return json.dumps(data, indent=1)

    @staticmethod
    def from_json(text: str, where: str = "") -> StepLayout:
        """Reads the layout of a training step from ``text``, as `to_json` wrote it; ``where`` is the file, for the
        error. Raises AmpError AMP206 for any other text, and for another version."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise AmpError(
                    "AMP206", f"is a step graph of version {data['version']}", where=where, hint="build it again"
                )
            options = data.pop("options", {})
            if type(options) is not dict:
                raise TypeError("the options are none")
            layout: StepLayout = reader(StepLayout)(data)
            return replace(layout, options=options)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            message = "its description of the training step cannot be read"
            raise AmpError("AMP206", message, where=where, hint="build it again with ampgraph build-step") from error


@dataclass(frozen=True)
class TrainingStep:
    """A training step: ``model`` computes it whole. Its inputs are the batch and the state, whose first values are
    initializers of the same names; its outputs are the loss, whether all gradients were finite, and the next state.
    ``notes``: what the plan warns of, of a step that was built and not loaded."""

    model: ir.Model
    layout: StepLayout
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        short = {key: value.partition(":")[0] for key, value in self.layout.options.items() if isinstance(value, str)}
        keys = ("level", "dtype", "loss", "optimizer", "loss_scale")
        words = [f"{key.replace('_', ' ')} {short[key]}" for key in keys if short.get(key)]
        counts = f"{len(self.parameters)} parameters, inputs {', '.join(self.layout.inputs)}"
        return f"TrainingStep({', '.join([*words, counts])})"

    @property
    def initial_state(self) -> dict[str, Array]:
        """The first value of every tensor of the training state, by name, in its own shape."""
        found = self.model.graph.initializers
        rows = [(entry, found[entry.name].const_value) for entry in self.layout.states]
        return {entry.name: entry.seen(tensor.numpy()) for entry, tensor in rows if tensor is not None}

    def fed(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """A training state as the graph takes it: parameters that it moves together are vectors there."""
        return {entry.name: entry.fed(state[entry.name]) for entry in self.layout.states}

    def seen(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """A training state as the graph has it, each tensor in its own shape again: the inverse of `fed`."""
        return {entry.name: entry.seen(state[entry.name]) for entry in self.layout.states}

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that the training step updates."""
        return [entry.name for entry in self.layout.of("parameter")]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the training step's model, whole or not at all."""
        from ...formats.onnx.graph import OnnxGraph

        OnnxGraph(self.model).save(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TrainingStep:
        """Reads a training step's file. Raises AmpError AMP1xx for the file, AMP206 for another kind."""
        from ...formats.onnx.graph import OnnxGraph

        model = OnnxGraph.load(path).model
        return TrainingStep(model, layout_of(model, os.fspath(path)))


def layout_of(model: ir.Model, where: str = "") -> StepLayout:
    """The layout of a training step, from the model's metadata, checked against its graph. Raises AmpError AMP206 for a
    model that is no training step (``where``: its file), or whose layout does not fit."""
    text = model.metadata_props.get(KEY)
    if text is None:
        hint = "build one: ampgraph build-step FORWARD.onnx --loss cross_entropy --optimizer adam -o STEP.onnx"
        raise AmpError("AMP206", "is not a training step", where=where, hint=hint)
    layout = StepLayout.from_json(text, where)
    problem = _layout_problem(layout, model.graph)
    if problem:
        raise AmpError("AMP206", problem, where=where, hint="build it again with ampgraph build-step")
    return layout


def _layout_problem(layout: StepLayout, graph: ir.Graph) -> str:
    """What is wrong with a training step whose layout does not fit its graph, in words; "" where it does: each input
    and output is there, and is for one thing."""
    states, have = [entry.name for entry in layout.states], {value.name for value in graph.inputs}
    for entry in layout.states:
        value = graph.initializers.get(entry.name)
        if entry.name not in have or value is None or value.const_value is None:
            return f"its state '{entry.name}' is missing"
        shape = entry.shape or ()
        if entry.shape is not None and (min(shape, default=0) < 0 or value.const_value.shape != (math.prod(shape),)):
            return f"its state '{entry.name}' is not a vector of {list(entry.shape)}"
    fed = Counter([*states, *layout.inputs])
    for name in (*fed, *sorted(str(name) for name in have - set(fed))):
        if name not in have or fed[name] != 1:
            return f"its input '{name}' is missing, or nothing says once what it is for"
    made = {value.name for value in graph.outputs}
    written = Counter(entry.output for entry in layout.states if entry.output)
    parts = [output for _, output in layout.parts]
    results = Counter(name for name in (layout.loss, layout.finite, layout.norm, *parts) if name)
    for name, count in (written + results).items():
        if name not in made or count != 1:
            return f"its output '{name}' is missing, or is two things at once"
    if not layout.loss:
        return "it names no loss"
    labels = [layout.labels] if layout.labels else []
    stray = [name for name in (*labels, *(row.name for row in layout.class_inputs)) if name not in layout.inputs]
    return f"its labels '{stray[0]}' are not an input" if stray else ""


@contextlib.contextmanager
def without_initializers(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """Within it, a training step's graph is without the named initializers, as for a session of it; afterwards it has
    all of them, in their order."""
    held = dict(graph.initializers)
    for name in names:
        graph.initializers.pop(name, None)
    try:
        yield
    finally:
        for name in list(graph.initializers):
            graph.initializers.pop(name)
        for name, value in held.items():
            graph.initializers[name] = value


def session_model(step: TrainingStep) -> tuple[onnx.ModelProto, str]:
    """A training step's model to open, without its state, its metadata and the packed forward graph; and the folder of
    its data files, "" for none. Raises AmpError AMP502 for frozen weights beyond what one message holds; a saved step
    has them in a data file."""
    graph = step.model.graph
    unread = [name for name in graph.initializers if name.startswith(ORIGINAL)]
    with without_initializers(graph, [*(entry.name for entry in step.layout.states), *unread]):
        outside = {tensor.base_dir for tensor in onnx_io.external_tensors(step.model)}
        kept = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value is not None)
        if len(outside) > 1 or (not outside and kept > onnx_io.INLINE_LIMIT):
            message = f"{kept / 1e9:.1f} GB of frozen weights do not fit into one message"
            raise AmpError("AMP502", message, hint="save the step, and give the path of the file")
        proto = ir.to_proto(step.model)
    del proto.metadata_props[:]
    return proto, str(next(iter(outside), ""))


# -- how a step went, whatever ran it ----------------------------------------------------------------------------------

Tensor = TypeVar("Tensor", covariant=True)


class StepResult(Generic[Tensor]):
    """The numbers that a training step gives. Each is copied from the device, when it is asked for."""

    __slots__ = ("_fetch", "_finite", "_loss", "_norm", "_parts", "_scale")

    def __init__(
        self,
        fetch: Callable[[Tensor], Array | SupportsFloat],
        loss: Tensor,
        finite: Tensor | None = None,
        scale: Tensor | None = None,
        norm: Tensor | None = None,
        parts: Mapping[str, Tensor] | None = None,
    ) -> None:
        """``fetch`` copies a tensor of one element to the host; the others are such tensors of the training step, None
        for what it has not got, ``parts`` by the name of the part of the loss."""
        self._fetch: Callable[..., Array | SupportsFloat] = fetch
        self._loss, self._finite, self._scale, self._norm = loss, finite, scale, norm
        self._parts: Mapping[str, Tensor] = parts or {}

    def _number(self, tensor: object) -> float:
        """A number of the training step, copied from the device; this waits for the step."""
        return float(self._fetch(tensor))

    @property
    def loss(self) -> float:
        """The loss of the training step, without the loss scale."""
        return self._number(self._loss)

    @property
    def parts(self) -> dict[str, float]:
        """The training step's losses by name, of which `loss` is the weighted sum, without their weights, and a
        gradient penalty under ``penalty``; empty for a single loss, and where micro-batches shared the batch."""
        return {name: self._number(part) for name, part in self._parts.items()}

    @property
    def finite(self) -> bool:
        """Whether all gradients of the training step were finite; True where it does not look. If they were not, a step
        whose loss scale skips changed nothing."""
        return True if self._finite is None else bool(self._number(self._finite))

    @property
    def grad_norm(self) -> float | None:
        """The L2 norm of all unscaled gradients before they were clipped; None where the norm is not clipped."""
        return None if self._norm is None else self._number(self._norm)

    @property
    def scale(self) -> float:
        """The loss scale of the next training step, as torch's GradScaler.get_scale() gives it; 1 for none."""
        return 1.0 if self._scale is None else self._number(self._scale)

    def __repr__(self) -> str:
        return f"StepResult(loss={self.loss}, finite={self.finite}, scale={self.scale}, grad_norm={self.grad_norm})"
