"""Does a GPU add up in float32, as a strict run for CUDA does: one operator at a time, by the length of its sums.

    python benchmarks/gpu_accumulators.py [--out FILE.json] [--provider cpu]

Each operator runs in float16 and bfloat16 by ONNX Runtime's CUDA provider and strictly on the CPU, on the same numbers
between 0 and 1, whose sums grow. Errors are relative L2 to float64 arithmetic of the same low inputs: float32
accumulators leave the rounding of the result (about 2e-4 in float16, 2e-3 in bfloat16) however long the sum is, float16
ones hundreds of times that at 16,384.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from measure import markdown, one_line  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ampgraph.numerics.strict.session import StrictSession  # noqa: E402

LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
LENGTHS = (256, 2048, 16384)
Shape = tuple[int, ...]


def operators(length: int) -> dict[str, tuple[list[Shape], dict[str, Any]]]:
    """Inputs and attributes of operators that add up ``length`` numbers."""
    channels, side = length // 16, 4
    image = (2, channels, side, side)
    return {
        "MatMul": ([(64, length), (length, 64)], {}),
        "MatMul, batches": ([(4, 16, length), (4, length, 32)], {}),
        "MatMul, one row": ([(1, length), (length, 64)], {}),
        "Gemm": ([(64, length), (64, length)], {"transB": 1}),
        "Einsum": ([(16, length), (length, 32)], {"equation": "ik,kj->ij"}),
        "Conv": ([image, (32, channels, side, side)], {}),
        "Conv, 1 x 1": ([(2, length, 4, 4), (32, length, 1, 1)], {}),
        "ConvTranspose": ([(2, length, 3, 3), (length, 32, 1, 1)], {}),
        "ReduceSum": ([(64, length)], {"keepdims": 1}),
        "ReduceMean": ([(64, length)], {"keepdims": 1}),
        "ReduceL2": ([(64, length)], {"keepdims": 1}),
        "GlobalAveragePool": ([(2, 8, length // 16, 16)], {}),
        "Softmax": ([(64, length)], {"axis": 1}),
        "LayerNormalization": ([(64, length), (length,)], {}),
        "CumSum": ([(4, length)], {}),
    }


def model_of(kind: str, shapes: list[Shape], attributes: dict[str, Any], low: int) -> onnx.ModelProto:
    """One operator in the low type, between float32 inputs and outputs."""
    names = [f"x{number}" for number in range(len(shapes))]
    nodes = [helper.make_node("Cast", [name], [f"{name}.low"], to=low) for name in names]
    given = [f"{name}.low" for name in names]
    constants = []
    if kind in ("ReduceSum", "ReduceMean", "ReduceL2", "CumSum"):
        constants.append(numpy_helper.from_array(np.array([1] if kind != "CumSum" else 1, np.int64), "axis"))
        given.append("axis")
    nodes.append(helper.make_node(kind, given, ["y.low"], **attributes))
    nodes.append(helper.make_node("Cast", ["y.low"], ["y"], to=TensorProto.FLOAT))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    graph = helper.make_graph(nodes, kind, inputs, [helper.make_tensor_value_info("y", 1, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def in_float64(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The same operator over the rounded inputs without any rounding behind it: ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    wide = onnx.ModelProto.FromString(model.SerializeToString())
    del wide.graph.node[: len(feeds)]
    del wide.graph.node[-1]
    wide.graph.output[0].name = "y.low"
    for value in wide.graph.input:
        value.name += ".low"
    for value in [*wide.graph.input, *wide.graph.output]:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return ReferenceEvaluator(wide).run(None, {f"{n}.low": a.astype(np.float64) for n, a in feeds.items()})[0]


def rows(provider: str) -> Iterator[dict[str, Any]]:
    """Every operator, type and length."""
    random = np.random.default_rng(0)
    for dtype, low in LOW.items():
        for length in LENGTHS:
            for name, (shapes, attributes) in operators(length).items():
                model = model_of(name.split(",")[0], shapes, attributes, low)
                feeds = {f"x{i}": random.random(shape, dtype=np.float32) for i, shape in enumerate(shapes)}
                # Sums stay within the range of float16: products by their factors, other sums by what they add.
                scale = length ** (0.5 if len(shapes) > 1 else 1.0) / 64 if name != "LayerNormalization" else 1.0
                feeds = {n: rounded(values / scale, dtype) for n, values in feeds.items()}
                row: dict[str, Any] = {"operator": name, "dtype": dtype, "length": length}
                try:
                    wanted = in_float64(model, feeds)
                    row["strict"] = error(StrictSession(model).run(feeds)["y"], wanted)
                    session = ort.InferenceSession(model.SerializeToString(), quiet(provider), providers=[provider])
                    row["device"] = error(session.run(None, feeds)[0], wanted)
                except Exception as failure:
                    row["error"] = one_line(failure)
                yield row


def quiet(provider: str) -> ort.SessionOptions:
    """Options of a session that runs the operator itself, in its low type, on the one device."""
    options = ort.SessionOptions()
    # An optimizer would take a low operator between two Casts back to float32.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.log_severity_level = 3
    return options


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values that the low type holds, in float32."""
    import ml_dtypes

    return values.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16).astype(np.float32)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative L2."""
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    provider = f"{options.provider.upper()}ExecutionProvider"
    if options.provider == "cuda":
        ort.preload_dlls()
    found = list(rows(provider))
    columns = ("operator", "dtype", "length", "strict", "device")
    shown = []
    for row in found:
        errors = [f"{row[name]:.1e}" if name in row else row["error"][:80] for name in columns[3:]]
        shown.append([row["operator"], row["dtype"], row["length"], *errors])
    print(markdown(columns, shown))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
