"""The two sides of `verify`: a reference and a model, opened in the runtime of their format, and run on one sample."""

from __future__ import annotations

import copy
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from ..core.arrays import Feeds, Result
from ..core.errors import AmpError
from ..core.graph import LOW, Graph, is_mindir
from ..core.low_types import numpy_type
from ..formats import adapters
from ..formats.adapters import load_onnx
from ..formats.kinds import Model, PathLike, path_of
from ..runtime.devices import choose
from ..runtime.executed import ExecutedLayer
from ..runtime.mindspore_session import MindsporeSession
from ..runtime.onnxruntime_session import OnnxSession
from ..runtime.ports import Interface, Port, Session, interface_of
from ..runtime.targets import MINDIR_DEVICES, ONNX_DEVICES, executed_session, refuse_device, runtime_of, unproven_notes
from .metrics.roles import roles_of
from .quantized import QuantizedParts, quantized_parts
from .strict.session import StrictSession, low_accumulators
from .trace.values import Tracer

FLOATS = ("float16", "bfloat16", "float32", "float64")
EXECUTED = "by real kernels of {}, in the precisions of the file; reference on ONNX Runtime's CPU"
STRICT = "strict, on the CPU: every {} value rounded; accumulators inside kernels are not modelled"
MODELLED = "strict, on the CPU: every {} value rounded; products add up in {}, rounding each sum, as {} does"


class Pair(ABC):
    """A reference and a model made from it, to run side by side; `open` comes before any run."""

    device = ""  # that the model runs on, or the target whose runtime executes it
    strict = False  # whether every low value of the model is really rounded
    sees_nodes = False  # whether there is a tracer
    run = ""  # how the models are run, in words for the report
    reference: Graph | str
    low: Sequence[str] = ()  # the low types of the model
    layers: tuple[ExecutedLayer, ...] = ()  # of the model, where its runtime tells them

    def __init__(self) -> None:
        """Of two models to compare, nothing is open yet: `open` makes the sessions."""
        self.fallback: list[tuple[str, str]] = []  # (node, operator) that the device left to the CPU, after a run
        self.notes: list[str] = []

    def _ask_if_swapped(self, low: list[str]) -> None:
        """Notes that reference and model may be swapped, where only the reference has low types (``low``)."""
        if low:
            self.notes.append(f"the reference is {' and '.join(low)}, the model is not: are the arguments swapped?")

    @abstractmethod
    def open(self) -> None:
        """Opens the sessions of both models."""

    @abstractmethod
    def run_both(self, feeds: Feeds) -> tuple[dict[str, Result], dict[str, Result]]:
        """Runs reference and model on one sample; the outputs of both."""

    @abstractmethod
    def run_reference(self, feeds: Feeds) -> dict[str, Result]:
        """Runs the reference alone on one sample; its outputs."""

    def tracer(self) -> Tracer | None:
        """What traces every value of both models, or None where nodes cannot be distinguished."""
        return None

    def feeds(self, feeds: Feeds) -> tuple[Feeds, Feeds]:
        """A sample as the reference and as the model of the pair take it, each in its own types."""
        return feeds, feeds

    def roles(self) -> dict[str, str]:
        """What kind of values each output of the reference holds; empty where its operators are not seen."""
        return {}

    def quantized(self) -> QuantizedParts | None:
        """Which of the reference's quantized operators the model has, and which it changed; None for MindIR."""
        return None


class OnnxPair(Pair):
    """Two ONNX models: the reference strictly on the CPU, the model likewise, on a device, or by a target's runtime."""

    sees_nodes = True

    def __init__(self, reference: Model, model: Model, device: str, target: str = "", runtime: str = "") -> None:
        """Of two ONNX models, loads ``source``, the reference's graph, and ``result``, the model's; ``target`` and
        ``runtime`` as in `runtime_of`. Raises AmpError AMP209 for other inputs or outputs, AMP321, AMP505 (device)."""
        super().__init__()
        refuse_device(device, ONNX_DEVICES, "ONNX")
        self._runtime = runtime_of(target, runtime)
        self.device, _ = choose(device if self._runtime is None else "cpu")
        self.strict = self.device == "cpu" and self._runtime is None
        self.source, self.result, self._path = load_onnx(reference), load_onnx(model), path_of(model)
        self._model = model
        self.reference, self.given = self.source, interface_of(self.source)
        self._takes = interface_of(self.result)
        check_same_interface(self.given, self._takes)
        self.low = _low_types(self.result)
        message = " and ".join(self.low) or "low"
        self._ask_if_swapped([] if self.low else _low_types(self.source))
        self._target = target if self._runtime is None else ""
        adds = low_accumulators(self.result, self._target)
        words = STRICT.format(message)
        if adds is not None and adds.accumulates in self.low:
            words = MODELLED.format(message, adds.accumulates, adds.target)
        self.run = words if self.strict else f"on {self.device}, its own kernels; reference on the CPU"
        if self._runtime is not None:
            self.device, self.run = target, EXECUTED.format(self._runtime.name)
            self.notes += unproven_notes(self._runtime, self.low)
        self._expected: Session | None = None
        self._found: Session | None = None
        self._profiled: OnnxSession | None = None

    def open(self) -> None:
        """Opens the reference strictly and the model strictly, on the device, or by a target's runtime."""
        try:
            self._expected = StrictSession(self.source)
        except AmpError as error:  # nothing that was made of it is to blame
            message = f"your model, as it was before, does not run: {error.message}"
            raise AmpError(error.code, message, where=error.where, hint=error.hint) from error
        if self._runtime is not None:
            self._found = session = executed_session(self._runtime, self._model, self.result)
            self.layers = session.layers()
        elif self.strict:
            self._found = StrictSession(self.result, target=self._target)
        else:
            source = adapters.proto_of(self.result) if self._path is None else self._path
            self._found = self._profiled = OnnxSession(source, self.device, profile=True)

    def run_both(self, feeds: Feeds) -> tuple[dict[str, Result], dict[str, Result]]:
        """Runs two ONNX models on one sample; the outputs of reference and model."""
        return self.run_sides(*self.feeds(feeds))

    def run_sides(self, ours: Feeds, theirs: Feeds) -> tuple[dict[str, Result], dict[str, Result]]:
        """Runs two ONNX models, each on feeds of its own; the outputs of both. The first run on a device also notes in
        ``fallback`` which nodes it left to the CPU."""
        assert self._expected is not None and self._found is not None  # `open` comes before
        expected, found = self._expected.run(ours), self._found.run(theirs)
        if self._profiled is not None:
            placed, self._profiled = self._profiled.placed(), None  # of the first run
            self.fallback = [(n, op) for n, (op, where) in placed.items() if where == "CPUExecutionProvider"]
        return expected, found

    def run_reference(self, feeds: Feeds) -> dict[str, Result]:
        """The outputs of the ONNX reference alone, which is opened again if `tracer` freed it."""
        if self._expected is None:
            self._expected = StrictSession(self.source)
        return self._expected.run(feeds)

    def feeds(self, feeds: Feeds) -> tuple[Feeds, Feeds]:
        """A sample for either ONNX model: as it is, and in the float types of the model's inputs."""
        return feeds, in_types_of(feeds, {n: p.dtype for n, p in self._takes.inputs.items()}, self._takes.optional)

    def roles(self) -> dict[str, str]:
        """What kind of values each output holds (probabilities, rows, numbers), by name."""
        return roles_of(self.source.dataflow())

    def quantized(self) -> QuantizedParts:
        """As `Pair.quantized`."""
        return quantized_parts(self.source.dataflow(), self.result.dataflow())

    def with_model(self, model: Graph | PathLike) -> OnnxPair:
        """A pair of the same ONNX reference and another model made from it, open, run strictly on the CPU.

        Raises AmpError AMP209 for another interface, AMP502.
        """
        other = copy.copy(self)
        other.result, other._path = load_onnx(model), path_of(model)
        other._takes, other.low = interface_of(other.result), _low_types(other.result)
        check_same_interface(other.given, other._takes)
        other._expected = self._expected or StrictSession(self.source)
        other._found = StrictSession(other.result, target=self._target)
        return other

    def tracer(self) -> Tracer:
        """Opens both ONNX models for runs that show every value, strictly, or the model on the device; this frees the
        pair's own sessions, so that `run_both` needs `open` again."""
        self._expected = self._found = None  # frees their weights
        device = "" if self.strict or self._runtime is not None else self.device
        if device and "bfloat16" in self.low:
            device = ""
            self.notes.append("nodes are looked at in a strict run on the CPU: numpy has no bfloat16")
        return Tracer(self.source, self.result, device=device)


class MindirPair(Pair):
    """Two MindIR files, opened on MindSpore."""

    def __init__(self, reference: PathLike, model: PathLike, device: str) -> None:
        super().__init__()
        refuse_device(device, MINDIR_DEVICES, "MindIR")
        self.reference, self._paths, self._wanted = os.fspath(reference), (reference, model), device
        self.low, given = _low_types(_prepared_graph(model)), _prepared_graph(reference)
        self._ask_if_swapped([] if self.low else _low_types(given))
        flow = given.dataflow()
        known = roles_of(flow)  # by names that MindSpore does not tell: outputs are numbered
        self._roles = {f"output{i}": known[flow.values[v].name] for i, v in enumerate(flow.scopes[0].outputs)}
        self.notes.append("nodes of MindIR models are not looked at: MindSpore shows no values inside a graph")

    def open(self) -> None:
        """Opens both files on MindSpore; AMP209 where their inputs or outputs differ."""
        self._expected, self._found = (MindsporeSession(path, self._wanted) for path in self._paths)
        self.device = self._found.device.lower()
        check_same_interface(*(Interface(s.inputs, s.outputs) for s in (self._expected, self._found)))
        self.run = f"MindSpore on {self.device}"
        if self.device == "cpu":
            self.run += ", which rounds every low value by itself; accumulators inside kernels are not modelled"

    def run_reference(self, feeds: Feeds) -> dict[str, Result]:
        """Runs the MindIR reference alone on one sample; its outputs by name."""
        return dict(self._expected.run(feeds))

    def roles(self) -> dict[str, str]:
        """What kind of values each output holds (probabilities, rows, numbers), by name."""
        return self._roles

    def run_both(self, feeds: Feeds) -> tuple[dict[str, Result], dict[str, Result]]:
        """Runs two MindIR models on one sample; the outputs of reference and model."""
        theirs = in_types_of(feeds, {n: p.dtype for n, p in self._found.inputs.items()})
        return self._expected.run(feeds), self._found.run(theirs)


def make_pair(reference: Model, model: Model, device: str, target: str = "", runtime: str = "") -> Pair:
    """Reference and model as a pair to compare; not open yet. ``device``, ``target`` and ``runtime`` as `verify` takes
    them. Raises AmpError AMP209 for models of two formats, and as `OnnxPair` and `MindirPair` do."""
    mindir = [path for path in (path_of(reference), path_of(model)) if path is not None and is_mindir(path)]
    if len(mindir) == 1:
        raise AmpError("AMP209", "one model is ONNX, the other MindIR", hint="verify a model against its own source")
    if mindir:
        return MindirPair(mindir[0], mindir[1], device)
    return OnnxPair(reference, model, device, target, runtime)


def _low_types(graph: Graph) -> list[str]:
    """Of a model to compare: the low types of its values, stored ones included, sorted."""
    return sorted({value.dtype for value in graph.dataflow().values} & set(LOW))


def _prepared_graph(model: Model) -> Graph:
    """Of two models to compare: a MindIR model with its dataflow ready."""
    graph = adapters.load(model)[0]
    graph.prepare()
    return graph


def in_types_of(
    feeds: Mapping[str, Result], dtypes: Mapping[str, str], optional: frozenset[str] = frozenset()
) -> Feeds:
    """A sample of one model in the float types of another, whose ``dtypes`` are by input; ``optional``: further inputs
    of it, fed as they are. What the other does not take is left out."""
    fitted = {}
    for name, value in feeds.items():
        wanted = dtypes.get(name, "")
        if name not in dtypes and name not in optional:
            continue
        if wanted in FLOATS and getattr(value, "dtype", None) is not None and value.dtype.name != wanted:
            with np.errstate(over="ignore"):
                value = value.astype(numpy_type(wanted))
        fitted[name] = value
    return fitted


def check_same_interface(reference: Interface, model: Interface) -> None:
    """Before two models are compared: raises AmpError AMP209 where inputs or outputs differ in name, in kind or in
    shape; float types may differ."""
    optional = set(reference.optional) | set(model.optional)
    for sort, ours, theirs in (
        ("input", reference.inputs, model.inputs),
        ("output", reference.outputs, model.outputs),
    ):
        if sort == "output" and not set(ours) & set(theirs):
            message = f"the models have no output in common: {_first_names(ours)} and {_first_names(theirs)}"
            raise AmpError("AMP209", message, hint="verify a model against what it was made from")
        for name in (*ours, *theirs):
            if name in ours and name in theirs:
                _check_same_port(sort, ours[name], theirs[name])
            elif name not in optional:
                lacking = "the model" if name in ours else "the reference"
                others = _first_names(theirs if name in ours else ours)
                hint = f"it has {others}; verify a model against what it was made from"
                raise AmpError("AMP209", f"{lacking} has no {sort} '{name}'", hint=hint)


def _first_names(ports: Mapping[str, Port]) -> str:
    """For messages on two models: the names of the first six inputs or outputs, "none" without any."""
    names = list(itertools.islice(ports, 6))
    return (", ".join(f"'{name}'" for name in names) or "none") + (", ..." if len(ports) > len(names) else "")


def _check_same_port(sort: str, ours: Port, theirs: Port) -> None:
    """Before two models are compared: raises AMP209 where an input or output differs by more than its float type: kind
    of type, rank or a fixed size."""
    floats = ours.dtype in FLOATS and theirs.dtype in FLOATS
    unknown = not (ours.shape and theirs.shape) or -2 in (*ours.shape, *theirs.shape)  # MindIR writes -2 for any rank
    alike = unknown or len(ours.shape) == len(theirs.shape)
    sizes = zip(ours.shape, theirs.shape, strict=False)
    fixed = [(a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int) and a >= 0 and b >= 0]
    if (ours.dtype != theirs.dtype and not floats) or not alike or any(a != b for a, b in fixed):
        message = f"{sort} '{ours.name}' is {ours} in the reference and {theirs} in the model"
        raise AmpError(
            "AMP209", message, hint="only float types may differ: verify a model against what it was made from"
        )
