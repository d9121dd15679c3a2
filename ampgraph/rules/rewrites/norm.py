"""A norm in simple operators as its standard operator, which keeps float32 inside on low data and needs no Cast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Shape, Value
from ...core.graph import Attribute, NodeEditor
from ...oplists.pattern_files import oldest_rewrite
from ...oplists.patterns import Region
from ..fusions import is_fused, norm_axis, regions, whole
from ..known import Known, named_ops
from ..rewrite import RewriteRule, in_function


@dataclass(frozen=True)
class Norm(RewriteRule):
    """``operator``: the standard one, of the values ``source``, ``scale`` and, if there is one, ``bias``, over one
    ``axis`` that is counted from the end. Over another axis than the last it stands between two Transposes."""

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
        """Norms that would be low, or that a runtime would fuse with a Cast."""
        flow = known.flow
        for region in regions(flow) if flow.opset >= oldest_rewrite() else ():
            axis = norm_axis(flow, region) if _wanted(known, region) else None
            if axis is None or not _may_go(known, region, axis):
                continue
            stored = [flow.values[v].name if v != NONE else "" for v in (region.scale, region.bias)]
            name, source = "norm" if axis == -1 else "channels", flow.values[region.source].name
            place = cls.place(flow, *whole(region))
            yield cls(name, *place, region.kind, source, stored[0], stored[1], axis, region.epsilon)

    def rescaled(self, flow: Dataflow, exponents: Mapping[int, int]) -> Norm | None:
        """This rewrite where its source is held as 2^-e of itself: its epsilon times 4^-e. None where the source is not
        scaled, or the result is too."""
        ops = self.ops(flow)
        found = {
            exponents.get(v, 0) for op in ops for v in op.inputs if v != NONE and flow.values[v].name == self.source
        }
        exponent = found.pop() if len(found) == 1 else 0
        inner = exponent and not any(exponents.get(v) for v in ops[-1].outputs)
        return replace(self, epsilon=self.epsilon * 4.0**-exponent) if inner else None

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Norm:
        """The rewrite that a row of plan format 1 means, whose inputs were source, scale and bias."""
        source, scale, bias = [*row["inputs"], ""][:3]
        return cls(name, scope, nodes, row["kind"], source, scale, bias, row["axis"], row["epsilon"])

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """The standard operator in the place of the region, between two Transposes unless the axis is the last."""
        ops, (data, *stored) = self.edited(editor), self.operands(editor, flow)
        attributes: dict[str, Attribute] = {"axis": -1, "epsilon": float(self.epsilon), "stash_type": 1}
        by_name = {value.name: value for value in stored}
        known = {name: _as_row(value, ops, editor, flow) for name, value in by_name.items()}
        rows = [known[value.name] for value in stored]
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
    """A stored tensor without its dimensions of size one, as the operators read it from now on."""
    if len(flow.shape(value.id) or ()) == 1:
        return value
    (row,) = editor.add("Squeeze", [value], [FLOAT32], scope=readers[-1].scope, behind=readers[0])
    path = flow.scopes[readers[-1].scope].path
    uses = [(path, op.index, place) for op in readers for place, v in enumerate(op.inputs) if v == value.id]
    editor.rewire(row, uses)
    return row


def _wanted(known: Known, region: Region) -> bool:
    """Rewrite `norm`: whether something is won by the operator: it keeps float32 inside, all norms are low, or a
    runtime would take a Cast along in its own fusion."""
    flow, options = known.flow, known.options
    if not region.fixed or not 0 < region.since <= flow.opset or region.scale == NONE:
        return False
    listing = options.lists.of(region.kind)
    trusted = options.level.trusts_kernels(listing.cls if listing else "")
    inside = trusted and region.kind in options.kernels.float32_inside
    dear = is_fused(flow, options, region)
    takes_low = options.kernels.admits(region.kind, region.since, "T", options.dtype) is not False
    return (inside or options.level.fp32 == "low" or dear) and (takes_low or dear)


def _may_go(known: Known, region: Region, axis: int) -> bool:
    """Rewrite `norm`: whether nobody else speaks of or reads what is inside, and what is stored lies along the axis."""
    flow, ids = known.flow, {op.id for op in region.ops}
    if in_function(flow, region.result) or any(op.id in named_ops(known) for op in region.ops):
        return False
    inner = (v for op in region.ops if op is not region.result for v in op.outputs)
    private = all(use.op in ids for v in inner for use in flow.uses[v])
    shape, stored = flow.shape(region.source), [v for v in (region.scale, region.bias) if v != NONE]
    one_scope = all(op.scope == region.result.scope for op in region.ops)
    return private and one_scope and bool(shape) and all(_is_along(flow, v, axis, shape or ()) for v in stored)


def _is_along(flow: Dataflow, value: int, axis: int, shape: Shape) -> bool:
    """Rewrite `norm`: whether a stored tensor has a number a place of an axis, counted from the end, one for others."""
    own = flow.shape(value) or ()
    return -axis <= len(own) <= len(shape) and own[axis] == shape[axis] == flow.weights.size(flow.values[value])
