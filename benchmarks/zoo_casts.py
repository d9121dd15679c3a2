"""Casts in the files that `convert` writes, beside those of other converters, over a folder of real models.

    python benchmarks/zoo_casts.py FOLDER [NAME ...] [--levels O2 auto] [--peers ort occ autocast] [--table]

FOLDER holds models/NAME.onnx, data/NAME/*.npz (real inputs, a file a sample), and out/PEER/NAME.onnx, what other
converters made of the models. Of every file: whether it is valid (onnx's checker takes it if it takes the original,
ONNX Runtime loads it), its error as `zoo_right.py` measures it, and its Casts less those of the original. A Cast
between a norm and its neighbours counts as none: it is a part of the norm's form.

The best peer of a model is the one with the fewest Casts whose file is valid and right (an error of 1e-2 or less);
more than a tenth above it is an excess. Results are kept in FOLDER/casts by the bytes of the files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from zoo_right import TOLERANCE, run, strict_error

SHARE = 1.1  # of the best peer's Casts
Facts = dict[str, Any]


# -- what a process of its own does -----------------------------------------------------------------------------------


def measure(source: Path, model: Path, data: Path, count: int) -> Facts:
    """All that is asked of one file."""
    fault = invalid(source, model)
    facts: Facts = {"fault": fault, **casts_of(source, model)}
    return facts if fault else {**facts, **strict_error(source, model, data, count)}


def invalid(source: Path, model: Path) -> str:
    """Why a file is not valid, nothing for one that is."""
    import onnx
    import onnxruntime as ort

    faults = []
    for path in (source, model):
        try:
            onnx.checker.check_model(str(path), full_check=True)
            faults.append("")
        except Exception as error:  # the checker's own sorts are many
            faults.append(f"checker: {str(error).strip().splitlines()[0][:120]}")
    if faults[1] and not faults[0]:
        return faults[1]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # some GRUs crash beyond it
    try:
        ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"does not load: {str(error).strip().splitlines()[0][:120]}"
    return ""


def casts_of(source: Path, model: Path) -> Facts:
    """Casts less those of the original: all, and without those of norms."""
    before, after = (casts(path) for path in (source, model))
    return {"casts": after[0] - before[0], "beside_norms": after[1] - before[1]}


def casts(path: Path) -> tuple[int, int]:
    """Casts of a file: all, and those that do not stand between a norm and its neighbours."""
    from ampgraph.formats.adapters import load
    from ampgraph.oplists.patterns import find_regions
    from ampgraph.oplists.traits import has

    graph, _ = load(path)
    flow = graph.dataflow()
    found = [op for op in flow.ops if has(op.role, "casts")]
    norms = {op.id for op in flow.ops if has(op.role, "norms")}
    norms |= {op.id for region in find_regions(flow) if has(region.kind, "norms") for op in region.ops}
    beside = []
    for op in found:
        writer, readers = flow.writer(op.inputs[0]), {use.op for use in flow.uses[op.outputs[0]]}
        if not (readers and readers <= norms) and (writer is None or writer.id not in norms):
            beside.append(op)
    natives = [len({id(op.native) for op in some}) for some in (found, beside)]
    return natives[0], natives[1]


# -- the process that asks --------------------------------------------------------------------------------------------


class Zoo:
    """A folder of models, with what is known of the files made of them."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder, self.samples, self.known = folder, samples, folder / "casts"
        self.known.mkdir(exist_ok=True)

    def facts(self, name: str, tool: str, model: Path) -> Facts:
        """What is known of a file, measured where it is new."""
        if not model.is_file():
            return {"fault": "no file"}
        kept, digest = self.known / f"{name}.{tool}.json", hashlib.sha256(model.read_bytes()).hexdigest()
        if kept.is_file() and (found := json.loads(kept.read_text()))["sha256"] == digest:
            return dict(found)
        paths = [str(path) for path in (self.source(name), model, self.folder / "data" / name)]
        code, out, err = run([sys.executable, __file__, "--one", *paths, str(self.samples)])
        lines = [line for line in out.splitlines() if line.startswith("{")]
        facts: Facts = json.loads(lines[-1]) if lines else {"fault": f"{code}: {err.strip()[-200:]}"}
        kept.write_text(json.dumps({"sha256": digest, **facts}, indent=1), encoding="utf-8")
        print(f"{name} {tool}: {cell(facts)}", flush=True)
        return facts

    def ours(self, name: str, level: str, work: Path) -> Facts:
        """What the default makes of a model at a level."""
        made = work / f"{name}.onnx"
        made.unlink(missing_ok=True)
        words = ["convert", str(self.source(name)), "--level", level, "-o", str(made), "--check", "off", "--quiet"]
        run([sys.executable, "-m", "ampgraph", *words])
        return self.facts(name, level, made)

    def last(self, name: str, tool: str) -> Facts:
        kept = self.known / f"{name}.{tool}.json"
        return dict(json.loads(kept.read_text())) if kept.is_file() else {"fault": "not measured"}

    def source(self, name: str) -> Path:
        return self.folder / "models" / f"{name}.onnx"


# -- the table --------------------------------------------------------------------------------------------------------


def is_right(facts: Facts) -> bool:
    return not facts.get("fault") and bool(facts.get("right"))


def cell(facts: Facts) -> str:
    """Error and Casts, or why there are none."""
    if facts.get("fault"):
        return str(facts["fault"]).split(":")[0]
    error = facts.get("error")
    shown = "infinite" if error is None else f"{error:.0e}"
    beside = facts["beside_norms"]
    inside = f" ({facts['casts']})" if facts["casts"] != beside else ""
    return f"{'' if facts['right'] else 'x '}{shown} / {beside}{inside}"


def limit(peers: list[Facts]) -> float | None:
    """The Casts that are allowed, None where no peer has a file to compare with."""
    best = [facts["beside_norms"] for facts in peers if is_right(facts)]
    return max(min(best) * SHARE, min(best)) if best else None


def table(rows: dict[str, dict[str, Facts]], levels: list[str], peers: list[str]) -> str:
    """All models as markdown, and what they come to."""
    lines = [
        "| model | " + " | ".join([*levels, *peers]) + " | excess |",
        "|" + "---|" * (2 + len(levels) + len(peers)),
    ]
    excess: dict[str, list[str]] = {level: [] for level in levels}
    sums = dict.fromkeys(levels, 0)
    for name, row in sorted(rows.items()):
        allowed = limit([row[peer] for peer in peers])
        over = []
        for level in levels:
            added = row[level].get("beside_norms", 0)
            sums[level] += added
            if allowed is not None and added > allowed:
                over.append(level)
                excess[level].append(name)
        lines.append("| " + " | ".join([name, *(cell(row[tool]) for tool in [*levels, *peers]), " ".join(over)]) + " |")
    held = sum(limit([row[peer] for peer in peers]) is not None for row in rows.values())
    said = [
        f"{level}: {sums[level]} Casts; more than the best peer's and a tenth in {len(excess[level])} of the {held} "
        f"models that a peer has a valid and right file of{': ' * bool(excess[level])}{', '.join(excess[level])}"
        for level in levels
    ]
    return "\n".join([*lines, "", *said])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--levels", nargs="+", default=["O2", "auto"])
    parser.add_argument("--peers", nargs="*", default=["ort", "occ", "autocast"])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--table", action="store_true", help="print what is known; measure nothing")
    args = parser.parse_args()
    zoo = Zoo(args.folder, args.samples)
    there = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    names = [p.stem for p in there if p.stem in (args.names or [p.stem])]
    rows: dict[str, dict[str, Facts]] = {}
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            rows[name] = {}
            for level in args.levels:
                rows[name][level] = zoo.last(name, level) if args.table else zoo.ours(name, level, Path(work))
            for peer in args.peers:
                made = args.folder / "out" / peer / f"{name}.onnx"
                rows[name][peer] = zoo.last(name, peer) if args.table else zoo.facts(name, peer, made)
    print(table(rows, args.levels, args.peers))
    print(f"\nRight is an error of {TOLERANCE:.0e} or less; x marks what is not.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        *paths, number = sys.argv[2:]
        print(json.dumps(measure(*map(Path, paths), int(number))))
    else:
        main()
