"""A training step as one ONNX graph: built from a forward graph, saved, loaded."""

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
    """Parameters that are moved together, and what is as long as they are side by side, in their order.

    ``slots``: of all of them, each; ``averages``: of a parameter each, or none. ``gradients``: what the gradients hand
    to the update, one behind another. ``whole``: the optimizer is one of the user, which may read elements together.
    """

    parameters: tuple[str, ...]
    slots: tuple[str, ...]
    averages: tuple[str, ...]
    gradients: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True)
class StepLayout:
    """What the inputs and outputs of a step graph are for."""

    states: tuple[StateTensor, ...]
    inputs: tuple[str, ...]  # the batch, labels included
    labels: str = ""  # the input of the labels, where a loss was added
    classes: int = 0  # labels lie in 0 .. classes - 1, where that is known
    class_inputs: tuple[ClassInput, ...] = ()  # what the graph's own loss reads as labels, nothing but reshaped
    loss: str = ""
    finite: str = ""
    norm: str = ""
    groups: tuple[tuple[str, float], ...] = ()  # pattern and learning rate of each, where there are several
    parts: tuple[tuple[str, str], ...] = ()  # of a loss that has several, and the output of each, without its weight
    whole_batch: str = ""  # why micro-batches cannot share a batch; empty where they can
    runs: tuple[Run, ...] = ()
    moved: tuple[tuple[str, tuple[str, ...]], ...] = ()  # next running state that is handed too: of which, side by side
    options: JsonObject = field(default_factory=dict)  # level, dtype, optimizer, loss_scale, clip_norm, target
    version: int = VERSION

    def of(self, *kinds: str) -> list[StateTensor]:
        """The tensors of the state of some kinds, in order."""
        return [entry for entry in self.states if entry.kind in kinds]

    def find(self, kind: str, stem: str) -> str:
        """The state of a kind that is called ``stem``, or ``stem_1`` where that name was taken; empty for none."""
        return next((e.name for e in self.of(kind) if re.fullmatch(rf"{stem}(_\d+)?", e.name)), "")

    @property
    def scale(self) -> str:
        """The loss scale; empty for none."""
        return self.find(SCALE, "step/scale")

    @property
    def count(self) -> str:
        """How many updates there were; empty for none."""
        return self.find(COUNTER, "step/count")

    @property
    def rates(self) -> str:
        """The table of learning rates, that of the first group; empty for none."""
        return self.find(SCHEDULE, "step/learning_rates")

    @property
    def rate_tables(self) -> list[tuple[str, str]]:
        """The names of the learning rates' table and of its last row, of each group in their order that has a
        schedule."""
        ends = ["", *(f"/{number}" for number in range(1, len(self.groups)))]
        found = [(f"step/learning_rates{end}", f"step/last_rate{end}") for end in ends]
        found = [(self.find(SCHEDULE, table), self.find(SCHEDULE, last)) for table, last in found]
        return [(table, last) for table, last in found if table and last]

    def to_json(self) -> str:
        """The layout as the text that the model's metadata holds; shapes that the graph says are left out."""
        data = asdict(self)
        for entry in data["states"]:
            if entry["shape"] is None:
                del entry["shape"]
        return json.dumps(data, indent=1)

    @staticmethod
    def from_json(text: str, where: str = "") -> StepLayout:
        """Reads a layout. Raises AmpError AMP206 for what no step graph of ours says."""
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
    """``model``: the whole step. Inputs are the batch and the state, whose first values are in the model; outputs are
    the loss, whether all gradients were finite, and the next state. ``notes``: what its plan warns of, where it was
    built and not loaded."""

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
        """The first value of every tensor of the state, by name, in its shape."""
        found = self.model.graph.initializers
        rows = [(entry, found[entry.name].const_value) for entry in self.layout.states]
        return {entry.name: entry.seen(tensor.numpy()) for entry, tensor in rows if tensor is not None}

    def fed(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """A state as the graph takes it: parameters that it moves together are vectors there."""
        return {entry.name: entry.fed(state[entry.name]) for entry in self.layout.states}

    def seen(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """A training state that the graph gave, each tensor in its own shape."""
        return {entry.name: entry.seen(state[entry.name]) for entry in self.layout.states}

    @property
    def parameters(self) -> list[str]:
        """Names of what is trained."""
        return [entry.name for entry in self.layout.of("parameter")]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the training step's model, whole or not at all."""
        from ...formats.onnx.graph import OnnxGraph

        OnnxGraph(self.model).save(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TrainingStep:
        """Reads a step's file. Raises AmpError AMP1xx for the file, AMP206 for one that is no step graph."""
        from ...formats.onnx.graph import OnnxGraph

        model = OnnxGraph.load(path).model
        return TrainingStep(model, layout_of(model, os.fspath(path)))


def layout_of(model: ir.Model, where: str = "") -> StepLayout:
    """What a step graph says of itself. Raises AmpError AMP206 for any other graph."""
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
    """What a layout says that the graph does not have; empty where they belong together."""
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
    message = Counter(name for name in (layout.loss, layout.finite, layout.norm, *parts) if name)
    for name, count in (written + message).items():
        if name not in made or count != 1:
            return f"its output '{name}' is missing, or is two things at once"
    if not layout.loss:
        return "it names no loss"
    labels = [layout.labels] if layout.labels else []
    stray = [name for name in (*labels, *(row.name for row in layout.class_inputs)) if name not in layout.inputs]
    return f"its labels '{stray[0]}' are not an input" if stray else ""


@contextlib.contextmanager
def without_initializers(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """For a training step that is saved: the graph without some of its initializers, for as long as the block lasts."""
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
    """The step without its state and without the packed forward graph, and the folder of its data files if it has any.

    Raises AmpError AMP502 for weights beyond what fits into one message; a saved step has them in a data file.
    """
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
    """Numbers of a training step. Each is copied from the device, and waited for, when it is asked for."""

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
        """``fetch`` copies a tensor of one element to the host; None stands for what the step has not got."""
        self._fetch: Callable[..., Array | SupportsFloat] = fetch
        self._loss, self._finite, self._scale, self._norm = loss, finite, scale, norm
        self._parts: Mapping[str, Tensor] = parts or {}

    def _number(self, tensor: object) -> float:
        """A scalar, copied from the device; this waits for the step."""
        return float(self._fetch(tensor))

    @property
    def loss(self) -> float:
        """The loss, without the loss scale."""
        return self._number(self._loss)

    @property
    def parts(self) -> dict[str, float]:
        """The losses that the loss is the weighted sum of, without their weights, and a gradient penalty under
        ``penalty``; empty where it is one loss, or the batch was shared among micro-batches."""
        return {name: self._number(part) for name, part in self._parts.items()}

    @property
    def finite(self) -> bool:
        """Whether all gradients were finite; True where the step does not look. A step that skips changed nothing."""
        return True if self._finite is None else bool(self._number(self._finite))

    @property
    def grad_norm(self) -> float | None:
        """The L2 norm of all unscaled gradients before they were clipped; None where nothing is clipped."""
        return None if self._norm is None else self._number(self._norm)

    @property
    def scale(self) -> float:
        """The loss scale that the next step uses, as torch's GradScaler.get_scale() gives it; 1 for none."""
        return 1.0 if self._scale is None else self._number(self._scale)

    def __repr__(self) -> str:
        return f"StepResult(loss={self.loss}, finite={self.finite}, scale={self.scale}, grad_norm={self.grad_norm})"
