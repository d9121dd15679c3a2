"""ampgraph beside other converters, over the same models in the same run: cost, validity, error, casts, size.

    python benchmarks/peers.py --models DIR/*.onnx --converters ampgraph:O2 ampgraph:auto ort_model --out results.json

Each model needs its inputs beside it as NAME.npz. Each conversion and each check is a fresh process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from convert_one import is_ampgraph
from measure import highest, markdown, number, run_child

HERE = Path(__file__).resolve().parent
GOOD_ERROR = 0.05
Row = dict[str, Any]


def convert(converter: str, source: Path, target: Path, args: argparse.Namespace) -> Row:
    """Run one conversion in a fresh process; peers may use another interpreter."""
    python = sys.executable if is_ampgraph(converter) or not args.peer_python else args.peer_python
    child = run_child(
        HERE / "convert_one.py", [converter, str(source), str(target)], python=python, timeout=args.timeout
    )
    error = child.failure or child.report.get("error")
    if error is None and not target.exists():
        error = "no file was written"
    rss = highest(child.rss_mb, child.report.get("max_rss_mb"))
    return {**child.report, "error": error, "process_s": child.wall_s, "rss_mb": rss, "private_mb": child.private_mb}


def check(source: Path, converted: Path, reference: Path, args: argparse.Namespace, judge: bool = True) -> Row:
    """Judge one converted file in a fresh process."""
    paths = [source, converted, source.with_suffix(".npz"), reference]
    arguments = [*map(str, paths), "--strict-limit", str(args.strict_limit if judge else 0)]
    child = run_child(HERE / "check_one.py", arguments, timeout=args.check_timeout)
    return {**child.report, "check_error": child.failure} if child.failure else child.report


def measure_model(source: Path, work: Path, args: argparse.Namespace) -> list[Row]:
    """All converters on one model; a converted model is judged and then deleted."""
    rows: list[Row] = []
    reference = work / f"{source.stem}.reference.npz"
    original = check(source, source, reference, args)
    if not reference.exists():
        raise SystemExit(f"{source}: no float32 reference: {original}")
    for converter in args.converters:
        folder = work / f"{source.stem}.{converter.replace(':', '-')}"
        folder.mkdir()
        target = folder / "model.onnx"
        row: Row = {"model": source.stem, "converter": converter, "source_nodes": original["nodes"]}
        row.update(convert(converter, source, target, args))
        # Thousands of random layers amplify any rounding: an error there says nothing of the conversion.
        row["speed_only"] = fnmatch(source.stem, args.speed_only)
        if row["error"] is None:
            row.update(check(source, target, reference, args, judge=not row["speed_only"]))
        row["verdict"] = verdict(row)
        print(f"{source.stem} {converter}: {row['verdict']}", file=sys.stderr, flush=True)
        rows.append(row)
        shutil.rmtree(folder)
    reference.unlink()
    return rows


def verdict(row: Row) -> str:
    """One word on a result; the order is that of what hurts a user first."""
    if row.get("missing"):
        return "not installed"
    if row["error"]:
        return "failed"
    if row.get("load") != "ok" or row.get("run") != "ok":
        return "does not run"
    if row.get("checker") != "ok":
        return "checker refuses"
    judged = row.get("strict") or row.get("plain") or {}
    if row.get("speed_only"):
        return "valid (speed only)"
    if judged.get("nonfinite") or judged.get("mismatch"):
        return "wrong"
    if row.get("strict") and judged["rel_l2"] > GOOD_ERROR:
        return "wrong"
    return "good" if row.get("strict") else "runs (no strict run)"


def low_share(row: Row) -> str | None:
    """Low heavy nodes of all heavy nodes; `?` where a type could not be inferred."""
    if "heavy" not in row:
        return None
    return f"{row['heavy_low']}/{row['heavy']}" + ("?" if row["heavy_unknown"] else "")


def table(rows: list[Row]) -> str:
    """The Markdown table of a run."""
    header = ["model", "converter", "verdict", "wall s", "CPU s", "RSS MB", "private MB", "written MB", "out MB"]
    header += ["casts/nodes", "heavy low", "plain rel L2", "strict rel L2", "not finite"]
    body = []
    for row in rows:
        plain, strict = row.get("plain") or {}, row.get("strict") or {}
        why = row["error"] if row["verdict"] == "failed" else ""
        body.append(
            [row["model"], row["converter"], row["verdict"] + (f": {why[:80]}" if why else "")]
            + [number(row.get("wall_s")), number(row.get("cpu_s")), number(row.get("rss_mb"), ".0f")]
            + [number(row.get("private_mb"), ".0f"), number(row.get("written_mb"), ".1f")]
            + [number(row.get("out_mb"), ".1f"), f"{row['casts']}/{row['nodes']}" if "casts" in row else None]
            + [low_share(row), number(plain.get("rel_l2"), ".1e"), number(strict.get("rel_l2"), ".1e")]
            + [strict.get("nonfinite", plain.get("nonfinite"))]
        )
    return markdown(header, body)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="NAME.onnx with NAME.npz beside it")
    parser.add_argument("--converters", nargs="+", required=True, help="ampgraph:LEVEL[:DTYPE] or a peer's name")
    parser.add_argument("--out", type=Path, required=True, help="JSON results; the table goes to standard output")
    parser.add_argument("--peer-python", help="interpreter for the peers, where they live in another environment")
    parser.add_argument("--work", type=Path, help="folder for the converted models (default: a temporary one)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one conversion")
    parser.add_argument("--check-timeout", type=float, default=600, help="seconds for one check")
    parser.add_argument("--speed-only", default="deep*", help="models whose error is not judged, as a pattern")
    parser.add_argument("--strict-limit", type=int, default=8000, help="no strict run above this many nodes")
    args = parser.parse_args(argv)
    for path in args.models:
        if not path.with_suffix(".npz").exists():
            parser.error(f"{path}: its inputs {path.with_suffix('.npz')} are missing")
    return args


def main(argv: list[str] | None = None) -> None:
    """Measure, save after every model, print the table."""
    args = parse(argv)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        for source in args.models:
            rows += measure_model(source.resolve(), Path(work), args)
            args.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
