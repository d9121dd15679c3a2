"""Whether a low value comes so close to the end of float16 that real inputs may pass it."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow
from ..core.low_types import low_type
from ..numerics.inputs.samples import Samples
from ..numerics.ranges.calibrate import measured_ranges
from ..oplists.traits import has
from .pairs import OnnxPair

MEASURED = 12  # samples of which every value is looked at
NEAR = 4  # generated inputs that come so close to the end of the type say that real ones may pass it


def near_the_limit(pair: OnnxPair, drawn: Samples, seconds: float) -> str:
    """The low value that comes closest to the end of float16, where real inputs may pass it; empty if none is near.

    ``seconds``: when to begin with no sample more. Negative numbers count where a
    product makes them: elsewhere masks are large ones.
    """
    ranges = measured_ranges(pair.source, drawn.within(MEASURED, seconds))
    kept, end = _held_low(pair.result.dataflow()), low_type("float16").largest
    known = {name: ranges.values[name] for name in kept if name in ranges.values}
    size = {name: max(found.high, -found.low if kept[name] else 0.0) for name, found in known.items()}
    name = max((name for name in size if size[name] < end), key=lambda name: size[name], default="")
    if not name or size[name] * NEAR <= end:
        return ""
    plural = "s" * (ranges.samples != 1)
    return f"'{name}' reaches {size[name]:,.0f} of {end:,.0f} on {ranges.samples} generated input{plural}"


def _held_low(flow: Dataflow) -> dict[str, bool]:
    """The names of float16 values, and of what a Cast makes of one: an output has its name behind it. True for what a
    product makes."""
    low = {
        value.id: has(flow.ops[value.producer].role, "products") if value.producer != NONE else False
        for value in flow.values
        if value.dtype == "float16"
    }
    low |= {
        v: low[op.inputs[0]] for op in flow.ops if has(op.role, "casts") and op.inputs[0] in low for v in op.outputs
    }
    return {flow.values[v].name: made for v, made in low.items()}
