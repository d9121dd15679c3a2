"""Measuring ranges: one float32 run for each sample, every value looked at and freed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import TensorProto

from ...core.arrays import Array, Result
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Scope, Value
from ...core.graph import LOW, Attribute, NodeEditor
from ...core.progress import Progress
from ...core.ranges import Range, Ranges, escaped, measure, value_key
from ...core.walk import Crossings
from ...formats.adapters import OnnxGraph
from ...oplists.traits import has
from ..graphs import flat_graph
from ..inputs.samples import Samples
from ..strict.session import make_strict
from .segments import LIMIT, SegmentedModel


def measured_ranges(
    graph: OnnxGraph,
    samples: Samples,
    *,
    device: str = "cpu",
    limit: int = LIMIT,
    progress: Progress | None = None,
    enough: Callable[[Ranges], bool] = lambda so_far: False,
) -> Ranges:
    """Runs a sorted model in float32 on samples; the range of every float32 value. The graph is not changed.

    Integer tensors are no ranges. Values in functions are told apart by call. Of values in the bodies of If, Loop and
    Scan the extremes are recorded alone; what could not be measured is counted in ``notes``. ``limit``: bytes of values
    that are held at once; ``enough``: whether to stop after a sample. Raises AmpError AMP501 to AMP505.
    """
    flow, flat = graph.dataflow(), flat_graph(graph)
    ranges = Ranges(graph.digest())
    runner = _RangeRunner(flat, flow, _keys_by_name(flow, flat), device, limit)

    def told(done: int, parts: int) -> None:
        """The progress of one sample's run as a part of that of all samples."""
        if progress is not None:
            progress("measuring ranges", ranges.samples * parts + done, len(samples) * parts)

    for feeds in samples:
        for name, array in runner.run(feeds, told):
            found = range_of_rows(array) if name in runner.rows else measure(array)
            for key in runner.keys[name]:
                ranges.values.setdefault(key, Range()).add(found)
        ranges.samples += 1
        if enough(ranges):
            break
    order = {value_key(flow, value.id): None for value in _values_to_measure(flow)}
    ranges.values = {key: ranges.values[key] for key in order if key in ranges.values}
    never = len(order) - len({key for keys in runner.keys.values() for key in keys})
    odd = [key for key, found in ranges.values.items() if found.nonfinite]  # infinities may be masks: said, not judged
    ranges.notes = samples.notes
    if never:
        are = "value was" if never == 1 else "values were"
        text = f"{never:,} float32 {are} not measured: in bodies within functions, or not to be told apart"
        ranges.notes += (text,)
    if odd:
        text = f"{len(odd):,} values hold infinities or NaN in float32 already, the first is '{odd[0]}'"
        ranges.notes += (text,)
    return ranges


class _RangeRunner:
    """One model opened to measure its values. Low values are computed as rounded float32, as few CPU kernels are low.

    ``keys``: by name in ``flat``, which is changed, the keys in `Ranges` of the values of ``flow`` that it stands for;
    ``rows``: the names of rows of bodies (`expose_bodies`), with the key of each."""

    def __init__(self, flat: OnnxGraph, flow: Dataflow, keys: dict[str, list[str]], device: str, limit: int) -> None:
        self._low = {v.name for v in (flow.values[i] for i in flow.scopes[0].inputs) if v.dtype in LOW}
        self._inputs = {flow.values[i].name for i in flow.scopes[0].inputs} & set(keys)
        if any(value.dtype in LOW for value in flow.values):
            make_strict(flat, keep_interface=False)
        inside = {value_key(flow, v.id) for v in _values_to_measure(flow) if v.scope in _bodies(flow)}
        self.rows = {name: key for name, key in expose_bodies(flat).items() if key in inside}
        self.keys = {**keys, **{name: [key] for name, key in self.rows.items()}}
        self._model = SegmentedModel(flat, sorted(self.keys), device=device, limit=limit)

    def run(
        self, feeds: Mapping[str, Result], progress: Callable[[int, int], None] | None
    ) -> Iterator[tuple[str, Result]]:
        """Measured ranges: (name, array) of every input, value and row that is measured, in one run on ``feeds``."""
        fed = {n: v.astype(np.float32) if n in self._low else v for n, v in feeds.items()}
        yield from ((name, fed[name]) for name in fed if name in self._inputs)
        yield from self._model.run(fed, progress)


# -- names ------------------------------------------------------------------------------------------------------------


def _values_to_measure(flow: Dataflow) -> list[Value]:
    """Measured ranges: the float32 tensors that are computed or fed. What only ever has a weight passed to it, as an
    input of a function or body, is a weight by another name."""
    computed = {target for source, target in flow.passed if source != NONE and not flow.values[source].weight}
    weights = {target for source, target in flow.passed if source != NONE} - computed
    found = [v for v in flow.values if v.dtype == FLOAT32 and not v.container and not v.weight and v.unit != NONE]
    return [v for v in found if v.id not in weights]


def _keys_by_name(flow: Dataflow, flat: OnnxGraph) -> dict[str, list[str]]:
    """Measured ranges: name in ``flat``, the model with its functions inlined -> the keys of the values of the model
    that it stands for, several where functions pass a value on; values in bodies are left out."""
    inside, wanted = _bodies(flow), _values_to_measure(flow)
    if all(scope.kind != "function" for scope in flow.scopes):
        return {v.name: [value_key(flow, v.id)] for v in wanted if v.scope == 0 and v.name}
    pairs = _names_once_inlined(flow, flat.dataflow(), inside)
    crossings = Crossings(flow)
    good = {v.id for v in wanted if v.scope not in inside}
    names: dict[str, list[str]] = {}
    for value, name in pairs.items():
        same = sorted((crossings.copies(value) | crossings.origins(value)) & good)
        if same:
            names[name] = sorted({*names.get(name, []), *(value_key(flow, v) for v in same)})
    return names


def _bodies(flow: Dataflow) -> set[int]:
    """Measured ranges: the scopes that are bodies of control flow, or lie in one."""
    found: set[int] = set()
    for scope in flow.scopes:  # parents come before their children
        if scope.kind == "body" or scope.parent in found:
            found.add(scope.id)
    return found


def _names_once_inlined(flow: Dataflow, other: Dataflow, bodies: set[int]) -> dict[int, str]:
    """Measured ranges: value -> its name in ``other``, the model with functions inlined, by its operators in the same
    order, calls and ``bodies`` left out. Where these differ in kind: values of the main graph by their own names."""
    pairs = {v: flow.values[v].name for v in flow.scopes[0].inputs}
    calls = {scope.op for scope in flow.scopes if scope.kind == "function"}
    mine = [op for op in flow.ops if op.id not in calls and op.scope not in bodies]
    theirs = [op for op in other.ops if op.scope == 0]
    if [op.kind for op in mine] != [op.kind for op in theirs]:  # the inliner converted versions
        made = {other.values[v].name for op in theirs for v in op.outputs}
        return pairs | {v.id: v.name for v in flow.values if v.scope == 0 and v.name in made}
    for one, two in zip(mine, theirs, strict=True):
        pairs |= {
            v: other.values[w].name for v, w in zip(one.outputs, two.outputs, strict=False) if other.values[w].name
        }
    return pairs


# -- what the bodies of If, Loop and Scan hold ------------------------------------------------------------------------

OLDEST = 10  # the opset that has IsInf
LARGEST = float(np.finfo(np.float32).max)
DOUBLE = "float64"
ROWS = "ampgraph_rows"


def expose_bodies(graph: OnnxGraph) -> dict[str, str]:
    """Measured ranges: adds outputs to bodies of a model without functions, in place, that give rows of extremes to the
    main graph: name there -> `value_key` of the value that the rows are about. {} before opset 10."""
    flow = graph.dataflow()
    if flow.opset < OLDEST or len(flow.scopes) == 1:
        return {}
    with graph.editor(flow) as edit:
        return {rows.name: key for rows, key in _BodyRows(flow, edit).lift_rows(flow.scopes[0], "")}


def range_of_rows(rows: Array) -> Range:
    """The measured range that the rows of a value in a body tell, [runs, 4]: least, largest, elements, not finite ones;
    how magnitudes are spread they do not."""
    found = Range()
    for low, high, elements, nonfinite in np.asarray(rows, np.float64).reshape(-1, 4):
        any_finite = elements > nonfinite
        found.add(
            Range(
                float(low) if any_finite else 0.0,
                float(high) if any_finite else 0.0,
                elements=int(elements),
                nonfinite=int(nonfinite),
            )
        )
    return found


class _BodyRows:
    """Measured ranges: writes operators into bodies that give rows of extremes to the main graph, to be read."""

    def __init__(self, flow: Dataflow, edit: NodeEditor) -> None:
        self._flow, self._edit = flow, edit
        self._ops: dict[int, list[Op]] = {}
        for op in flow.ops:
            self._ops.setdefault(op.scope, []).append(op)
        self._bodies: dict[int, list[Scope]] = {}
        for scope in flow.scopes:
            self._bodies.setdefault(scope.op, []).append(scope)

    def _add(self, body: Scope, kind: str, dtype: str, *inputs: Value, **attributes: Attribute) -> Value:
        """Measured ranges: adds an operator to a body; its one result, of type ``dtype``."""
        return self._edit.add(kind, inputs, [dtype], attributes, scope=body.id, name=ROWS)[0]

    def _constant(self, body: Scope, array: Array) -> Value:
        """Measured ranges: the value of a Constant that is added to a body."""
        return self._add(body, "Constant", str(array.dtype), value=array)

    # -- from the inside outwards -------------------------------------------------------------------------------------

    def lift_rows(self, graph: Scope, path: str) -> list[tuple[Value, str]]:
        """Measured ranges: (rows, key) of every value in the bodies below ``graph``, the rows as a value of that graph.
        ``path``: what the keys of the graph's own values begin with, "" for the main graph."""
        found: list[tuple[Value, str]] = []
        for op in self._ops.get(graph.id, ()):
            bodies = self._bodies.get(op.id, []) if has(op.kind, "control_flow") else []
            made = next(filter(None, (self._flow.values[i].name for i in op.outputs)), op.name)
            # the rows of all bodies are made before one of these gets outputs
            rows = [
                self._body_rows(body, f"{path}{escaped(made)}.{body.path.rpartition('.')[2]} > ") for body in bodies
            ]
            for body, own in zip(bodies, rows, strict=True):
                others = [other for other in bodies if other is not body]
                found += [(self._give_out_rows(op, body, others, row), key) for row, key in own]
        return found

    def _body_rows(self, body: Scope, path: str) -> list[tuple[Value, str]]:
        """Measured ranges: (row, key) of a body's own values and of those in bodies below, as values of the body."""
        made = [i for op in self._ops.get(body.id, ()) for i in op.outputs]
        held = [self._flow.values[i] for i in (*body.inputs, *made)]
        own = [v for v in held if v.dtype == FLOAT32 and not v.container and v.name]  # what is left out has no name
        below = self.lift_rows(body, path)
        return [*((self._value_row(body, value), f"{path}{escaped(value.name)}") for value in own), *below]

    def _give_out_rows(self, op: Op, body: Scope, others: list[Scope], rows: Value) -> Value:
        """Measured ranges: a further output of the operator ``op`` that gives the ``rows`` of its ``body``, one under
        another where it runs often; its ``others``, the other branch of an If, give out a tensor of no rows."""
        if has(op.kind, "loops"):
            rows = self._add(body, "Reshape", DOUBLE, self._merge_rows(body, rows), self._constant(body, np.array([4])))
        empty = [self._constant(other, np.zeros((0, 4))) for other in others]
        return self._edit.add_output(op, [rows, *empty], ROWS)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _value_row(self, body: Scope, value: Value) -> Value:
        """Measured ranges: a row of one value in a body, [1, 4], as `range_of_rows` reads it: its least and largest
        finite element, and how many elements it has and are not finite. A neutral number is added to those whose
        extremes are taken, as an empty tensor has none."""
        flat = self._add(body, "Reshape", FLOAT32, value, self._constant(body, np.array([-1])))
        odd = self._add(
            body, "Or", "bool", self._add(body, "IsInf", "bool", flat), self._add(body, "IsNaN", "bool", flat)
        )
        numbers = []
        for kind, neutral in (("ReduceMin", LARGEST), ("ReduceMax", -LARGEST)):
            filler = self._constant(body, np.array([neutral], np.float32))
            finite = self._add(body, "Where", FLOAT32, odd, filler, flat)
            both = self._add(body, "Concat", FLOAT32, finite, filler, axis=0)
            numbers.append(self._to_float64(body, self._add(body, kind, FLOAT32, both, keepdims=0)))
        numbers.append(self._to_float64(body, self._add(body, "Size", "int64", flat)))
        numbers.append(self._add(body, "ReduceSum", DOUBLE, self._to_float64(body, odd), keepdims=0))
        return self._join_row(body, numbers)

    def _to_float64(self, body: Scope, value: Value) -> Value:
        """Measured ranges: a value in float64, in which rows leave a body, by a Cast that is added."""
        return self._add(body, "Cast", DOUBLE, value, to=int(TensorProto.DOUBLE))

    def _merge_rows(self, body: Scope, rows: Value) -> Value:
        """Measured ranges: one row of what the rows [k, 4] of a body that runs k times say, by nodes that are added."""
        neutral = self._constant(body, np.array([[LARGEST, -LARGEST, 0, 0]]))
        both = self._add(body, "Concat", DOUBLE, rows, neutral, axis=0)

        def column(place: int, kind: str) -> Value:
            one = self._add(body, "Gather", DOUBLE, both, self._constant(body, np.array([place])), axis=1)
            return self._add(body, kind, DOUBLE, one, keepdims=0)

        low, high = column(0, "ReduceMin"), column(1, "ReduceMax")
        return self._join_row(body, [low, high, *(column(place, "ReduceSum") for place in (2, 3))])

    def _join_row(self, body: Scope, numbers: list[Value]) -> Value:
        """Measured ranges: four scalars as a row [1, 4], by nodes that are added."""
        single, row = (self._constant(body, np.array(shape)) for shape in ([1], [1, 4]))
        parts = [self._add(body, "Reshape", DOUBLE, number, single) for number in numbers]
        return self._add(body, "Reshape", DOUBLE, self._add(body, "Concat", DOUBLE, *parts, axis=0), row)
