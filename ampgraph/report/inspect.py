"""What is in a model: nodes, weights and bytes by precision, every Cast with its reason, layers, differences."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

from ..core.collector import quiet_collector
from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.graph import LOW, Census, Graph, Stored
from ..core.json_types import JsonObject
from ..core.shown import Shown
from ..formats import adapters
from ..formats.onnx.graph import OnnxGraph
from ..oplists.operators import OpLists, load_op_lists
from ..oplists.traits import has
from .casts import CastReport, cast_reports
from .fusions import Fusions, Runnable, fused_operators

PRECISIONS = (FLOAT32, *LOW, "float64")
OTHER = "other"  # nodes without a floating-point tensor


@dataclass
class Layer:
    """One scope of the exporter: nodes by precision, those of the scopes below included."""

    name: str
    nodes: Counter[str] = field(default_factory=Counter)
    children: dict[str, Layer] = field(default_factory=dict)

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        return {"name": self.name, "nodes": dict(self.nodes), "children": [c.to_dict() for c in self.children.values()]}


@dataclass(frozen=True)
class Changes:
    """What changed since the original. ``changed``: (kind, from, to) -> nodes; ``gone`` and ``new`` count by kind."""

    original: str
    nodes: int
    casts: int
    bytes: int
    changed: dict[tuple[str, str, str], list[str]]
    gone: dict[str, int]
    new: dict[str, int]

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        changed = [{"kind": k, "from": a, "to": b, "nodes": names} for (k, a, b), names in self.changed.items()]
        return {**asdict(self), "changed": changed}


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """The report of `inspect`. Nodes are counted once for each call of a function that holds them, Casts apart."""

    LINES: ClassVar[str] = f"{__package__}.text.inspection_lines"
    HTML: ClassVar[str] = f"{__package__}.sketched.inspection_html"

    model: str
    version: str  # of the format: "opset 18", "mind_ir_version 3"
    opset: int | None  # None for MindIR
    file_nodes: int
    nodes: dict[str, int]
    heavy: dict[str, int]
    weights: dict[str, Stored]
    casts: tuple[CastReport, ...]
    layers: Layer
    difference: Changes | None = None
    fusions: Fusions | None = None
    unknown: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Of all stored tensors."""
        return sum(stored.bytes for stored in self.weights.values())

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "version": self.version,
            "opset": self.opset,
            "file_nodes": self.file_nodes,
            "nodes": self.nodes,
            "heavy": self.heavy,
            "weights": {name: asdict(stored) for name, stored in self.weights.items()},
            "weight_bytes": self.weight_bytes,
            "casts": [asdict(cast) for cast in self.casts],
            "layers": self.layers.to_dict(),
            "unknown": list(self.unknown),
            "difference": self.difference.to_dict() if self.difference else None,
            "fusions": self.fusions.to_dict() if self.fusions else None,
        }


@dataclass(frozen=True)
class Seen:
    """A loaded model with what is read off it."""

    label: str
    graph: Graph
    flow: Dataflow
    census: Census


def inspect(
    model: object,
    against: object = None,
    *,
    lists: OpLists | None = None,
    provider: str = "",
    runtime: str = "",
    builder: str = "",
    dims: Mapping[str, int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Inspection:
    """Looks at a model, and at what changed since ``against``.

    Args:
        model: anything that `convert` takes.
        against: the model that it was made from.
        lists: say what is heavy, and why a Cast stands where it does; ampgraph's own if not given.
        provider: the execution provider of ONNX Runtime whose fusions and placement are asked for; none if empty.
        runtime: the Python whose onnxruntime is asked; this one if empty.
        builder: the extra whose package builds engines for the target, and is asked instead.
        dims: sizes of open dimensions, for an engine.
        progress: hears what is done next.

    Raises:
        AmpError: for a file that is missing or no model; AMP508 for a ``runtime`` that cannot be started.
    """
    with quiet_collector():
        lists = load_op_lists() if lists is None else lists
        seen = see(model)
        original = see(against) if against is not None else None
        result = _inspection(seen, original, lists)
    runnable = _runnable(model, seen) if provider else None
    if runnable is None:
        return result
    if progress:
        progress("looking for fused operators")
    before = _runnable(against, original) if original else None
    found = fused_operators(runnable, before, provider, runtime, builder, dims)
    return replace(result, fusions=found)


def precision(flow: Dataflow, op: Op) -> str:
    """The type that a node works in: low if any of its tensors is, else float32 or float64, else `other`."""
    found = {flow.values[v].dtype for v in (*op.outputs, *op.inputs) if v != NONE}
    return next((dtype for dtype in (*LOW, FLOAT32, "float64") if dtype in found), OTHER)


def see(model: object) -> Seen:
    """Loads a model to look at it. Raises AmpError for a file that is missing or no model."""
    graph, _ = adapters.load(model)
    graph.prepare()
    label = os.path.basename(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else type(model).__name__
    return Seen(label, graph, graph.dataflow(), graph.census())


def _runnable(model: object, seen: Seen) -> Runnable | None:
    """What ONNX Runtime can load: a path, or the model; None for another format."""
    if not isinstance(seen.graph, OnnxGraph):
        return None
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else seen.graph.model


def _inspection(seen: Seen, original: Seen | None, lists: OpLists) -> Inspection:
    flow = seen.flow
    nodes: Counter[str] = Counter()
    heavy: Counter[str] = Counter()
    layers = Layer("")
    for op in flow.ops:
        if has(op.role, "uncounted"):
            continue
        found = precision(flow, op)
        nodes[found] += 1
        if op.role in lists.heavy and found != OTHER:
            heavy[found] += 1
        _place(layers, flow.layer(op), found)
    return Inspection(
        model=seen.label,
        version=seen.graph.version(),
        opset=flow.opset or None,
        file_nodes=seen.census.nodes,
        nodes=_sorted(nodes),
        heavy=_sorted(heavy),
        weights=seen.census.weights,
        casts=cast_reports(flow, lists, original.flow if original else None),
        layers=layers,
        difference=_difference(seen, original) if original else None,
        unknown=tuple(sorted(flow.unknown_kinds)),
    )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in (*PRECISIONS, OTHER) if counts[name]}


def _place(layers: Layer, path: str, found: str) -> None:
    layers.nodes[found] += 1
    for name in path.split(".") if path else []:
        layers = layers.children.setdefault(name, Layer(name))
        layers.nodes[found] += 1


def _difference(seen: Seen, original: Seen) -> Changes:
    now, before = named_precisions(seen.flow), named_precisions(original.flow)
    changed: dict[tuple[str, str, str], list[str]] = {}
    for key, (name, found) in now.items():
        if key in before and before[key][1] != found:
            changed.setdefault((key[0], before[key][1], found), []).append(name)
    gone = Counter(kind for kind, _ in before.keys() - now.keys())
    new = Counter(kind for kind, _ in now.keys() - before.keys())
    return Changes(
        original.label,
        seen.census.nodes - original.census.nodes,
        seen.census.casts - original.census.casts,
        seen.census.weight_bytes - original.census.weight_bytes,
        dict(sorted(changed.items(), key=lambda item: -len(item[1]))),
        dict(gone.most_common()),
        dict(new.most_common()),
    )


def named_precisions(flow: Dataflow) -> dict[tuple[str, str], tuple[str, str]]:
    """(kind, name or first output) -> (name, precision); a name that several nodes bear gives way to the output's."""
    borne = Counter((op.kind, op.name) for op in flow.ops)
    found = {}
    for op in flow.ops:
        if has(op.role, "uncounted"):
            continue
        first = flow.values[op.outputs[0]].name if op.outputs else ""
        name = op.name if op.name and borne[op.kind, op.name] == 1 else first
        found[op.kind, name or f"#{op.index}"] = (op.name or first, precision(flow, op))
    return found
