"""State that a step makes anew beside its parameters, as running statistics: checked and kept as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..gradients.builder import Builder
from .state_tensors import StateBuilder
from .vectors import apart, dims, joined

Value = ir.Value


class RunningState:
    """``numbers``: float32 values that must all be finite."""

    def __init__(self, b: Builder, running: Sequence[tuple[Value, Value]], skips: bool) -> None:
        """``running``: state and its next value. ``skips``: whether a step may leave it as it is."""
        vectors = {old: new for old, new in running if old.dtype == ir.DataType.FLOAT and len(dims(old)) == 1}
        self.vectors = vectors if skips and len(vectors) > 1 else {}
        self.others = {old: new for old, new in running if old not in self.vectors}
        self._new = joined(b, list(self.vectors.values())) if self.vectors else None
        self.numbers = [new for old, new in self.others.items() if old.dtype == ir.DataType.FLOAT]
        self.numbers += [self._new] if self._new is not None else []

    def commit(self, states: StateBuilder, holds: Value | None) -> None:
        """The next values, or the old ones where ``holds`` is false."""
        states.commit(self.others, when=holds)
        if self._new is not None:
            olds, b = list(self.vectors), states.builder
            chosen = b.op("Where", holds, self._new, joined(b, olds))
            states.commit(dict(zip(olds, apart(b, chosen, olds), strict=True)))
