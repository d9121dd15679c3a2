"""For what shapes trtexec builds an engine of a model with open dimensions, in its own words."""

from __future__ import annotations

from ..core.dataflow import Dataflow
from ..oplists.options import Options

FLAGS = {"--minShapes": "least", "--optShapes": "", "--maxShapes": "largest"}
"""The flag -> which of the sizes that --dim says it takes."""


def shape_words(flow: Dataflow, options: Options) -> str:
    """What to tell trtexec of the inputs' open dimensions: as --dim says them, else as costs guess them; empty where
    none is open."""
    from ..planner.facts.sizes import OpenSizes  # a plan is applied where there is no planner

    inputs = [v for v in (flow.scopes[0].inputs if flow.scopes else ()) if _open_dims(flow, v)]
    if not inputs:
        return ""
    found = {}
    for flag, which in FLAGS.items():
        sizes = OpenSizes(flow, {name: getattr(n, which, n) for name, n in options.dims.items()}, options.lists.traits)
        found[flag] = ",".join(f"{flow.values[v].name}:{'x'.join(map(str, sizes.dims(v)))}" for v in inputs)
    if len(set(found.values())) > 1:
        return "trtexec " + " ".join(f"{flag}={shapes}" for flag, shapes in found.items())
    names = sorted({str(dim) for v in inputs for dim in _open_dims(flow, v) if dim})
    more = f"; --dim {names[0]}=1:8:32 would make it a range" if names else ""
    return f"trtexec --optShapes={found['--optShapes']} for these sizes alone{more}"


def _open_dims(flow: Dataflow, value: int) -> list[object]:
    """The dimensions of a value that the file leaves open."""
    return [dim for dim in flow.shape(value) or () if not isinstance(dim, int) or dim < 0]
