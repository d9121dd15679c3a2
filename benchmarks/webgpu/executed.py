"""Is the error that the strict run predicts for WebGPU the one that it has there? Real models, by its real kernels.

    python benchmarks/webgpu/executed.py MODEL ... [--levels O1 O2 auto O3] [--json FILE] [--table FILE]

Beside MODEL.onnx lie its inputs, MODEL.npz, or it is models/MODEL.onnx and they are data/MODEL/*.npz. Errors are
relative L2 at the output where it is largest, of the first --samples inputs together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import numpy as np  # noqa: E402
from measure import markdown  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.api.executing import executed  # noqa: E402
from ampgraph.numerics.strict.session import StrictSession  # noqa: E402
from ampgraph.runtime.executed import Runtime  # noqa: E402

PYTHON = str(HERE.parents[1] / "build" / "webgpu" / "bin" / "python")
TOLERANCE = 1e-2
PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
Feeds = dict[str, np.ndarray]
Row = dict[str, Any]


def samples_of(model: Path, count: int) -> list[Feeds]:
    """The inputs that lie beside a model."""
    beside = model.with_suffix(".npz")
    found = [beside] if beside.exists() else sorted(model.parents[1].glob(f"data/{model.stem}/*.npz"))
    return [dict(np.load(path)) for path in found[:count]]


def run_there(runtime: Runtime, model: Path, samples: Iterable[Feeds]) -> tuple[list[Feeds], Row]:
    """The outputs of each sample, and what ran where."""
    session = executed(runtime, model)
    results = [session.run(feeds) for feeds in samples]
    layers = session.layers()
    session.close()
    copies = sum(layer.kind.startswith("Memcpy") for layer in layers)
    elsewhere = Counter(layer.kind for layer in layers if layer.on == "cpu" and not layer.kind.startswith("Memcpy"))
    return results, {"memcpys": copies, "on_cpu": dict(sorted(elsewhere.items()))}


def error(found: list[Feeds], wanted: list[Feeds]) -> float:
    """Relative L2 at the worst output; infinite where something is not finite there that is in the reference."""
    worst = 0.0
    for name in wanted[0]:
        given, known = (
            np.concatenate([np.ravel(one[name]) for one in side]).astype(np.float64) for side in (found, wanted)
        )
        finite = np.isfinite(known)
        if known.size and np.asarray(wanted[0][name]).dtype.kind == "f":
            size = float(np.linalg.norm(known[finite]))
            apart = float(np.linalg.norm(given[finite] - known[finite]))
            worst = max(worst, apart / size if size else apart) if np.isfinite(apart) else np.inf
    return worst


def measured(model: Path, level: str, runtime: Runtime, samples: list[Feeds], folder: Path, plain: Row) -> Row:
    """One conversion, predicted and executed."""
    low = folder / "low.onnx"
    plan = ampgraph.plan(model, level, target="webgpu")
    ampgraph.convert(model, level, target="webgpu", output=low, check="off")
    wide = [one for one in plan.decisions if one.kind in PRODUCTS and one.dtype == "float32"]
    wanted = [StrictSession(model).run(feeds) for feeds in samples]
    strict = StrictSession(low)
    predicted = error([strict.run(feeds) for feeds in samples], wanted)
    results, said = run_there(runtime, low, samples)
    products = sum(one.kind in PRODUCTS for one in plan.decisions)
    return {
        "model": model.stem, "level": level, "predicted": predicted, "real": error(results, wanted), **said,
        "memcpys_float32": plain["memcpys"], "wide": len(wide), "products": products,
        "deep": sum(one.why.rule == "accumulator" for one in wide),
    }  # fmt: skip


COLUMNS = (
    "model",
    "level",
    "predicted",
    "real",
    "real / predicted",
    "products in float32",
    "for their depth",
    "Memcpys",
    "of float32",
)


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    cells = [
        (
            row["model"], row["level"], f"{row['predicted']:.2e}", f"{row['real']:.2e}",
            f"{row['real'] / row['predicted']:.2f}" if 0 < row['predicted'] < np.inf else "",
            f"{row['wide']} of {row['products']}", row["deep"], row["memcpys"], row["memcpys_float32"],
        )
        for row in rows
    ]  # fmt: skip
    return markdown(COLUMNS, cells) + "\n"


def main() -> int:
    """Measures; exit status 1 where a file that is predicted right is wrong there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--levels", nargs="+", default=["O1", "O2", "auto", "O3"])
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--python", default=PYTHON, help="of an environment with the WebGPU provider")
    parser.add_argument("--json", type=Path, help="rows that are here already are not measured again")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    rows: list[Row] = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    runtime, known = Runtime("webgpu", args.python), {(row["model"], row["level"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            samples, plain = samples_of(model, args.samples), None
            for level in args.levels:
                if (model.stem, level) in known:
                    continue
                plain = run_there(runtime, model, samples)[1] if plain is None else plain
                rows.append(measured(model, level, runtime, samples, Path(folder), plain))
                print(json.dumps(rows[-1]), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.table:
        args.table.write_text(table(rows))
    wrong = [row for row in rows if row["predicted"] <= TOLERANCE < row["real"]]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
