"""Removes casts that do nothing any more: those of the file whose source is low now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dataflow import Dataflow
from ..formats.onnx_weights import IR_TYPES
from .base import Change


@dataclass(frozen=True)
class FuseCasts:
    """``low``: the type whose casts are looked at. A rounding in the file (float32 to low to float32) stays."""

    low: str = "float16"

    def __call__(self, editor: Any, before: Dataflow) -> Change:
        count = 0
        for op in before.ops:
            if op.kind != "Cast" or not editor.variants.leader[op.scope]:
                continue
            node = editor.node(op)
            source, dtype = before.values[op.inputs[0]], node.inputs[0].dtype
            if source.dtype == "float32" and dtype is not None and dtype == node.outputs[0].dtype == IR_TYPES[self.low]:
                editor.bypass(op)
                count += 1
        return Change(count)
