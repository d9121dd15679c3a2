"""Nodes of the graph that CUDA would run, of models as converters leave them: placement, never time or numbers.

    python benchmarks/cuda_placement/nodes.py exports/*.onnx --python build/cuda_placement/bin/python --out FILE.md

Each conversion is a process of its own. Converters are named as in ../peers.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from convert_one import is_ampgraph  # noqa: E402
from measure import run_child  # noqa: E402

from ampgraph.oplists.kernels import load_kernels  # noqa: E402
from ampgraph.report.fusions import TargetGraph  # noqa: E402
from ampgraph.runtime.optimizing import NotOptimized, optimized  # noqa: E402

ORIGINAL = "float32"
OWN = "com.microsoft::"


@dataclass(frozen=True)
class Row:
    """One model by one converter; ``graph`` None: no session, ``why``."""

    model: str
    converter: str
    graph: TargetGraph | None
    why: str = ""

    def cell(self) -> str:
        """Nodes / Casts between float types / nodes on the CPU / copies."""
        if self.graph is None:
            return "-"
        found = self.graph
        parts = (found.nodes, sum(found.casts.values()), found.providers.get("CPU", 0), sum(found.copies.values()))
        return " / ".join(map(str, parts))


def measured(source: Path, converter: str, args: argparse.Namespace) -> Row:
    """A model by a converter, as the CUDA provider would run it."""
    with tempfile.TemporaryDirectory() as folder:
        model = source if converter == ORIGINAL else Path(folder, "model.onnx")
        if converter != ORIGINAL:
            python = args.peer_python if args.peer_python and not is_ampgraph(converter) else sys.executable
            words = [converter, str(source), str(model)]
            child = run_child(HERE.parent / "convert_one.py", words, python=python, timeout=args.timeout)
            if not model.exists():
                return Row(source.stem, converter, None, str(child.failure or child.report.get("error")))
        try:
            return Row(source.stem, converter, TargetGraph.from_optimized(optimized(model, python=args.python)))
        except NotOptimized as why:
            return Row(source.stem, converter, None, str(why))


def table(rows: Sequence[Row], converters: Sequence[str]) -> list[str]:
    """Models down, converters across."""
    cells = {(row.model, row.converter): row.cell() for row in rows}
    lines = ["| model | " + " | ".join(converters) + " |", "|---" * (len(converters) + 1) + "|"]
    for model in dict.fromkeys(row.model for row in rows):
        lines.append(f"| {model} | " + " | ".join(cells[model, name] for name in converters) + " |")
    return lines


def fusions(rows: Sequence[Row], converters: Sequence[str]) -> list[str]:
    """Fused operators that some converter of a model does not keep as the original does."""
    by = {(row.model, row.converter): row.graph.fused if row.graph else {} for row in rows}
    lines = ["| model | fused operator | " + " | ".join(converters) + " |", "|---" * (len(converters) + 2) + "|"]
    for model in dict.fromkeys(row.model for row in rows):
        for kind in sorted({kind for name in converters for kind in by[model, name]}):
            counts = [str(by[model, name].get(kind, 0)) for name in converters]
            if len(set(counts)) > 1:
                lines.append(f"| {model} | {kind.rpartition('::')[2]} | " + " | ".join(counts) + " |")
    return lines


def lost(rows: Sequence[Row]) -> list[str]:
    """What ampgraph's files lack of what is fused in float32, and nodes on the CPU and copies that they add."""
    before = {row.model: row.graph for row in rows if row.converter == ORIGINAL and row.graph}
    found = []
    for row in rows:
        given, made = before.get(row.model), row.graph
        if given is None or made is None or not is_ampgraph(row.converter):
            continue
        for what in ("fused", "copies", "providers"):
            old, new = getattr(given, what), getattr(made, what)
            worse = [
                k
                for k in {*old, *new}
                if (_left(k, old, new) < old.get(k, 0) if what == "fused" else _adds(k, old, new))
            ]
            found += [
                f"{row.model}, {row.converter}: {kind} {old.get(kind, 0)} -> {new.get(kind, 0)}"
                for kind in sorted(worse)
            ]
    return found


def _left(kind: str, old: Mapping[str, int], new: Mapping[str, int]) -> int:
    """How many of a fused operator there are, with those that are part of a larger one, as a Gelu is of a BiasGelu."""
    pairs = ((OWN + join.makes, OWN + then) for join in load_kernels("cuda").fused_pairs for _, then in join.pairs)
    larger = {makes for makes, then in pairs if then == kind != makes}
    return new.get(kind, 0) + sum(max(new.get(name, 0) - old.get(name, 0), 0) for name in larger)


def over(rows: Sequence[Row], borders: Mapping[str, int]) -> list[str]:
    """Where ampgraph's files have more nodes than float32 and one Cast for each float32 input and output, O1 left out:
    what it keeps in float32 between products takes Casts."""
    before = {row.model: row.graph.nodes for row in rows if row.converter == ORIGINAL and row.graph}
    return [
        f"{row.model}, {row.converter}: {row.graph.nodes}, {before[row.model]} + {borders[row.model]}"
        for row in rows
        if row.graph and row.model in before and is_ampgraph(row.converter) and ":O1" not in row.converter
        if row.graph.nodes > before[row.model] + borders[row.model]
    ]


def border(source: Path) -> int:
    """How many float32 inputs and outputs a file has."""
    graph = onnx.load(str(source), load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    ends = [value for value in (*graph.input, *graph.output) if value.name not in stored]
    return sum(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in ends)


def _adds(kind: str, old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    return kind != "CUDA" and new.get(kind, 0) > old.get(kind, 0)


def main() -> int:
    """Measures every model by every converter and prints both tables; exit status 1 where --check finds something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--python", required=True, help="of an environment whose onnxruntime has CUDA")
    parser.add_argument("--converters", nargs="+", default=["ampgraph:O1", "ampgraph:O2", "ampgraph:auto", "ort_model"])
    parser.add_argument("--peer-python")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="fail where a fusion is lost, a copy or a CPU node added")
    args = parser.parse_args()
    converters = [ORIGINAL, *args.converters]
    rows, borders = [], {source.stem: border(source) for source in args.models}
    for source in args.models:
        for converter in converters:
            rows.append(measured(source, converter, args))
            print(source.stem, converter, rows[-1].cell(), rows[-1].why, file=sys.stderr, flush=True)
    text = "\n".join(
        ["nodes / Casts between float types / nodes on the CPU / copies", "", *table(rows, converters), ""]
        + [*fusions(rows, converters), ""]
        + [f"- {row.model}, {row.converter}: {row.why}" for row in rows if row.why]
        + [f"- worse than float32: {line}" for line in lost(rows)]
        + [f"- more than float32 and its borders: {line}" for line in over(rows, borders)]
    )
    print(text)
    if args.out:
        args.out.write_text(text.rstrip() + "\n", encoding="utf-8")
    return int(args.check and bool(lost(rows)))


if __name__ == "__main__":
    sys.exit(main())
