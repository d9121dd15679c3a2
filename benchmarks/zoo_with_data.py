"""What data mend over a folder of real models, beside another converter's files: errors and float32 products.

    python benchmarks/zoo_with_data.py FOLDER [NAME ...] [--level O2] [--peer DIR] [--out FILE.json] [--table FILE.md]

FOLDER is that of zoo_right.py: models/NAME.onnx, and data/NAME/*.npz. For each model `convert --data` runs, and where
its result misses 1e-2, `tune --data`; the error is zoo_right's, by a strict run over the samples. A model is chaotic
where the rounding of its inputs alone, with nothing else low, misses 1e-2: the last column. DIR has NAME.onnx as the
other converter wrote it, judged by the same run. Every measurement is a process of its own; what FILE.json knows of a
converted file with the same bytes is used again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import zoo_right
from zoo_right import TOLERANCE

Known = dict[str, Any]


# -- what a process of its own does -----------------------------------------------------------------------------------


def products(model: Path) -> Known:
    """How many products are float32, of how many."""
    import ampgraph

    products = ampgraph.inspect(model, fusions=False).to_dict()["products"]
    return {"float32": products.get("float32", 0), "products": sum(products.values())}


def judged(source: Path, model: Path, data: Path, count: int) -> Known:
    """The strict error of a file, with its products."""
    return zoo_right.strict_error(source, model, data, count) | products(model)


def sensitivity(source: Path, data: Path, count: int) -> Known:
    """The error that rounding the inputs to float16 makes by itself."""
    import numpy as np

    from ampgraph.numerics.strict.session import StrictSession

    session, errors = StrictSession(source), dict[str, list[float]]()
    for feeds in zoo_right.samples(data, count):
        near = {k: v.astype(np.float16).astype(v.dtype) if v.dtype == np.float32 else v for k, v in feeds.items()}
        expected, found = session.run(feeds), session.run(near)
        for name, value in expected.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                errors.setdefault(name, []).append(zoo_right.frozen(value, found[name]))
    return {"inputs": max(zoo_right.p90(found) for found in errors.values())}


# -- the process that asks --------------------------------------------------------------------------------------------


def child(what: str, *given: object) -> Known:
    code, out, err = zoo_right.run([sys.executable, __file__, "--one", what, *map(str, given)])
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found: Known = json.loads(lines[-1]) if lines else {"failed": f"{code}: {err.strip()[-200:]}"}
    return found


def measure(folder: Path, name: str, args: argparse.Namespace, known: Known, work: Path) -> Known:
    """Everything of one model; what is known of the same file is not measured again."""
    source, data = folder / "models" / f"{name}.onnx", folder / "data" / name
    result = work / f"{name}.onnx"
    words = ["convert", str(source), "--level", args.level, "--data", str(data), "--check", "off", "-o", str(result)]
    zoo_right.run([sys.executable, "-m", "ampgraph", *words])
    digest = hashlib.sha256(result.read_bytes()).hexdigest() if result.is_file() else ""
    if known.get("sha256") != digest:
        known = {"sha256": digest, "data": child("judged", source, result, data, args.samples)} | (
            {"inputs": known["inputs"]} if "inputs" in known else {}
        )
    if "inputs" not in known:
        known["inputs"] = child("sensitivity", source, data, args.samples)
    if not known["data"].get("right") and "tuned" not in known:
        known["tuned"] = tuned(source, data, args, work)
    peer = args.peer / f"{name}.onnx" if args.peer else None
    if peer is not None and "peer" not in known:
        known["peer"] = child("judged", source, peer, data, args.samples) if peer.is_file() else {"failed": "no file"}
    return known


def tuned(source: Path, data: Path, args: argparse.Namespace, work: Path) -> Known:
    """`ampgraph tune --data`, and its model judged."""
    result = work / "tuned.onnx"
    words = ["tune", str(source), "--level", args.level, "--data", str(data), "-o", str(result)]
    ended = subprocess.run([sys.executable, "-m", "ampgraph", *words], capture_output=True, text=True, check=False)
    if not result.is_file():
        return {"failed": (ended.stdout + ended.stderr).strip()[-200:]}
    found = child("judged", source, result, data, args.samples)
    result.unlink()
    return found


# -- the table --------------------------------------------------------------------------------------------------------


def cell(part: Known | None) -> str:
    if part is None:
        return ""
    if "failed" in part:
        return "no file" if part["failed"] == "no file" else "failed"
    error = "infinite" if part["error"] is None else format(part["error"], ".1e")
    return f"{'' if part['right'] else 'WRONG '}{error}, {part['float32']} of {part['products']}"


def row(name: str, known: Known) -> str:
    inputs = known["inputs"].get("inputs")
    chaotic = "" if inputs is None else f"{inputs:.1e}" + (" chaotic" if inputs > TOLERANCE else "")
    return f"| {name} | " + " | ".join(cell(known.get(part)) for part in ("data", "tuned", "peer")) + f" | {chaotic} |"


def table(every: dict[str, Known]) -> str:
    """As markdown: error, and float32 products of all; and what it comes to."""
    lines = ["| model | convert --data | tune --data | peer | rounded inputs alone |", "|---|---|---|---|---|"]
    lines += [row(name, every[name]) for name in sorted(every)]
    best = {
        name: next((k[p] for p in ("data", "tuned") if k.get(p, {}).get("right")), None) for name, k in every.items()
    }
    missed = [name for name, found in best.items() if found is None]
    both = [n for n, found in best.items() if found is not None and every[n].get("peer", {}).get("right")]
    more = [n for n in both if best[n]["float32"] > every[n]["peer"]["float32"]]  # type: ignore[index]
    return "\n".join(
        [
            *lines,
            "",
            f"right with data: {len(best) - len(missed)} of {len(best)}; missed: {', '.join(missed) or 'none'}",
            f"right here and there: {len(both)}; more float32 products here: {', '.join(more) or 'none'}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--level", default="O2")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--out", type=Path, default=Path("zoo_with_data.json"))
    parser.add_argument("--table", type=Path, help="write the table there")
    args = parser.parse_args()
    every: dict[str, Known] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    there = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    for path in [p for p in there if p.stem in (args.names or [p.stem])]:
        with tempfile.TemporaryDirectory() as work:
            every[path.stem] = measure(args.folder, path.stem, args, every.get(path.stem, {}), Path(work))
        args.out.write_text(json.dumps(dict(sorted(every.items())), indent=1) + "\n", encoding="utf-8")
        print(row(path.stem, every[path.stem]), flush=True)
    print(table(every))
    if args.table:
        args.table.write_text(table(every) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        job, *paths, number = sys.argv[2:]
        print(json.dumps(globals()[job](*map(Path, paths), int(number))))
    else:
        main()
