"""Removes given casts that do nothing any more: of a value that is low now, or read by nobody now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.dataflow import Dataflow, Op
from ..core.pass_ import Change
from ..oplists.traits import has


@dataclass(frozen=True)
class FuseCasts:
    """``low``: the type whose casts are looked at. A rounding in the file (float32 to low to float32) stays."""

    low: str = "float16"

    def __call__(self, editor: Any, before: Dataflow) -> Change:
        casts = [op for op in before.ops if has(op.role, "casts") and editor.edits(op.scope)]
        return Change(sum(self._fuse(editor, before, op) for op in casts))

    def _fuse(self, editor: Any, before: Dataflow, op: Op) -> bool:
        source, target = before.values[op.inputs[0]], before.values[op.outputs[0]]
        if source.dtype == "float32" and target.dtype == self.low:
            return editor.reads(op) == self.low and editor.bypass(op)
        return target.low_source >= 0 and bool(before.uses[target.id]) and editor.drop_unread(op)
