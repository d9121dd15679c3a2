"""What is drawn of a model: its nodes with precision and reason, and what flows between them, Casts as part of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from ...core.annotations import REASON, split_reason
from ...core.dataflow import NONE, Dataflow, Op, Value
from ...oplists.traits import has
from ..casts import label
from ..inspect import PRECISIONS, precision
from .blocks import Block, blocks

WIDTH = 32  # entries that one folder shows; more are folded once again
ROW = 3  # blocks of one kind that are folded together where there are too many entries


@dataclass
class _DrawnFolder:
    """A folder of the drawing: its name, and what is in it: nodes by number, further folders; ``last``: of a folder of
    neighbours the name of the last."""

    name: str
    folders: dict[str, _DrawnFolder] = field(default_factory=dict)
    entries: list[_DrawnFolder | int] = field(default_factory=list)  # folders and nodes in the order of the file
    last: str = ""

    def child(self, name: str) -> _DrawnFolder:
        """The folder of that name inside a drawn one, which comes where its first node does."""
        found = self.folders.get(name)
        if found is None:
            found = self.folders[name] = _DrawnFolder(name)
            self.entries.append(found)
        return found


@dataclass(frozen=True)
class Folders:
    """``names`` and ``parents`` by folder, the root first, which has itself as its parent; ``of``: by node."""

    names: list[str]
    parents: list[int]
    of: list[int]


def folded(
    paths: Sequence[tuple[str, ...]], labels: Sequence[str], kinds: Sequence[str] = (), cuts: Sequence[int] = (),
    width: int = WIDTH,
) -> Folders:  # fmt: skip
    """Picture: folders of nodes by the path of each, in their order; no folder has more than ``width`` entries.

    A longer one is folded into the blocks that repeat in it, by the ``kinds`` of nodes and by how many values pass in
    front of each (``cuts``); what is too long still into runs of neighbours, named by the first and the last."""
    root = _DrawnFolder("")
    for node, path in enumerate(paths):
        folder = root
        for name in path:
            folder = folder.child(name)
        folder.entries.append(node)
    found = Folders([""], [0], [0] * len(paths))
    todo = [(0, root)]
    while todo:
        number, folder = todo.pop()
        entries = folder.entries
        if len(entries) > width and kinds:
            entries = _repeating(entries, kinds, cuts, width)
        for entry in _folded_to_width(entries, labels, width):
            if isinstance(entry, int):
                found.of[entry] = number
                continue
            found.names.append(entry.name)
            found.parents.append(number)
            todo.append((len(found.names) - 1, entry))
    return found


def _repeating(
    entries: list[_DrawnFolder | int], kinds: Sequence[str], cuts: Sequence[int], width: int
) -> list[_DrawnFolder | int]:  # fmt: skip
    """Picture: entries with folders for those that repeat as blocks (layers of an exporter that names none)."""
    told = [_entry_kinds(entry, kinds) for entry in entries]
    row = blocks(told, [cuts[_first_node(entry)] for entry in entries])
    units: dict[int, str] = {}
    counts: Counter[int] = Counter()

    def of(part: int | Block) -> _DrawnFolder | int:
        if isinstance(part, int):
            return entries[part]
        counts[part.unit] += 1
        name = f"block {units.setdefault(part.unit, _letters(len(units)))}{counts[part.unit]}"
        return _DrawnFolder(name, entries=[of(inner) for inner in part.parts])

    made = [of(part) for part in row]
    if len(made) <= width:
        return made
    found: list[_DrawnFolder | int] = []  # a row of one unit's blocks as one
    for unit, members in groupby(range(len(row)), key=lambda place: getattr(row[place], "unit", None)):
        some = [made[place] for place in members]
        found += some if unit is None or len(some) < ROW else [_folder_of_run(some, ())]
    return found


def _letters(number: int) -> str:
    """Picture: a number as letters for a folder's name: A, B ... Z, AA, AB ..."""
    before, last = divmod(number, 26)
    return (_letters(before - 1) if before else "") + chr(ord("A") + last)


def _entry_kinds(entry: _DrawnFolder | int, kinds: Sequence[str]) -> Hashable:
    """Picture: the kind of a node, or of a folder the nested kinds in it; equal for entries that look alike."""
    return kinds[entry] if isinstance(entry, int) else tuple(_entry_kinds(inner, kinds) for inner in entry.entries)


def _first_node(entry: _DrawnFolder | int) -> int:
    """Picture: the first node inside a drawn entry, which is a node or a folder."""
    return entry if isinstance(entry, int) else _first_node(entry.entries[0])


def _folded_to_width(entries: list[_DrawnFolder | int], labels: Sequence[str], width: int) -> list[_DrawnFolder | int]:
    """Picture: the drawn entries, at most ``width``: neighbours are folded into folders of one size."""
    while len(entries) > width:
        size = math.ceil(len(entries) / math.ceil(len(entries) / width))  # runs of one length
        runs = [entries[start : start + size] for start in range(0, len(entries), size)]
        entries = [run[0] if len(run) == 1 else _folder_of_run(run, labels) for run in runs]
    return entries


def _folder_of_run(entries: list[_DrawnFolder | int], labels: Sequence[str]) -> _DrawnFolder:
    """Picture: a drawn folder for some neighbours, named after its first and last one."""
    ends = entries[0], entries[-1]
    first, last = (labels[one] if isinstance(one, int) else one.last or one.name for one in ends)
    return _DrawnFolder(f"{first} … {last}", entries=entries, last=last)


INPUT, OUTPUT = "input", "output"
BITS = {
    "float64": 64, "int64": 64, "uint64": 64, "float32": 32, "int32": 32, "uint32": 32, "float16": 16, "bfloat16": 16,
    "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8, "int4": 4, "uint4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Reasons:
    """(rule, why) of nodes: by the identity of a format's node, and by name for what has got another.

    ``spans``: what was measured of what a node makes, by its identity too."""

    by_node: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    by_name: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    spans: Mapping[int, str] = field(default_factory=dict)

    def of(self, op: Op, name: str) -> tuple[str, str]:
        """The rule and the reason of a node, two empty texts where nothing is known."""
        return self.by_node.get(id(op.native)) or self.by_name.get(name) or ("", "")


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the picture, or an input or output of the model. ``bytes``: of the weights that it reads; ``span``:
    the range that was measured of what it makes; ``makes``: its first output in the main graph or a body of it."""

    name: str
    kind: str
    precision: str
    rule: str
    reason: str
    bytes: int
    span: str = ""
    makes: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that one node writes and another reads; ``cast``: the type that it is read in behind Casts."""

    source: int
    target: int
    value: str
    dtype: str
    shape: str
    cast: str = ""


@dataclass
class Drawing:
    """Nodes and edges by number, folders of the nodes."""

    nodes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    folders: Folders = field(default_factory=lambda: Folders([""], [0], []))

    def counts(self) -> Counter[str]:
        """Drawn nodes by precision, the first the most; inputs and outputs are none."""
        kinds = Counter(node.precision for node in self.nodes if node.kind not in (INPUT, OUTPUT))
        return Counter(dict(kinds.most_common()))


def draw(flow: Dataflow, reasons: Reasons | None = None) -> Drawing:
    """Picture: the drawing of a dataflow: its nodes as boxes in folders, and edges between them.

    Args:
        reasons: of nodes whose file does not say why; a node that is in both says what is given here.
    """
    return _GraphArtist(flow, reasons or Reasons()).drawing()


class _GraphArtist:
    """Picture: draws one dataflow: boxes for nodes, edges for values, folders for layers and bodies."""

    def __init__(self, flow: Dataflow, reasons: Reasons) -> None:
        self.flow, self.reasons = flow, reasons
        self.outer = {target: source for source, target in flow.passed}
        self.found = Drawing()
        self.paths: list[tuple[str, ...]] = []
        self.number: dict[int, int] = {}  # op -> node
        self.entry: dict[int, int] = {}  # value that no node writes -> node
        self.bodies: dict[int, tuple[str, ...]] = {}

    def drawing(self) -> Drawing:
        """Draws the nodes in the order of the file, then what they read."""
        flow, found = self.flow, self.found
        for value in flow.scopes[0].inputs:
            if not flow.values[value].weight:
                self.entry[value] = self._add(self._boundary_box(flow.values[value], INPUT), ())
        for op in flow.ops:
            if not self._between(op):
                self.number[op.id] = self._add(self._node(op), self._path(op))
        for op in flow.ops:
            if op.id in self.number:
                for value in op.inputs:
                    self._connect(value, self.number[op.id])
        for scope in flow.scopes[1:]:
            if scope.op in self.number:
                for value in scope.outputs:
                    self._connect(value, self.number[scope.op])
        for value in flow.scopes[0].outputs:
            self._connect(value, self._add(self._boundary_box(flow.values[value], OUTPUT), ()))
        found.folders = folded(
            self.paths, [node.name for node in found.nodes], [node.kind for node in found.nodes], self._cuts()
        )
        return found

    def _cuts(self) -> list[int]:
        """Picture: how many values pass in front of each node: a block is best cut where they are few."""
        last: dict[int, int] = {}
        for edge in self.found.edges:
            last[edge.source] = max(last.get(edge.source, 0), edge.target)
        steps = [0] * (len(self.found.nodes) + 1)
        for source, target in last.items():
            if target > source:
                steps[source + 1] += 1
                steps[target + 1] -= 1
        return list(accumulate(steps))

    def _add(self, node: Box, path: tuple[str, ...]) -> int:
        """Adds a box to the drawing inside the folders of ``path``, and returns its number."""
        self.found.nodes.append(node)
        self.paths.append(path)
        return len(self.found.nodes) - 1

    def _between(self, op: Op) -> bool:
        """Whether the picture draws a node as part of an edge: a Cast between floating types."""
        values = self.flow.values
        return has(op.role, "casts") and all(
            v != NONE and values[v].dtype in PRECISIONS for v in (*op.inputs[:1], *op.outputs)
        )

    def _boundary_box(self, value: Value, kind: str) -> Box:
        """A box of the drawing for an input, output or stored tensor."""
        return Box(value.name, kind, value.dtype, "", "", 0)

    def _node(self, op: Op) -> Box:
        """An operator as a box, with its precision, its reason, and the bytes that it stores."""
        name = label(self.flow, op)
        rule, reason = self.reasons.of(op, name)
        metadata: object = getattr(op.native, "metadata_props", None)
        if not rule and isinstance(metadata, Mapping):  # what the file itself says
            rule, reason = split_reason(metadata.get(REASON, ""))
        read = [self.flow.values[v] for v in op.inputs if v != NONE]
        stored = sum(self.flow.weights.size(v) * BITS.get(v.dtype, 0) // 8 for v in read if v.weight)
        span = self.reasons.spans.get(id(op.native), "")
        return Box(name, op.kind, precision(self.flow, op), rule, reason, stored, span, self._output_name(op))

    def _output_name(self, op: Op) -> str:
        """Picture: the output's name by which a runtime's graph knows the node; "" in functions, which rename it."""
        if not op.outputs or op.outputs[0] == NONE or self._is_in_function(op.scope):
            return ""
        return self.flow.values[op.outputs[0]].name

    def _is_in_function(self, scope: int) -> bool:
        """Picture: whether a scope is a function's, or inside one."""
        home = self.flow.scopes[scope]
        return home.kind == "function" or (
            home.parent != scope and home.op != NONE and self._is_in_function(home.parent)
        )

    def _path(self, op: Op) -> tuple[str, ...]:
        """The folders of the drawing around an operator: bodies and functions, then its layer."""
        layer = self.flow.layer(op)
        return (*self._around(op.scope), *(layer.split(".") if layer else ()))

    def _around(self, scope: int) -> tuple[str, ...]:
        """The folder of the drawing that shows a body or function, beside the node that runs it."""
        if scope == 0:
            return ()
        if scope not in self.bodies:
            home = self.flow.scopes[scope]
            caller = self.flow.ops[home.op] if home.op != NONE else None
            above = self._path(caller) if caller is not None else ()
            self.bodies[scope] = (*above, home.path.rpartition("/")[2] or home.path)
        return self.bodies[scope]

    def _connect(self, value: int, target: int) -> None:
        """Picture: draws what a node reads, from the node that made it, through the Casts between them."""
        if value == NONE:
            return
        values, read = self.flow.values, self.flow.values[value]
        cast = ""
        while True:
            while values[value].producer == NONE and value in self.outer:
                value = self.outer[value]
            maker = values[value].producer
            if maker == NONE or maker in self.number:
                break
            cast = read.dtype
            value = self.flow.ops[maker].inputs[0]
        source = self.number.get(maker, self.entry.get(value, NONE))
        if source == NONE:
            return
        of = values[value]
        shape = "×".join("?" if size is None else str(size) for size in self.flow.shape(value) or ())
        self.found.edges.append(Edge(source, target, of.name, of.dtype, shape, cast))
