"""A GELU halves its product last or first, where the target makes one kernel of that: that is exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.dataflow import NONE, Dataflow
from ...core.graph import NodeEditor
from ...core.pass_ import foreign
from ...oplists.patterns import Region
from ..fusions import Inside, fused_regions
from ..known import Known
from ..rewrite import RewriteRule


@dataclass(frozen=True)
class Half(RewriteRule):
    """The inner and the outer product exchange an operand, ``of_inner`` and ``of_outer``: x * (y * half) becomes
    half * (y * x), and half * x behind or in front of y becomes (half * x) * y."""

    of_inner: str
    of_outer: str
    last: bool

    names = ("half",)
    reading = ("of_inner", "of_outer")
    rewires = exchanges = True

    @property
    def writes(self) -> str:
        return f"x * y, halved {'last' if self.last else 'first'}"

    @classmethod
    def find(cls, known: Known) -> Iterator[Half]:
        options = known.options
        for region in fused_regions(known):
            fused = options.kernels.fuses[region.kind]
            if fused.quotient and "quotient" in options.rewrites:
                continue
            if fused.half_last and {op.role for op in region.ops if op.slots} <= fused.operators:
                yield from cls._found(known, region, last=True)
            elif region.variant in fused.half_first and options.dtype not in fused.float32_alone:
                yield from cls._found(known, region, last=False)

    @classmethod
    def _found(cls, known: Known, region: Region, last: bool) -> Iterator[Half]:
        """Of a GELU that multiplies by half a sum, or its sum by half the data."""
        flow, inside, outer = known.flow, Inside(known, region), region.result
        for value, other in (outer.inputs, outer.inputs[::-1]) if inside.multiplies(outer) else ():
            inner = inside.only_for(value, outer)
            if inner is None or other == NONE or not inside.multiplies(inner):
                continue
            sums = [v for v in inner.inputs if inside.is_sum(v)]
            halves = [v for v in inner.inputs if v != NONE and flow.scalar(v) == 0.5]
            if last:
                first = next((v for v in inner.inputs if v not in halves), NONE)
                given = halves[0] if len(halves) == 1 and first in sums and flow.scalar(other) is None else NONE
            else:
                given = sums[0] if len(sums) == 1 else NONE
            if given != NONE:
                names = (flow.values[given].name, flow.values[other].name)
                yield cls("half", *cls.place(flow, inner, outer), *names, last)
                return

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Half:
        inner, outer = row["inputs"]
        return cls(name, scope, nodes, inner, outer, row["kind"].endswith("last"))

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """The inner product reads what the outer one read, and the other way round."""
        ops = self.edited(editor)
        self.operands(editor, flow)
        read = []
        for op, name in zip(ops, self.reads, strict=True):
            places = [(place, v) for place, v in enumerate(op.inputs) if v != NONE and flow.values[v].name == name]
            if not places:
                raise foreign(f"makes {self.writes} read '{name}'", "does not read there")
            read.append(places[0])
        for op, (place, _), (_, value) in zip(ops, read, reversed(read), strict=True):
            editor.give(flow.values[value], [(self.scope, op.index, place)])
        # whoever compares values by name compares what they hold
        editor.rename(flow.values[ops[0].outputs[0]], "doubled" if self.last else "halved")
