"""A GELU in simple operators as its standard operator, where the target fuses it in float32 alone: one rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.dataflow import NONE, Dataflow
from ...core.graph import NodeEditor
from ...oplists.patterns import Region
from ..fusions import fused_regions, is_split, whole
from ..known import Known
from ..rewrite import RewriteRule

APPROXIMATE = {"erf": "none", "tanh": "tanh", "tanh of squares": "tanh"}
"""By variants of the pattern, the operator's attribute."""


@dataclass(frozen=True)
class Gelu(RewriteRule):
    """Of ``source``, computed as ``approximate`` says."""

    source: str
    approximate: str

    names = ("gelu",)
    reading = ("source",)

    @property
    def writes(self) -> str:
        return "Gelu" if self.approximate == "none" else f"Gelu by {self.approximate}"

    @classmethod
    def find(cls, known: Known) -> Iterator[Gelu]:
        flow = known.flow
        for region in fused_regions(known):
            if region.variant in APPROXIMATE and _may_go(known, region):
                source = flow.values[region.source].name
                yield cls("gelu", *cls.place(flow, *whole(region)), source, APPROXIMATE[region.variant])

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Gelu:
        return cls(name, scope, nodes, row["inputs"][0], "tanh" if row["kind"] == "Gelu by tanh" else "none")

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        self.operands(editor, flow)
        editor.replace(self.scope, self.nodes, "Gelu", (self.source,), {"approximate": self.approximate})


def _may_go(known: Known, region: Region) -> bool:
    """Whether the target knows the operator in the low type, and the region not."""
    flow, options = known.flow, known.options
    if not region.fixed or not 0 < region.since <= flow.opset or region.source == NONE:
        return False
    admits = options.kernels.admits(region.kind, flow.opset, "T", options.dtype)
    return bool(admits) and is_split(flow, options, region) and len({op.scope for op in region.ops}) == 1
