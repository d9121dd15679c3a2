"""Trains a .mindir file of a whole step: MindSpore runs it; data, epochs and checkpoints are as for an ONNX step.

The file is what nn.TrainOneStepCell or nn.TrainOneStepWithLossScaleCell exports, converted or not. Its state (weights,
moments, loss scale, counters) are its parameters, which each run changes; a checkpoint holds them by their names.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from ...core.arrays import Array, Feeds
from ...core.errors import AmpError, nearest
from ...formats.mindir.graph import MindirGraph
from ...formats.mindir.step import LOSS_SCALE_CELL, SCALE, check_finite, has_float_status, is_step
from ...runtime import mindspore_session as runtime
from ...runtime.mindspore_session import MindirPorts, read_ports
from ...runtime.ports import Port
from ..run import checkpoint as files
from ..run.dataset import TrainingData
from ..run.schedules import Tables, checked_table
from ..run.step_inputs import StepInputs
from ..step.training_step import StepLayout, StepResult

RATE, COUNT = "learning_rate", "global_step"
"""The names that MindSpore's optimizers give their parameters."""


class MindirInputs(StepInputs):
    """The `StepInputs` of a MindIR training step; integers may come in a wider type than the file's."""

    def __init__(self, layout: StepLayout, ports: Mapping[str, Port]) -> None:
        self.layout, self.parts, self.ports = layout, 1, dict(ports)

    def checked(self, batch: Feeds) -> dict[str, Array]:
        """A batch for a MindIR training step as arrays of the file's types. Raises AmpError AMP503 as `StepInputs`."""
        return super().checked(self._narrow_all(batch))

    def _check_samples(self, arrays: Feeds) -> dict[str, Array]:
        """Samples for a MindIR training step as arrays of the file's types, any number of them."""
        return super()._check_samples(self._narrow_all(arrays))

    def _narrow_all(self, arrays: Feeds) -> Feeds:
        """Data for a MindIR training step with all integers in the file's types; anything but a mapping as it is, for
        the check to refuse. Raises AmpError AMP503 for a number that the file's type does not hold."""
        if not isinstance(arrays, Mapping):
            return arrays
        return {name: _narrow(self.ports[name], a) if name in self.ports else a for name, a in arrays.items()}


def _narrow(port: Port, value: Any) -> Any:
    """Data for a MindIR training step: an array of integers in the port's integer type; anything else as it is. Raises
    AmpError AMP503 for a number beyond that type."""
    is_integers = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size > 0
    if not is_integers or not port.dtype.startswith(("int", "uint")):
        return value
    limits = np.iinfo(port.dtype)
    if value.min() < limits.min or value.max() > limits.max:
        raise AmpError("AMP503", f"'{port.name}' has numbers beyond {port.dtype}", hint="export it with a wider type")
    return value.astype(port.dtype)


class MindirTrainer:
    """A MindIR training step and its state, as `fit` wants a trainer (see `Trainer`). Raises AmpError AMP1xx, AMP501,
    AMP502, AMP505 as `runtime.mindspore_session.MindsporeSession`; AMP205 for a file that is no training step, or
    returns something else than MindSpore's cells do."""

    accumulate = 1

    def __init__(self, path: str | os.PathLike[str], device: str = "auto") -> None:
        ports, model = read_ports(path)
        finite = _check_step(ports, model, str(path))
        self._ms: ModuleType = runtime.import_mindspore()
        self.device = runtime.select_device(self._ms, device)
        self._ports = ports
        self._cell = _load_training_cell(self._ms, path, model, self.device)
        self.parameters = {parameter.name: parameter for parameter in self._cell.get_parameters()}
        names = tuple(ports.inputs)
        self.layout = StepLayout((), names, loss="output0", finite=finite, options={"loss_scale": "none"})
        self.feeds = MindirInputs(self.layout, ports.inputs)
        self.digest = MindirGraph.load(path).digest()
        """What a checkpoint must bear to belong to this file."""
        self._table: Array | None = None  # learning rates by update, where a schedule was set

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_checked(self, batch: Mapping[str, Array]) -> StepResult[Any]:
        """Runs a MindIR training step on checked arrays. Raises AmpError AMP504 when MindSpore stops."""
        if self._table is not None:
            self._assign(RATE, self._table[min(self.updates, len(self._table) - 1)])
        tensors = runtime.to_tensors(self._ms, self._ports.check(batch))
        with runtime.reporting_stops(self._ports, self.device), runtime.graph_mode(self._ms):
            made = self._cell(*tensors)
        if not isinstance(made, tuple):
            return StepResult(_as_number, made)
        loss, overflow, scale = made
        return StepResult(_as_number, loss, overflow, scale)

    def set_rates(self, table: Sequence[float] | Array | Tables) -> None:
        """Sets the learning rate of every update of a MindIR training step from the first on; the last one holds for
        all that follow. Raises AmpError AMP324 where the file computes its own, and for what is no row of numbers from
        0."""
        if RATE not in self.parameters or self.parameters[RATE].shape not in ((), (1,)):
            message = "the step has its own schedule of learning rates"
            raise AmpError("AMP324", message, hint="leave --lr-schedule out, or export the optimizer with one number")
        self._table = checked_table(table["*"] if isinstance(table, Mapping) else table)

    @property
    def learning_rate(self) -> float:
        """The learning rate that the MindIR step's optimizer has now; 0 for one with its own schedule."""
        return self._number(RATE, 0.0)

    @property
    def updates(self) -> int:
        """How many updates the MindIR step's state has seen; steps that were skipped do not count."""
        return int(self._number(COUNT, 0))

    @property
    def scale(self) -> float:
        """The loss scale of the next MindIR training step; 1 for none."""
        return self._number(SCALE, 1.0)

    def _number(self, name: str, default: float) -> float:
        """The number in a MindIR step's parameter of one element; the default where there is no such parameter."""
        found = self.parameters.get(name)
        if found is None or found.shape not in ((), (1,)):
            return default
        return float(found.asnumpy().reshape(-1)[0])

    # -- state --------------------------------------------------------------------------------------------------------

    def late_state(self) -> dict[str, files.LateArray]:
        """The state of a MindIR training step, its parameters by name, each copied when it is asked for."""
        copies = ((name, item, runtime.to_numpy(item)) for name, item in self.parameters.items())  # for type and shape
        return {
            name: files.LateArray(array.dtype, array.shape, functools.partial(runtime.to_numpy, item))
            for name, item, array in copies
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces all parameters of a MindIR training step. Raises AmpError AMP405 before, for one of another step."""
        for name, parameter in self.parameters.items():
            if name not in state:
                raise AmpError("AMP405", f"the state has no '{name}'", hint="it is of another step")
            mine = runtime.to_numpy(parameter)
            if (state[name].dtype, state[name].shape) != (mine.dtype, mine.shape):
                raise AmpError("AMP405", f"'{name}' is of another type or shape", hint="it is of another step")
        unknown = next((name for name in state if name not in self.parameters), None)
        if unknown is not None:
            raise AmpError("AMP405", f"this step has no '{unknown}'", hint=nearest(unknown, list(self.parameters)))
        for name in self.parameters:
            self._assign(name, state[name])

    def _assign(self, name: str, value: Any) -> None:
        """Writes a parameter of a MindIR training step on the device, in its type and shape."""
        parameter = self.parameters[name]
        array = np.asarray(value).reshape(parameter.shape)
        self._ms.ops.assign(parameter, self._ms.Tensor(array, parameter.dtype))

    # -- more than a step ---------------------------------------------------------------------------------------------

    def prepare_evaluation(self) -> NoReturn:
        """Raises AmpError AMP206: a MindIR step has no forward graph of its own."""
        hint = "leave --validate out; mindspore.load_checkpoint reads the checkpoint into the network"
        raise AmpError("AMP206", "a MindIR step holds no forward graph to measure", hint=hint)

    def evaluate(self, data: TrainingData, *, batch_size: int = 256) -> dict[str, float]:
        """Raises AmpError AMP206, as `prepare_evaluation`: a MindIR step has no forward graph of its own."""
        self.prepare_evaluation()


def _as_number(value: Any) -> Any:
    """Of a MindIR training step: a MindSpore tensor of one element as a scalar; of an overflow flag the opposite."""
    array = value.asnumpy().reshape(())
    return np.logical_not(array) if array.dtype == np.bool_ else array


def _check_step(ports: MindirPorts, model: Any, where: str) -> str:
    """The output of a MindIR training step that is its overflow flag, "" for none. Raises AmpError AMP205 otherwise."""
    if not is_step(model):
        hint = f"export {LOSS_SCALE_CELL}, or train forward and loss with ampgraph.training.mindspore.train_step"
        raise AmpError("AMP205", "holds no training step", where=where, hint=hint)
    found = [(port.dtype, port.shape in ((), (1,))) for port in ports.outputs.values()]
    if found == [("float32", True)]:
        return ""
    if found == [("float32", True), ("bool", True), ("float32", True)]:
        return "output1"
    given = ", ".join(str(port) for port in ports.outputs.values())
    message = f"gives {given}, not a loss, or a loss, an overflow flag and a loss scale"
    raise AmpError("AMP205", message, where=where, hint=f"export {LOSS_SCALE_CELL}")


def _load_training_cell(ms: ModuleType, path: str | os.PathLike[str], model: Any, device: str) -> Any:
    """Loads a MindIR training step as a MindSpore cell in training mode. On another device than Ascend, one that asks
    for Ascend's float status is given checks of its gradients instead."""
    if device == "Ascend" or not has_float_status(model):
        return runtime.load_cell(ms, path).set_train()
    graph = MindirGraph.load(path)
    check_finite(graph.file.model, str(path))
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        place = Path(folder) / "step.mindir"
        graph.save(place)
        return runtime.load_cell(ms, place).set_train()
