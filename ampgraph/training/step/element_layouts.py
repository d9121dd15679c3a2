"""Where the elements of every parameter lie in the values of an update graph: in which order, behind which others.

An optimizer moves each element by its own gradient and its own slots, so an update can be cut anywhere between two
elements. Small parameters are moved as one vector: a Concat of their gradients says which they are, and a Split of what
is subtracted from them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import onnx_ir as ir

from ...oplists.traits import has


class Layout:
    """The elements of a value, in order: those of ``parts`` one behind another, or some that stand for themselves.

    ``whole``: they must not be cut, for something reads all of them together.
    """

    def __init__(self, size: int, parts: Iterable[Layout] = ()) -> None:
        self.size, self.parts, self._same, self._whole = size, list(parts), self, False

    def root(self) -> Layout:
        """The one that stands for all that are known to be the same."""
        found = self
        while found._same is not found:
            found = found._same
        return found

    def atoms(self) -> list[Layout]:
        """The parts that have none themselves."""
        root = self.root()
        return [atom for part in root.parts for atom in part.atoms()] if root.parts else [root]

    @property
    def whole(self) -> bool:
        root = self.root()
        return root._whole or any(part.whole for part in root.parts)

    def keep_whole(self) -> None:
        self.root()._whole = True

    def join(self, other: Layout) -> None:
        """These elements are those, one by one. What fits badly stays whole."""
        one, two = self.root(), other.root()
        if one is two:
            return
        if one.size != two.size:
            one.keep_whole()
            two.keep_whole()
            return
        if one.parts and two.parts:
            _match(one.atoms(), two.atoms())
        if not one.parts:
            one, two = two, one
        two._same = one
        one._whole = one._whole or two._whole


def _match(ones: list[Layout], twos: list[Layout]) -> None:
    """Joins the parts of two rows of the same length: each with as many of the other row as are as long together."""
    while ones and twos:
        mine, theirs = [ones.pop(0)], [twos.pop(0)]
        while (gap := _length(mine) - _length(theirs)) and (ones if gap < 0 else twos):
            if gap < 0:
                mine.append(ones.pop(0))
            else:
                theirs.append(twos.pop(0))
        few, many = sorted((mine, theirs), key=len)
        if len(few) > 1 or gap:
            for part in (*few, *many):
                part.keep_whole()
        else:
            few[0].join(many[0] if len(many) == 1 else Layout(few[0].size, many))


def _length(parts: Iterable[Layout]) -> int:
    return sum(part.size for part in parts)


class ElementLayouts:
    """The layouts of the values of an update. ``state``: its inputs that are cut with the parameters; ``given``: those
    of which every rank has all, the gradients."""

    def __init__(self, graph: ir.Graph, state: Collection[str], given: Collection[str]) -> None:
        self._found: dict[ir.Value, Layout] = {}
        self._state: set[ir.Value] = set()  # what depends on state
        for value in graph.inputs:
            size = _size(value)
            if value.name in state or value.name in given:
                self._found[value] = Layout(size or 0)
                if size is None:
                    self._found[value].keep_whole()
                if value.name in state:
                    self._state.add(value)
        for node in graph:
            read = [value for value in node.inputs if value is not None and value in self._found]
            if read:
                self._follow(node, read)
                if not self._state.isdisjoint(read):
                    self._state.update(node.outputs)

    def of(self, value: ir.Value) -> Layout | None:
        """None for what is no element of a parameter, a gradient or a slot: it is computed whole on every rank."""
        found = self._found.get(value)
        return None if found is None else found.root()

    def _follow(self, node: ir.Node, read: list[ir.Value]) -> None:
        made = None
        if has(node.op_type, "keeps_order") and read[0] is node.inputs[0]:
            made = [self._found[read[0]]]
        elif has(node.op_type, "by_element"):
            made = self._by_element(node, read)
        elif _along_first(node) and node.op_type == "Concat" and read == list(node.inputs):
            layouts = [self._found[value] for value in read]
            made = [Layout(sum(layout.size for layout in layouts), layouts)]
        elif _along_first(node) and node.op_type == "Split" and read == [node.inputs[0]]:
            made = self._split(node, self._found[read[0]])
        if made is None:  # it reads elements together: of gradients it can, of which every rank has all
            for value in read:
                if value in self._state or any(_size(output) != 1 for output in node.outputs):
                    self._found[value].keep_whole()
            return
        self._found.update(zip(node.outputs, made, strict=True))

    def _by_element(self, node: ir.Node, read: list[ir.Value]) -> list[Layout] | None:
        first = self._found[read[0]]
        others = [value for value in node.inputs if value is not None and value not in self._found]
        if any(_size(value) != 1 for value in others) or len(node.outputs) != 1:
            return None
        for value in read[1:]:
            first.join(self._found[value])
        return [first]

    def _split(self, node: ir.Node, whole: Layout) -> list[Layout] | None:
        sizes = [_size(output) for output in node.outputs]
        known = [size for size in sizes if size is not None]
        if len(known) != len(sizes):
            return None
        made = [Layout(size) for size in known]
        whole.join(Layout(sum(known), made))
        return made


def _along_first(node: ir.Node) -> bool:
    """Whether it joins or parts vectors."""
    values = [*node.outputs, node.inputs[0]]
    flat = all(value is not None and value.shape is not None and len(value.shape) == 1 for value in values)
    return flat and node.attributes.get_int("axis", 0) in (0, -1)


def _size(value: ir.Value) -> int | None:
    """None where it is not known."""
    if value.const_value is not None:
        return value.const_value.size
    sizes = [dim for dim in value.shape or () if isinstance(dim, int)]
    return math.prod(sizes) if value.shape is not None and len(sizes) == len(value.shape) else None
