"""A model run piece by piece: consecutive segments, each a session of its own, whose values are all seen once.

What is exposed in a segment is freed before the next one runs, so that one run shows every value of a model whose
activations would not fit into memory together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.arrays import Feeds, Result
from ...core.dataflow import Op, Value
from ...formats.adapters import OnnxGraph
from ...runtime.devices import choose, import_onnxruntime
from ...runtime.onnxruntime_session import in_file_order, open_session, quiet_options, stop_error
from ..graphs import reads_of

LIMIT = 96 << 20  # bytes of values that one segment exposes
GROWTH = 1.5  # a sample this much larger than the one that was planned for is planned for anew


@dataclass
class _Segment:
    """Some nodes in a row, and their session: the values that they read from before, those that they make to be seen or
    read later, and the names of values that nothing needs after it (``frees``)."""

    ops: list[Op]
    reads: list[Value]
    makes: list[Value]
    frees: list[str] = field(default_factory=list)
    session: Any = None


class SegmentedModel:
    """A model without functions, sorted, opened for runs that show the values in ``seen``, by name; ``graph`` is edited
    here, and must not be used elsewhere.

    ``limit``: bytes of values that one segment exposes. Raises AmpError AMP501, AMP505 (device), AMP502, AMP504.
    """

    def __init__(self, graph: OnnxGraph, seen: Sequence[str], *, device: str = "cpu", limit: int = LIMIT) -> None:
        self._graph, self._seen, self._folder, self._limit = graph, set(seen), graph.folder(), limit
        self.device, self._providers = choose(device)
        flow = graph.dataflow()
        reads = reads_of(flow)
        self._ops = [op for op in flow.ops if op.scope == 0]
        self._reads = [[flow.values[i] for i in reads[op.id]] for op in self._ops]
        self._makes = [[flow.values[i] for i in op.outputs if flow.values[i].name] for op in self._ops]
        self._inputs = [flow.values[i] for i in flow.scopes[0].inputs]
        self._stored = [value for value in flow.values if value.scope == 0 and value.parameter]
        self._optional = {value.name for value in graph.declared()[0] if value.stored}
        self._segments: list[_Segment] = []
        self._planned = 0

    def __len__(self) -> int:
        return len(self._segments)

    def run(self, feeds: Feeds, progress: Callable[[int, int], None] | None = None) -> Iterator[tuple[str, Result]]:
        """One run: (name, array) of every value to be seen, in the order of the file. ``progress(done, of)`` counts
        segments, which are planned anew where the feeds are `GROWTH` times as large as those planned for."""
        size = sum(_count_numbers(value) for value in feeds.values()) + 1
        if not self._segments or size > GROWTH * self._planned:
            self._segments, self._planned = [], size
            self._segments = self._plan_segments(self._measure_sizes(feeds), set(feeds))
            for segment in self._segments:  # all at once: between large arrays they would leave holes behind
                segment.session = self._open_session(
                    self._graph.part(segment.ops, segment.reads, segment.makes, set(feeds))
                )
        held: dict[str, Result] = {name: _copy_to_feed(value) for name, value in feeds.items()}
        for number, segment in enumerate(self._segments):
            makes = [value.name for value in segment.makes]
            fed = {value.name: held[value.name] for value in segment.reads}
            found = self._run_session(segment.session, fed, makes)
            for name, array in zip(makes, found, strict=True):
                held[name] = array
            del found
            for name in makes:
                if name in self._seen:
                    yield name, held[name]
            for name in segment.frees:
                held.pop(name, None)
            if progress:
                progress(number + 1, len(self._segments))

    # -- where to cut -------------------------------------------------------------------------------------------------

    def _measure_sizes(self, feeds: Feeds) -> dict[int, int]:
        """Elements of each value to be seen, by id: one run that gives the sizes alone, so that values are freed."""
        seen = [value for made in self._makes for value in made if value.name in self._seen]
        if not seen:
            return {}
        with self._graph.editor(self._graph.dataflow()) as edit:  # segments have nodes of the file alone
            counts = [edit.add("Size", [value], ["int64"], name="ampgraph_size")[0] for value in seen]
        inputs = [value for value in self._inputs if value.name in feeds or value.name not in self._optional]
        fed = {name: _copy_to_feed(value) for name, value in feeds.items()}
        session = self._open_session(self._graph.part(None, inputs, counts, set(feeds)))
        found = self._run_session(session, fed, [value.name for value in counts])
        return {value.id: int(size) for value, size in zip(seen, found, strict=True)}

    def _plan_segments(self, sizes: Mapping[int, int], fed: set[str]) -> list[_Segment]:
        """Consecutive segments within the limit, cut only where everything alive is a tensor that numpy holds.
        ``sizes``: elements of seen values by id; ``fed``: names of what is fed."""
        exposes = [4 * sum(sizes.get(value.id, 0) for value in made) for made in self._makes] + [0]  # bytes
        last = {value.id: index for index, reads in enumerate(self._reads) for value in reads}  # reader of each value
        dying: dict[int, list[int]] = {}  # by last reader, values that cannot cross
        bad: set[int] = set()  # those of them that are alive
        ends: list[int] = []
        exposed = 0
        for index, made in enumerate(self._makes):
            exposed += exposes[index]
            for value in made:
                if last.get(value.id, -1) > index and not _may_cross(value):
                    bad.add(value.id)
                    dying.setdefault(last[value.id], []).append(value.id)
            bad.difference_update(dying.pop(index, []))
            if not bad and (index + 1 == len(self._ops) or exposed + exposes[index + 1] > self._limit):
                ends.append(index + 1)
                exposed = 0
        if self._ops and (not ends or ends[-1] != len(self._ops)):
            ends.append(len(self._ops))
        return self._make_segments(ends, last, fed)

    def _make_segments(self, ends: list[int], last: Mapping[int, int], fed: set[str]) -> list[_Segment]:
        """The segments that end before the operators ``ends``, by place: what each reads, makes for later ones or to be
        seen, and what is freed behind it. ``last``: by value, the place of its last reader; ``fed``: names fed."""
        start, pieces = 0, []
        made = {value.id for value in (*self._inputs, *self._stored) if value.name in fed}
        for end in ends:
            own = [value for made in self._makes[start:end] for value in made]
            wanted = {value.id: value for reads in self._reads[start:end] for value in reads}
            makes = [value for value in own if value.name in self._seen or last.get(value.id, -1) >= end]
            reads = [value for value in wanted.values() if value.id in made]
            if makes:
                alive = {value.name: value.id for value in (*reads, *makes)}
                gone = [name for name, value in alive.items() if last.get(value, -1) < end]
                pieces.append(_Segment(self._ops[start:end], reads, makes, gone))
            made.update(value.id for value in own)
            start = end
        return pieces

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _open_session(self, part: bytes) -> Any:
        """A session without optimisations, whose memory goes back when a run has done with it."""
        options = in_file_order(quiet_options(self._folder))
        # What is exposed cannot be fused, and memory that a run has done with is to go back.
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        return open_session(part, options, self._providers)

    def _run_session(self, session: Any, feeds: dict[str, Result], wanted: list[str]) -> list[Any]:
        """Runs one segment's session; the values ``wanted``. Raises AmpError AMP504 where the runtime stops."""
        try:
            found: list[Any] = session.run(wanted, feeds)
            return found
        except Exception as error:
            raise stop_error(error, self.device) from error


def _count_numbers(value: Any) -> int:
    """How many numbers a value that a segmented run is fed has, all together in a sequence."""
    return sum(map(_count_numbers, value)) if isinstance(value, list) else int(np.size(value))


def _copy_to_feed(value: Any) -> Any:
    """Measuring ranges: a copy of an array that a segment is fed, since the runtime may write over it."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _may_cross(value: Value) -> bool:
    """Whether a value may go from one segment's session to the next, as an array: a tensor of a type numpy holds."""
    return not value.container and value.dtype not in ("", "bfloat16")
