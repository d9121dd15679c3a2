"""Steps as CUDA graphs: the kernels of a step are recorded once, and launched together from then on.

A graph reads and writes the addresses that it was recorded with, and ONNX Runtime runs a step several times to record
it. So every tensor of the state has two places, none is written where it is read, a graph is recorded for each of the
two directions, and inputs and results have places of their own: what is repeated comes out the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx

from ...core.arrays import Array
from ...core.errors import AmpError
from ...core.low_types import numpy_type
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import OrtTensor, as_numpy
from ..step.training_step import TrainingStep
from .binding import Binding, device_value, stopped
from .flat_buffer import BufferPart, GraphSession
from .step_inputs import StepInputs

GRAPH = "gpu_graph_id"
"""What ONNX Runtime calls the number of a graph among those of a session."""


class CapturedBinding(Binding):
    """A `Binding` whose steps are graphs of the device. Results come back as copies on the host."""

    def __init__(self, step: TrainingStep, device: str, threads: int) -> None:
        """Raises AmpError AMP325 for a device without such graphs and for a step whose batch is open, and as Binding,
        AMP502 too where a node of the step runs on the host."""
        self._ports = StepInputs(step).ports
        open_ones = [name for name, port in self._ports.items() if not all(isinstance(d, int) for d in port.shape)]
        if open_ones:
            hint = "build the step with --batch N, and train with --batch-size N"
            raise AmpError("AMP325", f"a CUDA graph needs sizes, and those of '{open_ones[0]}' are open", hint=hint)
        super().__init__(step, device, False, threads)
        self._scale_name = self._next_scale = ""  # state as any other: two places
        self._made: list[dict[str, OrtTensor]] = []  # results of even and of odd steps
        self._recorded = 1  # the number of the graph of even steps

    def _open(
        self, step: TrainingStep, providers: Sequence[str], strict: bool, threads: int
    ) -> tuple[GraphSession, onnx.ModelProto]:
        if self.device != "cuda":
            raise AmpError(
                "AMP325", f"{self.device} has no CUDA graphs", hint="leave --cuda-graph away, or --device cuda"
            )
        return super()._open(step, cast("Sequence[str]", captured(providers)), strict, threads)

    def _written_in_place(self, proto: onnx.ModelProto) -> frozenset[str]:
        """Nothing: a step that is run twice has to read the same state."""
        return frozenset()

    def put(self, state: Mapping[str, Array]) -> None:
        self._fed: dict[str, OrtTensor] = {}
        self._made = [self._results_places(), self._results_places()]
        super().put(state)
        self._recorded += 2  # other addresses

    def _rebind(self, values: Mapping[str, OrtTensor]) -> None:
        super()._rebind(values)
        self._recorded += 2

    def _results_places(self) -> dict[str, OrtTensor]:
        session: Any = self._session
        known = {value.name: value for value in session.get_outputs()}
        return {name: self.value(_empty(known[name])) for name in self._results}

    def _bound(self, turn: int) -> Any:
        binding = super()._bound(turn)
        for name, place in self._made[turn].items():
            binding.bind_ortvalue_output(name, place)
        return binding

    def run(
        self, batch: Mapping[str, Array], given: Mapping[str, OrtTensor | BufferPart] | None = None
    ) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """As `Binding.run`, whole or not at all: the old state is left as it is until the step is done."""
        assert not given, "micro-batches are no graphs"
        self._refuse_torn()
        turn, session = self._turn, cast("Any", self._session)
        self._feed(batch)
        try:
            session.run_with_iobinding(self._bindings[turn], self._run_options(turn))
            made = {name: device_value(as_numpy(place), "cpu") for name, place in self._made[turn].items()}
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            raise stopped(error, self.device, False) from error
        self._turn = 1 - turn
        scale = self.layout.scale
        return made, device_value(self.get(scale), "cpu") if scale else None

    def _feed(self, batch: Mapping[str, Array]) -> None:
        for name, array in batch.items():
            array = np.ascontiguousarray(array)
            if name in self._fed:
                place: Any = self._fed[name]
                place.update_inplace(array)
                continue
            self._fed[name] = self.value(array)
            for binding in self._bindings:
                binding.bind_ortvalue_input(name, self._fed[name])

    def _run_options(self, turn: int) -> Any:
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry(GRAPH, str(self._recorded + turn))
        return options


def captured(providers: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """The providers, asked for graphs."""
    return [(name, {"enable_cuda_graph": "1"}) if name == "CUDAExecutionProvider" else name for name in providers]


def _empty(output: Any) -> Array:
    """An array as an output of the session."""
    names = {"tensor(float)": "float32", "tensor(bool)": "bool", "tensor(double)": "float64"}
    dtype = names.get(output.type, output.type.removeprefix("tensor(").removesuffix(")"))
    return np.zeros([dim if isinstance(dim, int) else 1 for dim in output.shape], numpy_type(dtype))
