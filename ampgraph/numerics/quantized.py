"""Which quantized parts of a model a conversion has left as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.json_types import JsonObject
from ..core.shown import Data, with_old_names
from ..oplists.traits import has

SHOWN = 5  # of the changed ones


class Signature(NamedTuple):
    """What two models must have alike of a quantized part. ``sources``: of each operand, the kind of what makes it
    ("stored" for nothing) and its type; ``results``: types of the results that are not float32, which a conversion
    would change; ``readers``: kinds of those that read the results, sorted."""

    kind: str
    sources: tuple[str, ...]
    results: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class QuantizedParts(Data):
    """Which quantized parts of two models are the same: operators between DequantizeLinear and QuantizeLinear, and
    products of integers.

    Attributes:
        unchanged: how many of each kind compute on what they computed on, of the same types and with the same
            neighbours.
        changed: the others, by name.
    """

    unchanged: tuple[tuple[str, int], ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.unchanged or self.changed)

    def __str__(self) -> str:
        kept = ", ".join(f"{count:,} {kind}" for kind, count in self.unchanged) or "none"
        if not self.changed:
            return f"left as they are: {kept}"
        changed = ", ".join(self.changed[:SHOWN]) + (", ..." if len(self.changed) > SHOWN else "")
        return f"changed: {changed}; left as they are: {kept}"

    def to_dict(self) -> JsonObject:
        """The quantized nodes that stayed as they were and those that changed, as plain data for JSON."""
        return with_old_names(self, {"unchanged": dict(self.unchanged), "changed": list(self.changed)})


def quantized_parts(reference: Dataflow, model: Dataflow) -> QuantizedParts:
    """The quantized parts of a reference, and which a model still has; nodes pair by what they write first."""
    ours = {_first_output_name(reference, op): op for op in reference.ops if _is_part(reference, op)}
    theirs = {_first_output_name(model, op): op for op in model.ops if op.outputs}
    kept: Counter[str] = Counter()
    changed = []
    for name, op in ours.items():
        twin = theirs.get(name)
        if twin is not None and _part_signature(model, twin) == _part_signature(reference, op):
            kept[op.kind] += 1
        else:
            changed.append(f"{op.kind} {op.name or name}")
    return QuantizedParts(tuple(kept.most_common()), tuple(changed))


def _is_part(flow: Dataflow, op: Op) -> bool:
    """Quantized parts of two models: whether an operator is quantized, or stands between dequantized and quantized."""
    if has(op.role, "quantized"):
        return not (has(op.role, "dequantizes") or has(op.role, "quantizes"))
    makers = [flow.writer(v) for v in op.inputs if v != NONE]
    readers = [use for v in op.outputs if v != NONE for use in flow.uses[v]]
    read = any(maker is not None and has(maker.role, "dequantizes") for maker in makers)
    return read and any(use.op != NONE and has(flow.ops[use.op].role, "quantizes") for use in readers)


def _first_output_name(flow: Dataflow, op: Op) -> str:
    """By what two models' operators are paired: the name of the first output."""
    return next((flow.values[v].name for v in op.outputs if v != NONE), op.name)


def _part_signature(flow: Dataflow, op: Op) -> Signature:
    """What two models must have alike of a quantized part."""
    given = [flow.values[v] for v in op.inputs if v != NONE]
    makers = [flow.writer(v.id) for v in given]
    sources = tuple(f"{m.kind if m else 'stored'} {v.dtype}" for m, v in zip(makers, given, strict=True))
    results = [v for v in op.outputs if v != NONE]
    types = tuple(flow.values[v].dtype for v in results if flow.values[v].dtype != FLOAT32)
    readers = sorted(flow.ops[use.op].kind for v in results for use in flow.uses[v] if use.op != NONE)
    return Signature(op.kind, sources, types, tuple(readers))
