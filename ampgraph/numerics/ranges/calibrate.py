"""Measuring ranges: one float32 run for each sample, every value looked at and freed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ...core.arrays import Result
from ...core.borders import Borders
from ...core.dataflow import FLOAT32, NONE, Dataflow, Value
from ...core.graph import LOW
from ...core.progress import Progress
from ...core.ranges import Range, Ranges, measure, value_key
from ...core.runnable import RunnableGraph
from ..graphs import flat_graph
from ..inputs.samples import Samples
from ..strict.rewrite import rewrite
from .bodies import expose_bodies, range_of_rows
from .segments import LIMIT, SegmentedModel


def measured_ranges(
    graph: RunnableGraph,
    samples: Samples,
    *,
    device: str = "cpu",
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Ranges:
    """Runs a sorted model in float32 on samples; the range of every float32 value. The graph is not changed.

    Integer tensors are no ranges. Values in functions are told apart by call. Of values in the bodies of If, Loop and
    Scan the extremes are recorded alone; what could not be measured is counted in ``notes``. ``limit``: bytes of values
    that are held at once. Raises AmpError AMP501 to AMP505.
    """
    flow, flat = graph.dataflow(), flat_graph(graph)
    ranges = Ranges(graph.digest())
    runner = _Runner(flat, flow, _names(flow, flat), device, limit)
    for number, feeds in enumerate(samples):
        for name, array in runner.run(feeds, _progress(progress, number, len(samples))):
            found = range_of_rows(array) if name in runner.rows else measure(array)
            for key in runner.keys[name]:
                ranges.values.setdefault(key, Range()).add(found)
        ranges.samples += 1
    order = {value_key(flow, value.id): None for value in _wanted(flow)}
    ranges.values = {key: ranges.values[key] for key in order if key in ranges.values}
    never = len(order) - len({key for row in runner.keys.values() for key in row})
    ranges.notes = (*samples.notes, *_unseen_notes(never), *_odd(ranges))
    return ranges


class _Runner:
    """One model, its low values computed as rounded float32 where it has any: few CPU kernels are low."""

    def __init__(
        self, flat: RunnableGraph, flow: Dataflow, keys: dict[str, list[str]], device: str, limit: int
    ) -> None:
        self._low = {v.name for v in (flow.values[i] for i in flow.scopes[0].inputs) if v.dtype in LOW}
        self._inputs = {flow.values[i].name for i in flow.scopes[0].inputs} & set(keys)
        if any(value.dtype in LOW for value in flow.values):
            rewrite(flat, keep_border=False)
        inside = {value_key(flow, v.id) for v in _wanted(flow) if v.scope in _bodies(flow)}
        self.rows = {name: key for name, key in expose_bodies(flat).items() if key in inside}
        self.keys = {**keys, **{name: [key] for name, key in self.rows.items()}}
        self._model = SegmentedModel(flat, sorted(self.keys), device=device, limit=limit)

    def run(
        self, feeds: Mapping[str, Result], progress: Callable[[int, int], None] | None
    ) -> Iterator[tuple[str, Result]]:
        """(name, array) of everything that is measured."""
        fed = {n: v.astype(np.float32) if n in self._low else v for n, v in feeds.items()}
        yield from ((name, fed[name]) for name in fed if name in self._inputs)
        yield from self._model.run(fed, progress)


def _progress(progress: Progress | None, number: int, count: int) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, parts: progress("measuring ranges", number * parts + done, count * parts)


def _unseen_notes(count: int) -> list[str]:
    if not count:
        return []
    are = "value was" if count == 1 else "values were"
    return [f"{count:,} float32 {are} not measured: in bodies within functions, or not to be told apart"]


def _odd(ranges: Ranges) -> list[str]:
    """What a float32 run should not show: NaN or infinities. Infinities may be masks, so it is said, not judged."""
    odd = [key for key, found in ranges.values.items() if found.nonfinite]
    if not odd:
        return []
    return [f"{len(odd):,} values hold infinities or NaN in float32 already, the first is '{odd[0]}'"]


# -- names ------------------------------------------------------------------------------------------------------------


def _wanted(flow: Dataflow) -> list[Value]:
    """The float32 tensors that something computes, or that the model is fed; a weight by another name is a weight."""
    computed = {target for source, target in flow.passed if source != NONE and not flow.values[source].weight}
    given = {target for source, target in flow.passed if source != NONE} - computed
    found = [v for v in flow.values if v.dtype == FLOAT32 and not v.container and not v.weight and v.unit != NONE]
    return [v for v in found if v.id not in given]


def _names(flow: Dataflow, flat: RunnableGraph) -> dict[str, list[str]]:
    """Name in the model with its functions inlined -> the keys of the values that it stands for, bodies left out."""
    inside, wanted = _bodies(flow), _wanted(flow)
    if all(scope.kind != "function" for scope in flow.scopes):
        return {v.name: [value_key(flow, v.id)] for v in wanted if v.scope == 0 and v.name}
    pairs = _paired(flow, flat.dataflow(), inside)
    borders = Borders(flow)
    good = {v.id for v in wanted if v.scope not in inside}
    names: dict[str, list[str]] = {}
    for value, name in pairs.items():
        same = sorted(v for v in borders.copies(value) | borders.origins(value) if v in good)
        if same:
            names[name] = sorted({*names.get(name, []), *(value_key(flow, v) for v in same)})
    return names


def _bodies(flow: Dataflow) -> set[int]:
    """The scopes that are bodies, or stand in one."""
    found: set[int] = set()
    for scope in flow.scopes:  # parents come before their children
        if scope.kind == "body" or scope.parent in found:
            found.add(scope.id)
    return found


def _paired(flow: Dataflow, other: Dataflow, bodies: set[int]) -> dict[int, str]:
    """Value -> its name once functions are inlined: the same operators follow each other, and calls are left away."""
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
