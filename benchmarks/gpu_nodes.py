"""Does the CUDA provider compute each low operator as a strict run does: ONNX's node suite, converted, on the device.

    python benchmarks/gpu_nodes.py [--level O3] [--dtype float16] [--jobs 8] [--out FILE.json] [--provider cpu]

Each one-operator model is converted for CUDA, run strictly on the CPU, and run by the provider. A row is printed where
the provider refuses the file, leaves a part to the CPU, or is farther from float32 than twice the strict run is.
`--level O0` runs the models as they are: what is wrong there is wrong without a conversion.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from compare import errors  # noqa: E402
from measure import one_line  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.numerics.strict.session import StrictSession  # noqa: E402

NOISE = {"float16": 1e-3, "bfloat16": 8e-3}
Row = dict[str, Any]


def write_cases(folder: Path, limit: int | None) -> list[str]:
    """The suite's models with their first inputs, as far as those are tensors of numbers. Returns their names."""
    written = []
    for case in load_model_tests(kind="node")[:limit]:
        inputs = case.data_sets[0][0] if case.model is not None and case.data_sets else [None]
        arrays = [np.asarray(value) for value in inputs if isinstance(value, np.ndarray | np.generic)]
        if len(arrays) == len(inputs) and all(array.dtype.kind in "fiub" for array in arrays):
            onnx.save(case.model, folder / f"{case.name}.source.onnx")
            names = [value.name for value in case.model.graph.input]
            np.savez(folder / f"{case.name}.in.npz", **dict(zip(names, arrays, strict=False)))
            written.append(case.name)
    return written


def prepared(name: str, level: str, dtype: str, folder: Path) -> Row:
    """A case converted and run strictly: whether anything is low, of which operators, and the strict run's error."""
    ort.set_default_logger_severity(4)
    row: Row = {"case": name}
    source, low = folder / f"{name}.source.onnx", folder / f"{name}.onnx"
    try:
        with np.load(folder / f"{name}.in.npz") as data:
            feeds = dict(data)
        wanted = list(StrictSession(source).run(feeds).values())
        ampgraph.convert(str(source), level, dtype=dtype, target="cuda", output=str(low), check="off")
        before, after = ([node.op_type for node in onnx.load(path).graph.node] for path in (source, low))
        row["low"] = level == "O0" or after.count("Cast") > before.count("Cast")
        row["kinds"] = sorted({*after} - {"Cast"})
        row["strict"] = errors(list(StrictSession(low).run(feeds).values()), wanted)
        np.savez(folder / f"{name}.out.npz", **{str(i): a for i, a in enumerate(wanted)})
    except Exception as error:
        row["skipped"] = one_line(error)
    return row


def executed(row: Row, folder: Path, provider: str) -> Row:
    """What the provider makes of the file: its error and the operators that it left to the CPU, or why it refuses."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    with np.load(folder / f"{row['case']}.in.npz") as data:
        feeds = dict(data)
    with np.load(folder / f"{row['case']}.out.npz") as data:
        wanted = [data[str(i)] for i in range(len(data.files))]
    try:
        session = ort.InferenceSession(str(folder / f"{row['case']}.onnx"), options, providers=[provider])
        names = {value.name for value in session.get_inputs()}
        found = session.run(None, {name: value for name, value in feeds.items() if name in names})
        events = json.loads(Path(session.end_profiling()).read_text())
        kernels = [event["args"] for event in events if event["name"].endswith("_kernel_time")]
        return {
            "device": errors(found, wanted),
            "on_cpu": sorted({one["op_name"] for one in kernels if one["provider"] == "CPUExecutionProvider"}),
        }
    except Exception as error:
        return {"refused": one_line(error)}


def judged(row: Row, noise: float) -> str:
    """What is wrong with a row, if anything."""
    if "refused" in row:
        return row["refused"]
    told, real = row["strict"], row["device"]
    if (told["nonfinite"], told["mismatch"]) != (real["nonfinite"], real["mismatch"]):
        counts = f"strictly {told['nonfinite']}, {told['mismatch']}"
        return f"{real['nonfinite']} not finite, {real['mismatch']} different; {counts}"
    if real["rel_l2"] > max(2 * told["rel_l2"], noise):
        return f"error {real['rel_l2']:.1e}, strictly {told['rel_l2']:.1e}"
    return ""


def main() -> None:
    """Convert all, then run one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="O3")
    parser.add_argument("--dtype", default="float16", choices=list(NOISE))
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="of the first so many cases alone")
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    if args.provider == "cuda":
        ort.preload_dlls()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        one = partial(prepared, level=args.level, dtype=args.dtype, folder=folder)
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            rows = pool.map(one, write_cases(folder, args.limit), chunksize=16)
        ran = [row for row in rows if row.get("low") and "skipped" not in row]
        for row in ran:
            row |= executed(row, folder, f"{args.provider.upper()}ExecutionProvider")
    found = [(row, judged(row, NOISE[args.dtype])) for row in ran]
    for row, why in found:
        if why:
            print(f"{row['case']} ({', '.join(row['kinds'])}): {why}")
    left = sorted({f"{row['case']}: {', '.join(row['on_cpu'])}" for row, _ in found if row.get("on_cpu")})
    print(*left, sep="\n")
    wrong = sum(bool(why) for _, why in found)
    parts = f"{wrong} otherwise than told, {len(left)} in part on the CPU"
    print(f"{len(rows)} models, {len(ran)} with something low, {parts}")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
