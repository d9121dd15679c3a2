"""Training a .mindir file of a whole step: MindSpore runs it, data, epochs and checkpoints are as for an ONNX step.

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
from ..run.schedules import Tables, table_of
from ..run.step_inputs import StepInputs
from ..step.training_step import StepLayout, StepResult

RATE, COUNT = "learning_rate", "global_step"
"""What MindSpore's optimizers call their parameters."""


class MindirInputs(StepInputs):
    """Checks what a MindIR step file is fed; whole numbers may come in a wider type than the file's."""

    def __init__(self, layout: StepLayout, ports: Mapping[str, Port]) -> None:
        self.layout, self.parts, self.ports = layout, 1, dict(ports)

    def checked(self, batch: Feeds) -> dict[str, Array]:
        """A batch for a MindIR training step as arrays of the file's types. AmpError AMP503."""
        return super().checked(self._narrowed(batch))

    def _checked_whole(self, arrays: Feeds) -> dict[str, Array]:
        """Training data for a MindIR step: arrays of all samples, checked, in the file's types."""
        return super()._checked_whole(self._narrowed(arrays))

    def _narrowed(self, arrays: Feeds) -> Feeds:
        """Training data for a MindIR step in the types of the file, float64 and int64 narrowed. AmpError AMP503 for a
        number that the file's type does not hold."""
        if not isinstance(arrays, Mapping):
            return arrays
        return {name: _narrow(self.ports[name], a) if name in self.ports else a for name, a in arrays.items()}


def _narrow(port: Port, value: Any) -> Any:
    """Training data for a MindIR step: whole numbers in the port's type. AmpError AMP503 for one beyond it."""
    array = value if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else None
    if array is None or not port.dtype.startswith(("int", "uint")) or not array.size:
        return value
    limits = np.iinfo(port.dtype)
    if array.min() < limits.min or array.max() > limits.max:
        raise AmpError("AMP503", f"'{port.name}' has numbers beyond {port.dtype}", hint="export it with a wider type")
    return array.astype(port.dtype)


class MindirTrainer:
    """A step file and its state, which `fit` trains.

    Raises AmpError AMP1xx, AMP501, AMP502, AMP505 as `runtime.mindspore_session.MindsporeSession`; AMP205 for a file
    that is no training step, or returns something else than MindSpore's cells do.
    """

    accumulate = 1

    def __init__(self, path: str | os.PathLike[str], device: str = "auto") -> None:
        ports, model = read_ports(path)
        finite = _check_step(ports, model, str(path))
        self._ms: ModuleType = runtime.import_mindspore()
        self.device = runtime.select_device(self._ms, device)
        self._ports = ports
        self._cell = _loaded(self._ms, path, model, self.device)
        self.parameters = {parameter.name: parameter for parameter in self._cell.get_parameters()}
        names = tuple(ports.inputs)
        self.layout = StepLayout((), names, loss="output0", finite=finite, options={"loss_scale": "none"})
        self.feeds = MindirInputs(self.layout, ports.inputs)
        self.digest = MindirGraph.load(path).digest()
        """What a checkpoint must bear to belong to this file."""
        self._table: Array | None = None

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_checked(self, batch: Mapping[str, Array]) -> StepResult[Any]:
        """A step on arrays that `feeds` has checked. Raises AmpError AMP504 when MindSpore stops."""
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
        """Sets the learning rate of every update from the first on. Raises AmpError AMP324 where the file computes its
        own, and for what is no row of numbers from 0."""
        if RATE not in self.parameters or self.parameters[RATE].shape not in ((), (1,)):
            message = "the step has its own schedule of learning rates"
            raise AmpError("AMP324", message, hint="leave --lr-schedule out, or export the optimizer with one number")
        self._table = table_of(table["*"] if isinstance(table, Mapping) else table)

    @property
    def learning_rate(self) -> float:
        """The rate that the optimizer was made with; 0 for a schedule of its own."""
        return self._number(RATE, 0.0)

    @property
    def updates(self) -> int:
        """How many updates the state has seen; steps that were skipped do not count."""
        return int(self._number(COUNT, 0))

    @property
    def scale(self) -> float:
        """The loss scale of the next step; 1 for none."""
        return self._number(SCALE, 1.0)

    def _number(self, name: str, default: float) -> float:
        """A parameter of one number; the default where there is none, or more of them."""
        found = self.parameters.get(name)
        return float(found.asnumpy().reshape(-1)[0]) if found is not None and found.shape in ((), (1,)) else default

    # -- state --------------------------------------------------------------------------------------------------------

    def late_state(self) -> dict[str, files.Late]:
        """The parameters by name, each copied again when it is asked for; one at a time is held."""
        copies = ((name, item, runtime.to_numpy(item)) for name, item in self.parameters.items())  # tell the types
        return {
            name: files.Late(array.dtype, array.shape, functools.partial(runtime.to_numpy, item))
            for name, item, array in copies
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Takes all parameters. Raises AmpError AMP405 for a state of another step; nothing changes then."""
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
        """Writes a MindSpore parameter on the device."""
        parameter = self.parameters[name]
        array = np.asarray(value).reshape(parameter.shape)
        self._ms.ops.assign(parameter, self._ms.Tensor(array, parameter.dtype))

    # -- more than a step ---------------------------------------------------------------------------------------------

    def prepare_evaluation(self) -> NoReturn:
        """Raises AmpError AMP206: such a file has no forward graph of its own."""
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
    """The output that says overflow, or an empty string. Raises AmpError AMP205 for what `MindirTrainer` cannot run."""
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


def _loaded(ms: ModuleType, path: str | os.PathLike[str], model: Any, device: str) -> Any:
    """The cell, in training mode; off Ascend with checks of the gradients instead of its float status."""
    if device == "Ascend" or not has_float_status(model):
        return runtime.load_cell(ms, path).set_train()
    graph = MindirGraph.load(path)
    check_finite(graph.file.model, str(path))
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        place = Path(folder) / "step.mindir"
        graph.save(place)
        return runtime.load_cell(ms, place).set_train()
