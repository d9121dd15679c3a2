"""How cost grows: 2,000 to 100,000 nodes, 2.68 GB of weights, and the start of the command line.

    python benchmarks/scale.py --out scale.json [--nodes 2000 20000 100000] [--no-big] [--peer-python PATH]

Each figure is the least of `--repeat` fresh processes: a busy machine only ever adds to it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import synthetic
from convert_one import is_ampgraph
from measure import folder_mb, markdown, number, run_child

HERE = Path(__file__).resolve().parent
STAGES = ["load", "plan", "apply", "save"]
Row = dict[str, Any]


def least(reports: list[Row]) -> Row:
    """The least of each number over the repeats, or the first failure."""
    failed = next((r for r in reports if r.get("error")), None)
    if failed:
        return {"error": failed["error"]}
    keys = [k for k, v in reports[0].items() if isinstance(v, float)]
    return {"error": None} | {k: min(r[k] for r in reports) for k in keys}


def whole(converter: str, source: Path, work: Path, args: argparse.Namespace) -> Row:
    """Reading, converting and writing, after the converter's imports."""
    python = sys.executable if is_ampgraph(converter) or not args.peer_python else args.peer_python
    folder = Path(tempfile.mkdtemp(dir=work))
    arguments = [converter, str(source), str(folder / "model.onnx")]
    child = run_child(HERE / "convert_one.py", arguments, python=python, timeout=args.timeout)
    error = child.failure or child.report.get("error")
    memory = {"private_mb": child.private_mb, "rss_mb": child.rss_mb, "out_mb": folder_mb(folder)}
    shutil.rmtree(folder)
    return {**child.report, **memory, "error": error}


def in_turns(converters: list[str], source: Path, work: Path, args: argparse.Namespace, repeat: int) -> list[Row]:
    """The least of some processes for each converter, one after the other each time: a busy machine meets all alike.

    ``of_peer``: CPU time beside that of the first peer in the same run."""
    reports: dict[str, list[Row]] = {converter: [] for converter in converters}
    for _ in range(repeat):
        for converter, found in reports.items():
            if not any(report["error"] for report in found):
                found.append(whole(converter, source, work, args))
    rows = [{"model": source.stem, "converter": name, **least(found)} for name, found in reports.items()]
    peer = next((row["cpu_s"] for row in rows if not is_ampgraph(row["converter"]) and not row["error"]), None)
    for row in rows:
        row["of_peer"] = None if peer is None or row["error"] else row["cpu_s"] / peer
        log(row)
    return rows


def stages(level: str, source: Path, work: Path, args: argparse.Namespace) -> Row:
    """Each stage by itself, in one process."""
    reports = []
    for _ in range(args.repeat):
        folder = Path(tempfile.mkdtemp(dir=work))
        arguments = [str(source), str(folder / "model.onnx"), level]
        child = run_child(HERE / "stages_one.py", arguments, timeout=args.timeout)
        reports.append({**child.report, "error": child.failure or child.report.get("error")})
        shutil.rmtree(folder)
        if reports[-1]["error"]:
            break
    return {"model": source.stem, "level": level, **least(reports)}


def start_up(repeat: int) -> Row:
    """Wall seconds of `ampgraph --help`, beside those of an interpreter that does nothing."""
    script = Path(sys.executable).with_name("ampgraph")
    commands = {"ampgraph --help": [str(script), "--help"], "python -c pass": [sys.executable, "-c", "pass"]}
    found: Row = {}
    for name, command in commands.items():
        seconds = []
        for _ in range(max(repeat, 5)):
            start = time.perf_counter()
            try:
                done = subprocess.run(command, capture_output=True)
            except OSError:
                break
            if done.returncode:
                break
            seconds.append(time.perf_counter() - start)
        found[name] = min(seconds, default=None)
    return found


def measure_deep(work: Path, args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """The chains of small nodes: whole conversions, and the stages of ours."""
    wholes, parts = [], []
    for nodes in args.nodes:
        source = work / f"deep{nodes}.onnx"
        count = synthetic.deep(source, nodes)
        names = [*(f"ampgraph:{level}" for level in args.levels), *args.peers]
        wholes += [{**row, "nodes": count} for row in in_turns(names, source, work, args, args.repeat)]
        for level in args.levels:
            parts.append({**stages(level, source, work, args), "nodes": count})
            log(parts[-1])
        source.unlink()
    return wholes, parts


def measure_big(work: Path, args: argparse.Namespace) -> list[Row]:
    """The model with external weights, once for each converter."""
    source = work / "big.onnx"
    gigabytes = synthetic.big(source) / 1e9
    rows = in_turns([f"ampgraph:{args.levels[0]}", *args.peers], source, work, args, 1)
    for row in rows:
        row["cpu_s_a_gb"] = None if row["error"] else row["cpu_s"] / gigabytes
    source.with_name(source.name + ".data").unlink()
    return rows


def log(row: Row) -> None:
    """One line of progress."""
    print(row["model"], row.get("converter") or row["level"], row["error"] or "ok", file=sys.stderr, flush=True)


def tables(results: Row) -> str:
    """All results in Markdown."""
    whole_rows = [
        [f"{r['nodes']:,}", r["converter"]]
        + ([f"failed: {r['error'][:80]}", None, None, None, None] if r["error"] else timings(r, r["nodes"]))
        for r in results["deep"]
    ]
    stage_rows = [
        [f"{r['nodes']:,}", r["level"]]
        + ([f"failed: {r['error'][:80]}", None, None, None] if r["error"] else [number(r[s], ".3f") for s in STAGES])
        for r in results["stages"]
    ]
    big_rows = [
        [r["converter"]]
        + (
            [f"failed: {r['error'][:80]}", None, None, None, None, None]
            if r["error"]
            else [number(r["cpu_s"])]
            + [number(r["cpu_s_a_gb"])]
            + [number(r.get(k), ".0f") for k in ("private_mb", "rss_mb", "written_mb", "out_mb")]
        )
        for r in results["big"]
    ]
    head = ["nodes", "converter", "CPU s", "of the peer's", "microseconds a node", "wall s", "private MB"]
    parts = [markdown(head, whole_rows)]
    parts.append(markdown(["nodes", "level", *(f"{s} CPU s" for s in STAGES)], stage_rows))
    if big_rows:
        parts.append(
            markdown(["2.68 GB", "CPU s", "CPU s a GB", "private MB", "RSS MB", "written MB", "out MB"], big_rows)
        )
    start = [[name, number(seconds, ".3f") or "failed"] for name, seconds in results["start_up"].items()]
    parts.append(markdown(["start-up", "wall s"], start))
    return "\n\n".join(parts)


def timings(row: Row, nodes: int) -> list[str | None]:
    """The cells of a whole conversion."""
    per_node = number(1e6 * row["cpu_s"] / nodes, ".0f")
    return [
        number(row["cpu_s"]),
        number(row["of_peer"]),
        per_node,
        number(row["wall_s"]),
        number(row.get("private_mb"), ".0f"),
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure, save, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON results; the tables go to standard output")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2_000, 20_000, 100_000])
    parser.add_argument("--levels", nargs="+", default=["O2", "auto"])
    parser.add_argument("--peers", nargs="*", default=["ort_model"])
    parser.add_argument("--no-big", dest="big", action="store_false", help="leave the 2.68 GB model out")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--peer-python", help="interpreter for the peers")
    parser.add_argument(
        "--work", type=Path, help="folder for the models (default: a temporary one; 7 GB with the big one)"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        work = Path(folder)
        deep, parts = measure_deep(work, args)
        results = {"deep": deep, "stages": parts, "big": measure_big(work, args) if args.big else []}
    results["start_up"] = start_up(args.repeat)
    args.out.write_text(json.dumps(results, indent=1))
    print(tables(results))


if __name__ == "__main__":
    main()
