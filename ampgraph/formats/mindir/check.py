"""What a MindIR model must keep to before it is read: names, their order, operands, the size of its tuples."""

from __future__ import annotations

from ...core.errors import AmpError
from ...oplists.mindspore_schemas import operator
from . import view
from .schema import Message
from .weights import MindirFile

OPERANDS = {"Load": 1, "Depend": 1, "TupleGetItem": 2, "list_getitem": 2, "Partial": 1, "Switch": 3, "SwitchLayer": 2}
"""Nodes that are no operators -> how many operands they have at least."""

MOST_ELEMENTS, DEEPEST = 1 << 16, 32  # of a tuple
UNREADABLE = "MindSpore cannot read it either: export it again"
NO_TYPE = "export it again with mindspore.export"


def check_structure(file: MindirFile) -> None:
    """Raises AmpError (AMP201 a node without a type, AMP202 names or operands that do not fit) for the first fault."""
    _Checker(file).check()


class _Checker:
    def __init__(self, file: MindirFile) -> None:
        self.file, self.model = file, file.model
        self.graphs = [self.model.graph, *self.model.functions]
        self.primitives = view.primitives(self.model)
        self.functions = {graph.name for graph in self.model.functions}
        constants = (node for graph in self.graphs for node in graph.node if node.op_type == "Constant")
        self.constants = {name for node in constants for name in node.output}

    def check(self) -> None:
        self._names()
        everywhere = self.constants | self.functions | set(self.primitives)
        for graph in self.graphs:
            known = {item.name for item in (*graph.parameter, *graph.input)}
            later = {name for node in graph.node for name in node.output}
            sizes: dict[str, tuple[int, int]] = {}
            for node in graph.node:
                for name in node.input:
                    if name not in known and name not in everywhere:
                        when = "before it is made" if name in later else "which its graph does not have"
                        self._refuse(f"node '{view.shown(node.output[0])}' reads '{view.shown(name)}', {when}")
                self._node(node, sizes)
                known.add(node.output[0])
            for item in graph.output:
                if item.name not in known and item.name not in everywhere:
                    self._refuse(
                        f"graph '{view.shown(graph.name)}' returns '{view.shown(item.name)}', which nothing makes"
                    )

    def _names(self) -> None:
        """Every name means one thing in the whole model."""
        taken = set(self.functions)
        if len(taken) < len(self.model.functions) or "" in taken:
            self._refuse("two functions have one name, or one has none")
        keys: set[str] = set()
        for graph in self.graphs:
            for tensor in graph.parameter:
                key = tensor.ref_key or tensor.name
                if key in keys:
                    self._refuse(f"two parameters are called '{view.shown(key)}'")
                keys.add(key)
            for node in graph.node:
                if len(node.output) != 1:
                    self._refuse(f"node '{view.shown(node.name)}' has {len(node.output)} outputs; every node has one")
            names = [item.name for item in (*graph.parameter, *graph.input)]
            for name in (*names, *(node.output[0] for node in graph.node)):
                if not name or name in taken:
                    self._refuse(f"two things are called '{view.shown(name)}'" if name else "something has no name")
                taken.add(name)

    def _node(self, node: Message, sizes: dict[str, tuple[int, int]]) -> None:
        """Operands and the type of one node; ``sizes``: elements and depth of the tuples made so far."""
        if node.op_type == "Constant":
            return
        kind, name = view.kind_of(node, self.primitives), node.output[0]
        if len(node.input) < OPERANDS.get(kind, 0):
            self._refuse(f"{kind} '{view.shown(name)}' has {len(node.input)} operands, and needs {OPERANDS[kind]}")
        if kind in view.TUPLES:
            inner = [sizes.get(given, (1, 0)) for given in node.input]
            sizes[name] = sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
            if sizes[name][0] > MOST_ELEMENTS or sizes[name][1] > DEEPEST:
                self._refuse(f"tuple '{view.shown(name)}' has {sizes[name][0]:,} elements, {sizes[name][1]} deep")
            return
        if kind in ("Depend", "Load", "TupleGetItem", "list_getitem") and node.input[0] in sizes:
            sizes[name] = sizes[node.input[0]]
        entry = operator(kind)
        if view.attribute(node, "shape") is None and (entry is None or not entry.structural):
            problem = f"{view.shown(kind)} '{view.shown(name)}' has no type"
            raise AmpError("AMP201", problem, where=self.file.where, hint=NO_TYPE)

    def _refuse(self, problem: str) -> None:
        raise AmpError("AMP202", problem, where=self.file.where, hint=UNREADABLE)
