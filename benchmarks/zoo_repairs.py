"""Whether the repairs that `verify` prints are taken by `convert`, and mend the model, over a folder of real models.

    python benchmarks/zoo_repairs.py FOLDER [NAME ...] [--levels O2 auto O3] [--share 0.5] [--out FILE.json] [--table]

FOLDER is that of zoo_right.py: models/NAME.onnx, and data/NAME/*.npz. Each model is converted without a check, and
verified on its first samples against a share of its own error, 1e-2 at most, so that all miss it. A repair of the
report goes into a second conversion as its options are printed, whose result is verified on the same samples: it must
be taken, and the verdict must be ok.

Every model and level is a process of its own; what FILE.json has of the same converted bytes is used again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zoo_right

TOLERANCE, LEAST = 1e-2, 1e-4  # what errors are held against at most; models with less are right as they are
Known = dict[str, Any]


# -- what a process of its own does -----------------------------------------------------------------------------------


def measure(source: Path, low: Path, data: Path, level: str, share: float, count: int) -> Known:
    """Everything of one model that is converted already."""
    import ampgraph

    samples = list(zoo_right.samples(data, count))
    first = ampgraph.verify(source, low, data=samples, nodes=0)
    error = max(output.scores.decisive for output in first.outputs if output.counts)
    tolerance = min(TOLERANCE, share * error)
    known: Known = {"error": plain(error), "tolerance": tolerance}
    if error < LEAST:
        return known
    start = time.monotonic()
    found = ampgraph.verify(source, low, data=samples, tolerance=tolerance)
    notes = [note for note in found.notes if "chaotic" in note or "search" in note or "nodes" in note]
    known |= {
        "seconds": round(time.monotonic() - start, 1),
        "notes": notes,
        "tried": found.mended and found.mended.tried,
    }
    if found.repair is None:
        return known | {"none": found.mended.none if found.mended else "nobody to blame"}
    words = [word for text in found.repair.options for word in shlex.split(text)]
    known |= {"options": list(found.repair.options), "said": found.repair.error}
    repaired = low.with_name("repaired.onnx")
    told = [sys.executable, "-m", "ampgraph", "convert", str(source), "--level", level, "-o", str(repaired)]
    code, _, err = zoo_right.run([*told, "--check", "off", "--quiet", *words])
    if code:
        return known | {"refused": err.strip()[-200:]}
    again = ampgraph.verify(source, repaired, data=samples, tolerance=tolerance, nodes=0)
    left = max(output.scores.decisive for output in again.outputs if output.counts)
    return known | {"left": plain(left), "mended": again.ok}


def plain(error: float) -> float | None:
    return error if math.isfinite(error) else None


# -- the process that asks --------------------------------------------------------------------------------------------


def asked(folder: Path, name: str, level: str, known: Known, args: argparse.Namespace, work: Path) -> Known:
    """One model at one level; what is known of the same bytes is not measured again."""
    source, low = folder / "models" / f"{name}.onnx", work / f"{name}.onnx"
    words = ["convert", str(source), "--level", level, "-o", str(low), "--check", "off", "--quiet"]
    code, _, err = zoo_right.run([sys.executable, "-m", "ampgraph", *words])
    if not low.is_file():
        return {"failed": f"{code}: {err.strip()[-200:]}"}
    digest = hashlib.sha256(low.read_bytes()).hexdigest()
    if known.get("sha256") == digest and known.get("share") == args.share:
        return known
    given = [source, low, folder / "data" / name, level, args.share, args.samples]
    code, out, err = zoo_right.run([sys.executable, __file__, "--one", *map(str, given)])
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found: Known = json.loads(lines[-1]) if lines else {"failed": f"{code}: {err.strip()[-200:]}"}
    return {"sha256": digest, "share": args.share, **found}


def shown(error: float | None) -> str:
    return "infinite" if error is None else f"{error:.1e}"


def cells(known: Known) -> list[str]:
    """Error, what it is held against, the repair's size, conversions tried, what is said to be left, is left, seconds,
    and what that comes to."""
    if "failed" in known:
        return ["", "", "", "", "", "", "", known["failed"]]
    begin = [shown(known["error"]), shown(known["tolerance"])]
    if "seconds" not in known:
        return [shown(known["error"]), "", "", "", "", "", "", "right as it is"]
    tried, seconds = str(known["tried"] or 0), f"{known['seconds']:.0f}"
    if "none" in known:
        chaotic = next((note.split(":")[0] for note in known["notes"] if "chaotic" in note), "")
        return [*begin, "", tried, "", "", seconds, "; ".join(filter(None, [known["none"], chaotic]))]
    begin += [str(len(known["options"])), tried, shown(known["said"])]
    if "refused" in known:
        return [*begin, "", seconds, "REFUSED"]
    return [*begin, shown(known["left"]), seconds, "mends it" if known["mended"] else "DOES NOT MEND IT"]


def table(every: dict[str, Known]) -> str:
    """As markdown, and what it comes to."""
    titles = ["model, level", "error", "tolerance", "options", "tried", "said to be left", "left", "seconds", ""]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [f"| {name} | " + " | ".join(cells(known)) + " |" for name, known in sorted(every.items())]
    missed = [known for known in every.values() if "seconds" in known]
    repaired = [known for known in missed if "options" in known]
    sums = [
        f"missed: {len(missed)}; with a repair: {len(repaired)}; refused: {sum('refused' in k for k in repaired)}; "
        f"mended: {sum(bool(k.get('mended')) for k in repaired)} of {len(repaired)}",
        f"without a repair: {len(missed) - len(repaired)}; seconds of `verify`, median and most: {_seconds(missed)}",
    ]
    return "\n".join([*lines, "", *sums])


def _seconds(missed: list[Known]) -> str:
    taken = sorted(known["seconds"] for known in missed)
    return f"{taken[len(taken) // 2]:.0f}, {taken[-1]:.0f}" if taken else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--levels", nargs="+", default=["O2", "auto", "O3"])
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("zoo_repairs.json"))
    parser.add_argument("--table", action="store_true", help="print what is known; measure nothing")
    args = parser.parse_args()
    every: dict[str, Known] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    there = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    chosen = [] if args.table else [path.stem for path in there if path.stem in (args.names or [path.stem])]
    for level, name in ((level, name) for level in args.levels for name in chosen):
        key = f"{name}, {level}"
        with tempfile.TemporaryDirectory() as work:
            every[key] = asked(args.folder, name, level, every.get(key, {}), args, Path(work))
        args.out.write_text(json.dumps(dict(sorted(every.items())), indent=1) + "\n", encoding="utf-8")
        print(f"{key}: {' | '.join(cells(every[key]))}", flush=True)
    print(table(every))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        *paths, at_level, limit, number = sys.argv[2:]
        print(json.dumps(measure(*map(Path, paths), at_level, float(limit), int(number))))
    else:
        main()
