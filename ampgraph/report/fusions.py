"""Which fused operators ONNX Runtime still finds: its optimized graph, before and after."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import onnx_ir as ir

Runnable: TypeAlias = "str | ir.Model"
"""What ONNX Runtime is given to load: a path, or a model to serialize."""

SIZE_LIMIT = 2_000_000_000  # bytes: the optimized copy is written in one piece
FUSED_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


@dataclass(frozen=True)
class Fusions:
    """Fused operators by kind in the model, and in the original if there is one; ``note``: why they are not known.

    ``provider``: whose graph was looked at. The CPU provider fuses no node that it has no kernel for, and it has few
    for low types, so what it finds in a low model is less than what CUDA finds.
    """

    runtime: str = ""
    provider: str = ""
    after: dict[str, int] | None = None
    before: dict[str, int] | None = None
    note: str = ""


def fused_operators(model: Runnable, original: Runnable | None = None) -> Fusions:
    """Optimizes both with ONNX Runtime at level EXTENDED, for CUDA where there is one, and counts fused operators."""
    try:
        import onnxruntime
    except ImportError:
        return Fusions(note="onnxruntime is not installed")
    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    notes: list[str] = []
    used: list[str] = []
    after = _count(model, notes, used)
    before = _count(original, notes, used) if original is not None else None
    return Fusions(runtime, used[0] if used else "", after, before, "; ".join(dict.fromkeys(notes)))


def _count(model: Runnable, notes: list[str], used: list[str]) -> dict[str, int] | None:
    """Fused operators of one model; None, and a note, where ONNX Runtime does not get there."""
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        source = _source(model, notes)
        if source is None:
            return None
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            there = onnxruntime.get_available_providers()
            wanted = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in there]
            used.append(onnxruntime.InferenceSession(source, options, providers=wanted).get_providers()[0])
            return _fused(options.optimized_model_filepath)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            message = (str(error).strip().splitlines() or [type(error).__name__])[0]
            notes.append(f"ONNX Runtime does not take {_name(model)}: {message}")
            return None


def _source(model: Runnable, notes: list[str]) -> str | bytes | None:
    if isinstance(model, str):
        size = os.path.getsize(model) + _external_bytes(model)
        if size <= SIZE_LIMIT:
            return model
    else:
        from onnx_ir import to_proto

        size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
        if size <= SIZE_LIMIT:
            serialized: bytes = to_proto(model).SerializeToString()
            return serialized
    notes.append(f"{_name(model)} is over 2 GB: its fused operators were not looked for")
    return None


def _external_bytes(path: str) -> int:
    import onnx

    proto = onnx.load(path, load_external_data=False)
    folder = os.path.dirname(path)
    places = {e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"}
    return sum(os.path.getsize(os.path.join(folder, place)) for place in places)


def _fused(path: str) -> dict[str, int]:
    import onnx

    counts: Counter[str] = Counter()
    work = [onnx.load(path, load_external_data=False).graph]
    for graph in work:
        for node in graph.node:
            if node.domain in FUSED_DOMAINS:
                counts[f"{node.domain}::{node.op_type}"] += 1
            for attribute in node.attribute:
                work += [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    return dict(counts.most_common())


def _name(model: Runnable) -> str:
    return os.path.basename(model) if isinstance(model, str) else "the model"
