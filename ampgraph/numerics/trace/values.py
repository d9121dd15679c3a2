"""What every node of a model makes in one run, beside what the reference makes there; freed when seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays import Array, Feeds, Result
from ...core.dataflow import NONE, Op, Value
from ...core.graph import LOW, Graph
from ...core.progress import Count
from ...core.runnable import Site
from ...formats.adapters import OnnxGraph, load_onnx
from ...formats.kinds import Model
from ..graphs import flat_graph, reads_of
from ..ranges.segments import LIMIT, SegmentedModel
from ..strict.session import make_strict

WHOLE = 1 << 40  # elements: more than any
HUGE = 1e18  # beyond it a value is a mask, not a number
FLOATS = ("float32", "float64", *LOW)


@dataclass(frozen=True, slots=True)
class Extremes:
    """The finite elements of a value, None where it has none, and how many are not finite."""

    smallest: float | None
    largest: float | None
    infinite: int
    nan: int

    @property
    def odd(self) -> int:
        """How many elements of a traced value are not finite."""
        return self.infinite + self.nan

    @property
    def absmax(self) -> float:
        """The largest magnitude of a traced value."""
        return max(abs(self.smallest or 0.0), abs(self.largest or 0.0))


@dataclass(frozen=True, slots=True)
class Observed:
    """What a trace sees of one value in one run: its ``range``, and that of its twin in the ``reference``.

    ``error`` is the relative L2 distance from the twin over what is finite, None where there is no twin, or it is zero
    and the value is not; ``mismatches`` counts elements that are not finite where the twin is, ``vanished`` those that
    are zero where it is not.
    """

    range: Extremes
    reference: Extremes | None = None
    error: float | None = None
    mismatches: int = 0
    vanished: int = 0


UNSEEN = Observed(Extremes(None, None, 0, 0))


def observe(value: Result, twin: Result | None) -> Observed:
    """What a trace sees of a value beside its ``twin``, the reference's value: ranges of both, relative error,
    mismatches; the value's range alone without a twin, or with one of another shape. Masks (`HUGE`) make no error."""
    got = _to_floats(value)
    own = _extremes(got)
    if twin is None or np.shape(twin) != got.shape:
        return Observed(own)
    want = _to_floats(twin)
    other = _extremes(want)
    kept: Any = None  # all elements
    mismatches = 0
    if own.odd or other.odd or other.absmax >= HUGE:
        finite, known = np.isfinite(got), np.isfinite(want)
        kept = finite & known & (np.abs(want) < HUGE)
        mismatches = int((~finite & known).sum())
    a, b = (x.ravel() if kept is None else x[kept] for x in (got, want))
    b = b.astype(np.float64)
    difference = np.subtract(a, b, dtype=np.float64)
    off, norm = (float(np.dot(x, x)) ** 0.5 for x in (difference, b))
    error = off / norm if norm else (None if off else 0.0)
    vanished = 0 if np.count_nonzero(got) == got.size else int(((got == 0) & (want != 0)).sum())
    return Observed(own, other, error, mismatches, vanished)


def _to_floats(value: Any) -> Array:
    """A traced value as float32 or float64, in which differences are taken."""
    array = np.asarray(value)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def _extremes(array: Array) -> Extremes:
    """Extremes of a traced value's finite numbers, and how many are infinite or NaN."""
    if not array.size:
        return Extremes(None, None, 0, 0)
    ends = float(array.min()), float(array.max())  # NaN where there is one
    if all(map(math.isfinite, ends)):
        return Extremes(*ends, 0, 0)
    finite = array[np.isfinite(array)]
    nan = int(np.isnan(array).sum())
    infinite = array.size - finite.size - nan
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    return Extremes(least, most, infinite, nan)


@dataclass(frozen=True)
class Trace:
    """One run of a tracer: what was seen of each value, by its name in the model with its functions inlined. Of a name
    that was not seen the questions below give 0, False or None."""

    tracer: Tracer
    values: Mapping[str, Observed]

    def mismatches(self, name: str) -> bool:
        """Whether a traced value is not finite somewhere where the reference is."""
        return self.values.get(name, UNSEEN).mismatches > 0

    def vanished(self, names: Iterable[str]) -> list[str]:
        """Those of some traced values that have become zero somewhere where the reference is not."""
        return [name for name in names if self.values.get(name, UNSEEN).vanished]

    def reach(self, name: str) -> float:
        """The largest magnitude that a traced value has in the reference."""
        found = self.values.get(name, UNSEEN).reference
        return 0.0 if found is None else found.absmax

    def lowest(self, name: str) -> float:
        """The smallest number that a traced value has in the reference; 0 where that has none."""
        found = self.values.get(name, UNSEEN).reference
        return 0.0 if found is None else found.smallest or 0.0

    def error(self, name: str) -> float | None:
        """A traced value's relative error."""
        return self.values.get(name, UNSEEN).error


class Tracer:
    """A reference and a model made from it, opened for traces.

    Values in the main graphs and in functions are seen; for the body of an If see `branch`.

    Attributes:
        graphs: of reference and model, as all pairs here; ``device``: "" for a strict run, ``limit``: bytes held.
        sites: the model's nodes; ``inputs``: the names of its inputs; ``dtypes``: the types of its floats, by name.
        twins: by value of the model, the reference's value that it stands for.
        origins: by value of the reference, the node there that makes it.
    """

    def __init__(self, reference: Model | Graph, model: Model | Graph, *, device: str = "", limit: int = LIMIT) -> None:
        """``reference``, ``model``: what `convert` takes, or Graphs. ``device``: empty for strict runs; the reference
        runs on the CPU in any case. Raises AmpError AMP501, AMP505 (device), AMP502 where the runtime refuses."""
        self.device, self.limit = device, limit
        self.graphs = graphs = load_onnx(reference), load_onnx(model)
        self._flat = graphs[0].flat(), graphs[1].flat()
        flows = [flat.dataflow() for flat in self._flat]
        self._flows = flows
        self._values = [{v.name: v for v in flow.values if v.scope == 0} for flow in flows]
        ours, self.sites = (graph.sites(flat) for graph, flat in zip(graphs, self._flat, strict=True))
        self._writers = {flows[0].values[v].name: op for op in flows[0].ops for v in op.outputs if v != NONE}
        self.origins = {out: site for site in ours for out in site.outputs if out}
        self.inputs = tuple(value.name for value in self._flat[1].declared()[0])
        made = [out for site in self.sites for out in site.outputs if self._dtype_of(1, out) in FLOATS]
        self.dtypes = {n: self._dtype_of(1, n) for n in (*self.inputs, *made) if self._dtype_of(1, n) in FLOATS}
        self.twins = self._pair_values()
        wanted = {self.twins[name] for name in made if name in self.twins}
        self._runs = self._open_side(0, sorted(wanted)), self._open_side(1, made)

    def reference_node(self, output: str) -> tuple[str, str]:
        """(name, first output) of the reference's node that writes a value, in a body too; two empty texts for none."""
        op = self._writers.get(output)
        if op is None:
            return "", ""
        flow = self._flows[0]
        return op.name, next((flow.values[v].name for v in op.outputs if v != NONE), "")

    def run(self, reference_feeds: Feeds, feeds: Feeds, progress: Count | None = None) -> Trace:
        """Runs both models side by side, each value compared as it is made. Raises AmpError AMP504."""
        fed = self._to_session_feeds(0, reference_feeds), self._to_session_feeds(1, feeds)
        waiting = Counter(self.twins.get(name) for name in self.dtypes)  # values that a twin is still needed for
        held = {name: value for name, value in fed[0].items() if waiting[name]}  # twins until then
        ours = self._runs[0].run(fed[0])
        values = {
            name: observe(fed[1][name], held.get(name))
            for name in self.inputs
            if name in self.dtypes and name in fed[1]
        }
        for name, array in self._runs[1].run(fed[1], progress):
            twin = self.twins.get(name)
            while twin is not None and twin not in held:  # the reference runs on until it makes the twin
                found = next(ours, None)
                if found is None:
                    break
                if waiting[found[0]]:
                    held[found[0]] = found[1]
            values[name] = observe(array, held.get(twin) if twin is not None else None)
            waiting[twin] -= 1
            if not waiting[twin]:
                held.pop(twin or "", None)
        return Trace(self, values)

    def weights(self, site: Site) -> dict[str, Array]:
        """The stored floats that a traced node reads, by name, but for those in data files."""
        flow, values = self._flows[1], (self._values[1].get(name) for name in site.inputs)
        stored = [v for v in values if v is not None and v.parameter and v.dtype in FLOATS]
        found = {v.name: flow.weights.array(v, limit=WHOLE) for v in stored if not self._flat[1].outside(v)}
        return {name: array for name, array in found.items() if array is not None}

    def branch(self, site: Site, reference_feeds: Feeds, feeds: Feeds) -> tuple[Tracer, Feeds, Feeds] | None:
        """The branch that an If of the model runs, as a tracer of that body in both models, with the feeds of either;
        None where the other is no If, takes another branch, or the branch reads a sequence."""
        ops = (
            self._operator_making(0, [self.twins.get(out, out) for out in site.outputs]),
            self._operator_making(1, site.outputs),
        )
        parts: list[tuple[OnnxGraph, Feeds]] = []
        taken = None
        for side, (op, given) in enumerate(zip(ops, (reference_feeds, feeds), strict=True)):
            if op is None or op.kind != "If" or op.inputs[0] == NONE:
                return None
            flow = self._flows[side]
            read = [flow.values[i] for i in reads_of(flow)[op.id]]  # the condition, and what the branches read
            if any(value.container or not value.dtype for value in read):
                return None  # a sequence
            found = self._run_values(side, read, self._to_session_feeds(side, given))
            chosen = bool(np.asarray(found[flow.values[op.inputs[0]].name]).reshape(-1)[0])
            if taken not in (None, chosen):
                return None
            taken = chosen
            body = self._flat[side].branch(op, "then_branch" if chosen else "else_branch")
            parts.append((body, {value.name: found[value.name] for value in body.declared()[0]}))
        (ours, our_feeds), (theirs, their_feeds) = parts
        return Tracer(ours, theirs, device=self.device, limit=self.limit), our_feeds, their_feeds

    # -- how ----------------------------------------------------------------------------------------------------------

    def _pair_values(self) -> dict[str, str]:
        """The reference's value for each traced value of the model: of the same name, or where Casts were added the one
        on their other side: first from what a Cast reads to what it makes, then the other way."""
        known = {*self.origins, *(value.name for value in self._flat[0].declared()[0])}
        twins = {n: n for n in self.dtypes if n in known and self._dtype_of(0, n) in FLOATS}
        for site in self.sites:
            if site.kind == "Cast" and site.outputs[0] in self.dtypes and site.inputs[0] in twins:
                twins.setdefault(site.outputs[0], twins[site.inputs[0]])
        for site in reversed(self.sites):
            if site.kind == "Cast" and site.outputs[0] in twins and site.inputs[0] in self.dtypes:
                twins.setdefault(site.inputs[0], twins[site.outputs[0]])
        return twins

    def _dtype_of(self, side: int, name: str) -> str:
        """The element type of a tensor of the main graph; "" for a container and for a name that ``side`` (0 the
        reference, 1 the model) does not have."""
        value = self._values[side].get(name)
        return "" if value is None or value.container else value.dtype

    def _open_side(self, side: int, seen: list[str]) -> SegmentedModel:
        """One side (0 the reference, 1 the model) opened for runs that show the values ``seen``; strict on the CPU."""
        graph, strict = flat_graph(self._flat[side]), side == 0 or not self.device
        if strict and any(value.dtype in LOW for value in self._flows[side].values):
            make_strict(graph, keep_interface=False)
        return SegmentedModel(graph, seen, device="cpu" if strict else self.device, limit=self.limit)

    def _to_session_feeds(self, side: int, feeds: Feeds) -> dict[str, Result]:
        """Feeds as the sessions of a side (0 the reference, 1 the model) take them: float32 for low types if strict."""
        strict = side == 0 or not self.device
        low = {name for name in feeds if strict and self._dtype_of(side, name) in LOW}
        return {n: np.asarray(v).astype(np.float32) if n in low else v for n, v in feeds.items()}

    def _operator_making(self, side: int, outputs: Iterable[str]) -> Op | None:
        """For a trace: the operator of a side that makes the first of these outputs which it has; None for none."""
        values = (self._values[side].get(name) for name in outputs if name)
        writers = (self._flows[side].writer(value.id) for value in values if value is not None)
        return next((op for op in writers if op is not None), None)

    def _run_values(self, side: int, values: list[Value], fed: dict[str, Result]) -> dict[str, Result]:
        """The arrays by name of some values of a side, of a run on ``fed``; stored tensors are left out."""
        names = {value.name for value in values}
        found = {name: fed[name] for name in names if name in fed}
        run = self._open_side(side, [value.name for value in values if value.producer != NONE])
        return found | {name: array for name, array in run.run(fed) if name in names}
