"""A MindIR model with the two faces that ampgraph works on: a dataflow to read, an editor to change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

from ...core.arrays import Array
from ...core.dataflow import Dataflow, Value
from ...core.errors import AmpError
from ...core.graph import Census
from ...core.progress import Progress
from ...oplists.mindspore_schemas import operator
from ..editable import EditableGraph
from ..rounding import pieces
from . import io as mindir_io
from . import view
from .dataflow import read_dataflow
from .editor import MindirEditor
from .schema import Message
from .step import UNSCALED, check_finite, has_loss_scale, is_step, refuse_unknown_step
from .values import NUMBER
from .weights import MindirFile, data_files, elements

OPERANDS = {"Load": 1, "Depend": 1, "TupleGetItem": 2, "list_getitem": 2, "Partial": 1, "Switch": 3, "SwitchLayer": 2}
"""Nodes that are no operators -> how many operands they have at least."""

MOST_ELEMENTS, DEEPEST = 1 << 16, 32  # of a tuple
UNREADABLE = "MindSpore cannot read it either: export it again"
NO_TYPE = "export it again with mindspore.export"


def check_structure(file: MindirFile) -> None:
    """Refuses a faulty MindIR model: AmpError AMP201 for a node without a type, AMP202 for names and operands."""
    _Checker(file).check()


class _Checker:
    """Looks for the first fault in the structure of a MindIR model: names, operands, types."""

    def __init__(self, file: MindirFile) -> None:
        self.file, self.model = file, file.model
        self.graphs = view.graphs(self.model)
        self.primitives = view.primitives(self.model)
        self.functions = {graph.name for graph in self.model.functions}
        constants = (node for graph in self.graphs for node in graph.node if node.op_type == "Constant")
        self.constants = {name for node in constants for name in node.output}

    def check(self) -> None:
        """Raises AmpError AMP201 or AMP202 for the first fault of the MindIR model: a name that means two things or
        that nothing makes, a node without a type, too few operands, a tuple that is too large."""
        self._check_names()
        everywhere = self.constants | self.functions | set(self.primitives)
        for graph in self.graphs:
            known = {item.name for item in (*graph.parameter, *graph.input)}
            later = {name for node in graph.node for name in node.output}
            sizes: dict[str, tuple[int, int]] = {}  # name of a tuple -> (elements, depth)
            for node in graph.node:
                for name in node.input:
                    if name not in known and name not in everywhere:
                        when = "before it is made" if name in later else "which its graph does not have"
                        self._refuse(
                            f"node '{view.short_name(node.output[0])}' reads '{view.short_name(name)}', {when}"
                        )
                self._check_node(node, sizes)
                known.add(node.output[0])
            for item in graph.output:
                if item.name not in known and item.name not in everywhere:
                    graph_name, result = view.short_name(graph.name), view.short_name(item.name)
                    self._refuse(f"graph '{graph_name}' returns '{result}', which nothing makes")

    def _check_names(self) -> None:
        """Raises AmpError AMP202 for a MindIR name that is missing or means two things, or not one output a node."""
        taken = set(self.functions)
        if len(taken) < len(self.model.functions) or "" in taken:
            self._refuse("two functions have one name, or one has none")
        keys: set[str] = set()
        for graph in self.graphs:
            for tensor in graph.parameter:
                key = tensor.ref_key or tensor.name
                if key in keys:
                    self._refuse(f"two parameters are called '{view.short_name(key)}'")
                keys.add(key)
            for node in graph.node:
                if len(node.output) != 1:
                    self._refuse(
                        f"node '{view.short_name(node.name)}' has {len(node.output)} outputs; every node has one"
                    )
            names = [item.name for item in (*graph.parameter, *graph.input)]
            for name in (*names, *(node.output[0] for node in graph.node)):
                if not name or name in taken:
                    self._refuse(
                        f"two things are called '{view.short_name(name)}'" if name else "something has no name"
                    )
                taken.add(name)

    def _check_node(self, node: Message, sizes: dict[str, tuple[int, int]]) -> None:
        """Raises AmpError for a MindIR node with too few operands, a tuple too large or deep (AMP202), or a node that
        computes and has no type (AMP201). ``sizes``: name -> (elements, depth) of the graph's tuples so far."""
        if node.op_type == "Constant":
            return
        kind, name = view.kind_of(node, self.primitives), node.output[0]
        if len(node.input) < OPERANDS.get(kind, 0):
            self._refuse(f"{kind} '{view.short_name(name)}' has {len(node.input)} operands, and needs {OPERANDS[kind]}")
        if kind in view.TUPLES:
            operands = [sizes.get(given, (1, 0)) for given in node.input]
            count = sum(elements for elements, _ in operands)
            depth = 1 + max((depth for _, depth in operands), default=0)
            if count > MOST_ELEMENTS or depth > DEEPEST:
                self._refuse(f"tuple '{view.short_name(name)}' has {count:,} elements, {depth} deep")
            sizes[name] = count, depth
            return
        if kind in ("Depend", "Load", "TupleGetItem", "list_getitem") and node.input[0] in sizes:
            sizes[name] = sizes[node.input[0]]
        entry = operator(kind)
        if view.attribute(node, "shape") is None and (entry is None or not entry.structural):
            problem = f"{view.short_name(kind)} '{view.short_name(name)}' has no type"
            raise AmpError("AMP201", problem, where=self.file.where, hint=NO_TYPE)

    def _refuse(self, problem: str) -> None:
        """Raises AmpError AMP202: the structure of the MindIR model makes no sense."""
        raise AmpError("AMP202", problem, where=self.file.where, hint=UNREADABLE)


SMALL = 256  # bytes: constants up to here are part of the digest


class MindirGraph(EditableGraph):
    """A MindIR model, a `core.graph.Graph`: the file's own messages, edited in place and never rebuilt."""

    format, suffix = "MindIR", ".mindir"

    def __init__(self, file: MindirFile) -> None:
        super().__init__(self._read)
        self.file = file

    @staticmethod
    def load(path: str | os.PathLike[str]) -> MindirGraph:
        """Reads a MindIR file. Raises AmpError AMP101 (no such file), AMP102 (no model), AMP103 (bad external data)."""
        return MindirGraph(mindir_io.load(path))

    def prepare(self) -> None:
        """Raises AmpError (AMP201, AMP202) for a MindIR structure that MindSpore could not read, as unsorted nodes."""
        check_structure(self.file)

    def refuse_unknown_training(self) -> None:
        """Raises AmpError AMP205 for a MindIR step whose scopes do not show the network's forward and backward."""
        refuse_unknown_step(self.file.model)

    def is_step(self) -> bool:
        """Whether the .mindir file holds a whole training step of MindSpore's."""
        return is_step(self.file.model)

    def scale_doubts(self) -> list[str]:
        """A sentence that a MindIR step without a loss scale loses small gradients in float16; else none."""
        return [UNSCALED] if self.is_step() and not has_loss_scale(self.file.model) else []

    def check_gradients(self) -> int:
        """Has a MindIR step check its gradients for overflow instead of asking the register of an Ascend device; how
        many gradients are checked, 0 where it asks none. Raises AmpError AMP205 for a check of unknown form."""
        count = check_finite(self.file.model)
        if count:
            self.edited()
        return count

    def fault(self) -> str:
        """What MindSpore could not read in the MindIR model, as a sentence; "" for a valid one."""
        try:
            check_structure(self.file)
        except AmpError as error:
            return error.message
        return ""

    def _read(self, low: str, low_io: frozenset[str]) -> Dataflow:
        """Reads the MindIR file, as it is now, into a new dataflow: the ``build`` of `EditableGraph`."""
        return read_dataflow(self.file, MindirWeights(self.file), low, low_io)

    def editor(self, flow: Dataflow, signature: Mapping[str, Hashable] | None = None) -> MindirEditor:
        """An editor of the MindIR model over its newest dataflow; raises StaleDataflow for another. ``signature`` is
        not used: a function is one scope, and its calls never have copies of it."""
        self.require_newest(flow)
        return MindirEditor(self.file, flow, self.edited)

    def digest(self) -> str:
        """A digest of the MindIR model, as hexadecimal digits, that changes with its structure, types and small
        parameters; parameters of more than `SMALL` bytes count by type and shape alone."""
        digest = hashlib.blake2b(digest_size=16)
        for graph in view.graphs(self.file.model):
            for tensor in graph.parameter:
                small = bytes(tensor.raw_data) if len(tensor.raw_data) <= SMALL else b""
                digest.update(f"{tensor.name}:{tensor.data_type}:{list(tensor.dims)}:".encode() + small)
            for part in (*graph.input, *graph.output, *graph.node):
                digest.update(part.SerializeToString(deterministic=True))
        for primitive in self.file.model.primitives:
            digest.update(primitive.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def version(self) -> str:
        """The version of the MindIR format that the file is written in, as ``mind_ir_version 3``."""
        return f"mind_ir_version {self.file.model.mind_ir_version}"

    def interface(self) -> dict[str, str]:
        """Name -> element type of the MindIR model's inputs, and of its nameless outputs: ``output 0`` ..."""
        self.prepare()
        flow = self.dataflow()
        main = flow.scopes[0]
        types = {flow.values[v].name: flow.values[v].dtype for v in main.inputs}
        return types | {f"output {n}": flow.values[v].dtype for n, v in enumerate(main.outputs)}

    def dimensions(self) -> set[str]:
        """The empty set: MindIR does not name dimensions."""
        return set()

    def census(self) -> Census:
        """How many nodes (without Constants) and Casts a MindIR model has, and the bytes of its tensors by type."""
        known, graphs = view.primitives(self.file.model), view.graphs(self.file.model)
        kinds = [view.kind_of(node, known) for graph in graphs for node in graph.node if node.op_type != "Constant"]
        tensors = ((view.dtype_of(t), elements(self.file, t).nbytes) for t in _stored_tensors(graphs))
        return Census.of(len(kinds), kinds.count("Cast"), tensors)

    def data_files(self) -> list[Path]:
        """The paths of the data files that the MindIR model reads; none for one whose weights are in its file."""
        return data_files(self.file)

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the MindIR model and its data files, whole or not at all. Raises AmpError as `io.save` does."""
        mindir_io.save(self.file, path, progress)

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Copies the .mindir file ``source`` and its data files to another name. Raises as `io.copy_unchanged`."""
        mindir_io.copy_unchanged(source, target)


def _stored_tensors(graphs: list[Message]) -> Iterator[Message]:
    """For `census`: the Tensor messages of parameters, and those in Constants, of some MindIR graphs."""
    for graph in graphs:
        yield from graph.parameter
        for node in graph.node:
            if node.op_type == "Constant":
                yield from (t for t in view.elements(view.attribute(node, "value")) if t is not None)


class MindirWeights:
    """The `WeightReader` of a MindIR file, by which a dataflow reads stored tensors. Raises as `weights.elements`."""

    def __init__(self, file: MindirFile) -> None:
        self.file = file

    def size(self, value: Value) -> int:
        """How many elements a stored MindIR tensor or number has; 0 for text. To be asked only of stored values."""
        if value.dtype == NUMBER:
            array = self.array(value)
            return 0 if array is None else int(array.size)
        return int(self._elements(value).size)

    def _elements(self, value: Value) -> Array:
        """The elements of a stored MindIR tensor in one dimension, mapped where they are external."""
        return elements(self.file, value.native)

    def array(self, value: Value, limit: int = 1 << 16) -> Array | None:
        """The numbers of a stored MindIR value, in its shape; None beyond ``limit`` elements, and for text."""
        if value.dtype == NUMBER:
            return view.plain_array(view.number(value.native))
        data = self._elements(value)
        if data.size > limit:
            return None
        return data.reshape([dim if isinstance(dim, int) else -1 for dim in value.shape or ()])

    def chunks(self, value: Value) -> Iterator[Array]:
        """The elements of a stored MindIR tensor in one dimension, in pieces that fit the memory."""
        return pieces(self._elements(value))

    def key(self, value: Value) -> object:
        """The id of the value: every MindIR value has a stored tensor of its own."""
        return value.id
