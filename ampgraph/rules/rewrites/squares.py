"""The cube in a GELU by tanh as x * (1 + c * x * x), where the target makes one kernel of that alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose

from ...core.dataflow import FLOAT32, NONE, Dataflow, Value
from ...core.graph import NodeEditor
from ...oplists.patterns import Region
from ..fusions import fused_regions, is_closed, is_split, whole
from ..known import Known, touched
from ..rewrite import RewriteRule

CUBED = {"tanh": "tanh of squares"}
"""Variants of a pattern that can be written as another one, which has the same numbers."""
CUBE = 3
NUMBERS = (0.044715, 0.7978845608, 1.0, 0.5)
"""Of a GELU by tanh: the cube's factor, the sum's, one and half."""


@dataclass(frozen=True)
class GeluOfSquares(RewriteRule):
    """source * half * (one + tanh(source * factor * (one + source * cubic * source))): ``cubic``, ``factor``, ``one``
    and ``half`` are stored numbers of the region."""

    source: str
    cubic: str
    factor: str
    one: str
    half: str

    names = ("squares",)
    reading = ("source", "cubic", "factor", "one", "half")
    writes = "Gelu by tanh, of squares"
    rewires = True

    @classmethod
    def find(cls, known: Known) -> Iterator[GeluOfSquares]:
        flow = known.flow
        for region in fused_regions(known):
            if region.source == NONE or not _is_better(known, region) or len({op.scope for op in region.ops}) > 1:
                continue
            numbers = [_number(flow, region, number) for number in NUMBERS]
            if NONE not in numbers:
                source, cubic, factor, one, half = (flow.values[v].name for v in (region.source, *numbers))
                yield cls("squares", *cls.place(flow, *whole(region)), source, cubic, factor, one, half)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """By new operators but for the last one."""
        ops, (x, cubic, factor, one, half) = self.edited(editor), self.operands(editor, flow)

        def new(kind: str, *given: Value) -> Value:
            (result,) = editor.add(kind, given, [FLOAT32], scope=ops[-1].scope, name=f"{x.name}_{kind}")
            return result

        cube = new("Mul", new("Mul", x, factor), new("Add", new("Mul", new("Mul", x, cubic), x), one))
        for place, value in enumerate((new("Mul", x, half), new("Add", new("Tanh", cube), one))):
            editor.give(value, [(self.scope, self.nodes[-1], place)])
        for op in reversed(ops[:-1]):
            editor.remove(op)


def _is_better(known: Known, region: Region) -> bool:
    """Whether the target knows a GELU in the other form: it stays float32, or reads or makes what does, or has no power
    of 3."""
    flow, options = known.flow, known.options
    fused, other = options.kernels.fuses[region.kind], CUBED.get(region.variant, "")
    if other not in fused.wide_variants or not is_closed(flow, region):
        return False
    ops = touched(known, (*options.fp32, *options.pinned))
    values = {*known.passing, *(v for op in ops for v in flow.ops[op].outputs)}
    listing = options.lists.of(region.kind)
    wide = listing is not None and options.level.of(listing.cls) == "float32"
    wide = wide or any(v in values for op in region.ops for v in (*op.inputs, *op.outputs))
    split = is_split(flow, options, region)
    by_power = split or any(flow.scalar(v) == CUBE for op in region.ops for v in op.inputs if v != NONE)
    return wide or not by_power or (split and options.level.kept != "low")


def _number(flow: Dataflow, region: Region, number: float) -> int:
    """What a region reads a number from."""
    read = (v for op in region.ops for v in op.inputs if v != NONE)
    return next((v for v in read if isclose(flow.scalar(v) or 0.0, number, rel_tol=1e-4)), NONE)
