"""Strict errors of a converted model over its seeded inputs, and the plan to compare with: only heavy nodes low."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from typed import every_node

HEAVY_ONLY = Path(__file__).with_name("heavy_only.toml")
HEAVY = ("MatMul", "Gemm", "Conv", "LSTM")
Feeds = Sequence[dict[str, np.ndarray]]
Outputs = list[list[np.ndarray]]


@dataclass(frozen=True)
class Figures:
    """Over all inputs: the relative L2 error of the worst output (infinite where one is not finite), and casts."""

    median: float
    p90: float
    worst: float
    failed: int
    casts: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def reference(model: ModelProto, feeds: Feeds) -> Outputs:
    """What the float32 model gives for each input."""
    session = StrictSession(model, threads=1)
    return [list(session.run(feed).values()) for feed in feeds]


def figures(converted: ModelProto, feeds: Feeds, expected: Outputs) -> Figures:
    """Strict runs of a converted model."""
    session = StrictSession(converted, threads=1)
    errors = np.array([error(session.run(f).values(), e) for f, e in zip(feeds, expected, strict=True)])
    low, high = (float(np.quantile(errors, q, method="higher")) for q in (0.5, 0.9))
    return Figures(low, high, float(errors.max()), int(np.isinf(errors).sum()), casts(converted))


def error(result: Any, expected: Sequence[np.ndarray]) -> float:
    """The relative L2 error of the worst output."""
    worst = 0.0
    for got, want in zip(result, expected, strict=True):
        if not np.isfinite(got).all():
            return float("inf")
        worst = max(worst, float(np.linalg.norm(got - want) / np.linalg.norm(want)))
    return worst


def heavy_only(model: ModelProto, dtype: str = "float16") -> ModelProto:
    """The model with nothing low but its heavy nodes."""
    return ampgraph.convert(model, "O1", lists=HEAVY_ONLY, dtype=dtype)


def as_fused(model: ModelProto) -> ModelProto:
    """The model with the roundings of CUDA's fused norms: Div, Cast, Mul by a low scale is one kernel there, which
    multiplies in float32 and rounds once (benchmarks/cuda_placement tells that it is one)."""
    result = ModelProto()
    result.CopyFrom(model)
    graph, nodes = result.graph, list(model.graph.node)
    writers = {name: node for node in nodes for name in node.output}
    del graph.node[:], graph.value_info[:]
    for node in nodes:
        place = next((p for p, name in enumerate(node.input) if _is_low_quotient(name, writers)), None)
        if node.op_type != "Mul" or place is None:
            graph.node.append(node)
            continue
        wide, scale, (low,) = writers[node.input[place]].input[0], node.input[1 - place], node.output
        to = writers[node.input[place]].attribute[0].i
        graph.node.append(helper.make_node("Cast", [scale], [f"{low}_scale"], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("Mul", [wide, f"{low}_scale"], [f"{low}_wide"]))
        graph.node.append(helper.make_node("Cast", [f"{low}_wide"], [low], to=to))
    return result


def _is_low_quotient(name: str, writers: dict[str, onnx.NodeProto]) -> bool:
    cast = writers.get(name)
    if cast is None or cast.op_type != "Cast" or cast.attribute[0].i == TensorProto.FLOAT:
        return False
    quotient = writers.get(cast.input[0])
    return quotient is not None and quotient.op_type == "Div"


def casts(model: ModelProto) -> int:
    """Cast nodes at any depth, those of functions too."""
    return sum(node.op_type == "Cast" for node in every_node(model))
