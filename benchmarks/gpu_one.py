"""Time ONNX files by ONNX Runtime in this process, inputs and outputs on the device; `gpu.py` starts it.

    python gpu_one.py FEEDS.npz REFERENCE.npz MODEL ... --provider cuda --report FILE

Several files run in turns, so that what a machine does beside them meets all alike. Where REFERENCE is missing, it is
written instead of compared with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from compare import errors
from device_memory import Peak, reader
from measure import one_line
from model_facts import HEAVY, microsoft_ops

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def providers(args: argparse.Namespace) -> list[Any]:
    """The provider that was asked for, with TF32 as asked; CPU behind CUDA takes what has no CUDA kernel."""
    if args.provider == "cpu":
        return [CPU]
    # The default strategy doubles the arena: that would measure the allocator, not the model.
    options = {"device_id": str(args.device), "use_tf32": str(int(args.tf32))}
    options["arena_extend_strategy"] = "kSameAsRequested"
    return [(CUDA, {**options, **dict(o.split("=", 1) for o in args.option)}), CPU]


def session(model: Path, args: argparse.Namespace, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    """Open the model; a session that lost CUDA is refused, not timed."""
    options = options or ort.SessionOptions()
    options.log_severity_level = 3
    opened = ort.InferenceSession(str(model), options, providers=providers(args))
    if args.provider == "cuda" and CUDA not in opened.get_providers():
        raise RuntimeError("the CUDA provider did not load")
    opened.disable_fallback()
    return opened


def bound(opened: ort.InferenceSession, feeds: dict[str, np.ndarray], args: argparse.Namespace) -> ort.IOBinding:
    """Bind the inputs, and the outputs of a first run, to memory of the device."""
    binding = opened.io_binding()
    for value in opened.get_inputs():
        data = ort.OrtValue.ortvalue_from_numpy(feeds[value.name], args.provider, args.device)
        binding.bind_ortvalue_input(value.name, data)
    names = [value.name for value in opened.get_outputs()]
    for name in names:
        binding.bind_output(name, args.provider, args.device)
    opened.run_with_iobinding(binding)
    # From now on every run writes the same buffers: allocation of outputs is not what is timed.
    for name, value in zip(names, binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(name, value)
    return binding


@dataclass
class Loaded:
    """A session with its buffers, and the seconds that its runs took, each one waited for."""

    opened: ort.InferenceSession
    binding: ort.IOBinding
    seconds: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run once."""
        start = time.perf_counter()
        self.opened.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()
        self.seconds.append(time.perf_counter() - start)

    def latency(self, warmup: int) -> dict[str, float]:
        """Milliseconds over the runs after the warm-up."""
        kept = self.seconds[warmup:]
        low, high = np.percentile(kept, [10, 90])
        return {"median_ms": 1e3 * statistics.median(kept), "p10_ms": 1e3 * float(low), "p90_ms": 1e3 * float(high)}

    def compared(self, reference: Path) -> dict[str, Any]:
        """The error of the last outputs, unless they become the reference."""
        outputs = [value.numpy() for value in self.binding.get_outputs()]
        if reference.exists():
            with np.load(reference) as data:
                return {"error_to_float32": errors(outputs, [data[str(i)] for i in range(len(data.files))])}
        np.savez(reference, **{str(i): value for i, value in enumerate(outputs)})
        return {}


def measured(feeds: dict[str, np.ndarray], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Load, time in turns, and compare; the memory is that of all of it, CUDA's context included."""
    rows: list[dict[str, Any]] = [{"onnxruntime": ort.__version__, "error": None} for _ in args.models]
    loaded: dict[int, Loaded] = {}
    meter = reader(args.device) if args.provider == "cuda" else None
    peak = Peak(meter[1]) if meter else None
    with peak or contextlib.nullcontext():
        for number, model in enumerate(args.models):
            with failing(rows[number]):
                start = time.perf_counter()
                opened = session(model, args)
                rows[number]["load_s"] = time.perf_counter() - start
                loaded[number] = Loaded(opened, bound(opened, feeds, args))
        for _ in range(args.warmup + args.runs):
            for number, one in loaded.items():
                if rows[number]["error"] is None:
                    with failing(rows[number]):
                        one.run()
    for number, one in loaded.items():
        if rows[number]["error"] is None:
            rows[number].update(one.latency(args.warmup), **one.compared(args.reference))
            rows[number].update(memory_by=meter[0] if meter else None, peak_mb=peak.peak_mb if peak else None)
    return rows


@contextlib.contextmanager
def failing(row: dict[str, Any]) -> Iterator[None]:
    """What a file cannot do is its row's error; the others go on."""
    try:
        yield
    except Exception as error:
        row["error"] = one_line(error)


def inspected(model: Path, feeds: dict[str, np.ndarray], args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What ONNX Runtime made of the graph: fusions, from the graph it saves; placement, from a profile of one run.

    Nodes of a branch that the run does not take are in no profile.
    """
    saved = folder / "optimized.onnx"
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(saved)
    # Weights aside: a model over 2 GB could not be saved otherwise.
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.data")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    opened = session(model, args, options)
    opened.run(None, {value.name: feeds[value.name] for value in opened.get_inputs()})
    events = json.loads(Path(opened.end_profiling()).read_text())
    placed: dict[str, Counter[str]] = {}
    heavy_on_cpu = []
    for event in events:
        details = event.get("args", {})
        if event.get("cat") != "Node" or "provider" not in details or not event["name"].endswith("_kernel_time"):
            continue
        provider, kind = details["provider"], details.get("op_name", "?")
        placed.setdefault(provider, Counter())[kind] += 1
        if args.provider == "cuda" and provider == CPU and kind in HEAVY:
            heavy_on_cpu.append(event["name"].removesuffix("_kernel_time"))
    total = sum(placed.values(), Counter())
    copies = sum(count for kind, count in total.items() if kind.startswith("Memcpy"))
    nodes = {provider: dict(sorted(kinds.items())) for provider, kinds in placed.items()}
    return {"fused": microsoft_ops(saved), "casts": total["Cast"], "copies": copies, "nodes": nodes} | {
        "heavy": sum(count for kind, count in total.items() if kind in HEAVY),
        "heavy_on_cpu": heavy_on_cpu,
    }


def main() -> None:
    """Parse, measure, inspect, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("feeds", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--tf32", action="store_true", help="let float32 products use TF32")
    parser.add_argument("--plain", action="store_true", help="do not inspect what the runtime makes of the graph")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="more CUDA provider options")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    if args.provider == "cuda" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    with np.load(args.feeds) as data:
        feeds = dict(data)
    rows = measured(feeds, args)
    for model, row in zip(args.models, rows, strict=True) if not args.plain else ():
        # On the model's own disk: what is saved is as large as the model.
        with tempfile.TemporaryDirectory(dir=model.parent) as folder, failing(row):
            if row["error"] is None:
                row.update(inspected(model, feeds, args, Path(folder)))
    args.report.write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
