"""Judge one converted model in this process: checker, ONNX Runtime on CPU, error to the original, plain and strict.

    python check_one.py ORIGINAL CONVERTED FEEDS.npz REFERENCE.npz --report FILE

CONVERTED equal to ORIGINAL writes REFERENCE, the original's float32 outputs, and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from compare import errors
from measure import folder_mb, one_line
from model_facts import static_facts

THREADS = 2


def session(path: Path):
    """A CPU session that says nothing."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_plain(path: Path, feeds: Mapping[str, np.ndarray], report: dict[str, Any]) -> list[np.ndarray] | None:
    """Load and run by ONNX Runtime's CPU provider; what went wrong goes into the report."""
    try:
        loaded = session(path)
        report["load"] = "ok"
    except Exception as error:
        report["load"] = one_line(error)
        return None
    try:
        start = time.perf_counter()
        outputs = loaded.run(None, {v.name: feeds[v.name] for v in loaded.get_inputs()})
        report["run_s"], report["run"] = time.perf_counter() - start, "ok"
    except Exception as error:
        report["run"] = one_line(error)
        return None
    return outputs


def run_strict(path: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run with every low value really rounded; plain CPU runs skip most of the rounding."""
    from ampgraph.numerics.strict import session as strict

    outputs = strict.run_strict(str(path), dict(feeds))
    return list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Everything about the converted model."""
    path: Path = args.converted
    report: dict[str, Any] = {"out_mb": folder_mb(path.parent)}
    try:
        report.update(static_facts(path))
    except Exception as error:
        report["facts_error"] = one_line(error)
    try:
        onnx.checker.check_model(str(path), full_check=True)
        report["checker"] = "ok"
    except Exception as error:
        report["checker"] = one_line(error)
    with np.load(args.feeds) as data:
        feeds = dict(data)
    with np.load(args.reference) as data:
        reference = [data[str(i)] for i in range(len(data.files))]
    outputs = run_plain(path, feeds, report)
    if outputs is None:
        return report
    report["io_kept"] = [o.dtype for o in outputs] == [r.dtype for r in reference]
    report["plain"] = errors(outputs, reference)
    if report.get("nodes", 0) > args.strict_limit:
        report["strict_skipped"] = f"more than {args.strict_limit} nodes"
        return report
    try:
        report["strict"] = errors(run_strict(path, feeds), reference)
    except Exception as error:
        report["strict_skipped"] = one_line(error)
    return report


def make_reference(args: argparse.Namespace) -> dict[str, Any]:
    """Run the original in float32 and keep its outputs, by position."""
    report: dict[str, Any] = {}
    with np.load(args.feeds) as data:
        outputs = run_plain(args.original, dict(data), report)
    if outputs is not None:
        np.savez(args.reference, **{str(i): value for i, value in enumerate(outputs)})
        report.update(static_facts(args.original))
    return report


def main() -> None:
    """Parse, judge, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("original", "converted", "feeds", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--strict-limit", type=int, default=8000, help="no strict run above this many nodes")
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    report = make_reference(args) if args.original == args.converted else check(args)
    args.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
