"""What is in a model: nodes, weights and bytes by precision, every Cast with its reason, layers, differences."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.errors import AmpError
from ..core.graph import LOW, Census, Graph, Stored
from ..core.json_types import JsonObject
from ..core.recipe import Recipe
from ..core.shown import Shown, json_fields, plural
from ..core.sketches import Html, bar, heading, table
from ..formats import adapters
from ..formats.onnx.graph import OnnxGraph
from ..oplists.kernels import load_kernels
from ..oplists.options import DEFAULT_TARGETS
from ..oplists.traits import has
from .casts import CastReport, cast_reports
from .estimate import FusedValues, Speed, estimate_speed, fused_values
from .fusions import Fusions, Runnable, fused_operators
from .lines import columns, grouped

PRECISIONS = (FLOAT32, *LOW, "float64")
OTHER = "other"  # nodes without a floating-point tensor
EXAMPLES = 3
CASTS_SHOWN = 40  # more come in groups; --json lists each
LAYERS, DEPTH = 24, 2  # rows of the table of layers, and how deep it goes


@dataclass
class Layer:
    """One scope of the exporter: its nodes by precision, those of scopes below included, and these scopes by name."""

    name: str
    nodes: Counter[str] = field(default_factory=Counter)
    children: dict[str, Layer] = field(default_factory=dict)

    def to_dict(self) -> JsonObject:
        """A layer and those within it, as plain data for JSON."""
        return {"name": self.name, "nodes": dict(self.nodes), "children": [c.to_dict() for c in self.children.values()]}


@dataclass(frozen=True)
class Changes:
    """What changed since the model called ``original``: how many ``nodes``, ``casts`` and ``bytes`` of weights more (or
    fewer) there are; ``changed``: (kind, precision then, precision now) -> names of nodes; ``gone`` and ``new``: kind
    -> how many nodes only the original, or only this model, has."""

    original: str
    nodes: int
    casts: int
    bytes: int
    changed: dict[tuple[str, str, str], list[str]]
    gone: dict[str, int]
    new: dict[str, int]

    def to_dict(self) -> JsonObject:
        """What changed since the original, as plain data for JSON."""
        changed = [{"kind": k, "from": a, "to": b, "nodes": names} for (k, a, b), names in self.changed.items()]
        return {**asdict(self), "changed": changed}

    def lines(self) -> list[str]:
        """The lines that `inspect` prints of what changed since the original."""
        size = f"{self.nodes:+,} nodes, {self.casts:+,} casts, {self.bytes:+,} bytes of weights"
        lines = [f"  {len(names):>6,} {kind}: {before} -> {now}" for (kind, before, now), names in self.changed.items()]
        for what, counts in (("only in the original", self.gone), ("only here", self.new)):
            if counts:
                lines.append(f"  {what}: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        return [f"against {self.original}: {size}", *(lines or ["  no node changed its precision"])]


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """The report of `inspect`. ``nodes`` and ``products`` are by precision, without Casts, and counted once for each
    call of their function; ``file_nodes``: how many the file has; ``unknown``: operators without a schema."""

    model: str
    version: str  # of the format: "opset 18", "mind_ir_version 3"
    opset: int | None  # None for MindIR
    file_nodes: int
    nodes: dict[str, int]
    products: dict[str, int]
    weights: dict[str, Stored]
    casts: tuple[CastReport, ...]
    layers: Layer
    difference: Changes | None = None
    fusions: Fusions | None = None
    unknown: tuple[str, ...] = ()
    speed: Speed | None = None

    @property
    def weight_bytes(self) -> int:
        """How many bytes all stored tensors of the model take."""
        return sum(stored.bytes for stored in self.weights.values())

    def to_dict(self) -> JsonObject:
        """What `inspect` found, as plain data for JSON."""
        return json_fields(
            self, "model", "version", "opset", "file_nodes", "nodes", "products", "weights", "weight_bytes", "casts",
            "layers", "unknown", "difference", "fusions", "speed",
        )  # fmt: skip

    def lines(self) -> list[str]:
        """The text that `inspect` prints, by lines."""
        size = f"{plural(self.file_nodes, 'node')}, {self.version}, {self.weight_bytes:,} bytes of weights"
        lines = [f"{self.model}: {size}", "", f"{'':12}{'nodes':>9}{'products':>9}{'weights':>9}{'bytes':>17}"]
        names = [n for n in (*PRECISIONS, OTHER) if self.nodes.get(n) or self.weights.get(n)]
        for name in dict.fromkeys([*names, *self.weights]):
            stored = self.weights.get(name, Stored())
            nodes, products = self.nodes.get(name, 0), self.products.get(name, 0)
            lines.append(f"{name:12}{nodes:>9,}{products:>9,}{stored.count:>9,}{stored.bytes:>17,}")
        if self.unknown:
            lines.append(f"no schema known for: {', '.join(self.unknown)}")
        lines += ["", f"speed: {self.speed}"] if self.speed else []
        rows = [("  (all)", _counts_in_words(self.layers.nodes)), *_layer_rows(self.layers, 1)]
        lines += ["", *_cast_lines(self.casts), "", "layers", *columns(rows)]
        for part in (self.difference, self.fusions):
            lines += ["", *part.lines()] if part else []
        return lines

    def _overview(self) -> Iterable[Html]:
        """The top of the page: nodes, products, weights and bytes by precision; layers as bars."""
        names = list(dict.fromkeys((*PRECISIONS, OTHER, *self.weights)))
        parts = {name: self.weights[name].bytes for name in names if name in self.weights}
        counts = [(name, self.nodes.get(name, 0), self.products.get(name, 0), parts.get(name, 0)) for name in names]
        rows = [(name, *(f"{count:,}" for count in some)) for name, *some in counts if any(some)]
        head = f"{self.model}: {self.version}, {plural(self.file_nodes, 'node')}, {plural(len(self.casts), 'cast')}"
        yield heading(head)
        yield table(("", "nodes", "products", "bytes of weights"), rows)
        yield table((), [("nodes", bar(self.nodes)), ("weights", bar(parts))])
        yield table(("layer", "nodes", ""), _layer_bars(self.layers))


@dataclass(frozen=True)
class ModelView:
    """A model as reports look at it: ``label``: its name in them; ``path``: its file, None for one in memory."""

    label: str
    graph: Graph
    flow: Dataflow
    census: Census
    path: str | None = None

    def runnable(self) -> Runnable | None:
        """The model of a report as ONNX Runtime can load it: its path, or the model in memory; None for MindIR."""
        return (self.path or self.graph.model) if isinstance(self.graph, OnnxGraph) else None


def view_model(model: object) -> ModelView:
    """A model, by its path or as an object of any kind that `adapters` loads, as reports look at it. Raises AmpError
    1xx for a file that is missing or no model."""
    path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    label = type(model).__name__ if path is None else os.path.basename(path)
    return view_graph(label, adapters.load(model)[0], path)


def view_graph(label: str, graph: Graph, path: str | None = None) -> ModelView:
    """A graph that is loaded already, as reports look at it; sorts it if need be. ``label``: its name in reports."""
    graph.prepare()
    return ModelView(label, graph, graph.dataflow(), graph.census(), path)


def inspection_of(seen: ModelView, original: ModelView | None, recipe: Recipe) -> Inspection:
    """The report of `inspect`: what is in a model by precision, what differs from its ``original``, estimated speed.

    ``recipe``: its lists say what is a product, and why a Cast stands where it does; speed is estimated for its target
    and its sizes of open dimensions."""
    from ..planner.resolve import lists_of  # a plan is applied where there is no planner

    flow, lists = seen.flow, lists_of(recipe)
    nodes: Counter[str] = Counter()
    products: Counter[str] = Counter()
    layers = Layer("")
    for op in flow.ops:
        if has(op.role, "uncounted"):
            continue
        found = precision(flow, op)
        nodes[found] += 1
        if op.role in lists.products and found != OTHER:
            products[found] += 1
        _count_in_layers(layers, flow.layer(op), found)
    return Inspection(
        model=seen.label,
        version=seen.graph.version(),
        opset=flow.opset or None,
        file_nodes=seen.census.nodes,
        nodes=_in_order_of_precisions(nodes),
        products=_in_order_of_precisions(products),
        weights=seen.census.weights,
        casts=cast_reports(flow, lists, original.flow if original else None),
        layers=layers,
        difference=_changes_since(seen, original) if original else None,
        unknown=tuple(sorted(flow.unknown_kinds)),
        speed=_speed(seen, original, recipe),
    )


def fusions_of(
    seen: ModelView, original: ModelView | None, recipe: Recipe, python: str, progress: Callable[[str], None]
) -> Fusions | None:
    """Report of `inspect`: what the runtime of the recipe's target makes of a model and its original; None where the
    target has no ONNX Runtime provider, or the model is MindIR.

    ``python``: the interpreter whose runtime is asked; "" for this one. ``progress`` hears of it, as it takes its
    time. Raises as `fused_operators` does."""
    kernels = load_kernels(recipe.target or DEFAULT_TARGETS[seen.graph.format], seen.graph.format)
    runnable = seen.runnable()
    if runnable is None or not kernels.provider:
        return None
    progress("looking for fused operators")
    before = original.runnable() if original else None
    return fused_operators(runnable, before, kernels.provider, python, kernels.builder, dict(recipe.dims))


def precision(flow: Dataflow, op: Op) -> str:
    """How reports count a node: as low if any of its tensors is, else as float32 or float64, else as `OTHER`."""
    found = {flow.values[v].dtype for v in (*op.outputs, *op.inputs) if v != NONE}
    return next((dtype for dtype in (*LOW, FLOAT32, "float64") if dtype in found), OTHER)


def _speed(seen: ModelView, original: ModelView | None, recipe: Recipe) -> Speed | None:
    """Report of `inspect`: the estimated speed of a low file beside float32; None for MindIR, for a file without low
    nodes, and for a target without kernels of their type."""
    counts = Counter(precision(seen.flow, op) for op in seen.flow.ops)
    dtype = max(LOW, key=counts.__getitem__)
    target = recipe.target or DEFAULT_TARGETS["ONNX"]
    if seen.graph.format != "ONNX" or not counts[dtype] or dtype in load_kernels(target).lacks:
        return None
    from ..planner.resolve import resolve  # a plan is applied where there is no planner

    options = resolve(replace(recipe, dtype=dtype), seen.graph.format)
    inside = FusedValues() if original is None else fused_values(original.flow, options)
    return estimate_speed(seen.flow, options, inside)


def _in_order_of_precisions(counts: Counter[str]) -> dict[str, int]:
    """For reports: counts by precision that are not zero, in the order in which precisions are shown."""
    return {name: counts[name] for name in (*PRECISIONS, OTHER) if counts[name]}


def _count_in_layers(layers: Layer, path: str, found: str) -> None:
    """Report of `inspect`: counts a node of precision ``found`` in the layer of a path and all around it."""
    layers.nodes[found] += 1
    for name in path.split(".") if path else []:
        layers = layers.children.setdefault(name, Layer(name))
        layers.nodes[found] += 1


def _changes_since(seen: ModelView, original: ModelView) -> Changes:
    """Report of `inspect`: what changed in a model since its original: nodes by precision, Casts, bytes."""
    now, before = named_precisions(seen.flow), named_precisions(original.flow)
    differs = [
        ((key[0], before[key][1], found), name)
        for key, (name, found) in now.items()
        if key in before and before[key][1] != found
    ]
    gone = Counter(key[0] for key in before if key not in now)  # in the order of the graph
    new = Counter(key[0] for key in now if key not in before)
    return Changes(
        original.label,
        seen.census.nodes - original.census.nodes,
        seen.census.casts - original.census.casts,
        seen.census.weight_bytes - original.census.weight_bytes,
        {change: [name for _, name in found] for change, found in grouped(differs, lambda one: one[0])},
        dict(gone.most_common()),
        dict(new.most_common()),
    )


def named_precisions(flow: Dataflow) -> dict[tuple[str, str], tuple[str, str]]:
    """For reports that compare models: (kind, key) -> (name, precision) of each node but Casts and Constants (trait
    ``uncounted``). The key is the node's name if no other of its kind has it, else its first output's name, else its
    index, with the path of its scope in front where two bodies would have the same."""
    sharers = Counter((op.kind, op.name) for op in flow.ops)
    found = {}
    for op in flow.ops:
        if has(op.role, "uncounted"):
            continue
        first = flow.values[op.outputs[0]].name if op.outputs else ""
        key = op.name if op.name and sharers[op.kind, op.name] == 1 else first
        key = key or f"#{op.index}"
        if (op.kind, key) in found:
            key = f"{flow.scopes[op.scope].path}/{key}"
        found[op.kind, key] = (op.name or first, precision(flow, op))
    return found


# -- as text and as bars ---------------------------------------------------------------------------------------------


def _cast_lines(casts: Sequence[CastReport]) -> list[str]:
    """Report of `inspect`: the Casts one by one, or in groups with examples where there are more than `CASTS_SHOWN`."""
    if len(casts) <= CASTS_SHOWN:
        return [f"casts: {len(casts)}"] + [f"  {c.source} -> {c.target}  {c.reason}" for c in casts]
    lines = [f"casts: {len(casts):,}, in groups (--json lists each)"]
    for (source, target, sort), members in grouped(casts, lambda cast: (cast.source, cast.target, cast.sort)):
        lines.append(f"  {source} -> {target}  {sort}: {len(members):,}")
        lines += [f"    {member.reason}" for member in members[:EXAMPLES]]
    return lines


def _counts_in_words(nodes: Counter[str] | dict[str, int]) -> str:
    """Report of `inspect`: counts of nodes by precision, in words."""
    return ", ".join(f"{nodes[name]:,} {name}" for name in (*PRECISIONS, OTHER) if nodes.get(name))


def _layer_rows(layer: Layer, depth: int) -> list[tuple[str, str]]:
    """Report of `inspect`: (name, counts) of all layers inside one, indented by depth; alike neighbours share a row."""
    rows = []
    for name, child in _grouped_alike(list(layer.children.values())):
        rows.append(("  " * depth + name, _counts_in_words(child.nodes) + ("" if name == child.name else " each")))
        rows += _layer_rows(child, depth + 1)
    return rows


def _grouped_alike(children: list[Layer]) -> list[tuple[str, Layer]]:
    """Report of `inspect`: (name of a row, its first layer): numbered neighbours of equal content share a row,
    "0-11"."""
    groups: list[list[Layer]] = []
    for child in children:
        if groups and _repeats(groups[-1][-1], child):
            groups[-1].append(child)
        else:
            groups.append([child])
    return [(g[0].name if len(g) == 1 else f"{g[0].name}-{g[-1].name}", g[0]) for g in groups]


def _repeats(before: Layer, layer: Layer) -> bool:
    """Report of `inspect`: whether a layer has the next number after ``before``, and the same content."""
    if not (before.name.isdigit() and layer.name.isdigit() and int(layer.name) == int(before.name) + 1):
        return False
    return _layer_content(before) == _layer_content(layer)


def _layer_content(layer: Layer) -> object:
    """Report of `inspect`: what a layer holds, at any depth; equal for layers of the same content."""
    return dict(layer.nodes), [(name, _layer_content(child)) for name, child in layer.children.items()]


def _layer_bars(top: Layer) -> list[tuple[str, str, Html]]:
    """The page's rows (path, number of nodes, bar) of layers, in the graph's order, as deep as there is room."""
    found = _layers_within(top, "", DEPTH)
    found = found if len(found) <= LAYERS else _layers_within(top, "", 1)
    most = max((sum(layer.nodes.values()) for _, layer in found), default=1)
    rows = [(path, f"{sum(layer.nodes.values()):,}", bar(layer.nodes, most, 160)) for path, layer in found[:LAYERS]]
    return rows + ([(f"and {len(found) - LAYERS:,} more", "", Html(""))] if len(found) > LAYERS else [])


def _layers_within(layer: Layer, path: str, depth: int) -> list[tuple[str, Layer]]:
    """Report of `inspect`: (path, layer) of layers within one, ``depth`` levels deep. ``path``: the front of theirs."""
    found: list[tuple[str, Layer]] = []
    for name, child in layer.children.items() if depth else ():
        found += [(f"{path}{name}", child), *_layers_within(child, f"{path}{name}.", depth - 1)]
    return found


# -- elsewhere --------------------------------------------------------------------------------------------------------

COLOURS = {"float16": "#7cb8ff", "bfloat16": "#8fd6a6", "float32": "#ffcf8a", "float64": "#ff9a8a"}
CAST_COLOUR = "#d9a6ff"


def overlay(model: object) -> JsonObject:
    """The precisions of the main graph's nodes as Model Explorer's "load node data" takes them: name of the graph ->
    "results" -> name of a node -> text and colour.

    A node without a name is known there by its number. Raises AmpError AMP304 for a format that is not drawn there."""
    graph, _ = adapters.load(model)
    if graph.format != "ONNX":
        raise AmpError("AMP304", f"Model Explorer cannot draw {graph.format}", hint="give an ONNX model")
    graph.prepare()
    flow = graph.dataflow()
    results: JsonObject = {}
    for op in flow.ops:
        found = precision(flow, op)
        if op.scope != 0 or found not in COLOURS:
            continue
        cast = has(op.role, "casts") and any(flow.values[v].dtype in LOW for v in (*op.inputs, *op.outputs))
        value = f"Cast to {flow.values[op.outputs[0]].dtype}" if cast else found
        results[op.name or f"<node_{op.index}>"] = {"value": value, "bgColor": CAST_COLOUR if cast else COLOURS[found]}
    name: str = getattr(flow.scopes[0].native, "name", None) or "<main>"
    return {name: {"results": results}}
