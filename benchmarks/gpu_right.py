"""Whether trained models are right on a GPU where a strict run calls them right, and wrong where it calls them wrong.

    python benchmarks/gpu_right.py FOLDER --out gpu_right.json [--jobs 12] [--samples 2] [--types float16 bfloat16]
    python benchmarks/gpu_right.py --table gpu_right.json

FOLDER is that of `zoo_right.py`: models/NAME.onnx, and real inputs in data/NAME/, a sample a file. Each model is
converted at O2; its error, that of `zoo_right.py`, is measured by a strict run and by ONNX Runtime's CUDA provider,
both to the float32 model on the CPU. The float32 model runs on CUDA too, with and without TF32, which is ONNX Runtime's
default. `--provider cpu` tries everything but CUDA, and means nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from measure import markdown, one_line
from zoo_right import TOLERANCE, frozen, p90, samples

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SECONDS = 120
"""After which a model is given up."""
Row = dict[str, Any]
Values = Mapping[str, Any]


def run_all(model: Path, feeds: list[dict[str, Any]], provider: str, **cuda: Any) -> list[Values]:
    """The outputs of every sample, with these options of the CUDA provider."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    chosen: list[Any] = [(CUDA, {"use_tf32": "0", **cuda}), CPU] if provider == "cuda" else [CPU]
    opened = ort.InferenceSession(str(model), options, providers=chosen)
    if provider == "cuda" and CUDA not in opened.get_providers():
        raise RuntimeError("the CUDA provider did not load")
    names = [value.name for value in opened.get_outputs()]
    return [dict(zip(names, opened.run(None, sample), strict=True)) for sample in feeds]


def error(expected: list[Values], found: list[Values]) -> float:
    """Of the worst output: of eight samples the largest."""
    by_output: dict[str, list[float]] = {}
    for wanted, got in zip(expected, found, strict=True):
        for name, value in wanted.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                by_output.setdefault(name, []).append(frozen(value, got[name]))
    return float(max(p90(found) for found in by_output.values()))


def measured(model: Path, data: Path, args: argparse.Namespace) -> Row:
    """The errors of one model, by how it ran; what a runtime refuses is said."""
    import ampgraph
    from ampgraph.numerics.strict.session import StrictSession

    feeds = list(samples(data, args.samples))
    expected = run_all(model, feeds, "cpu")
    given = dict(one.split("=", 1) for one in args.option)
    ways: dict[str, Any] = {
        "float32": lambda: run_all(model, feeds, args.provider, **given),
        "tf32": lambda: run_all(model, feeds, args.provider, **{**given, "use_tf32": "1"}),
    }
    with tempfile.TemporaryDirectory() as folder:
        for low in args.types:
            target = Path(folder) / f"{low}.onnx"
            ampgraph.convert(model, "O2", dtype=low, output=target, check="off")
            ways[f"{low} strict"] = lambda target=target: [StrictSession(target, threads=1).run(one) for one in feeds]
            ways[low] = lambda target=target: run_all(target, feeds, args.provider, **given)
        row: Row = {}
        for way, outputs in ways.items():
            try:
                row[way] = error(expected, outputs())
            except Exception as failure:  # a provider's refusal is a figure here, and every kind of error may be one
                row[way] = one_line(failure)
    return row


def in_child(model: Path, data: Path, args: argparse.Namespace) -> Row:
    """A model in a process of its own: one that dies is said."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "row.json"
        process = context.Process(target=_keep, args=(model, data, args, result))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            return {"failed": f"more than {SECONDS} s"}
        return json.loads(result.read_text()) if result.is_file() else {"failed": f"ended with {process.exitcode}"}


def _keep(model: Path, data: Path, args: argparse.Namespace, result: Path) -> None:
    try:
        row = measured(model, data, args)
    except Exception as failure:
        row = {"failed": one_line(failure)}
    result.write_text(json.dumps(row))


def right(value: Any) -> bool:
    """By the measure of `zoo_right.py`."""
    return isinstance(value, float) and value <= TOLERANCE


def table(rows: Mapping[str, Row]) -> str:
    """How often each way is right, and where the GPU and the strict run differ."""
    lines = []
    for low in ("float16", "bfloat16"):
        both = {
            name: (row[f"{low} strict"], row[low])
            for name, row in rows.items()
            if isinstance(row.get(low), float) and isinstance(row.get(f"{low} strict"), float)
        }
        if not both:
            continue
        seen = Counter((right(strict), right(cuda)) for strict, cuda in both.values())
        counts = [
            ["right on CUDA", seen[True, True], seen[False, True]],
            ["wrong on CUDA", seen[True, False], seen[False, False]],
        ]
        lines += [f"{low}, {len(both)} models", ""]
        lines += [markdown(["", "right by a strict run", "wrong by it"], counts), ""]
        ratios = sorted(g / s for s, g in both.values() if 0 < s < math.inf and 0 < g < math.inf and max(s, g) > 1e-4)
        if ratios:
            least, low_end, middle, high_end, most = (
                ratios[int(p * (len(ratios) - 1))] for p in (0, 0.05, 0.5, 0.95, 1)
            )
            spread = (
                f"median {middle:.2f}, the middle 90 % {low_end:.2f} to {high_end:.2f}, all {least:.2f} to {most:.2f}"
            )
            lines += [f"Error on CUDA by strict error, of {len(ratios)} with 1e-4 or more: {spread}.", ""]
        other = {n: pair for n, pair in both.items() if right(pair[0]) != right(pair[1])}
        lines += [f"- {n}: {g:.1e} on CUDA, {s:.1e} by a strict run" for n, (s, g) in sorted(other.items())]
        lines.append("")
    for way in ("float32", "tf32"):
        found = [row[way] for row in rows.values() if isinstance(row.get(way), float)]
        wrong = sorted(n for n, row in rows.items() if isinstance(row.get(way), float) and not right(row[way]))
        count = f"{sum(map(right, found))} of {len(found)} right"
        lines.append(f"- {way} on CUDA beside float32 on the CPU: {count}; {', '.join(wrong)}")
    refused = {n: [f"{w}: {v}" for w, v in row.items() if isinstance(v, str)] for n, row in rows.items()}
    lines += [f"- {name}: {'; '.join(found)}" for name, found in sorted(refused.items()) if found]
    return "\n".join(lines)


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--types", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--option", action="append", default=[], help="of the CUDA provider: NAME=VALUE")
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    rows: dict[str, Row] = {}
    models = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    with ThreadPoolExecutor(args.jobs) as pool:  # each waits for a process
        waiting = {
            pool.submit(in_child, model, args.folder / "data" / model.stem, args): model.stem for model in models
        }
        for done in as_completed(waiting):
            rows[waiting[done]] = done.result()
            args.out.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
