"""What the picture of a model shows: nodes in folders, with precision and reason, and edges for the values between
them; Casts are part of edges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import TypeAlias

from ...core.annotations import REASON, split_reason
from ...core.dataflow import NONE, Dataflow, Op, Value
from ...oplists.traits import has
from ..casts import label
from ..inspect import PRECISIONS, precision
from .blocks import Block, blocks

WIDTH = 32  # entries that one folder shows at most; more are put into further folders
ROW = 3  # so many blocks of one kind after each other share a folder where there are too many entries


@dataclass
class _DrawnFolder:
    """A folder of the drawing. ``entries``: nodes by number and further folders, in the order of the file; ``folders``:
    those of them that a path of nodes names; ``last``: of a folder for a run of neighbours the name of the last."""

    name: str
    folders: dict[str, _DrawnFolder] = field(default_factory=dict)
    entries: list[_DrawnFolder | int] = field(default_factory=list)
    last: str = ""

    def subfolder(self, name: str) -> _DrawnFolder:
        """Picture: the folder of that name inside this one; a new one is put behind the entries so far."""
        found = self.folders.get(name)
        if found is None:
            found = self.folders[name] = _DrawnFolder(name)
            self.entries.append(found)
        return found


_Entries: TypeAlias = "list[_DrawnFolder | int]"


@dataclass(frozen=True)
class Folders:
    """The folders of a drawing by number: names, and the number of the folder around each; the root is 0, with the name
    "" and itself around it. ``of_nodes``: the folder of each node."""

    names: list[str]
    parents: list[int]
    of_nodes: list[int]


def put_in_folders(
    paths: Sequence[tuple[str, ...]], labels: Sequence[str], kinds: Sequence[str] = (), cuts: Sequence[int] = (),
    width: int = WIDTH,
) -> Folders:  # fmt: skip
    """Picture: puts nodes into folders by the names of the folders around each (``paths``); no folder has more than
    ``width`` entries. In a longer one the blocks that repeat get folders, found by the ``kinds`` of all nodes and by
    how many values pass in front of each (``cuts``; without kinds no blocks are looked for); where it is still too
    long, runs of neighbours do, named after the first and the last by the nodes' ``labels``."""
    root = _DrawnFolder("")
    for node, path in enumerate(paths):
        folder = root
        for name in path:
            folder = folder.subfolder(name)
        folder.entries.append(node)
    found = Folders([""], [0], [0] * len(paths))
    todo = [(0, root)]
    while todo:
        number, folder = todo.pop()
        entries = folder.entries
        if len(entries) > width and kinds:
            entries = _put_blocks_in_folders(entries, kinds, cuts, width)
        for entry in _put_runs_in_folders(entries, labels, width):
            if isinstance(entry, int):
                found.of_nodes[entry] = number
                continue
            found.names.append(entry.name)
            found.parents.append(number)
            todo.append((len(found.names) - 1, entry))
    return found


def _put_blocks_in_folders(entries: _Entries, kinds: Sequence[str], cuts: Sequence[int], width: int) -> _Entries:
    """Picture: puts the entries of each block that repeats (a layer of an exporter that names none) into a folder,
    named "block A1", "block A2", "block B1": a letter for each kind of block. Where more than ``width`` entries are
    left, `ROW` blocks of one kind or more that follow each other get a folder around them."""
    row = blocks([_entry_kinds(entry, kinds) for entry in entries], [cuts[_first_node(entry)] for entry in entries])
    letters: dict[int, str] = {}
    counts: Counter[int] = Counter()

    def entry_for(part: int | Block) -> _DrawnFolder | int:
        if isinstance(part, int):
            return entries[part]
        counts[part.unit] += 1
        name = f"block {letters.setdefault(part.unit, _letters(len(letters)))}{counts[part.unit]}"
        return _DrawnFolder(name, entries=[entry_for(inner) for inner in part.parts])

    found = [entry_for(part) for part in row]
    if len(found) <= width:
        return found
    shorter: _Entries = []
    for unit, members in groupby(zip(row, found, strict=True), key=lambda pair: getattr(pair[0], "unit", None)):
        alike = [entry for _, entry in members]
        shorter += alike if unit is None or len(alike) < ROW else [_folder_of_run(alike, ())]
    return shorter


def _letters(number: int) -> str:
    """Picture: a number as letters for a folder's name: A, B ... Z, AA, AB ..."""
    before, last = divmod(number, 26)
    return (_letters(before - 1) if before else "") + chr(ord("A") + last)


def _entry_kinds(entry: _DrawnFolder | int, kinds: Sequence[str]) -> Hashable:
    """Picture: the kind of a node; of a folder a tuple of what this gives for its entries. It is equal for entries that
    hold the same kinds in the same order."""
    return kinds[entry] if isinstance(entry, int) else tuple(_entry_kinds(inner, kinds) for inner in entry.entries)


def _first_node(entry: _DrawnFolder | int) -> int:
    """Picture: the first node inside a drawn entry, which is a node or a folder."""
    return entry if isinstance(entry, int) else _first_node(entry.entries[0])


def _put_runs_in_folders(entries: _Entries, labels: Sequence[str], width: int) -> _Entries:
    """Picture: puts runs of neighbours, of one length each, into folders, again until at most ``width`` are left."""
    while len(entries) > width:
        size = math.ceil(len(entries) / math.ceil(len(entries) / width))
        runs = [entries[start : start + size] for start in range(0, len(entries), size)]
        entries = [run[0] if len(run) == 1 else _folder_of_run(run, labels) for run in runs]
    return entries


def _folder_of_run(entries: _Entries, labels: Sequence[str]) -> _DrawnFolder:
    """Picture: a drawn folder for some neighbours, named after the first and the last: a node by its label, a folder by
    its own name. ``labels``: of all nodes; may be empty where the ends are folders."""
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
    """What the picture says of nodes beyond the file: (rule, reason) by the ``id`` of the format's node, and by name
    for nodes that were written anew since; ``spans``: the range that was measured of a node's result, by that
    ``id``."""

    by_node: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    by_name: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    spans: Mapping[int, str] = field(default_factory=dict)

    def rule_and_reason(self, op: Op, name: str) -> tuple[str, str]:
        """The rule and the reason of a node of the picture; ("", "") where nothing is known."""
        return self.by_node.get(id(op.native)) or self.by_name.get(name) or ("", "")


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the picture, or an input or output of the model, as ``kind`` says then. ``rule``, ``reason``: of its
    precision, "" where none is known; ``bytes``: of the weights that it reads; ``span``: the range that was measured of
    its result, "" for none; ``makes``: its first output, by which a runtime names it, "" in functions."""

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
    """A value that the picture's node ``source`` writes and ``target`` reads, both by number. ``dtype``: as it is
    written; ``cast``: the type in which it is read where Casts stand between, else ""."""

    source: int
    target: int
    value: str
    dtype: str
    shape: str
    cast: str = ""


@dataclass
class Drawing:
    """What the picture shows: nodes, whose places in the list are their numbers, edges between them, folders of
    them."""

    nodes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    folders: Folders = field(default_factory=lambda: Folders([""], [0], []))

    def counts(self) -> Counter[str]:
        """How many nodes of the picture have each precision, the most frequent first; without inputs and outputs."""
        found = Counter(node.precision for node in self.nodes if node.kind not in (INPUT, OUTPUT))
        return Counter(dict(found.most_common()))


def draw(flow: Dataflow, reasons: Reasons | None = None) -> Drawing:
    """Picture: draws a dataflow: its nodes as boxes in folders, and edges between them.

    ``reasons``: of nodes' precisions; they go before what the file itself says."""
    return _GraphArtist(flow, reasons or Reasons()).draw()


class _GraphArtist:
    """Picture: draws one dataflow: boxes for nodes, edges for values, folders for layers and bodies."""

    def __init__(self, flow: Dataflow, reasons: Reasons) -> None:
        self.flow, self.reasons = flow, reasons
        self.outer = {target: source for source, target in flow.passed}  # value in a body -> what is passed in for it
        self.found = Drawing()
        self.paths: list[tuple[str, ...]] = []  # the names of the folders around each box
        self.number: dict[int, int] = {}  # operator -> box
        self.entry: dict[int, int] = {}  # input of the model -> box
        self.bodies: dict[int, tuple[str, ...]] = {}  # scope -> the names of the folders around its nodes

    def draw(self) -> Drawing:
        """Picture: draws the nodes in the order of the file, then edges to what reads, then puts them in folders."""
        flow, found = self.flow, self.found
        for value in flow.scopes[0].inputs:
            if not flow.values[value].weight:
                self.entry[value] = self._add(self._boundary_box(flow.values[value], INPUT), ())
        for op in flow.ops:
            if not self._is_in_edge(op):
                self.number[op.id] = self._add(self._operator_box(op), self._folders_around(op))
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
        found.folders = put_in_folders(
            self.paths, [node.name for node in found.nodes], [node.kind for node in found.nodes], self._cuts()
        )
        return found

    def _cuts(self) -> list[int]:
        """Picture: for each node how many earlier ones have a reader at its place or behind it: a block begins best
        where they are few."""
        last: dict[int, int] = {}  # node -> its last reader
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

    def _is_in_edge(self, op: Op) -> bool:
        """Whether the picture draws a node as part of an edge: a Cast between floating types."""
        values = self.flow.values
        return has(op.role, "casts") and all(
            v != NONE and values[v].dtype in PRECISIONS for v in (*op.inputs[:1], *op.outputs)
        )

    def _boundary_box(self, value: Value, kind: str) -> Box:
        """A box of the drawing for an input or output of the model, as ``kind`` says."""
        return Box(value.name, kind, value.dtype, "", "", 0)

    def _operator_box(self, op: Op) -> Box:
        """An operator as a box of the drawing, with the reason that was given for its precision or that the file
        says."""
        name = label(self.flow, op)
        rule, reason = self.reasons.rule_and_reason(op, name)
        metadata: object = getattr(op.native, "metadata_props", None)
        if not rule and isinstance(metadata, Mapping):
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
        if home.kind == "function":
            return True
        return home.parent != scope and home.op != NONE and self._is_in_function(home.parent)

    def _folders_around(self, op: Op) -> tuple[str, ...]:
        """Picture: the names of the folders around an operator, the outermost first: bodies and functions, its
        layer."""
        layer = self.flow.layer(op)
        return (*self._folders_of_scope(op.scope), *(layer.split(".") if layer else ()))

    def _folders_of_scope(self, scope: int) -> tuple[str, ...]:
        """Picture: the names of the folders around the nodes of a scope: those of the node that runs it, and one of its
        own; none for the main graph."""
        if scope == 0:
            return ()
        if scope not in self.bodies:
            home = self.flow.scopes[scope]
            above = self._folders_around(self.flow.ops[home.op]) if home.op != NONE else ()
            self.bodies[scope] = (*above, home.path.rpartition("/")[2] or home.path)
        return self.bodies[scope]

    def _connect(self, value: int, target: int) -> None:
        """Picture: draws the edge for a value that the box ``target`` reads, from the box that makes it, through what
        passes it into bodies and through Casts; none for a stored tensor."""
        if value == NONE:
            return
        values, read_dtype = self.flow.values, self.flow.values[value].dtype
        cast = ""
        while True:
            while values[value].producer == NONE and value in self.outer:
                value = self.outer[value]
            maker = values[value].producer
            if maker == NONE or maker in self.number:
                break
            cast = read_dtype
            value = self.flow.ops[maker].inputs[0]
        source = self.number.get(maker, self.entry.get(value, NONE))
        if source == NONE:
            return
        written = values[value]
        shape = "×".join("?" if size is None else str(size) for size in self.flow.shape(value) or ())
        self.found.edges.append(Edge(source, target, written.name, written.dtype, shape, cast))
