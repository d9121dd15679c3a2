"""What a target's ONNX Runtime makes of a model, before and after: fused operators, placement, copies, Casts left."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from ..core.dataflow import Dataflow
from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.json_types import JsonObject
from ..core.recipe_values import extremes
from ..core.shown import json_fields
from ..numerics.inputs.samples import load_samples
from ..oplists.options import Options
from ..runtime.devices import import_onnxruntime
from ..runtime.optimized import OptimizedNode
from ..runtime.optimizing import NotOptimized, optimized
from ..runtime.tensorrt_rtx import BuildJob, EngineSizes, build, sizes_of

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from ..runtime.optimized import Optimized

Runnable: TypeAlias = "str | ir.Model"
"""What ONNX Runtime is given to load: a path, or a model to serialize."""
OTHER_RUNTIME = "`--runtime PYTHON` names an environment that has it"


@dataclass(frozen=True)
class TargetGraph:
    """The optimised graph or the engine of one model, as counts. ``providers``: nodes by who runs them; ``copies``:
    Memcpys by direction; ``casts``: Casts that are left, by type; ``fused``: fused operators by kind; ``types``:
    kernels of an engine by what they read and make; ``engine_bytes``: an engine's size, 0 for a graph."""

    nodes: int
    providers: dict[str, int]
    copies: dict[str, int]
    casts: dict[str, int]
    fused: dict[str, int]
    types: dict[str, int] = field(default_factory=dict)
    engine_bytes: int = 0

    @staticmethod
    def from_optimized(found: Optimized) -> TargetGraph:
        """Report of `inspect`: counts the nodes of a graph that the target's runtime optimised."""
        counters = found.providers(), found.copied(), found.cast(), found.fused()
        providers, copies, casts, fused = (dict(sorted(counter.items())) for counter in counters)
        return TargetGraph(len(found.nodes), providers, copies, casts, fused)

    def rows(self) -> dict[tuple[str, str], int]:
        """The counts of a target's graph, (what is counted, kind or "") -> count, in the order of a report."""
        parts = {"run by": self.providers, "copies": self.copies, "casts": self.casts, "fused": self.fused}
        parts["types"] = self.types
        counts = {(title, kind): count for title, part in parts.items() for kind, count in sorted(part.items())}
        size = {("bytes", ""): self.engine_bytes} if self.engine_bytes else {}
        return {("kernels" if size else "nodes", ""): self.nodes, **counts, **size}


@dataclass(frozen=True)
class Fusions:
    """What a target's runtime makes of the model (``after``) and of its original (``before``); None where there is
    none, or it cannot be told, for the reason in ``note``.

    ``nodes``: those that it would run of the model, which the page shows and JSON leaves out."""

    runtime: str = ""
    provider: str = ""
    after: TargetGraph | None = None
    before: TargetGraph | None = None
    note: str = ""
    nodes: tuple[OptimizedNode, ...] = ()

    def lines(self) -> list[str]:
        """The lines that `inspect` prints of fused operators: each count of the original and of the model."""
        sides = [side.rows() for side in (self.before, self.after) if side]
        if not sides:
            return [f"fused operators and placement on {self.device}: cannot be told: {self.note}"]
        alone = ", the original alone" if not self.after else ""
        lines = [f"on {self.device}, as {self.runtime} {self.how} it{alone}; nothing was run"]
        for title, kind in dict.fromkeys(chain(*sides)):
            counts = " -> ".join(str(side.get((title, kind), 0)) for side in sides)
            lines.append(f"  {title:<8}{kind}{': ' if kind else ''}{counts}")
        return lines + ([f"  {self.note}"] if self.note else [])

    @property
    def device(self) -> str:
        """In the report of fusions: the provider's short name: `CUDA`, `CPU`."""
        return self.provider.removesuffix("ExecutionProvider")

    def to_dict(self) -> JsonObject:
        """What a runtime fuses of a model, as plain data for JSON."""
        return json_fields(self, "runtime", "provider", "after", "before", "note")

    @property
    def how(self) -> str:
        """Report of fusions: what the runtime does with the file: it "builds" an engine or "optimises" a graph."""
        return "builds" if any(side.engine_bytes for side in (self.after, self.before) if side) else "optimises"


def fused_operators(
    model: Runnable,
    original: Runnable | None,
    provider: str,
    python: str = "",
    builder: str = "",
    dims: Mapping[str, int] | None = None,
) -> Fusions:
    """The report of fusions: what the execution provider ``provider`` would run of a model and of its ``original``.

    Args:
        python: the interpreter whose onnxruntime, or builder, is asked; "" for this one.
        builder: not "": an engine is built instead, by the packages of this extra.
        dims: the sizes of open dimensions that an engine is built for.

    Raises AmpError AMP508 for an interpreter that cannot be started, and AMP501 for one that is named and has no such
    package. What is missing here, or is refused, is said in the report's ``note``.
    """
    missing = "" if python or builder else _why_not_here(provider)
    if missing:
        return Fusions(provider=provider, note=missing)
    ask = partial(_build_engine, dims=dims or {}) if builder else partial(_optimise_graph, provider=provider)
    try:
        before = _Side() if original is None else ask(original, python)
        after = ask(model, python)
    except AmpError as error:
        if python or not builder or error.code != "AMP501":
            raise
        return Fusions(provider=provider, note=f"{error.message}; {OTHER_RUNTIME}")
    notes = dict.fromkeys(side.note for side in (before, after) if side.note)
    runtime = after.runtime or before.runtime
    return Fusions(runtime, provider, after.graph, before.graph, "; ".join(notes), after.nodes)


@dataclass(frozen=True)
class _Side:
    """What a runtime makes of one model, for the report of fusions: a ``graph``, or None and in ``note`` why."""

    runtime: str = ""
    graph: TargetGraph | None = None
    nodes: tuple[OptimizedNode, ...] = ()
    note: str = ""


def engine_sizes(model: Runnable | Graph, dims: Mapping[str, int], data: object = None) -> EngineSizes:
    """For the reports on TensorRT: the sizes that an engine is built for: those of the samples in ``data``, else of a
    generated one; and the least and the largest that ``dims`` says. Raises as `load_samples` does."""
    *ends, usual = extremes(dims)
    generated = [load_samples(model, count=1, dims=sizes) for sizes in ends]
    generated.append(load_samples(model, count=1, dims=usual) if data is None else load_samples(model, data, dims=dims))
    return sizes_of(chain(*generated))


def _build_engine(model: Runnable, python: str, dims: Mapping[str, int]) -> _Side:
    """Report of `inspect`: the engine that TensorRT builds of a model, as counts; a note where it refuses."""
    proto, folder = (model, "") if isinstance(model, str) else _serialized(model)
    answer = build(BuildJob(proto, folder, *engine_sizes(model, dims)), python=python)
    if answer.engine is None:
        return _Side(answer.runtime, note=f"{answer.runtime} does not take {_model_name(model)}: {answer.why}")
    engine, kernels = answer.engine, answer.engine.kernels
    nodes = (OptimizedNode(k.name, k.kind, "TensorRT", k.dtype, k.computes) for k in kernels)
    casts = Counter(kernel.dtype for kernel in kernels if kernel.casts)
    fused = {"attention": engine.attentions} if engine.attentions else {}
    graph = TargetGraph(len(kernels), {}, {}, dict(casts), fused, dict(engine.types), engine.size)
    return _Side(answer.runtime, graph, tuple(nodes))


def _why_not_here(provider: str) -> str:
    """Report of `inspect`: why this process's onnxruntime cannot tell what ``provider`` would run; "" if it can."""
    try:
        runtime = import_onnxruntime()
    except AmpError:
        return f"onnxruntime is not installed; {OTHER_RUNTIME}"
    if provider in runtime.get_available_providers():
        return ""
    return f"onnxruntime {runtime.__version__} here has no {provider}; {OTHER_RUNTIME}"


def _optimise_graph(model: Runnable, python: str, provider: str) -> _Side:
    """Report of `inspect`: the graph that ONNX Runtime would run of a model, as counts; a note where it refuses."""
    proto, folder = (model, "") if isinstance(model, str) else _serialized(model)
    try:
        found = optimized(proto, provider, python=python, folder=folder)
    except NotOptimized as why:
        return _Side(note=str(why) if why.elsewhere else f"ONNX Runtime does not take {_model_name(model)}: {why}")
    return _Side(found.runtime, TargetGraph.from_optimized(found), found.nodes)


def _serialized(model: ir.Model) -> tuple[onnx.ModelProto, str]:
    """Report of `inspect`: (the model as a message, the folder in which its external data lies, "" without any)."""
    import onnx_ir

    values = (value.const_value for value in model.graph.initializers.values())
    outside = (tensor for tensor in values if isinstance(tensor, onnx_ir.ExternalTensor))
    folder = next((os.fspath(tensor.base_dir) for tensor in outside), "")
    return onnx_ir.to_proto(model), folder


def _model_name(model: Runnable) -> str:
    """The name by which notes on fusions speak of a model: its file's, or "the model" for one in memory."""
    return os.path.basename(model) if isinstance(model, str) else "the model"


# -- for what shapes trtexec builds an engine of a model with open dimensions, in its own words ------------------------

FLAGS = {"--minShapes": "least", "--optShapes": "", "--maxShapes": "largest"}
"""The flag -> which of the sizes that --dim says it takes."""


def shape_words(flow: Dataflow, options: Options) -> str:
    """A report's words on sizes of the inputs' open dimensions for trtexec, by --dim or guessed; "" if none is open."""
    from ..planner.facts.sizes import OpenSizes  # a plan is applied where there is no planner

    inputs = [v for v in (flow.scopes[0].inputs if flow.scopes else ()) if _open_dims(flow, v)]
    if not inputs:
        return ""
    found = {}
    for flag, which in FLAGS.items():
        named = {name: getattr(size, which, size) for name, size in options.dims.items()}
        sizes = OpenSizes(flow, named, options.lists.traits)
        found[flag] = ",".join(f"{flow.values[v].name}:{'x'.join(map(str, sizes.dims(v)))}" for v in inputs)
    if len(set(found.values())) > 1:
        return "trtexec " + " ".join(f"{flag}={shapes}" for flag, shapes in found.items())
    names = sorted({str(dim) for v in inputs for dim in _open_dims(flow, v) if dim})
    more = f"; --dim {names[0]}=1:8:32 would make it a range" if names else ""
    return f"trtexec --optShapes={found['--optShapes']} for these sizes alone{more}"


def _open_dims(flow: Dataflow, value: int) -> list[object]:
    """A report's words on open dimensions: those of a value, as names, None or negative numbers."""
    return [dim for dim in flow.shape(value) or () if not isinstance(dim, int) or dim < 0]
