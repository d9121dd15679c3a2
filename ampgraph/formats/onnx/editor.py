"""Edits an ONNX model in place, by handles of its dataflow. New names are unique in every scope, and repeatable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import Attribute, UseKey
from ...core.pass_ import foreign
from . import norm_tensors
from .casts import Casts, copy_layer
from .handles import Handles
from .named_types import name_type
from .placing import Placing
from .readers import Readers
from .slots import FOLLOWS_INPUT
from .stored import change_weight, drop_constant
from .types import DTYPES, attributes_of, with_element
from .variants import Variants

if TYPE_CHECKING:
    from typing_extensions import Self


class OnnxEditor:
    """The verbs of `core.graph.NodeEditor`. ``done``: called behind the last edit, if there was one."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants, done: Callable[[], None]) -> None:
        self.flow, self._done, self._edited = flow, done, variants.copied
        self.handles = Handles(model, flow, variants)
        self._placing, self._readers = Placing(self.handles), Readers(self.handles)
        self._casts = Casts(self.handles, self._placing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._edited:
            self._done()

    def edits(self, scope: int) -> bool:
        """Whether edits of a scope are made through it: of calls that share a function, one does it for all."""
        return self.handles.edits(scope)

    def op(self, scope: str, index: int) -> Op | None:
        """The operator at a place, or None."""
        return self.handles.op(scope, index)

    # -- types ------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """The value now has this element type; attributes that name the type of its operator's output follow."""
        self._edited = True
        native = self.handles.value(value)
        self.handles.note_type(native, dtype)
        if native.producer() is not None or self.flow.scopes[value.scope].kind != "function":
            native.type = with_element(native.type, DTYPES[dtype], value.container)  # a formal has none in a file
        if value.producer != NONE:
            name_type(self.handles, self.flow, self.flow.ops[value.producer], dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """Pins an output type that would otherwise follow an input that changes."""
        if op.kind in FOLLOWS_INPUT:
            self._edited = True
            name_type(self.handles, self.flow, op, dtype, pin=True)

    # -- values -----------------------------------------------------------------------------------------------------

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast in the value's own scope, or a given one."""
        self._edited = True
        result = self._casts.of(value, to)
        self.handles.note_type(result, to)
        self._readers.give(result, uses)

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        self._edited = True
        low = self._casts.of(value, dtype)
        self._readers.give(self._casts.new(value, low, FLOAT32), uses)

    def weight(
        self,
        value: Value,
        store: str,
        dtype: str,
        uses: Iterable[UseKey],
        floor: float | None = None,
        factor: float = 1.0,
    ) -> None:
        """Changes a stored tensor. See `Editor.weight`."""
        self._edited = True
        copy = change_weight(self.handles, value, store, dtype, floor, factor)
        if copy is not None:
            self._readers.give(copy, uses)

    def round_together(self, op: Op, dtype: str) -> bool:
        """Rounds the parameters of a norm again, so that their errors cancel. See `Editor.round_together`."""
        self._edited = True
        return norm_tensors.round_together(self.handles.node(op), dtype)

    def give(self, value: Value, uses: Iterable[UseKey]) -> None:
        """``value`` is read at the given uses, in the place of what was read there."""
        self._edited = True
        self._readers.give(self.handles.value(value), uses)

    def rename(self, value: Value, ending: str) -> None:
        """A value that holds other numbers now has a name of its own. See `NodeEditor.rename`."""
        self._edited = True
        self.handles.value(value).name = self.handles.fresh(f"{value.name}_{ending}")

    def expose(self, value: Value) -> str:
        """Makes a value of the main graph an output of the model; the name under which it comes out."""
        self._edited = True
        return self._readers.expose(value)

    # -- operators --------------------------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        dtypes: Sequence[str | Value],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        scope: int = NONE,
        behind: Op | Value | None = None,
        name: str = "",
        node: str = "",
        of: Op | None = None,
        shaped: bool = False,
    ) -> list[Value]:
        """Puts an operator behind all that it reads, and behind ``behind``; its results. See `NodeEditor.add`."""
        self._edited = True
        scope = next(value.scope for value in inputs if value is not None) if scope == NONE else scope
        reads = [None if value is None else self.handles.value(value) for value in inputs]
        domain, _, op_type = kind.rpartition("::")
        name = name or f"{next((value.name for value in inputs if value is not None), 'made')}_{op_type}"
        new = ir.Node(domain, op_type, reads, attributes_of(attributes or {}), num_outputs=len(dtypes))
        new.name = self.handles.fresh(node or f"{name}_node")
        if of is not None:
            new.metadata_props.update(self.handles.node(of).metadata_props)
        makers = [producer for value in reads if value is not None and (producer := value.producer()) is not None]
        self._placing.behind(scope, self._placing.last(scope, [*makers, *self._maker(behind)]), new)
        results = []
        for result, dtype in zip(new.outputs, dtypes, strict=True):
            result.name = self.handles.fresh(name)
            if isinstance(dtype, Value):
                like, dtype = self.handles.value(dtype), dtype.dtype
                result.type, result.shape = like.type, like.shape if shaped else None
            else:
                result.type = ir.TensorType(DTYPES[dtype]) if dtype else None
            results.append(self.handles.handle(result, scope, dtype))
        return results

    def _maker(self, of: Op | Value | None) -> list[ir.Node]:
        """The node that an operator or a maker of a value is."""
        if isinstance(of, Value):
            made = self.handles.value(of).producer()
            return [] if made is None else [made]
        return [] if of is None else [self.handles.node(of)]

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: Mapping[str, Attribute]
    ) -> None:
        """Puts one operator in the place of several; ``nodes`` ends with the one whose result it takes over.

        Raises AmpError AMP402 where other nodes read what is between them, or they do not read ``inputs``."""
        self._edited = True
        ops = [op for index in nodes if (op := self.handles.op(scope, index)) is not None]
        last, graph = self.handles.node(ops[-1]), self.handles.graph(ops[-1].scope)
        read = (value for op in ops for value in self.handles.node(op).inputs if value is not None)
        known = {value.name: value for value in read}  # as they are now: one may be the result of another replacement
        gone = [self.handles.node(op) for op in reversed(ops)]
        inside = [value for node in gone[1:] for value in node.outputs]
        apart = all(not value.is_graph_output() and {*gone} >= {*value.consumers()} for value in inside)
        if not apart or not known.keys() >= {*inputs}:
            raise foreign(f"writes nodes {[op.index for op in ops]} of scope '{scope}' as one {kind}")
        new = ir.Node("", kind, [known[name] for name in inputs], attributes_of(attributes), num_outputs=1)
        new.name = self.handles.fresh(f"{last.name or last.outputs[0].name}_{kind}")
        copy_layer(last, new)
        old, result = last.outputs[0], new.outputs[0]
        graph.insert_after(last, new)
        self.handles.stand_in(old, result)
        inner = [value for node in gone for value in node.inputs if value is not None]
        graph.remove(gone, safe=True)
        for native in dict.fromkeys(inner):
            drop_constant(native)

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator; its readers read its input. False where a border needs its result."""
        node = self.handles.node(op)
        others = [value for value in node.inputs[1:] if value is not None]
        gone = self._readers.bypass(node, op.scope)
        for native in dict.fromkeys(others) if gone else ():
            drop_constant(native)
        self._edited |= gone
        return gone

    def remove(self, op: Op) -> bool:
        """Removes an operator; False where somebody reads one of its results."""
        node = self.handles.node(op)
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            return False
        self._edited = True
        self.handles.graph(op.scope).remove(node, safe=True)
        return True
