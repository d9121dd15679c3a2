"""A norm that multiplies by an inverse divides, where the target makes one kernel of that: one rounding less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.dataflow import NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ..fusions import Inside, fused_regions
from ..known import Known
from ..rewrite import RewriteRule


@dataclass(frozen=True)
class Quotient(RewriteRule):
    """``data`` * (1 / ``divisor``) as ``data`` / ``divisor``: the nodes of the inverse and of the product."""

    data: str
    divisor: str

    names = ("quotient",)
    reading = ("data", "divisor")
    writes = "Div"

    @classmethod
    def find(cls, known: Known) -> Iterator[Quotient]:
        flow = known.flow
        for region in fused_regions(known):
            inside, normal = Inside(known, region), region.normal
            if normal is None or not known.options.kernels.fuses[region.kind].quotient or not inside.multiplies(normal):
                continue
            for value, data in (normal.inputs, normal.inputs[::-1]):
                inverse = inside.only_for(value, normal)
                divisor = _inverted(known, inverse) if inverse is not None else NONE
                if inverse is not None and divisor != NONE and data != NONE:
                    names = (flow.values[data].name, flow.values[divisor].name)
                    yield cls("quotient", *cls.place(flow, inverse, normal), *names)
                    break

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        self.operands(editor, flow)
        editor.replace(self.scope, self.nodes, self.writes, self.reads, {})


def _inverted(known: Known, op: Op) -> int:
    """What an operator divides one by."""
    places = known.traits.positions(op.role, "divides")
    ones = all(known.flow.scalar(v) == 1 for place, v in enumerate(op.inputs) if place not in places)
    return op.inputs[places[0]] if places and ones else NONE
