"""Fusions that one operator in float32 breaks: is there anything around it to hold too that leaves fewer nodes?

    python benchmarks/cuda_placement/held.py --python build/cuda_placement/bin/python --out FILE.md

Every form of `fused_forms.py` is converted with each of its nodes in float32, by name or by a range, and compared with
the same and more nodes by name: each run of up to four neighbours, and all between the products.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from fused_forms import Form, forms  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.core.ranges import Range, Ranges  # noqa: E402
from ampgraph.oplists.operators import load_op_lists  # noqa: E402
from ampgraph.runtime.optimized import Optimized, read_optimized  # noqa: E402

PROVIDERS = "CUDAExecutionProvider,CPUExecutionProvider"
LARGE = 3e38
MOST = 4
LISTS = load_op_lists()
LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Way:
    """How a form is converted, and what of it is held: a node by name or its value by a range, or nothing."""

    level: str
    dtype: str
    by: str = ""
    held: str = ""

    def __str__(self) -> str:
        return f"{self.level} {self.dtype}"


@dataclass(frozen=True)
class Case:
    """A form in a way with more nodes held by name, and the file that came of it."""

    form: str
    way: Way
    more: tuple[str, ...]
    digest: str


class Kitchen:
    """Converts, and keeps each result once in a folder, by its digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}

    def keep(self, model: onnx.ModelProto) -> str:
        data = model.SerializeToString()
        digest = hashlib.blake2b(data, digest_size=12).hexdigest()
        if digest not in self.files:
            self.files[digest] = self.folder / f"{digest}.onnx"
            self.files[digest].write_bytes(data)
        return digest

    def optimized(self, python: str) -> Mapping[str, Optimized]:
        """What CUDA makes of every file that opens."""
        lines = "\n".join(map(str, self.files.values()))
        words = [python, "-I", str(HERE / "optimize_many.py"), PROVIDERS]
        ended = subprocess.run(words, input=lines, capture_output=True, text=True, check=True)
        print(ended.stderr, end="", file=sys.stderr)
        found = {}
        for digest, path in self.files.items():
            made = path.with_suffix(".onnx.optimized")
            if made.exists():
                found[digest] = read_optimized(onnx.load(path), onnx.load(made), "")
        return found


def ways(form: Form, levels: Sequence[str], dtypes: Sequence[str]) -> Iterator[Way]:
    """Each level and type, each node held by name or by a range."""
    for level in levels:
        for dtype in dtypes:
            yield Way(level, dtype)
            for name in form.inner:
                yield Way(level, dtype, "name", name)
                yield Way(level, dtype, "range", name)


def neighbourhoods(form: Form, held: str) -> Iterator[tuple[str, ...]]:
    """Nothing more, each run of up to `MOST` nodes around one, and all between the products."""
    yield ()
    at, count = form.inner.index(held) if held else 0, len(form.inner)
    for first in range(max(at - MOST + 1, 0), at + 1) if held else ():
        yield from (form.inner[first:last] for last in range(at + 1, min(first + MOST, count) + 1))
    if held and count > MOST:
        yield form.inner


def cases(form: Form, kitchen: Kitchen, levels: Sequence[str], dtypes: Sequence[str]) -> Iterator[Case]:
    """All that is converted of a form."""
    known = with_ranges(form)
    for way in ways(form, levels, dtypes):
        for more in neighbourhoods(form, way.held):
            made = converted(form, way, more, known)
            if made is not None:
                yield Case(form.name, way, more, kitchen.keep(made))


def with_ranges(form: Form) -> Ranges:
    """The ranges of a model on one sample."""
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in form.model.graph.input}
    return ampgraph.calibrate(form.model, [{name: np.ones(shape, np.float32) for name, shape in shapes.items()}])


def converted(form: Form, way: Way, more: Sequence[str], known: Ranges) -> onnx.ModelProto | None:
    """The result; None where a name is of no float32 node."""
    names, ranges = [*more], None
    if way.by == "name" and way.held not in more:
        names.append(way.held)
    if way.by == "range":
        ranges = deepcopy(known)
        ranges.values[way.held] = Range(-LARGE, LARGE, 8, 0, 0, {127: 8})
    try:
        return ampgraph.convert(form.model, way.level, dtype=way.dtype, fp32=names, ranges=ranges, check="off")
    except ampgraph.AmpError as error:
        if error.code != "AMP305":
            raise
        return None


def products(graph: Optimized) -> int:
    """How many products are low."""
    rows = {node.kind: LISTS.entry(node.kind) for node in graph.nodes}
    allowed = {kind for kind, row in rows.items() if row is not None and row.cls == "allow"}
    return sum(node.dtype in LOW and node.kind in allowed for node in graph.nodes)


def better(found: Sequence[Case], graphs: Mapping[str, Optimized]) -> Iterator[tuple[Case, Case]]:
    """What is held alone, with what leaves fewest nodes, and as many low products, where that is fewer."""
    together: dict[tuple[str, Way], list[Case]] = {}
    for case in found:
        if case.digest in graphs:
            together.setdefault((case.form, case.way), []).append(case)
    for group in together.values():
        alone = next((case for case in group if not case.more), None)
        least = products(graphs[alone.digest]) if alone else 0
        fair = [case for case in group if products(graphs[case.digest]) >= least]
        best = min(fair, key=lambda case: (len(graphs[case.digest].nodes), len(case.more)))
        if alone is not None and len(graphs[best.digest].nodes) < len(graphs[alone.digest].nodes):
            yield alone, best


def breaks(alone: Optimized, best: Optimized) -> bool:
    """Whether it is more than Casts that is saved."""
    return len(best.nodes) - sum(best.cast().values()) < len(alone.nodes) - sum(alone.cast().values())


def described(graph: Optimized) -> str:
    """Nodes, Casts and fused operators."""
    fused = ", ".join(f"{kind.rpartition('::')[2]} {count}" for kind, count in sorted(graph.fused().items()))
    return f"{len(graph.nodes)} / {sum(graph.cast().values())} / {fused or '-'}"


def report(found: Sequence[Case], graphs: Mapping[str, Optimized], plain: Mapping[str, str]) -> str:
    """A table of fusions that could be kept, and counts."""
    rows, casts = ["| form | held by | node | level | float32 | alone | more | with more |", "|---" * 8 + "|"], 0
    for alone, best in better(found, graphs):
        if not breaks(graphs[alone.digest], graphs[best.digest]):
            casts += 1
            continue
        cells = [alone.form, alone.way.by, alone.way.held, str(alone.way), described(graphs[plain[alone.form]])]
        cells += [described(graphs[alone.digest]), " ".join(best.more), described(graphs[best.digest])]
        rows.append("| " + " | ".join(cells) + " |")
    tried = {(case.form, case.way) for case in found}
    missing = {case.digest for case in found} - graphs.keys()
    said = f"{len(tried)} ways, {len(found)} conversions, {len(missing)} do not open. More held leaves fewer nodes in"
    return "\n".join([*rows, "", f"{said} {len(rows) - 2 + casts}, in {casts} of them by Casts alone."]) + "\n"


def main() -> int:
    """Searches all forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment whose onnxruntime has CUDA")
    parser.add_argument("--levels", nargs="+", default=["O1", "O2", "auto"])
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--forms", nargs="*", help="their names; all if none")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kitchen, found, plain = Kitchen(Path(folder)), list[Case](), dict[str, str]()
        for form in forms():
            if not args.forms or form.name in args.forms:
                plain[form.name] = kitchen.keep(form.model)
                found += cases(form, kitchen, args.levels, args.dtypes)
                print(form.name, len(found), len(kitchen.files), file=sys.stderr, flush=True)
        text = report(found, kitchen.optimized(args.python), plain)
    print(text, end="")
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
