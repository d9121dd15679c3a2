"""A model run piece by piece: consecutive segments, each a session of its own, whose values are all seen once.

What is exposed in a segment is freed before the next one runs, so that one run shows every value of a model whose
activations would not fit into memory together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from ...runtime.devices import choose, import_onnxruntime
from ...runtime.onnxruntime_session import QUIET, refused, stopped
from ..strict import value_types as vt

LIMIT = 96 << 20  # bytes of values that one segment exposes
GROWTH = 1.5  # a sample this much larger than the one that was planned for is planned for anew
_ELEMENTS = {spelled: number for number, spelled in vt.TYPE_NAMES.items()}
_CROSSES = {spelled for number, spelled in vt.TYPE_NAMES.items() if number not in (TensorProto.BFLOAT16,)}
"""What numpy can hold between two sessions."""


@dataclass
class _Segment:
    """Some nodes in a row: ``reads`` of them are made before, ``makes`` are seen or read later."""

    nodes: list[NodeProto]
    reads: list[str]
    makes: list[str]
    frees: list[str] = field(default_factory=list)
    session: Any = None


class SegmentedModel:
    """A model without functions, sorted, opened for runs that show the values in ``seen``.

    ``limit``: bytes of values that one segment exposes. Raises AmpError AMP501, AMP505 (device), AMP502, AMP504.
    """

    def __init__(
        self, model: ModelProto, seen: Sequence[str], *, folder: str = "", device: str = "cpu", limit: int = LIMIT
    ) -> None:
        self._model, self._seen, self._folder, self._limit = model, set(seen), folder, limit
        self.device, self._providers = choose(device)
        self._types = vt.infer(model).values
        self._weights = {i.name: i for i in model.graph.initializer}
        self._sparse = {i.values.name: i for i in model.graph.sparse_initializer}
        self._reads = [_reads(node) for node in model.graph.node]
        self._segments: list[_Segment] = []
        self._planned = 0

    def __len__(self) -> int:
        return len(self._segments)

    def run(
        self, feeds: Mapping[str, Any], progress: Callable[[int, int], None] | None = None
    ) -> Iterator[tuple[str, Any]]:
        """(name, array) of everything seen, in the order of the file. ``told(done, of)`` counts segments."""
        size = sum(_elements(value) for value in feeds.values()) + 1
        if not self._segments or size > GROWTH * self._planned:
            self._segments, self._planned = [], size
            self._segments = self._cut(self._sizes(feeds), set(feeds))
            for segment in self._segments:  # all at once: between large arrays they would leave holes behind
                segment.session = self._open(self._part(segment, set(feeds)))
        held: dict[str, Any] = {name: _own(value) for name, value in feeds.items()}
        for number, segment in enumerate(self._segments):
            found = self._run(segment.session, {name: held[name] for name in segment.reads}, segment.makes)
            for name, array in zip(segment.makes, found, strict=True):
                held[name] = array
            del found
            for name in segment.makes:
                if name in self._seen:
                    yield name, held[name]
            for name in segment.frees:
                held.pop(name, None)
            if progress:
                progress(number + 1, len(self._segments))

    # -- where to cut -------------------------------------------------------------------------------------------------

    def _sizes(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Elements of each seen value: one run that gives the sizes alone, so that each value is freed at once."""
        graph = self._model.graph
        names = [name for node in graph.node for name in node.output if name in self._seen]
        taken = {name for node in graph.node for name in (*node.input, *node.output)}
        prefix = next(p for p in (f"ampgraph_size{k}_" for k in range(len(taken) + 1)) if p + "0" not in taken)
        counts = [f"{prefix}{k}" for k in range(len(names))]
        part = self._shell()
        part.graph.node.extend(graph.node)
        part.graph.node.extend(helper.make_node("Size", [n], [c]) for n, c in zip(names, counts, strict=True))
        stored = set(self._weights) | set(self._sparse)
        part.graph.input.extend(v for v in graph.input if v.name in feeds or v.name not in stored)
        read = {name for reads in self._reads for name in reads}
        part.graph.initializer.extend(i for n, i in self._weights.items() if n not in feeds and n in read)
        part.graph.sparse_initializer.extend(self._sparse.values())
        part.graph.output.extend(_port(name, "int64") for name in counts)
        found = self._run(self._open(part), {n: _own(v) for n, v in feeds.items()}, counts) if counts else []
        return {name: int(size) for name, size in zip(names, found, strict=True)}

    def _cut(self, sizes: Mapping[str, int], fed: set[str]) -> list[_Segment]:
        """Consecutive segments within the limit, cut only where everything alive is a tensor that numpy holds."""
        nodes = self._model.graph.node
        last = {name: index for index, reads in enumerate(self._reads) for name in reads}
        ends: list[int] = []
        alive: set[str] = set()
        bad: set[str] = set()  # alive values that cannot cross
        exposed = 0
        dying: dict[int, list[str]] = {}
        for index, node in enumerate(nodes):
            exposed += 4 * sum(sizes.get(name, 0) for name in node.output)
            for name in node.output:
                if name and last.get(name, -1) > index:
                    alive.add(name)
                    dying.setdefault(last[name], []).append(name)
                    if self._crossing(name) is None:
                        bad.add(name)
            gone = dying.pop(index, [])
            alive.difference_update(gone)
            bad.difference_update(gone)
            following = 4 * sum(sizes.get(name, 0) for name in nodes[index + 1].output) if index + 1 < len(nodes) else 0
            if not bad and (index + 1 == len(nodes) or exposed + following > self._limit):
                ends.append(index + 1)
                exposed = 0
        if nodes and (not ends or ends[-1] != len(nodes)):
            ends.append(len(nodes))
        return self._pieces(ends, last, fed)

    def _pieces(self, ends: list[int], last: Mapping[str, int], fed: set[str]) -> list[_Segment]:
        nodes, start, pieces = self._model.graph.node, 0, []
        made: set[str] = set(fed)
        for end in ends:
            inside = list(nodes[start:end])
            own = [name for node in inside for name in node.output if name]
            wanted = dict.fromkeys(n for reads in self._reads[start:end] for n in reads)
            makes = [name for name in own if name in self._seen or last.get(name, -1) >= end]
            reads = [name for name in wanted if name in made]
            if makes:
                pieces.append(_Segment(inside, reads, makes))
                pieces[-1].frees = [n for n in {*reads, *makes} if last.get(n, -1) < end]
            made.update(own)
            start = end
        return pieces

    def _crossing(self, name: str) -> str | None:
        """The element type of a value that may go from one session to the next, else None."""
        kind = self._types.get(name, "")
        inner = kind.removeprefix("tensor(").removesuffix(")") if vt.is_tensor(kind) else ""
        return inner if inner in _CROSSES else None

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _shell(self) -> ModelProto:
        part = ModelProto(ir_version=self._model.ir_version)
        part.opset_import.extend(self._model.opset_import)
        if "" not in vt.opsets(part):
            part.opset_import.append(helper.make_opsetid("", 17))
        part.graph.name = "segment"
        return part

    def _part(self, segment: _Segment, fed: set[str]) -> ModelProto:
        """The model of one segment, with the weights that it reads."""
        part, declared = self._shell(), {v.name: v for v in self._model.graph.input}
        part.graph.node.extend(segment.nodes)
        for name in segment.reads:
            known = declared.get(name)
            part.graph.input.append(known if known is not None else _port(name, self._crossing(name) or "float"))
        own = {name for node in segment.nodes for name in (*node.output,)} | set(segment.reads)
        for name in dict.fromkeys(n for node in segment.nodes for n in _reads(node)):
            if name in own or name in fed:
                continue
            if name in self._weights:
                part.graph.initializer.append(self._weights[name])
            elif name in self._sparse:
                part.graph.sparse_initializer.append(self._sparse[name])
        part.graph.output.extend(_port(name, self._crossing(name) or "float") for name in segment.makes)
        return part

    def _open(self, part: ModelProto) -> Any:
        ort = import_onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = QUIET
        # What is exposed cannot be fused, and memory that a run has done with is to go back.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        # Size comes first there: a value whose size alone is asked for can go as soon as it is read.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        if self._folder:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", self._folder)
        try:
            return ort.InferenceSession(part.SerializeToString(), options, providers=list(self._providers))
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            raise refused(error, "model") from error

    def _run(self, session: Any, feeds: dict[str, Any], wanted: list[str]) -> list[Any]:
        try:
            return session.run(wanted, feeds)
        except Exception as error:
            raise stopped(error, self.device) from error


def _port(name: str, element: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, _ELEMENTS[element], None)


def _elements(value: Any) -> int:
    """How many numbers are fed, in a sequence too."""
    return sum(map(_elements, value)) if isinstance(value, list) else int(np.size(value))


def _own(value: Any) -> Any:
    """A copy: the runtime may write over a fed array."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _reads(node: NodeProto) -> list[str]:
    """Every name that a node reads, in its bodies too (their own names among them)."""
    names = [name for name in node.input if name]
    for body in vt.bodies(node):
        names += _body_reads(body)
    return names


def _body_reads(body: GraphProto) -> list[str]:
    return [*(name for node in body.node for name in _reads(node)), *(v.name for v in body.output)]
