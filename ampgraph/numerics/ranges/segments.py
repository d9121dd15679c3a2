"""A model run piece by piece: consecutive segments, each a session of its own, whose values are all seen once.

What is exposed in a segment is freed before the next one runs, so that one run shows every value of a model whose
activations would not fit into memory together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto
from onnx.helper import make_opsetid

from ...core.arrays import Feeds, Result
from ...formats.onnx.graph import OnnxGraph
from ...formats.onnx.types import native_type
from ...runtime.devices import choose, import_onnxruntime
from ...runtime.onnxruntime_session import refused, stopped
from ..graphs import DEFAULT_OPSET, Names, Types, captured, folder_of, forget_annotations, outputs_of
from ..sessions import in_file_order, opened, quiet_options

LIMIT = 96 << 20  # bytes of values that one segment exposes
GROWTH = 1.5  # a sample this much larger than the one that was planned for is planned for anew
Value = ir.Value


@dataclass
class _Segment:
    """Some nodes in a row: ``reads`` of them are made before, ``makes`` are seen or read later."""

    nodes: list[ir.Node]
    reads: list[Value]
    makes: list[Value]
    frees: list[str] = field(default_factory=list)
    session: Any = None


class SegmentedModel:
    """A model without functions, sorted, opened for runs that show the values in ``seen``, by name; it is taken over.

    ``limit``: bytes of values that one segment exposes. Raises AmpError AMP501, AMP505 (device), AMP502, AMP504.
    """

    def __init__(self, graph: OnnxGraph, seen: Sequence[str], *, device: str = "cpu", limit: int = LIMIT) -> None:
        self._model, self._seen, self._folder, self._limit = graph.model, set(seen), folder_of(graph), limit
        self.device, self._providers = choose(device)
        self._types = Types.read(graph.dataflow())
        forget_annotations(graph.model.graph)
        self._nodes = list(graph.model.graph)
        self._reads = [list(dict.fromkeys(_reads(node))) for node in self._nodes]
        self._segments: list[_Segment] = []
        self._planned = 0

    def __len__(self) -> int:
        return len(self._segments)

    def run(self, feeds: Feeds, progress: Callable[[int, int], None] | None = None) -> Iterator[tuple[str, Result]]:
        """(name, array) of everything seen, in the order of the file. ``progress(done, of)`` counts segments."""
        size = sum(_elements(value) for value in feeds.values()) + 1
        if not self._segments or size > GROWTH * self._planned:
            self._segments, self._planned = [], size
            self._segments = self._cut(self._sizes(feeds), set(feeds))
            for segment in self._segments:  # all at once: between large arrays they would leave holes behind
                segment.session = self._open(self._part(segment.nodes, segment.reads, segment.makes, set(feeds)))
        held: dict[str, Result] = {name: _own(value) for name, value in feeds.items()}
        for number, segment in enumerate(self._segments):
            makes = [value.name or "" for value in segment.makes]
            fed = {value.name or "": held[value.name or ""] for value in segment.reads}
            found = self._run(segment.session, fed, makes)
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

    def _sizes(self, feeds: Feeds) -> dict[Value, int]:
        """Elements of each seen value: one run that gives the sizes alone, so that each value is freed at once."""
        names = Names(self._model.graph)
        seen = [value for value in outputs_of(self._model.graph) if value.name in self._seen]
        if not seen:
            return {}
        sizes = [ir.node("Size", [value], num_outputs=1, name="") for value in seen]
        for node in sizes:
            node.outputs[0].name = names.fresh("ampgraph_size")
        inputs = [value for value in self._model.graph.inputs if value.name in feeds or not value.is_initializer()]
        counts = [node.outputs[0] for node in sizes]
        part = self._part([*self._nodes, *sizes], inputs, counts, set(feeds))
        for node in sizes:  # the graph has them no longer
            node.replace_input_with(0, None)
        fed = {name: _own(value) for name, value in feeds.items()}
        found = self._run(self._open(part), fed, [value.name or "" for value in counts])
        return {value: int(size) for value, size in zip(seen, found, strict=True)}

    def _cut(self, sizes: Mapping[Value, int], fed: set[str]) -> list[_Segment]:
        """Consecutive segments within the limit, cut only where everything alive is a tensor that numpy holds."""
        nodes = self._nodes
        exposes = [4 * sum(sizes.get(value, 0) for value in node.outputs) for node in nodes] + [0]
        last = {value: index for index, reads in enumerate(self._reads) for value in reads}
        dying: dict[int, list[Value]] = {}
        bad: set[Value] = set()  # alive values that cannot cross
        ends: list[int] = []
        exposed = 0
        for index, node in enumerate(nodes):
            exposed += exposes[index]
            for value in node.outputs:
                if last.get(value, -1) > index and not self._crosses(value):
                    bad.add(value)
                    dying.setdefault(last[value], []).append(value)
            bad.difference_update(dying.pop(index, []))
            if not bad and (index + 1 == len(nodes) or exposed + exposes[index + 1] > self._limit):
                ends.append(index + 1)
                exposed = 0
        if nodes and (not ends or ends[-1] != len(nodes)):
            ends.append(len(nodes))
        return self._pieces(ends, last, fed)

    def _pieces(self, ends: list[int], last: Mapping[Value, int], fed: set[str]) -> list[_Segment]:
        start, pieces = 0, []
        main = self._model.graph
        made = {value for value in (*main.inputs, *main.initializers.values()) if value.name in fed}
        for end in ends:
            inside = self._nodes[start:end]
            own = [value for node in inside for value in node.outputs if value.name]
            wanted = dict.fromkeys(value for reads in self._reads[start:end] for value in reads)
            makes = [value for value in own if value.name in self._seen or last.get(value, -1) >= end]
            reads = [value for value in wanted if value in made]
            if makes:
                gone = [value.name or "" for value in {*reads, *makes} if last.get(value, -1) < end]
                pieces.append(_Segment(inside, reads, makes, gone))
            made.update(own)
            start = end
        return pieces

    def _crosses(self, value: Value) -> bool:
        """Whether a value may go from one session to the next: a tensor of a type that numpy holds."""
        return self._types.tensor(value) not in ("", "bfloat16")

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _part(self, nodes: list[ir.Node], reads: list[Value], makes: list[Value], fed: set[str]) -> bytes:
        """The file of some nodes, with the weights that they read."""
        own = {*reads, *(value for node in nodes for value in node.outputs)}
        wanted = dict.fromkeys(value for node in nodes for value in _reads(node))
        stored = [v for v in wanted if v not in own and v.name not in fed and v.const_value is not None]
        declared = set(self._model.graph.inputs)
        inputs = [value if value in declared else self._port(value) for value in reads]
        view = ir.GraphView(inputs, [self._port(v) for v in makes], nodes=nodes, initializers=stored, name="segment")
        part = ModelProto(ir_version=self._model.ir_version)
        opsets = self._model.opset_imports
        imports = opsets if "" in opsets or "ai.onnx" in opsets else {**opsets, "": DEFAULT_OPSET}
        part.opset_import.extend(make_opsetid(domain, version) for domain, version in imports.items())
        ir.serde.serialize_graph_into(part.graph, view)  # type: ignore[arg-type]  # its own protocol says more
        content: bytes = part.SerializeToString()
        return content

    def _port(self, value: Value) -> Value:
        """A value as a session's input or output."""
        container, dtype = self._types.of.get(value, ("", "int64"))
        return ir.Value(name=value.name, type=native_type(container, dtype or "float32"))

    def _open(self, part: bytes) -> Any:
        options = in_file_order(quiet_options(self._folder))
        # What is exposed cannot be fused, and memory that a run has done with is to go back.
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        try:
            return opened(part, options, self._providers)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            raise refused(error, "model") from error

    def _run(self, session: Any, feeds: dict[str, Result], wanted: list[str]) -> list[Any]:
        try:
            found: list[Any] = session.run(wanted, feeds)
            return found
        except Exception as error:
            raise stopped(error, self.device) from error


def _elements(value: Any) -> int:
    """How many numbers are fed, in a sequence too."""
    return sum(map(_elements, value)) if isinstance(value, list) else int(np.size(value))


def _own(value: Any) -> Any:
    """A copy: the runtime may write over a fed array."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _reads(node: ir.Node) -> Iterator[Value]:
    """Every value that a node reads, in its bodies too."""
    yield from (value for value in node.inputs if value is not None)
    yield from captured(node)
