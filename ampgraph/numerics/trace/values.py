"""What every node of a model makes in one run, beside what the reference makes there; freed when seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from ...core.progress import Count
from ..ranges.segments import LIMIT, SegmentedModel
from ..strict import value_types as vt
from ..strict.rewrite import rewrite
from ..strict.session import inlined
from .sites import Site, captured, read_sites

HUGE = 1e18  # beyond it a value is a mask, not a number
FLOATS = {vt.tensor(n): name for n, name in ((1, "float32"), (11, "float64"), *vt.LOW_TYPES.items())}
_NUMBERS = {vt.tensor(number): number for number in vt.TYPE_NAMES}
_EVERYTHING = 1 << 62  # bytes: no cut
Feeds = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """The finite elements of a value, None where it has none, and how many are not finite."""

    smallest: float | None
    largest: float | None
    infinite: int
    nan: int

    @property
    def odd(self) -> int:
        """Elements that are not finite."""
        return self.infinite + self.nan

    @property
    def absmax(self) -> float:
        """The largest magnitude."""
        return max(abs(self.smallest or 0.0), abs(self.largest or 0.0))


@dataclass(frozen=True, slots=True)
class Seen:
    """One value in one run.

    ``error`` is the relative L2 distance from the reference over what is finite, None where there is no twin to compare
    with; ``astray`` counts elements that are not finite where the reference is, ``vanished`` those that are zero where
    it is not.
    """

    range: Range
    reference: Range | None = None
    error: float | None = None
    astray: int = 0
    vanished: int = 0


def compared(value: Any, twin: Any | None) -> Seen:
    """A value beside that of the reference."""
    got = _numbers(value)
    own = _range(got)
    if twin is None or np.shape(twin) != got.shape:
        return Seen(own)
    want = _numbers(twin)
    other = _range(want)
    kept: Any = None  # all elements
    astray = 0
    if own.odd or other.odd or other.absmax >= HUGE:
        finite, known = np.isfinite(got), np.isfinite(want)
        kept = finite & known & (np.abs(want) < HUGE)
        astray = int((~finite & known).sum())
    a, b = (x.ravel() if kept is None else x[kept] for x in (got, want))
    b = b.astype(np.float64)
    difference = np.subtract(a, b, dtype=np.float64)
    off, norm = (float(np.dot(x, x)) ** 0.5 for x in (difference, b))
    error = off / norm if norm else None if off else 0.0
    vanished = 0 if np.count_nonzero(got) == got.size else int(((got == 0) & (want != 0)).sum())
    return Seen(own, other, error, astray, vanished)


def _numbers(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def _range(array: np.ndarray) -> Range:
    if not array.size:
        return Range(None, None, 0, 0)
    ends = float(array.min()), float(array.max())  # NaN where there is one
    if all(map(math.isfinite, ends)):
        return Range(*ends, 0, 0)
    finite = array[np.isfinite(array)]
    nan = int(np.isnan(array).sum())
    infinite = array.size - finite.size - nan
    return (
        Range(float(finite.min()), float(finite.max()), infinite, nan)
        if finite.size
        else Range(None, None, infinite, nan)
    )


@dataclass(frozen=True)
class Trace:
    """One run. ``values`` and ``dtypes`` are by the names of the model with its functions inlined; ``twins`` gives the
    value of the reference that one stands for; ``origins`` the reference's node that makes a value of the reference."""

    sites: tuple[Site, ...]
    values: Mapping[str, Seen]
    dtypes: Mapping[str, str]
    twins: Mapping[str, str]
    origins: Mapping[str, Site]
    inputs: tuple[str, ...]


class Tracer:
    """A reference and a model made from it, opened for traces.

    Values in the main graphs and in functions are seen; for the body of an If see `branch`.
    """

    def __init__(
        self,
        reference: ModelProto,
        model: ModelProto,
        *,
        folders: tuple[str, str] = ("", ""),
        device: str = "",
        limit: int = LIMIT,
    ) -> None:
        """``device``: empty for strict runs; the reference runs on the CPU in any case.

        Raises AmpError AMP501, AMP505 (device), AMP502 where the runtime refuses.
        """
        self.folders, self.device, self.limit = folders, device, limit
        self._flat = inlined(reference), inlined(model)
        self._types = tuple(vt.infer(flat).values for flat in self._flat)
        self.sites = read_sites(model, self._flat[1])
        ours = read_sites(reference, self._flat[0])
        self.origins = {out: site for site in ours for out in site.outputs if out}
        self.inputs = tuple(v.name for v in self._flat[1].graph.input)
        kinds = self._types[1]
        made = [out for site in self.sites for out in site.outputs if kinds.get(out, "") in FLOATS]
        self.dtypes = {name: FLOATS[kinds[name]] for name in (*self.inputs, *made) if kinds.get(name, "") in FLOATS}
        self.twins = self._paired()
        wanted = {self.twins[name] for name in made if name in self.twins}
        self._runs = self._opened(0, sorted(wanted)), self._opened(1, made)

    def run(self, reference_feeds: Feeds, feeds: Feeds, progress: Count | None = None) -> Trace:
        """Runs both side by side. Raises AmpError AMP504."""
        fed = self._fed(0, reference_feeds), self._fed(1, feeds)
        waiting = Counter(self.twins.get(name) for name in self.dtypes)
        held = {name: value for name, value in fed[0].items() if waiting[name]}
        ours = self._runs[0].run(fed[0])
        values = {name: compared(fed[1][name], held.get(name)) for name in self.inputs if name in self.dtypes}
        for name, array in self._runs[1].run(fed[1], progress):
            twin = self.twins.get(name)
            while twin is not None and twin not in held:
                found = next(ours, None)
                if found is None:
                    break
                if waiting[found[0]]:
                    held[found[0]] = found[1]
            values[name] = compared(array, held.get(twin) if twin is not None else None)
            waiting[twin] -= 1
            if not waiting[twin]:
                held.pop(twin or "", None)
        return Trace(self.sites, values, self.dtypes, self.twins, self.origins, self.inputs)

    def weights(self, site: Site) -> dict[str, TensorProto]:
        """The stored tensors that a node reads."""
        stored = {i.name: i for i in self._flat[1].graph.initializer}
        return {name: stored[name] for name in site.inputs if name in stored}

    def branch(self, site: Site, reference_feeds: Feeds, feeds: Feeds) -> tuple[Tracer, Feeds, Feeds] | None:
        """The body that an If runs, as models of their own with their feeds; None where the two sides differ."""
        node = self._node(1, site.outputs)
        twin = self._node(0, [self.twins.get(out, out) for out in site.outputs])
        if node is None or twin is None or node.op_type != "If" or twin.op_type != "If":
            return None
        parts = []
        taken = None
        for side, (own, given) in enumerate(((twin, reference_feeds), (node, feeds))):
            found = self._values(side, [own.input[0], *captured(own)], self._fed(side, given))
            chosen = bool(np.asarray(found[own.input[0]]).reshape(-1)[0])
            if taken not in (None, chosen):
                return None
            taken = chosen
            which = vt.attribute(own, "then_branch" if chosen else "else_branch")
            if which is None:
                return None
            if any(self._types[side].get(name, "") not in _NUMBERS for name in captured(own)):
                return None  # a sequence
            body = self._body(side, which.g)
            parts.append((body, {v.name: found[v.name] for v in body.graph.input}))
        (ours, our_feeds), (theirs, their_feeds) = parts
        tracer = Tracer(ours, theirs, folders=self.folders, device=self.device, limit=self.limit)
        return tracer, our_feeds, their_feeds

    # -- how ----------------------------------------------------------------------------------------------------------

    def _paired(self) -> dict[str, str]:
        """Value of the model -> value of the reference: of the same name, or the same but for Casts that were added."""
        theirs = self._types[0]
        known = {*self.origins, *(v.name for v in self._flat[0].graph.input)}
        twins = {n: n for n in self.dtypes if n in known and theirs.get(n, "") in FLOATS}
        for site in self.sites:
            if site.kind == "Cast" and site.outputs[0] in self.dtypes and site.inputs[0] in twins:
                twins.setdefault(site.outputs[0], twins[site.inputs[0]])
        for site in reversed(self.sites):
            if site.kind == "Cast" and site.outputs[0] in twins and site.inputs[0] in self.dtypes:
                twins.setdefault(site.inputs[0], twins[site.outputs[0]])
        return twins

    def _opened(self, side: int, seen: list[str]) -> SegmentedModel:
        model, strict = self._flat[side], side == 0 or not self.device
        if strict and any(vt.low_of(kind) for kind in _all_types(model)):
            copy = ModelProto()
            copy.CopyFrom(model)
            model = rewrite(copy, keep_border=False, folder=self.folders[side])
        limit = self.limit if _is_sorted(model.graph) else _EVERYTHING
        device = "cpu" if strict else self.device
        return SegmentedModel(model, seen, folder=self.folders[side], device=device, limit=limit)

    def _fed(self, side: int, feeds: Feeds) -> dict[str, Any]:
        """Feeds as the sessions take them: a strict run has float32 for every low type."""
        strict = side == 0 or not self.device
        low = {n for n in feeds if strict and vt.low_of(self._types[side].get(n, ""))}
        return {n: np.asarray(v).astype(np.float32) if n in low else v for n, v in feeds.items()}

    def _node(self, side: int, outputs: Any) -> NodeProto | None:
        wanted = set(filter(None, outputs))
        return next((node for node in self._flat[side].graph.node if wanted & set(node.output)), None)

    def _values(self, side: int, names: list[str], fed: dict[str, Any]) -> dict[str, Any]:
        """Values by name, stored tensors left out."""
        made = {out for node in self._flat[side].graph.node for out in node.output}
        found = {name: fed[name] for name in names if name in fed}
        run = self._opened(side, [name for name in names if name in made])
        return found | {name: array for name, array in run.run(fed) if name in names}

    def _body(self, side: int, graph: GraphProto) -> ModelProto:
        """A body as a model: what it reads from outside becomes inputs, or weights of its own."""
        flat = self._flat[side]
        model = ModelProto(ir_version=flat.ir_version, opset_import=flat.opset_import)
        model.graph.CopyFrom(graph)
        stored = {i.name: i for i in flat.graph.initializer}
        inputs = {v.name for v in flat.graph.input}
        probe = NodeProto(op_type="If", attribute=[helper.make_attribute("then_branch", graph)])
        for name in captured(probe):
            if name in stored and name not in inputs:
                model.graph.initializer.append(stored[name])
            else:
                kind = _NUMBERS[self._types[side][name]]
                model.graph.input.append(helper.make_tensor_value_info(name, kind, None))
        return model


def _all_types(model: ModelProto) -> set[str]:
    types = vt.infer(model)
    kinds = {kind for _, reads, makes in vt.typed_nodes(model.graph, types) for kind in (*reads, *makes)}
    return kinds | {vt.of_proto(v.type) for v in (*model.graph.input, *model.graph.output)}


def _is_sorted(graph: GraphProto) -> bool:
    later = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        if later.intersection(node.input) or later.intersection(captured(node)):
            return False
        later.difference_update(node.output)
    return True
