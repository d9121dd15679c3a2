"""Which fused operators ONNX Runtime still finds: its optimized graph on the CPU, before and after."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

SIZE_LIMIT = 2_000_000_000  # bytes: the optimized copy is written in one piece
FUSED_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


@dataclass(frozen=True)
class Fusions:
    """Fused operators by kind in the model, and in the original if there is one; ``note``: why they are not known."""

    runtime: str = ""
    after: dict[str, int] | None = None
    before: dict[str, int] | None = None
    note: str = ""


def fused_operators(model: Any, original: Any = None) -> Fusions:
    """Optimizes both with ONNX Runtime's CPU provider at level EXTENDED and counts com.microsoft operators."""
    try:
        import onnxruntime
    except ImportError:
        return Fusions(note="onnxruntime is not installed")
    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    notes: list[str] = []
    after = _count(model, notes)
    before = _count(original, notes) if original is not None else None
    return Fusions(runtime, after, before, "; ".join(dict.fromkeys(notes)))


def _count(model: Any, notes: list[str]) -> dict[str, int] | None:
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
            onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            return _fused(options.optimized_model_filepath)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            told = (str(error).strip().splitlines() or [type(error).__name__])[0]
            notes.append(f"ONNX Runtime's CPU provider does not take {_name(model)}: {told}")
            return None


def _source(model: Any, notes: list[str]) -> str | bytes | None:
    if isinstance(model, str):
        size = os.path.getsize(model) + _external_bytes(model)
        if size <= SIZE_LIMIT:
            return model
    else:
        import onnx_ir as ir

        size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
        if size <= SIZE_LIMIT:
            return ir.to_proto(model).SerializeToString()
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


def _name(model: Any) -> str:
    return os.path.basename(model) if isinstance(model, str) else "the model"
