"""Latency, throughput and memory on a GPU: float32, ampgraph's levels and peers' files side by side.

    python benchmarks/gpu.py OUT [--models resnet50 bert llama] [--variants O0 O2 auto ort_model] [--exports DIR]

Writes OUT/gpu.json and OUT/gpu.md. Every conversion and every measurement is a fresh process. `--provider cpu --tiny`
tries everything but CUDA itself, on any machine, in seconds; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convert_one import is_ampgraph
from gpu_report import write_report
from measure import folder_mb, run_child

HERE = Path(__file__).resolve().parent
VARIANTS = ["O0", "O1", "O2", "O3", "auto", "ort_model", "ort_float16", "occ_float16", "autocast"]
LEVELS = ["O1", "O2", "O3", "auto"]
BASE = "O0"
Row = dict[str, Any]


def converter_of(variant: str) -> str:
    """`O2` and `O2:bfloat16` are ours; anything else is a peer's name."""
    return f"ampgraph:{variant}" if variant.split(":")[0] in LEVELS else variant


def convert(variant: str, source: Path, folder: Path, args: argparse.Namespace) -> tuple[Path, Row]:
    """Make `folder/model.onnx`, unless an earlier run with the same --work left it."""
    target = folder / "model.onnx"
    if target.exists():
        return target, {"error": None, "reused": True}
    folder.mkdir(parents=True, exist_ok=True)
    name = converter_of(variant)
    python = sys.executable if is_ampgraph(name) or not args.peer_python else args.peer_python
    script = HERE / "convert_one.py"
    child = run_child(script, [name, str(source), str(target)], python=python, timeout=args.convert_timeout)
    error = child.failure or child.report.get("error")
    if error is None and not target.exists():
        error = "no file was written"
    if error:
        # Half a model must not be taken for a whole one by the next run.
        shutil.rmtree(folder)
    return target, {"error": error, "convert_cpu_s": child.report.get("cpu_s"), "convert_private_mb": child.private_mb}


def measure(model: Path, source: Path, reference: Path, args: argparse.Namespace, *, tf32: bool, runs: int) -> Row:
    """Time one file in a fresh process."""
    arguments = [str(model), str(source.with_suffix(".npz")), str(reference), "--provider", args.provider]
    arguments += ["--device", str(args.device), "--runs", str(runs), "--warmup", str(min(args.warmup, runs))]
    arguments += ["--tf32"] * tf32 + [part for option in args.option for part in ("--option", option)]
    child = run_child(HERE / "gpu_one.py", arguments, timeout=args.measure_timeout)
    return {**child.report, "error": child.failure or child.report.get("error")}


def as_told(model: Path, row: Row, args: argparse.Namespace) -> Row:
    """What the stand-ins for CUDA tell of the same file, and in what the device differs from that."""
    if not args.stand_ins or row.get("error"):
        return {}
    from ampgraph.report.fusions import TargetGraph
    from ampgraph.runtime.optimizing import optimized

    graph = TargetGraph.of(optimized(model, python=args.stand_ins))
    own = {kind.partition("::")[2]: count for kind, count in graph.fused.items() if "::" in kind}
    told = {"fused": own, "copies": sum(graph.copies.values())}
    return {"told": told, "differs": sorted(key for key, value in told.items() if row[key] != value)}


def rows_of(name: str, source: Path, variants: list[str], work: Path, args: argparse.Namespace, runs: int) -> Iterator:
    """Float32 first, without and with TF32: the first is the reference of all. Then each variant."""
    reference = work / f"{name}.reference.npz"
    reference.unlink(missing_ok=True)
    for tf32 in [False, True] if args.provider == "cuda" else [False]:
        label = "float32, TF32" if tf32 else "float32"
        result = measure(source, source, reference, args, tf32=tf32, runs=runs)
        told = as_told(source, result, args)
        yield {"model": name, "variant": label, "tf32": tf32, "out_mb": size_mb(source), **result, **told}
        if not reference.exists():
            return
    for variant in variants:
        if variant == BASE:
            continue
        folder = work / f"{name}.{variant.replace(':', '-')}"
        target, row = convert(variant, source, folder, args)
        if row["error"] is None:
            row.update(out_mb=folder_mb(folder), **measure(target, source, reference, args, tf32=True, runs=runs))
            row.update(as_told(target, row, args))
        yield {"model": name, "variant": variant, "tf32": True, **row}
        if not args.work:
            shutil.rmtree(folder, ignore_errors=True)
    reference.unlink()


def size_mb(model: Path) -> float:
    """A model with its external data, in MiB."""
    return sum(f.stat().st_size for f in model.parent.glob(model.name + "*")) / 2**20


def time_models(work: Path, args: argparse.Namespace) -> Iterator[Row]:
    """The models of `gpu_models`: built, measured in every variant."""
    from gpu_models import FULL, TINY

    for name in args.models:
        timed = (TINY if args.tiny else FULL)[name]
        source = work / name / f"{name}.onnx"
        if not source.exists():
            source.parent.mkdir(exist_ok=True)
            timed.write(source)
        for row in rows_of(name, source, args.variants, work, args, args.runs):
            if row["error"] is None:
                row["items_per_s"] = 1e3 * timed.items / row["median_ms"]
            yield {"part": "timed", "unit": timed.unit, **row}
        if not args.work:
            shutil.rmtree(source.parent)


def check_exports(work: Path, args: argparse.Namespace) -> Iterator[Row]:
    """Real exports at every level: they load, no heavy node runs on the CPU, and they agree with float32."""
    for source in sorted(args.exports.glob("*.onnx")) if args.exports else []:
        if not source.with_suffix(".npz").exists():
            print(f"{source.name}: no inputs beside it, left out", file=sys.stderr)
            continue
        for row in rows_of(source.stem, source, args.export_variants, work, args, args.export_runs):
            failures = failures_of(row, args.tolerance)
            yield {"part": "export", **row, "failures": failures, "passed": not failures}


def failures_of(row: Row, tolerance: float) -> list[str]:
    """Why an export's row does not pass."""
    if row["error"]:
        return [row["error"]]
    found = []
    if row["heavy_on_cpu"]:
        found.append(f"heavy nodes on the CPU: {', '.join(row['heavy_on_cpu'][:5])}")
    error = row.get("error_to_float32") or {}
    if error.get("nonfinite") or error.get("mismatch"):
        found.append(f"{error['nonfinite']} values not finite, {error['mismatch']} different")
    if error.get("rel_l2", 0) > tolerance:
        found.append(f"relative error {error['rel_l2']:.1e} above {tolerance:g}")
    return found


def machine(args: argparse.Namespace) -> Row:
    """The hardware and software that the figures hold for."""
    facts: Row = {"provider": args.provider, "tiny": args.tiny, "python": platform.python_version(), "gpu": None}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        answer = subprocess.run([*query, "-i", str(args.device)], check=True, capture_output=True, text=True)
        facts["gpu"] = answer.stdout.strip()
    return facts


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path, help="folder for gpu.json and gpu.md")
    add("--models", nargs="*", choices=["resnet50", "bert", "llama"], default=["resnet50", "bert", "llama"])
    add("--variants", nargs="+", default=VARIANTS, help="levels, LEVEL:bfloat16, or peers; float32 always runs")
    add("--exports", type=Path, help="folder of NAME.onnx with NAME.npz: checked at --export-variants")
    add("--export-variants", nargs="+", default=LEVELS)
    add("--tolerance", type=float, default=2e-2, help="relative L2 error that an export may have on the device")
    add("--provider", choices=["cuda", "cpu"], default="cuda")
    add("--tiny", action="store_true", help="tiny models: to try the script, not to measure")
    add("--device", type=int, default=0)
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="more CUDA provider options")
    add("--runs", type=int, default=50)
    add("--export-runs", type=int, default=5)
    add("--warmup", type=int, default=10)
    add("--stand-ins", metavar="PYTHON", help="of cuda_placement/set-up: is placed and fused what it tells?")
    add("--peer-python", help="interpreter for the peers' conversions")
    add("--work", type=Path, help="keep models here and reuse what is there (default: a temporary folder)")
    add("--convert-timeout", type=float, default=600)
    add("--measure-timeout", type=float, default=600)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, saving after every row; 1 where an export fails its check."""
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    facts, rows = machine(args), []
    with contextlib.ExitStack() as stack:
        if args.work:
            args.work.mkdir(parents=True, exist_ok=True)
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for part in (time_models, check_exports):
            for row in part(work.resolve(), args):
                rows.append(row)
                print(
                    f"{row['part']} {row['model']} {row['variant']}: {row['error'] or 'ok'}",
                    file=sys.stderr,
                    flush=True,
                )
                write_report(args.out, facts, rows)
    write_report(args.out, facts, rows)
    return int(any(row.get("passed") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
