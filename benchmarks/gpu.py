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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert_one import is_ampgraph
from gpu_models import FULL, TINY, Timed
from gpu_report import write_report
from measure import run_child

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


def measure(models: list[Path], source: Path, reference: Path, args: argparse.Namespace, **how: Any) -> list[Row]:
    """Time files in turns in one fresh process. ``how``: whether products in float32 use ``tf32``, and the ``runs``."""
    arguments = [str(source.with_suffix(".npz")), str(reference), *map(str, models), "--provider", args.provider]
    arguments += ["--device", str(args.device), "--runs", str(how["runs"])]
    arguments += ["--warmup", str(min(args.warmup, how["runs"]))]
    arguments += (
        ["--plain"] * args.plain
        + ["--tf32"] * how["tf32"]
        + [part for option in args.option for part in ("--option", option)]
    )
    child = run_child(HERE / "gpu_one.py", arguments, timeout=args.measure_timeout)
    rows: list[Row] = child.report.get("rows") or [{"error": child.failure} for _ in models]
    return rows


def told(source: Path, target: Path, args: argparse.Namespace, *, predict: bool) -> Row:
    """The speed that is estimated for a file of ours, and its error by a strict run if ``predict``."""
    arguments = [str(source), str(target), *["--predict"] * predict]
    child = run_child(HERE / "gpu_told.py", arguments, timeout=args.convert_timeout)
    return child.report or {"told_error": child.failure}


def as_told(model: Path, row: Row, args: argparse.Namespace) -> Row:
    """What the stand-ins for CUDA tell of the same file, and in what the device differs from that."""
    if not args.stand_ins or row.get("error"):
        return {}
    from ampgraph.report.fusions import TargetGraph
    from ampgraph.runtime.optimizing import optimized

    graph = TargetGraph.from_optimized(optimized(model, python=args.stand_ins))
    own = {kind.partition("::")[2]: count for kind, count in graph.fused.items() if "::" in kind}
    told = {"fused": own, "copies": sum(graph.copies.values())}
    return {"told": told, "differs": sorted(key for key, value in told.items() if row[key] != value)}


@dataclass
class Prepared:
    """A model, and what became of it at each variant: its file, and a row that says what its conversion took."""

    name: str
    source: Path
    folder: Path
    timed: Timed | None = None
    variants: dict[str, tuple[Path, Row]] = field(default_factory=dict)

    def add(self, variant: str, args: argparse.Namespace) -> None:
        """Convert to a variant, and tell what can be told of it; exports are run strictly as well."""
        target, row = convert(variant, self.source, self.folder / variant.replace(":", "-"), args)
        if row["error"] is None and is_ampgraph(converter_of(variant)):
            row.update(told(self.source, target, args, predict=self.timed is None and not args.plain))
        self.variants[variant] = target, row


def prepared(work: Path, args: argparse.Namespace) -> list[Prepared]:
    """All models at all variants, so many conversions at once, before anything is timed."""
    models = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for name in args.models:
            timed = (TINY if args.tiny else FULL)[name]
            models.append(Prepared(name, work / name / f"{name}.onnx", work / name, timed))
            models[-1].folder.mkdir(exist_ok=True)
        list(pool.map(lambda one: one.source.exists() or one.timed.write(one.source), models))
        for source in sorted(args.exports.glob("*.onnx")) if args.exports else []:
            if source.with_suffix(".npz").exists():
                models.append(Prepared(source.stem, source, work / f"export-{source.stem}"))
            else:
                print(f"{source.name}: no inputs beside it, left out", file=sys.stderr)
        jobs = []
        for one in models:
            jobs += [(one, variant) for variant in (args.variants if one.timed else args.export_variants)]
        list(pool.map(lambda job: job[0].add(job[1], args), [job for job in jobs if job[1] != BASE]))
    return models


def rows_of(model: Prepared, args: argparse.Namespace) -> Iterator[Row]:
    """Float32 without TF32 first, the reference of all; then TF32 and each variant.

    A timed model takes a process a file, since its memory is measured too; the files of an export run in turns in one.
    """
    runs, work = args.runs if model.timed else args.export_runs, model.folder
    reference = work / "reference.npz"
    work.mkdir(parents=True, exist_ok=True)
    reference.unlink(missing_ok=True)
    exact, *_ = measure([model.source], model.source, reference, args, tf32=False, runs=runs)
    rows = {"float32": exact}
    files = {"float32, TF32": model.source} if args.provider == "cuda" else {}
    files |= {variant: path for variant, (path, row) in model.variants.items() if row["error"] is None}
    if reference.exists():
        for some in [[label] for label in files] if model.timed else [list(files)]:
            found = measure([files[label] for label in some], model.source, reference, args, tf32=True, runs=runs)
            rows |= dict(zip(some, found, strict=True))
    rows |= {variant: row for variant, (_, row) in model.variants.items() if row["error"] is not None}
    for label, row in rows.items():
        path, made = model.variants.get(label, (model.source, {}))
        merged = {"model": model.name, "variant": label, "tf32": label != "float32", **made, **row}
        if merged["error"] is None:
            merged["out_mb"] = size_mb(path)
        yield merged | as_told(path, merged, args)


def size_mb(model: Path) -> float:
    """A model with its external data, in MiB."""
    return sum(f.stat().st_size for f in model.parent.glob(model.name + "*")) / 2**20


def judged(model: Prepared, row: Row, args: argparse.Namespace) -> Row:
    """A row of a timed model with its throughput; one of an export with why it does not pass: it must load, leave no
    heavy node on the CPU, and agree with float32."""
    if model.timed is None:
        failures = failures_of(row, args.tolerance)
        return {"part": "export", **row, "failures": failures, "passed": not failures}
    rate = {"items_per_s": 1e3 * model.timed.items / row["median_ms"]} if row["error"] is None else {}
    return {"part": "timed", "unit": model.timed.unit, **row, **rate}


def failures_of(row: Row, tolerance: float) -> list[str]:
    """Why an export's row does not pass."""
    if row["error"]:
        return [row["error"]]
    found = []
    if row.get("heavy_on_cpu"):
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
    add("--plain", action="store_true", help="time and compare alone: no predicted error, no placement")
    add("--jobs", type=int, default=1, help="conversions at once")
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
        for model in prepared(work.resolve(), args):
            for found in rows_of(model, args):
                row = judged(model, found, args)
                rows.append(row)
                shown = f"{row['part']} {row['model']} {row['variant']}: {row['error'] or 'ok'}"
                print(shown, file=sys.stderr, flush=True)
                write_report(args.out, facts, rows)
    write_report(args.out, facts, rows)
    return int(any(row.get("passed") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
