"""Is the error that the strict run predicts for WebGPU the one that it has there? Real models, by its real kernels.

    python benchmarks/webgpu/executed.py --exports FOLDER --zoo FOLDER [--json FILE] [--page FILE]
    python benchmarks/webgpu/executed.py MODEL ... [--levels O1 O2 auto O3] [--json FILE]

The first writes executed.md: the nine exports (`benchmarks/export_models.py`), each with its input MODEL.npz beside it,
and models out of a zoo that holds models/MODEL.onnx and data/MODEL/*.npz. An error is relative L2 at the output where
it is largest, and of several inputs the 90th percentile (of up to ten the largest).
"""

from __future__ import annotations

import argparse
import hashlib
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
import onnx  # noqa: E402
from measure import markdown  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.numerics.metrics.agreement import QUANTILE, quantile  # noqa: E402
from ampgraph.numerics.strict.session import StrictSession  # noqa: E402
from ampgraph.runtime.executed import Runtime  # noqa: E402
from ampgraph.runtime.targets import executed_session  # noqa: E402

PYTHON = str(HERE.parents[1] / "build" / "webgpu" / "bin" / "python")
PAGE = HERE / "executed.md"
TOLERANCE = 1e-2
LEAST, BAND = 1e-4, (0.75, 1.35)
"""The error from which the ratio of the real one to the predicted one is judged, and where it has to lie."""
FEW, MORE = 100, 8
"""Numbers that a model gives for an input: of fewer each is a matter of chance, and this many inputs are run."""
LEVELS = ("O1", "O2", "auto", "O3")
EXPORTS = ("bert", "convnext", "gpt2", "llama", "resnet50", "swin", "t5enc", "vit", "whisperenc")
TRAINED = ("dnsmos_p808", "rivagan_enc", "g2p_bert", "tashkeel", "ppocr2_rec", "nudenet", "dddd_det", "lore_process")
OTHERS = ("ppocr6_tiny_rec", "ppocr3_det", "swift_f0", "rivagan_dec", "slider_captcha", "open_nsfw")
"""Trained models that float16 changes by more with float32 accumulators already, and one that gives two numbers."""
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
    session = executed_session(runtime, model)
    results = [session.run(feeds) for feeds in samples]
    layers = session.layers()
    session.close()
    copies = sum(layer.kind.startswith("Memcpy") for layer in layers)
    elsewhere = Counter(layer.kind for layer in layers if layer.on == "cpu" and not layer.kind.startswith("Memcpy"))
    return results, {"memcpys": copies, "on_cpu": dict(sorted(elsewhere.items()))}


def errors(found: list[Feeds], wanted: list[Feeds]) -> list[float]:
    """Of each sample; infinite where something is not finite there that is in the reference."""
    return [max(apart(one[name], known[name]) for name in known) for one, known in zip(found, wanted, strict=True)]


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative L2 of floating numbers."""
    given, known = (np.ravel(one).astype(np.float64) for one in (found, wanted))
    finite = np.isfinite(known)
    size, off = float(np.linalg.norm(known[finite])), float(np.linalg.norm(given[finite] - known[finite]))
    if wanted.dtype.kind != "f" or not known.size:
        return 0.0
    return (off / size if size else off) if np.isfinite(off) else np.inf


class Model:
    """A model, its samples, and what the runs of its files gave."""

    def __init__(self, path: Path, count: int, runtime: Runtime) -> None:
        self.path, self._runtime, self._known = path, runtime, dict[str, Row]()
        reference, self.samples = StrictSession(path), samples_of(path, count)
        self._wanted = [reference.run(feeds) for feeds in self.samples]
        if sum(np.size(value) for value in self._wanted[0].values()) < FEW:
            self.samples = samples_of(path, MORE)
            self._wanted = [reference.run(feeds) for feeds in self.samples]
        self._copies = run_there(runtime, path, self.samples[:1])[1]["memcpys"]

    def measured(self, level: str, folder: Path) -> Row:
        """One conversion, predicted and executed; of a file that is known already, as it was."""
        low = folder / "low.onnx"
        plan = ampgraph.plan(self.path, level, target="webgpu")
        ampgraph.convert(self.path, level, target="webgpu", output=low, check="off")
        graph = onnx.load(low).graph
        del graph.metadata_props[:]  # they say the level
        digest = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()
        if digest not in self._known:
            self._known[digest] = {**self._ran(low), "file": digest[:16], "inputs": len(self.samples)}
        products = [one for one in plan.decisions if one.kind in PRODUCTS]
        wide = [one for one in products if one.dtype == "float32"]
        return {
            "model": self.path.stem, "level": level, **self._known[digest], "memcpys_float32": self._copies,
            "wide": len(wide), "products": len(products), "deep": sum(one.why.rule == "accumulator" for one in wide),
        }  # fmt: skip

    def _ran(self, low: Path) -> Row:
        strict = StrictSession(low)
        predicted = errors([strict.run(feeds) for feeds in self.samples], self._wanted)
        results, said = run_there(self._runtime, low, self.samples)
        real = errors(results, self._wanted)
        return {
            "predicted": quantile(predicted, QUANTILE), "real": quantile(real, QUANTILE),
            "errors": {"predicted": predicted, "real": real}, **said,
        }  # fmt: skip


COLUMNS = (
    "model",
    "levels",
    "inputs",
    "predicted",
    "real",
    "real / predicted",
    "products in float32",
    "for their depth",
    "Memcpys",
    "of float32",
)


def table(rows: list[Row]) -> str:
    """The rows as Markdown, one where the same is float32 and all errors are the same to the bit."""
    files: dict[str, list[Row]] = {}
    for row in rows:
        files.setdefault(json.dumps([row["model"], row["wide"], row["errors"]]), []).append(row)
    cells = [
        (
            row["model"], ", ".join(one["level"] for one in same), row["inputs"], f"{row['predicted']:.2e}",
            f"{row['real']:.2e}", f"{row['real'] / row['predicted']:.2f}" if judged(row) else "",
            f"{row['wide']} of {row['products']}", row["deep"], row["memcpys"], row["memcpys_float32"],
        )
        for same in files.values()
        for row in same[:1]
    ]  # fmt: skip
    return markdown(COLUMNS, cells) + "\n"


def judged(row: Row) -> bool:
    """Whether its ratio says something."""
    return np.isfinite(row["predicted"]) and np.isfinite(row["real"]) and max(row["predicted"], row["real"]) >= LEAST


def verdict(rows: list[Row]) -> str:
    """What holds of them."""
    ratios = sorted(row["real"] / row["predicted"] for row in rows if judged(row))
    out = [f"{row['model']} {row['level']}" for row in rows if judged(row) and not within(row)]
    missed = [f"{row['model']} {row['level']}" for row in rows if row["predicted"] <= TOLERANCE < row["real"]]
    above = [f"{row['model']} ({row['real']:.1e})" for row in rows if row["level"] == "O2" and row["real"] > TOLERANCE]
    copies = [row["model"] for row in rows if row["level"] == "O2" and row["memcpys"] > row["memcpys_float32"]]
    wide, products = (sum(row[name] for row in rows if row["level"] == "O2") for name in ("wide", "products"))
    return f"""- Real / predicted: {ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} models and levels; beyond {BAND[0]} to {BAND[1]}: {", ".join(out) or "none"}.
- Ok by the strict run and above {TOLERANCE:g} there: {", ".join(missed) or "none"}.
- By default (O2): above {TOLERANCE:g}: {", ".join(above) or "none"}; more Memcpys than float32: {", ".join(copies) or "none"};
  {wide} of {products} products in float32.
"""  # noqa: E501


def within(row: Row) -> bool:
    """Whether its ratio is where it has to be."""
    return bool(BAND[0] <= row["real"] / row["predicted"] <= BAND[1])


def page(rows: list[Row], runtime: str) -> str:
    """The whole of executed.md."""
    counted = [row for row in rows if row["model"] in (*EXPORTS, *TRAINED)]
    others = [row for row in rows if row not in counted]
    return f"""# Predicted and executed on WebGPU

Written by `benchmarks/webgpu/executed.py --exports FOLDER --zoo FOLDER`, with {runtime} over Mesa's lavapipe.
Predicted: by the strict run, which adds up and computes functions as these kernels do. An error is relative L2 at the
worst output, of several inputs the 90th percentile (of up to ten the largest); {MORE} inputs where a model gives fewer
than {FEW} numbers for one. Below {LEAST:g} a ratio says nothing, and is left out. Levels in a row are the same to the
bit. Products that stay float32 are added up in another order there, so that roundings behind them flip: an error that
rests on one or two numbers is a matter of chance then.

The exports are real architectures with random weights (`benchmarks/export_models.py`). The trained models are, of each
task of the zoo, the smallest one with more Convs and matrix products than recurrent layers, and without loops and
integer weights, of those that give ten numbers at least, and that float16 with float32 accumulators changes by 1e-4 to
2e-3
([zoo_right.md](../zoo_right.md)): of these the eight smallest. Others follow.

{verdict(counted)}
{table(counted)}
## Others

Models that float16 changes by more with float32 accumulators already; and open_nsfw, whose error rests on the two
numbers that it gives for a picture. inf: not finite where float32 is; the provider makes finite numbers of some of
these ([webgpu_nan](../../docs/upstream/webgpu_nan.md)).

{table(others)}"""


def main() -> int:
    """Measures; exit status 1 where a file that is predicted right is wrong there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--exports", type=Path)
    parser.add_argument("--zoo", type=Path)
    parser.add_argument("--levels", nargs="+", default=LEVELS)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--python", default=PYTHON, help="of an environment with the WebGPU provider")
    parser.add_argument("--json", type=Path, help="rows that are here already are not measured again")
    parser.add_argument("--page", type=Path, default=PAGE, help="written where --exports and --zoo are given")
    args = parser.parse_args()
    runtime = Runtime("webgpu", args.python)
    whole = args.exports is not None and args.zoo is not None
    listed = [*args.models, *((args.exports / f"{name}.onnx") for name in EXPORTS if args.exports)]
    listed += [args.zoo / "models" / f"{name}.onnx" for name in (*TRAINED, *OTHERS) if args.zoo]
    rows = measure(listed, args, runtime)
    if whole:
        args.page.write_text(page(rows, runtime.name))
    return int(any(row["predicted"] <= TOLERANCE < row["real"] for row in rows))


def measure(models: list[Path], args: argparse.Namespace, runtime: Runtime) -> list[Row]:
    """A row for each model and level, those of --json as they stand there."""
    rows: list[Row] = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    known = {(row["model"], row["level"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for path in models:
            left = [level for level in args.levels if (path.stem, level) not in known]
            model = Model(path, args.samples, runtime) if left else None
            for level in left:
                assert model is not None
                rows.append(model.measured(level, Path(folder)))
                print(json.dumps(rows[-1]), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    sys.exit(main())
