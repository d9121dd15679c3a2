"""What ONNX Runtime's CUDA kernels compute in float16 inside, which their outputs alone do not say.

    python benchmarks/gpu_inside.py [--out FILE.json] [--provider cpu]

- Sums beyond 65,504 whose result fits: means, norms and the like over large numbers, by the axes that they go over.
  Where the kernel stores the sum in float16 the result is infinite.
- Recurrent layers: their error to float32 on CUDA, beside that of a strict run, and milliseconds in float16, in float32
  and with TF32.
- Convolutions by the algorithm that the provider's option `cudnn_conv_algo_search` finds, and products: their error
  beside that of a strict run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from gpu_accumulators import error, in_float64, model_of, quiet, rounded  # noqa: E402
from measure import markdown, one_line  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ampgraph.numerics.strict.session import StrictSession  # noqa: E402

CUDA = "CUDAExecutionProvider"
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
AXES = {"last": ((8, 8, 4096), [2]), "first": ((4096, 8, 8), [0]), "middle": ((8, 4096, 8), [1])}
SUMS = ("ReduceMean", "ReduceLogSum", "ReduceLogSumExp", "ReduceL2")
POOLS = {"GlobalAveragePool": {}, "AveragePool": {"kernel_shape": [64, 64]}}
LAYERS = ((32, 64, 50, 1), (64, 256, 100, 8), (64, 512, 20, 4), (16, 16, 400, 1))
TIMED = ((128, 100, 1), (512, 100, 1), (1024, 100, 1), (128, 100, 32), (512, 100, 32), (1024, 100, 128))
ALGORITHMS = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
Row = dict[str, Any]
Array = Any  # of numpy


def session(model: onnx.ModelProto, provider: str, **cuda: str) -> ort.InferenceSession:
    """One that runs every node as it is."""
    chosen = [(provider, {"use_tf32": "0", **cuda})] if provider == CUDA else [provider]
    return ort.InferenceSession(model.SerializeToString(), quiet(provider), providers=chosen)


def graph(kind: str, x: Array, stored: dict[str, Array], outputs: int, **attributes: Any) -> onnx.ModelProto:
    """One operator over ``x`` and stored operands, all of the type of ``x``."""
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    names = [f"y{number}" for number in range(outputs)]
    made = helper.make_graph(
        [helper.make_node(kind, ["x", *stored], names, **attributes)],
        kind,
        [helper.make_tensor_value_info("x", dtype, x.shape)],
        [helper.make_tensor_value_info(name, dtype, None) for name in names],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


# -- sums beyond the range --------------------------------------------------------------------------------------------


def sums(provider: str) -> Iterator[Row]:
    """The share of results that are not finite where exact ones fit float16: 4,096 numbers around 300."""
    random = np.random.default_rng(0)
    for kind in SUMS:
        for where, (shape, axes) in AXES.items():
            if kind == "ReduceLogSumExp":
                x = random.random(shape).astype(np.float16)  # e^x added up: 4,096 times 1.7, in a logarithm
                x += np.float16(8)
            else:
                x = (300 + 20 * random.random(shape)).astype(np.float16)
            model = graph(kind, x, {"axes": np.array(axes)}, 1, keepdims=0)
            yield finite({"operator": kind, "axes": where}, model, x, provider)
    x = (300 + 20 * random.random((2, 8, 64, 64))).astype(np.float16)
    for kind, attributes in POOLS.items():
        yield finite({"operator": kind, "axes": "places"}, graph(kind, x, {}, 1, **attributes), x, provider)


def finite(row: Row, model: onnx.ModelProto, x: Array, provider: str) -> Row:
    """The row with what ran."""
    try:
        found = session(model, provider).run(None, {"x": x})[0]
        row["not_finite"] = float(np.mean(~np.isfinite(found)))
    except Exception as failure:  # what a provider refuses is a row
        row["error"] = one_line(failure)
    return row


# -- recurrent layers -------------------------------------------------------------------------------------------------


def layer(kind: str, width: int, hidden: int, length: int, batch: int, dtype: type) -> tuple[onnx.ModelProto, Array]:
    """A layer with weights as PyTorch starts them, and its input."""
    random = np.random.default_rng(0)
    size = 1 / np.sqrt(hidden)
    shapes = {"w": (GATES[kind] * hidden, width), "r": (GATES[kind] * hidden, hidden), "b": (2 * GATES[kind] * hidden,)}
    stored: dict[str, Array] = {
        n: random.uniform(-size, size, (1, *s)).astype(np.float16).astype(dtype) for n, s in shapes.items()
    }
    x: Array = random.standard_normal((length, batch, width)).astype(np.float16).astype(dtype)
    before = {"linear_before_reset": 1} if kind == "GRU" else {}
    return graph(kind, x, stored, 1, hidden_size=hidden, **before), x


def layers(provider: str) -> Iterator[Row]:
    """Errors to float32 on the CPU of the same rounded weights and inputs."""
    for kind in GATES:
        for sizes in LAYERS:
            low, x = layer(kind, *sizes, np.float16)
            wide, x32 = layer(kind, *sizes, np.float32)
            row: Row = {"operator": kind, **dict(zip(("inputs", "hidden", "steps", "batch"), sizes, strict=True))}
            try:
                exact = session(wide, "CPUExecutionProvider").run(None, {"x": x32})[0].astype(np.float64)
                row["strict"] = error(StrictSession(low).run({"x": x})["y0"], exact)
                row["device"] = error(session(low, provider).run(None, {"x": x})[0], exact)
                row["tf32"] = error(session(wide, provider, use_tf32="1").run(None, {"x": x32})[0], exact)
            except Exception as failure:
                row["error"] = one_line(failure)
            yield row


def times(provider: str) -> Iterator[Row]:
    """Medians of 20 runs, inputs and outputs on the device."""
    for kind in ("LSTM", "GRU"):
        for hidden, length, batch in TIMED:
            row: Row = {"operator": kind, "hidden": hidden, "steps": length, "batch": batch}
            for name, dtype, tf32 in (("float16", np.float16, 0), ("float32", np.float32, 0), ("tf32", np.float32, 1)):
                model, x = layer(kind, hidden, hidden, length, batch, dtype)
                row[name] = milliseconds(session(model, provider, use_tf32=str(tf32)), x)
            yield row


def milliseconds(opened: ort.InferenceSession, x: Array) -> float:
    """Of a run."""
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    binding.bind_output("y0", "cuda", 0)
    taken = []
    for _ in range(25):
        start = time.perf_counter()
        opened.run_with_iobinding(binding)
        binding.synchronize_outputs()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken[5:])


# -- convolutions and products ----------------------------------------------------------------------------------------


def products(provider: str) -> Iterator[Row]:
    """Errors to float64 arithmetic of the same rounded operands."""
    cases: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {}
    for kernel in (1, 3, 5, 7):
        for channels in (16, 64, 256):
            shapes: list[tuple[int, ...]] = [(1, channels, 28, 28), (64, channels, kernel, kernel)]
            cases[f"Conv {kernel} x {kernel}, {channels} channels"] = ("Conv", shapes, {"pads": [kernel // 2] * 4})
    for rows, deep, columns in ((2, 2048, 10), (64, 2048, 10), (64, 2048, 64), (1, 4096, 1024), (256, 4096, 256)):
        shapes = [(rows, deep), (columns, deep)]
        cases[f"Gemm {rows} x {deep} x {columns}"] = ("Gemm", shapes, {"transB": 1})
    for name, (kind, shapes, attributes) in cases.items():
        model = model_of(kind, shapes, attributes, TensorProto.FLOAT16)
        random = np.random.default_rng(0)
        scales = (1.0, float(np.sqrt(np.prod(shapes[1][1:]))))
        drawn = [
            random.standard_normal(shape, dtype=np.float32) / scale for shape, scale in zip(shapes, scales, strict=True)
        ]
        feeds = {f"x{number}": rounded(values, "float16") for number, values in enumerate(drawn)}
        exact = in_float64(model, feeds)
        row: Row = {"operator": name, "strict": error(StrictSession(model).run(feeds)["y"], exact)}
        for algorithm in ALGORITHMS if kind == "Conv" else ALGORITHMS[:1]:
            chosen = {"cudnn_conv_algo_search": algorithm} if provider == CUDA else {}
            row[algorithm] = error(session(model, provider, **chosen).run(None, feeds)[0], exact)
        yield row


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    provider = f"{args.provider.upper()}ExecutionProvider"
    if provider == CUDA:
        ort.preload_dlls()
    measured = [sums, layers, products, *([times] if provider == CUDA else [])]
    found = {table.__name__: list(table(provider)) for table in measured}
    for rows in found.values():
        columns = list(dict.fromkeys(name for row in rows for name in row))
        shown = [
            [f"{row[c]:.2g}" if isinstance(row.get(c), float) else row.get(c, "") for c in columns] for row in rows
        ]
        print(markdown(columns, shown), end="\n\n")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
