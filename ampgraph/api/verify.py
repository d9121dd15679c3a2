"""`ampgraph verify`: whether a model still computes what its reference does, and which nodes are to blame if not."""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ..core.errors import AmpError, is_number, is_whole
from ..core.graph import LOW, Graph, is_mindir
from ..core.progress import Progress
from ..core.renamed import renamed_keywords
from ..formats.checks import faults_reported
from ..formats.onnx.graph import quiet_collector
from ..numerics.metrics.agreement import Agreement, apart
from ..report.verification import Verification
from .run import MINDIR_DEVICES, ONNX_DEVICES, refuse_device

if TYPE_CHECKING:
    from ..numerics.trace.suspects import Suspect

TOLERANCE, NODES = 1e-2, 5
WORTH = 0.1  # of the tolerance: a growth below it is not worth naming, unless asked for
FLOATS = ("float16", "bfloat16", "float32", "float64")
STRICT = "strict, on the CPU: every {} value rounded; accumulators inside kernels are not modelled"


@renamed_keywords("0.3", told="progress")
def verify(
    reference: Any,
    model: Any,
    *,
    data: Any = None,
    samples: int | None = None,
    tolerance: float = TOLERANCE,
    device: str = "auto",
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    nodes: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Runs two models on the same samples and compares them.

    Args:
        reference: the float32 model: a path (.onnx or .mindir), or an ONNX model as `convert` takes it.
        model: what was made from it, of the same format.
        data: an .npz file, a folder of them, an iterable of mappings; without it inputs are generated from ``seed``.
        samples: how many at most; 8 where they are generated.
        tolerance: the relative L2 error that the 90th percentile of every output may have.
        device: auto takes the best that is here; on the CPU ONNX models run strictly. The reference runs on the CPU.
        dims: sizes of symbolic dimensions, for generated inputs.
        nodes: how many nodes to name where the error grows. If not given, 5 where the tolerance is missed, those behind
            which the error is larger by a tenth of it; else none.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP209 for models whose inputs or outputs differ, AMP310 for a dimension that the reference does not
            have, AMP312 for a number that makes no sense, and what `run` raises.
    """
    if not is_number(tolerance) or not tolerance >= 0 or math.isinf(tolerance):
        raise AmpError("AMP312", f"tolerance {tolerance!r} is no number from 0 on", hint="for example 1e-2")
    if nodes is not None and (not is_whole(nodes) or nodes < 0):
        raise AmpError("AMP312", f"{nodes!r} nodes are asked for", hint="0 names none")
    if is_mindir(reference) != is_mindir(model):
        raise AmpError("AMP209", "one model is ONNX, the other MindIR", hint="verify a model against its own source")
    paths = [item if isinstance(item, (str, os.PathLike)) else None for item in (reference, model)]
    with quiet_collector(), faults_reported(*paths):
        from ..numerics.inputs.samples import load_samples

        pair: _Pair = (_MindirPair if is_mindir(model) else _OnnxPair)(reference, model, device)
        drawn = load_samples(pair.reference, data, count=samples, seed=seed, dims=dims)
        pair.open()
        outputs = _compared(pair, drawn, progress)
        job = _Finding(pair, outputs, tolerance, NODES if nodes is None else nodes, nodes is not None)
        job.look(drawn, progress)
        names = [str(path) if path is not None else "in memory" for path in paths]
        return Verification(
            names[0], names[1], pair.device, pair.strict, pair.run, tolerance, len(outputs[0].errors), tuple(outputs),
            job.born, job.growth, job.traced, tuple(pair.fallback), (*drawn.notes, *pair.notes, *job.notes),
        )  # fmt: skip


def _compared(pair: _Pair, drawn: Any, progress: Progress | None) -> list[Agreement]:
    outputs: dict[str, Agreement] = {}
    for number, feeds in enumerate(drawn):
        if progress:
            progress("comparing", number, len(drawn))
        expected, found = pair.both(feeds)
        for name, value in expected.items():
            outputs.setdefault(name, Agreement(name)).add(apart(value, found[name]))
    if not outputs:
        raise AmpError("AMP209", "the models have no output to compare", hint="see `ampgraph inspect`")
    return list(outputs.values())


# -- the two sides ----------------------------------------------------------------------------------------------------


class _Pair(ABC):
    """A reference and its model, opened for runs."""

    device = ""
    strict = False
    run = ""
    reference: Any

    def __init__(self) -> None:
        self.fallback: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def _ask_if_swapped(self, low: list[str]) -> None:
        """``low``: the types that the reference alone has."""
        if low:
            self.notes.append(f"the reference is {' and '.join(low)}, the model is not: are the arguments swapped?")

    @abstractmethod
    def open(self) -> None:
        """Opens the sessions; the interfaces were compared before."""

    @abstractmethod
    def both(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The outputs of both on one sample."""

    def tracer(self) -> Any:
        """A Tracer, or None where nodes cannot be told apart."""
        return None

    def feeds(self, feeds: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The feeds of both sides."""
        return feeds, feeds


class _OnnxPair(_Pair):
    def __init__(self, reference: Any, model: Any, device: str) -> None:
        from ..numerics.graphs import interface_of, load_onnx
        from ..runtime.devices import choose

        super().__init__()
        refuse_device(device, ONNX_DEVICES, "ONNX")
        self.device, providers = choose(device)
        self.strict, self._provider = self.device == "cpu", providers[0]
        self.reference, self._model = load_onnx(reference), load_onnx(model)
        self._path = model if isinstance(model, (str, os.PathLike)) else None
        self._ports = interface_of(self.reference), interface_of(self._model)
        same_interface(*self._ports)
        self.low = _low_types(self._model)
        message = " and ".join(self.low) or "low"
        self._ask_if_swapped([] if self.low else _low_types(self.reference))
        self.run = STRICT.format(message) if self.strict else f"on {self.device}, its own kernels; reference on the CPU"
        self._ran = 0

    def open(self) -> None:
        from ..numerics.strict.session import StrictSession
        from ..runtime.onnxruntime_session import OnnxSession

        self._expected: Any = StrictSession(self.reference)
        self._found: Any = StrictSession(self._model) if self.strict else None
        if self._found is None:
            source = self._path if self._path is not None else ir.to_proto(self._model.model)
            self._found = OnnxSession(source, self.device, profile=True)

    def both(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        ours, theirs = self.feeds(feeds)
        expected, found = self._expected.run(ours), self._found.run(theirs)
        if not self.strict and not self._ran:
            placed = self._found.placed()
            self.fallback = [(n, op) for n, (op, where) in placed.items() if where == "CPUExecutionProvider"]
        self._ran += 1
        return expected, found

    def feeds(self, feeds: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return feeds, _fitted(feeds, {n: p.dtype for n, p in self._ports[1].inputs.items()}, self._ports[1].optional)

    def tracer(self) -> Any:
        from ..numerics.trace.values import Tracer

        self._expected = self._found = None  # frees their weights
        device = "" if self.strict else self.device
        if device and "bfloat16" in self.low:
            device = ""
            self.notes.append("nodes are looked at in a strict run on the CPU: numpy has no bfloat16")
        return Tracer(self.reference, self._model, device=device)


class _MindirPair(_Pair):
    def __init__(self, reference: Any, model: Any, device: str) -> None:
        super().__init__()
        refuse_device(device, MINDIR_DEVICES, "MindIR")
        self.reference, self._model, self._wanted = reference, model, device
        self._ask_if_swapped([] if _low_of_mindir(model) else _low_of_mindir(reference))
        self.notes.append("nodes of MindIR models are not looked at: MindSpore shows no values inside a graph")

    def open(self) -> None:
        from ..numerics.graphs import Interface
        from ..runtime.mindspore_session import MindsporeSession

        self._expected = MindsporeSession(self.reference, self._wanted)
        self._found = MindsporeSession(self._model, self._wanted)
        self.device = self._found.device.lower()
        same_interface(*(Interface(s.inputs, s.outputs) for s in (self._expected, self._found)))
        self.run = f"MindSpore on {self.device}"
        if self.device == "cpu":
            self.run += ", which rounds every low value by itself; accumulators inside kernels are not modelled"

    def both(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        theirs = _fitted(feeds, {n: p.dtype for n, p in self._found.inputs.items()}, frozenset())
        return self._expected.run(feeds), self._found.run(theirs)


def _low_types(graph: Graph) -> list[str]:
    return sorted({value.dtype for value in graph.dataflow().values} & set(LOW))


def _low_of_mindir(model: Any) -> list[str]:
    from ..formats import adapters

    graph = adapters.load(model)[0]
    graph.prepare()
    return _low_types(graph)


def _fitted(feeds: Mapping[str, Any], dtypes: Mapping[str, str], optional: frozenset[str]) -> dict[str, Any]:
    """The same feeds in the float types that the other model takes."""
    fitted = {}
    for name, value in feeds.items():
        wanted = dtypes.get(name, "")
        if name not in dtypes and name not in optional:
            continue  # an optional input of the reference alone
        if wanted in FLOATS and getattr(value, "dtype", None) is not None and value.dtype.name != wanted:
            with np.errstate(over="ignore"):
                value = value.astype(_dtype(wanted))
        fitted[name] = value
    return fitted


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)


def same_interface(reference: Any, model: Any) -> None:
    """Raises AmpError AMP209 where inputs or outputs differ in name, in kind or in shape; float types may differ."""
    optional = set(reference.optional) | set(model.optional)
    for sort, ours, theirs in (
        ("input", reference.inputs, model.inputs),
        ("output", reference.outputs, model.outputs),
    ):
        if sort == "output" and not set(ours) & set(theirs):
            message = f"the models have no output in common: {_some(ours)} and {_some(theirs)}"
            raise AmpError("AMP209", message, hint="verify a model against what it was made from")
        for name in (*ours, *theirs):
            if name in ours and name in theirs:
                _same_port(sort, ours[name], theirs[name])
            elif name not in optional:
                lacking = "the model" if name in ours else "the reference"
                hint = f"it has {_some(theirs if name in ours else ours)}; verify a model against what it was made from"
                raise AmpError("AMP209", f"{lacking} has no {sort} '{name}'", hint=hint)


def _some(ports: Mapping[str, Any]) -> str:
    names = list(itertools.islice(ports, 6))
    return (", ".join(f"'{name}'" for name in names) or "none") + (", ..." if len(ports) > len(names) else "")


def _same_port(sort: str, ours: Any, theirs: Any) -> None:
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


# -- which nodes ------------------------------------------------------------------------------------------------------


@dataclass
class _Finding:
    """The search for nodes: runs one sample again, the first that is not finite or the worst."""

    pair: _Pair
    outputs: list[Agreement]
    tolerance: float
    count: int
    asked: bool
    born: Suspect | None = None
    growth: tuple[Suspect, ...] = ()
    traced: int | None = None
    notes: list[str] = field(default_factory=list)

    def look(self, drawn: Any, progress: Progress | None) -> None:
        missed = [output for output in self.outputs if not output.within(self.tolerance)]
        if not self.count or not (missed or self.asked):
            return
        errors = [max(output.errors[i] for output in self.outputs) for i in range(len(self.outputs[0].errors))]
        chosen = max(range(len(errors)), key=lambda i: errors[i])  # the first of equal ones
        try:
            tracer = self.pair.tracer()
            if tracer is None:
                return
            feeds = next(itertools.islice(iter(drawn), chosen, None))
            ours, theirs = self.pair.feeds(feeds)
            parts = None if progress is None else (lambda done, of: progress("looking at nodes", done, of))
            self._inquire(tracer, ours, theirs, parts)
            self.traced = chosen
        except AmpError as error:  # the comparison stands without it
            self.notes.append(f"nodes could not be looked at: {error.message}")
        if self.traced is not None and self.born is None and any(output.astray for output in self.outputs):
            self.notes.append(f"in the run that shows every value, sample {chosen} stays finite at every node")

    def _inquire(self, tracer: Any, ours: Any, theirs: Any, progress: Any) -> None:
        from ..numerics.trace.suspects import Inquest

        inquest = Inquest(tracer.run(ours, theirs, progress), tracer.weights)
        self.born = inquest.born_in_input() or self._descended(inquest, tracer, ours, theirs)
        least = 0.0 if self.asked else WORTH * self.tolerance
        self.growth = tuple(inquest.growth(self.count, least))

    def _descended(self, inquest: Any, tracer: Any, ours: Any, theirs: Any) -> Suspect | None:
        """The birthplace, in the body of an If where that is where it is."""
        from ..numerics.trace.suspects import Inquest

        place = inquest.birthplace()
        if place is None:
            return None
        site = tracer.sites[place]
        if site.kind == "If":
            inside = "/".join(filter(None, (inquest.inside, site.scope, site.label)))
            try:
                body = tracer.branch(site, ours, theirs)
                if body is not None:
                    inner, *feeds = body
                    found = self._descended(Inquest(inner.run(*feeds), inner.weights, inside), inner, *feeds)
                    if found is not None:
                        return found
            except AmpError as error:  # the If itself is still a good answer
                self.notes.append(f"the body of '{site.label}' could not be looked at: {error.message}")
        return inquest.born_at(place)
