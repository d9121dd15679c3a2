"""Whether what `convert` writes is right, and whether it says so where it is not, over a folder of real models.

    python benchmarks/zoo_right.py FOLDER [NAME ...] [--levels O2 auto] [--parts error generated data steered] [--table]

FOLDER holds models/NAME.onnx, and data/NAME/ with the real inputs of each, an .npz file a sample. For every model and
level, in float16, without data and without repair:

- error: of the conversion on its real inputs by a strict run: per float output rms(a - b) / max(rms(a), 1e-3), its 90th
  percentile over the samples, the worst output. Right is 1e-2 or less.
- generated: what `convert` says on generated inputs; all other parts are of the file that it keeps after that.
- data: what the same check says of the same file on the real inputs.
- steered: the error of `convert --data`, and what its check says; neither is asked where data change nothing.
- repaired: the same with `--repair`, and the CPU seconds of the command, all its processes together.

`--patience N` gives the check N times its time, for a busy machine; `taskset -c 0` before it takes one core.
Every part is a process of its own. Results are kept in FOLDER/right/NAME.LEVEL.json (`--out` names another folder) and
used again while what `convert` writes has the same bytes; `--again PART` measures a part anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("error", "generated", "data", "steered", "repaired")
TOLERANCE, FLOOR = 1e-2, 1e-3
ANNOUNCED = ("missed", "doubtful")
SECONDS = 1800  # for one part of one model
PATIENT = """from ampgraph.api import check
check.SECONDS *= {}
from ampgraph.cli.console import main
main()"""


# -- what a process of its own does -----------------------------------------------------------------------------------


def frozen(a: Any, b: Any) -> float:
    """rms(a - b) / max(rms(a), 1e-3) of what is finite in both; infinite where they differ in that or in shape."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return math.inf
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    if not same.all():
        return math.inf
    if not finite.any():
        return 0.0
    off, scale = (float(np.sqrt(np.mean(np.square(x)))) for x in ((a - b)[finite], a[finite]))
    return off / max(scale, FLOOR)


def p90(errors: list[float]) -> float:
    """An error that occurred: of 8 samples the largest."""
    return sorted(errors)[math.ceil(0.9 * len(errors)) - 1]


def samples(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.npz"))[:count]:
        with np.load(path) as held:
            yield {name: held[name] for name in held.files}


def strict_error(source: Path, model: Path, data: Path, count: int) -> dict[str, Any]:
    """The error of each float output over the samples."""
    from ampgraph.numerics.strict.session import StrictSession

    reference, result = StrictSession(source), StrictSession(model)
    errors: dict[str, list[float]] = {}
    for feeds in samples(data, count):
        expected, found = reference.run(feeds), result.run(feeds)
        for name, value in expected.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                errors.setdefault(name, []).append(frozen(value, found[name]))
    by_output = {name: p90(found) for name, found in errors.items()}
    worst = max(by_output.values())
    return {"error": worst if math.isfinite(worst) else None, "right": worst <= TOLERANCE, "outputs": by_output}


def check_with_data(source: Path, model: Path, data: Path, count: int) -> dict[str, Any]:
    """What the check of a conversion says of a file on samples."""
    from ampgraph.api import check
    from ampgraph.api.check_run import Request

    request = Request(str(source), str(model), str(data), count, {}, TOLERANCE, check.SECONDS * check.SHARES[1])
    return check.ask(request).to_dict()


# -- the process that asks --------------------------------------------------------------------------------------------


class Row:
    """One model at one level, with what is known of it."""

    def __init__(self, folder: Path, name: str, level: str, out: Path, count: int, patience: float = 1) -> None:
        self.source, self.data = folder / "models" / f"{name}.onnx", folder / "data" / name
        self.name, self.level, self.count = name, level, count
        self.command = [sys.executable, "-c", PATIENT.format(patience)]
        self.file = out / f"{name}.{level}.json"
        self.known: dict[str, Any] = json.loads(self.file.read_text()) if self.file.is_file() else {}

    def measure(self, parts: list[str], again: list[str], work: Path) -> None:
        """Measures what is not known yet of the file that the level makes now."""
        plain = work / f"{self.name}.{self.level}.onnx"
        plain.unlink(missing_ok=True)
        first, known = "generated", self.known.get("generated")
        self.convert(plain, ["--check", "auto"], first)  # which may change the file
        if not plain.is_file():
            self.keep()
            return
        digest = hashlib.sha256(plain.read_bytes()).hexdigest()
        if self.known.get("sha256") != digest:
            self.known = {"sha256": digest, first: self.known[first]}
        elif known is not None and first not in again:
            self.known[first] = known
        for part in parts:
            fresh = part == first
            if part not in self.known or (part in again and not fresh):
                getattr(self, f"part_{part}")(plain, work)
                fresh = True
            if fresh:
                self.keep()
                print(f"{self.name} {self.level} {part}: {said(self.known[part])}", flush=True)
        plain.unlink()

    def part_error(self, plain: Path, work: Path) -> None:
        self.known["error"] = self.child("strict_error", plain)

    def part_data(self, plain: Path, work: Path) -> None:
        self.known["data"] = self.child("check_with_data", plain)

    def part_steered(self, plain: Path, work: Path) -> None:
        files = [work / "unsteered.onnx", work / "unchecked.onnx"]
        for result, words in zip(files, ([], ["--data", str(self.data), "--samples", str(self.count)]), strict=True):
            self.convert(result, ["--check", "off", *words], "steered")
        same = all(result.is_file() for result in files) and graph_of(files[0]) == graph_of(files[1])
        if same and self.known.get("error", {}).get("right"):
            self.known["steered"] |= {"same": True}
        else:
            self.with_data("steered", work, [])

    def part_repaired(self, plain: Path, work: Path) -> None:
        self.with_data("repaired", work, ["--repair"])

    def with_data(self, part: str, work: Path, words: list[str]) -> None:
        """`convert --data`, and its file judged."""
        result = work / f"{part}.onnx"
        given = ["--check", "auto", "--data", str(self.data), "--samples", str(self.count)]
        self.convert(result, [*given, *words], part)
        if result.is_file():
            self.known[part] |= self.child("strict_error", result)
            result.unlink()

    def convert(self, output: Path, words: list[str], part: str) -> None:
        """`ampgraph convert`, and of its report what this is about."""
        words = ["convert", str(self.source), "--level", self.level, "-o", str(output), "--json", *words]
        start = cpu_seconds()
        code, out, err = run([*self.command, *words])
        if not out.strip():
            self.known[part] = {"exit": code, "failed": (err.strip().splitlines() or ["nothing was said"])[-1]}
            return
        report = json.loads(out)
        products = {name: report["products"][name] for name in ("low", "existing", "float32")}
        casts = report["casts_after"] - report["casts_before"]
        seconds = round(cpu_seconds() - start, 1)
        self.known[part] = {
            "exit": code, "products": products, "casts": casts, "check": report["check"], "cpu": seconds,
        }  # fmt: skip

    def child(self, what: str, model: Path) -> dict[str, Any]:
        paths = [str(path) for path in (self.source, model, self.data)]
        code, out, err = run([sys.executable, __file__, "--one", what, *paths, str(self.count)])
        lines = [line for line in out.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {"failed": f"{code}: {err.strip()[-300:]}"}
        return found

    def keep(self) -> None:
        self.file.write_text(json.dumps(self.known, indent=1), encoding="utf-8")


def cpu_seconds() -> float:
    """That all processes took that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def graph_of(path: Path) -> bytes:
    """A model without what is said of it."""
    import onnx

    found: bytes = onnx.load(path).graph.SerializeToString()
    return found


def run(words: list[str]) -> tuple[int, str, str]:
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=os.environ, check=False)
    except subprocess.TimeoutExpired:
        return -1, "", f"took more than {SECONDS} seconds"
    return ended.returncode, ended.stdout, ended.stderr


# -- the table --------------------------------------------------------------------------------------------------------


def verdict(check: dict[str, Any] | None) -> str:
    """What a check said, in a word."""
    return "no check" if check is None else str(check["outcome"])


def said(part: dict[str, Any]) -> str:
    """A part in a few words."""
    if "failed" in part:
        return f"failed: {part['failed']}"
    words = ["the same file"] if part.get("same") else []
    if "right" in part:
        words.append(f"{'infinite' if part['error'] is None else format(part['error'], '.1e')}")
    check = part.get("check", part if "outcome" in part else None)
    if check is not None:
        words.append(verdict(check) + (f" ({check['reason']})" if check["outcome"] == "not checked" else ""))
        words += [f"{check['exceeded']} of {check['samples']}"] if check.get("exceeded") else []
        words += [f"({check['near']})"] if check["near"] else []
        words += [f"(inputs' rounding alone {check['sensitivity']:.1e})"] if check.get("sensitivity") else []
    if "products" in part:
        words.append(f"/ {part['products']['float32']} products float32")
    return " ".join(words) or "no check"


def table(rows: list[Row]) -> str:
    """All rows as markdown, and what they come to."""
    lines = ["| model | level | " + " | ".join(PARTS) + " |", "|" + "---|" * (2 + len(PARTS))]
    for row in rows:
        cells = [said(row.known[part]) if part in row.known else "-" for part in PARTS]
        right = row.known.get("error", {}).get("right")
        lines.append(f"| {row.name} | {row.level} | {'WRONG ' if right is False else ''}" + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *totals(rows)])


def totals(rows: list[Row]) -> list[str]:
    """The shares that are promised."""
    judged = [row for row in rows if "right" in row.known.get("error", {})]
    wrong = [row for row in judged if not row.known["error"]["right"]]
    heard = [row for row in judged if "check" in row.known.get("generated", {})]
    by = {id(row): verdict(row.known["generated"]["check"]) for row in heard}
    announced = [row for row in wrong if by.get(id(row)) in ANNOUNCED]
    false = [row for row in heard if row.known["error"]["right"] and by[id(row)] in ANNOUNCED]
    silent = [row for row in wrong if row.known.get("data", {}).get("outcome") == "ok"]
    unheard = [row for row in heard if by[id(row)] == "not checked"]
    return [
        f"right: {len(judged) - len(wrong)} of {len(judged)}",
        f"wrong and announced on generated inputs: {names(announced)} of {names(wrong)}",
        f"right and announced as wrong on generated inputs: {names(false)}",
        f"not checked on generated inputs: {names(unheard)}",
        f"wrong without a word on the same inputs as data: {names(silent)}",
    ]


def names(rows: list[Row]) -> str:
    return f"{len(rows)}" + (f" ({', '.join(f'{row.name} {row.level}' for row in rows)})" if rows else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--levels", nargs="+", default=["O2", "auto"])
    parser.add_argument("--parts", nargs="*", default=list(PARTS[:3]), choices=PARTS)
    parser.add_argument("--again", nargs="*", default=[], choices=PARTS)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--patience", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="print what is known; measure nothing")
    args = parser.parse_args()
    out = args.out or args.folder / "right"
    out.mkdir(parents=True, exist_ok=True)
    there = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    chosen = [p.stem for p in there if (args.folder / "data" / p.stem).is_dir() and p.stem in (args.names or [p.stem])]
    rows = [Row(args.folder, name, level, out, args.samples, args.patience) for name in chosen for level in args.levels]
    if not args.table:
        with tempfile.TemporaryDirectory() as work:
            for row in rows:
                row.measure(args.parts, args.again, Path(work))
    print(table(sorted(rows, key=lambda row: row.name)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        job, *paths, number = sys.argv[2:]
        print(json.dumps(globals()[job](*map(Path, paths), int(number))))
    else:
        main()
