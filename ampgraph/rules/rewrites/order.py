"""A mask by a number as the number by the mask, where the target's runtime fails to read the number behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.dataflow import Dataflow
from ...core.graph import NodeEditor
from ..known import IsLow, Known, named
from ..rewrite import RewriteRule, in_function, is_read_low


@dataclass(frozen=True)
class NumberFirst(RewriteRule):
    """Of a product of two, ``mask`` and ``number``."""

    number: str
    mask: str

    names = ("order",)
    reading = ("number", "mask")
    writes = "number * mask"
    tried = rewires = exchanges = True

    @classmethod
    def find(cls, known: Known) -> Iterator[NumberFirst]:
        flow, broken = known.flow, known.options.kernels.broken
        kinds = {kind for kind, entry in broken.items() if entry.mask_below and known.traits.has(kind, "multiplies")}
        for op in flow.with_roles(kinds):
            if not op.slots or len(op.inputs) != 2 or not known.masks.broken_number(op):
                continue
            if not in_function(flow, op) and flow.scalar(op.inputs[0]) is None and op.id not in named(known):
                mask, number = (flow.values[value].name for value in op.inputs)
                yield cls("order", *cls.place(flow, op), number, mask)

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Where the mask is added low."""
        return is_read_low(known, self.ops(known.flow)[0], is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        for place, value in enumerate(self.operands(editor, flow)):
            editor.give(value, [(self.scope, self.nodes[0], place)])
