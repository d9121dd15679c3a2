"""Whether the repairs that `verify` prints are taken by `convert`, and do what they say, over a folder of real models.

    python benchmarks/zoo_repairs.py FOLDER [NAME ...] [--levels O3 O2] [--tolerance 3e-4] [--out FILE.json] [--table]

FOLDER is that of zoo_right.py: models/NAME.onnx, and data/NAME/*.npz. Each model is converted without a check, and
verified on its first samples against a tolerance so low that nearly all miss it. All repairs of the report go into a
second conversion, which must take them, and is verified on the same samples. They do what they say where

- the value that was named as the first that is not finite is so no more, or
- the error of the sample that was looked at is no more than half above what the report says is left with these nodes in
  float32, or below the tolerance: what was float32 before may be low now, near the rest.

Where there was no time to look for causes, the report names nodes by where errors grow, not what is left with them in
float32: these are counted by themselves, with how many of them take a tenth of the error away.

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
from pathlib import Path
from typing import Any

import zoo_right

MORE = 1.5  # of the error that is said to be left
LITTLE = 0.9  # of the error: repairs that leave more change little
Known = dict[str, Any]


# -- what a process of its own does -----------------------------------------------------------------------------------


def measure(source: Path, low: Path, data: Path, level: str, tolerance: float, count: int) -> Known:
    """Everything of one model that is converted already."""
    import ampgraph

    samples = list(zoo_right.samples(data, count))
    found = ampgraph.verify(source, low, data=samples, tolerance=tolerance)
    suspects = [found.first_nonfinite] if found.first_nonfinite is not None else list(found.growth)
    repairs = list(dict.fromkeys(text for suspect in suspects for text in suspect.repair))
    named = [suspect.node for suspect in suspects]
    known: Known = {"error": of_sample(found), "named": named, "repairs": repairs, "notes": list(found.notes)}
    if found.ok or not repairs:
        return known | {"missed": not found.ok}
    words = [word for text in repairs for word in shlex.split(text)]
    patterns = [word for option, word in zip(words, words[1:], strict=False) if option == "--fp32"]
    repaired = low.with_name("repaired.onnx")
    try:
        ampgraph.convert(source, level, output=repaired, fp32=patterns, check="off")
    except ampgraph.AmpError as refused:
        return known | {"missed": True, "refused": str(refused)}
    again = ampgraph.verify(source, repaired, data=samples, tolerance=tolerance, nodes=0 if found.growth else None)
    repaired.unlink()
    after = of_sample(again, found.traced)
    known |= {"missed": True, "left": plain(found.left), "after": after}
    if found.first_nonfinite is not None:
        born = again.first_nonfinite
        return known | {"mended": born is None or born.node != found.first_nonfinite.node}
    if found.left is None:  # it is not said what is left
        return known | {"less": after is not None and after < LITTLE * (known["error"] or math.inf)}
    return known | {"mended": after is not None and after <= max(MORE * found.left, tolerance)}


def of_sample(found: Any, number: int | None = None) -> float | None:
    """The largest error of the outputs on the sample that was looked at; None where it is infinite."""
    place = number if number is not None else found.traced or 0
    judged = [output.judged_errors for output in found.outputs if output.counts]
    return plain(max((errors[place] for errors in judged), default=0.0))


def plain(error: float | None) -> float | None:
    return error if error is not None and math.isfinite(error) else None


# -- the process that asks --------------------------------------------------------------------------------------------


def asked(folder: Path, name: str, level: str, known: Known, args: argparse.Namespace, work: Path) -> Known:
    """One model at one level; what is known of the same bytes is not measured again."""
    source, low = folder / "models" / f"{name}.onnx", work / f"{name}.onnx"
    words = ["convert", str(source), "--level", level, "-o", str(low), "--check", "off", "--quiet"]
    code, _, err = zoo_right.run([sys.executable, "-m", "ampgraph", *words])
    if not low.is_file():
        return {"failed": f"{code}: {err.strip()[-200:]}"}
    digest = hashlib.sha256(low.read_bytes()).hexdigest()
    if known.get("sha256") == digest and known.get("tolerance") == args.tolerance:
        return known
    given = [source, low, folder / "data" / name, level, args.tolerance, args.samples]
    code, out, err = zoo_right.run([sys.executable, __file__, "--one", *map(str, given)])
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found: Known = json.loads(lines[-1]) if lines else {"failed": f"{code}: {err.strip()[-200:]}"}
    return {"sha256": digest, "tolerance": args.tolerance, **found}


def shown(error: float | None) -> str:
    return "infinite" if error is None else f"{error:.1e}"


def cells(known: Known) -> list[str]:
    """Error, repairs, what is said to be left, what is left, and what that comes to."""
    if "failed" in known:
        return ["", "", "", "", known["failed"]]
    begin = [shown(known["error"]), str(len(known["repairs"]))]
    if not known["missed"]:
        return [*begin, "", "", "right as it is"]
    if "refused" in known:
        return [*begin, "", "", "REFUSED"]
    if "less" in known:
        return [*begin, "", shown(known["after"]), f"by growth: {'less' if known['less'] else 'NO LESS'}"]
    if "mended" not in known:
        return [*begin, "", "", "no repair"]
    left = "" if known["left"] is None else shown(known["left"])
    little = LITTLE * (known["error"] or math.inf) < (known["after"] or 0.0) and bool(known["left"])
    said = "does what it says" + ", which is little" * little
    return [*begin, left, shown(known["after"]), said if known["mended"] else "NOT AS SAID"]


def table(every: dict[str, Known]) -> str:
    """As markdown, and what it comes to."""
    lines = ["| model, level | error | repairs | said to be left | left | |", "|---|---|---|---|---|---|"]
    lines += [f"| {name} | " + " | ".join(cells(known)) + " |" for name, known in sorted(every.items())]
    repaired = [known for known in every.values() if {"mended", "less", "refused"} & known.keys()]
    refused, mended = sum("refused" in known for known in repaired), sum(bool(k.get("mended")) for k in repaired)
    grown = [known["less"] for known in repaired if "less" in known]
    sums = (
        f"with repairs: {len(repaired)}; refused: {refused}; do what they say: {mended} of {len(repaired) - len(grown)}"
    )
    late = f"named by growth, with no time to look for causes: {len(grown)}; less with them in float32: {sum(grown)}"
    return "\n".join([*lines, "", sums, late])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--levels", nargs="+", default=["O3", "O2"])
    parser.add_argument("--tolerance", type=float, default=3e-4)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("zoo_repairs.json"))
    parser.add_argument("--table", action="store_true", help="print what is known; measure nothing")
    args = parser.parse_args()
    every: dict[str, Known] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    there = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    for path in [p for p in there if p.stem in (args.names or [p.stem]) and not args.table]:
        for level in args.levels:
            key = f"{path.stem}, {level}"
            with tempfile.TemporaryDirectory() as work:
                every[key] = asked(args.folder, path.stem, level, every.get(key, {}), args, Path(work))
            args.out.write_text(json.dumps(dict(sorted(every.items())), indent=1) + "\n", encoding="utf-8")
            print(f"{key}: {' | '.join(cells(every[key]))}", flush=True)
    print(table(every))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        *paths, at_level, limit, number = sys.argv[2:]
        print(json.dumps(measure(*map(Path, paths), at_level, float(limit), int(number))))
    else:
        main()
