"""A norm in simple operators as its standard operator, which keeps float32 inside on low data and needs no Cast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Shape, Value
from ...core.graph import Attribute, NodeEditor
from ...oplists.pattern_files import oldest_rewrite
from ...oplists.patterns import Region
from ..fusions import in_file_order, is_fused, norm_axis, regions
from ..known import Known, named_ops
from ..rewrite import RewriteRule, in_function


@dataclass(frozen=True)
class Norm(RewriteRule):
    """Writes a norm as its standard ``operator`` of the values ``source``, ``scale`` and ``bias`` ("": none), by name,
    over one ``axis``, counted from the end; over another than -1 between two Transposes, and is called `channels`."""

    operator: str
    source: str
    scale: str
    bias: str
    axis: int
    epsilon: float

    names = ("norm", "channels")
    reading = ("source", "scale", "bias")
    optional = ("bias",)

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return self.operator

    @classmethod
    def find(cls, known: Known) -> Iterator[Norm]:
        """Yields the norms that would be low, or that a runtime would fuse with a Cast."""
        flow = known.flow
        for region in regions(flow) if flow.opset >= oldest_rewrite() else ():
            axis = norm_axis(flow, region) if _is_worth_it(known, region) else None
            if axis is None or not _can_be_replaced(known, region, axis):
                continue
            stored = [flow.values[v].name if v != NONE else "" for v in (region.scale, region.bias)]
            name, source = "norm" if axis == -1 else "channels", flow.values[region.source].name
            place = cls.place(flow, *in_file_order(region))
            yield cls(name, *place, region.kind, source, stored[0], stored[1], axis, region.epsilon)

    def rescaled(self, flow: Dataflow, exponents: Mapping[int, int]) -> Norm | None:
        """This rewrite where its source is held as 2^-e of itself: its epsilon times 4^-e. None where the source is not
        scaled, or the result is too. ``exponents``: value -> e."""
        ops = self.ops(flow)
        read = [v for op in ops for v in op.inputs if v != NONE and flow.values[v].name == self.source]
        found = {exponents.get(v, 0) for v in read}
        exponent = found.pop() if len(found) == 1 else 0
        if not exponent or any(exponents.get(v) for v in ops[-1].outputs):
            return None
        return replace(self, epsilon=self.epsilon * 4.0**-exponent)

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Norm:
        """The rewrite that a row of plan format 1 means, whose inputs were source, scale and bias."""
        source, scale, bias = [*row["inputs"], ""][:3]
        return cls(name, scope, nodes, row["kind"], source, scale, bias, row["axis"], row["epsilon"])

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes the standard operator in the place of the region, between two Transposes unless the axis is the last.
        Stored tensors with further dimensions of size one are squeezed."""
        ops, (data, *stored) = self.edited(editor), self.operands(editor, flow)
        attributes: dict[str, Attribute] = {"axis": -1, "epsilon": float(self.epsilon), "stash_type": 1}
        by_name = {value.name: value for value in stored}
        squeezed = {name: _as_row(value, ops, editor, flow) for name, value in by_name.items()}
        rows = [squeezed[value.name] for value in stored]
        if self.axis == -1:
            editor.replace(self.scope, self.nodes, self.operator, (data.name, *(row.name for row in rows)), attributes)
            return
        places = range(len(flow.shape(data.id) or ()))
        order = sorted(places, key=lambda place: place == len(places) + self.axis)
        (moved,) = editor.add("Transpose", [data], [FLOAT32], {"perm": order}, scope=ops[-1].scope)
        (normal,) = editor.add(self.operator, [moved, *rows], [FLOAT32], attributes, scope=ops[-1].scope)
        editor.rewire(normal, [(self.scope, self.nodes[-1], 0)])
        back = {"perm": [order.index(place) for place in places]}
        editor.replace(self.scope, self.nodes, "Transpose", (normal.name,), back)


def _as_row(value: Value, readers: Sequence[Op], editor: NodeEditor, flow: Dataflow) -> Value:
    """Rewrite `norm`: a stored tensor without dimensions of size one, by a Squeeze, as ``readers`` read it then."""
    if len(flow.shape(value.id) or ()) == 1:
        return value
    (row,) = editor.add("Squeeze", [value], [FLOAT32], scope=readers[-1].scope, behind=readers[0])
    path = flow.scopes[readers[-1].scope].path
    uses = [(path, op.index, place) for op in readers for place, v in enumerate(op.inputs) if v == value.id]
    editor.rewire(row, uses)
    return row


def _is_worth_it(known: Known, region: Region) -> bool:
    """Rewrite `norm`: whether something is won by the operator: it keeps float32 inside, all norms are low, or a
    runtime would take a Cast along in its own fusion."""
    flow, options = known.flow, known.options
    if not region.fixed or not 0 < region.since <= flow.opset or region.scale == NONE:
        return False
    listing = options.lists.entry(region.kind)
    trusted = options.level.trusts_kernels(listing.cls if listing else "")
    if is_fused(flow, options, region):
        return True
    inside = trusted and region.kind in options.kernels.float32_inside
    takes_low = options.kernels.admits(region.kind, region.since, "T", options.dtype) is not False
    return takes_low and (inside or options.level.lowers_everything)


def _can_be_replaced(known: Known, region: Region, axis: int) -> bool:
    """Rewrite `norm`: whether no pattern of the user's names a node of the region and nobody else reads what is inside,
    all is in one scope and in no function, and what is stored lies along the axis."""
    flow, ids = known.flow, {op.id for op in region.ops}
    if in_function(flow, region.result) or any(op.id in named_ops(known) for op in region.ops):
        return False
    inner = (v for op in region.ops if op is not region.result for v in op.outputs)
    private = all(use.op in ids for v in inner for use in flow.uses[v])
    shape, stored = flow.shape(region.source), [v for v in (region.scale, region.bias) if v != NONE]
    one_scope = all(op.scope == region.result.scope for op in region.ops)
    return private and one_scope and bool(shape) and all(_is_along(flow, v, axis, shape or ()) for v in stored)


def _is_along(flow: Dataflow, value: int, axis: int, shape: Shape) -> bool:
    """Rewrite `norm`: whether a stored tensor has one number for each place of an axis, the same along others."""
    own = flow.shape(value) or ()
    return -axis <= len(own) <= len(shape) and own[axis] == shape[axis] == flow.weights.size(flow.values[value])
