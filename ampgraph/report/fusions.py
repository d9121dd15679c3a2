"""What a target's ONNX Runtime makes of a model, before and after: fused operators, placement, copies, Casts left."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ..core.json_types import JsonObject
from ..runtime.devices import import_onnxruntime
from ..runtime.optimizing import NotOptimized, optimized

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from ..runtime.optimized import Optimized, OptimizedNode

Runnable: TypeAlias = "str | ir.Model"
"""What ONNX Runtime is given to load: a path, or a model to serialize."""
OTHER_RUNTIME = "`--runtime PYTHON` names an environment that has it"


@dataclass(frozen=True)
class TargetGraph:
    """The optimised graph of one model, as counts. ``providers``: who runs the nodes; ``copies``: Memcpys."""

    nodes: int
    providers: dict[str, int]
    copies: dict[str, int]
    casts: dict[str, int]
    fused: dict[str, int]

    @staticmethod
    def of(found: Optimized) -> TargetGraph:
        """The counts of a graph."""
        counts = (found.providers(), found.copied(), found.cast(), found.fused())
        return TargetGraph(len(found.nodes), *(dict(sorted(count.items())) for count in counts))

    def rows(self) -> dict[tuple[str, str], int]:
        """(what is counted, kind) -> count, in the order of a report."""
        parts = {"run by": self.providers, "copies": self.copies, "casts": self.casts, "fused": self.fused}
        counts = {(title, kind): count for title, part in parts.items() for kind, count in part.items()}
        return {("nodes", ""): self.nodes, **counts}


@dataclass(frozen=True)
class Fusions:
    """What a target's runtime makes of the model and of its original; None where that cannot be told, ``note`` why.

    ``nodes``: those that it would run of the model, which the page shows and JSON leaves out."""

    runtime: str = ""
    provider: str = ""
    after: TargetGraph | None = None
    before: TargetGraph | None = None
    note: str = ""
    nodes: tuple[OptimizedNode, ...] = ()

    @property
    def device(self) -> str:
        """The provider's name, short: `CUDA`, `CPU`."""
        return self.provider.removesuffix("ExecutionProvider")

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        found: JsonObject = asdict(replace(self, nodes=()))
        del found["nodes"]
        return found


def fused_operators(model: Runnable, original: Runnable | None, provider: str, python: str = "") -> Fusions:
    """Both models as ``provider`` would run them, by the onnxruntime of the interpreter ``python``, or of this one.

    Raises AmpError AMP508 for an interpreter that cannot be started.
    """
    missing = "" if python else _missing(provider)
    if missing:
        return Fusions(provider=provider, note=missing)
    notes: list[str] = []
    after = _optimized(model, provider, python, notes)
    before = _optimized(original, provider, python, notes) if original is not None else None
    known = after or before
    return Fusions(
        runtime=known.runtime if known else "",
        provider=provider,
        after=TargetGraph.of(after) if after else None,
        before=TargetGraph.of(before) if before else None,
        note="; ".join(dict.fromkeys(notes)),
        nodes=after.nodes if after else (),
    )


def _missing(provider: str) -> str:
    """Why this process's onnxruntime cannot tell, or an empty string."""
    from ..core.errors import AmpError

    try:
        runtime = import_onnxruntime()
    except AmpError:
        return f"onnxruntime is not installed; {OTHER_RUNTIME}"
    if provider in runtime.get_available_providers():
        return ""
    return f"onnxruntime {runtime.__version__} here has no {provider}; {OTHER_RUNTIME}"


def _optimized(model: Runnable, provider: str, python: str, notes: list[str]) -> Optimized | None:
    try:
        if isinstance(model, str):
            return optimized(model, provider, python=python)
        proto, folder = _serialized(model)
        return optimized(proto, provider, python=python, folder=folder)
    except NotOptimized as why:
        notes.append(str(why) if why.elsewhere else f"ONNX Runtime does not take {_name(model)}: {why}")
        return None


def _serialized(model: ir.Model) -> tuple[onnx.ModelProto, str]:
    """The model as a message, and the folder in which its external data lies."""
    import onnx_ir

    values = (value.const_value for value in model.graph.initializers.values())
    outside = (tensor for tensor in values if isinstance(tensor, onnx_ir.ExternalTensor))
    folder = next((os.fspath(tensor.base_dir) for tensor in outside), "")
    return onnx_ir.to_proto(model), folder


def _name(model: Runnable) -> str:
    return os.path.basename(model) if isinstance(model, str) else "the model"
