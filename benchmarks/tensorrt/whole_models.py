"""Kernels and fused attentions of engines that TensorRT builds of whole models: ours, float32's and other converters'.

    python benchmarks/tensorrt/whole_models.py MODEL.onnx ... [--dim NAME=LEAST:BEST:MOST ...] [--peer-python PYTHON]
        [--kept FILE] [--out FILE.md]

Open dimensions have the sizes that --dim says, as one optimisation profile, else those of the inputs beside a model as
NAME.npz. A cell is kernels, how many of them read and make no floats, and fused attentions where there are any. Exit
status 1 where ours is refused, or at O1, O2 or auto has more kernels on floats or fewer attentions than the best of the
row: at O1, whose arithmetic is float32 by promise, more than 1.2 times as many and one.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from engines import PYTHON, built, store  # noqa: E402
from measure import markdown, run_child  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.core.errors import AmpError  # noqa: E402
from ampgraph.core.recipe_values import dims  # noqa: E402
from ampgraph.report.fusions import engine_sizes  # noqa: E402
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob, Engine, sizes_of  # noqa: E402

BEFORE = "float32"
LEVELS = ("O1", "O2", "O3", "auto")
DTYPES = {"f16": "float16", "bf16": "bfloat16"}
PEERS = {"f16 AutoCast": "autocast", "bf16 AutoCast": "autocast_bfloat16", "f16 OnnxModel": "ort_model"}
ASKED = ("O1", "O2", "auto")
"""Levels that may not have more kernels than others; O3, which gives up float32 for them, is one of the others."""
WIDER = {"O1": (1.2, 1)}
"""Kernels of a level against the best: the factor, and how many more."""


def ways() -> list[str]:
    """Columns, in order."""
    return [BEFORE, *(f"{short} {level}" for short in DTYPES for level in LEVELS)]


def made(path: Path, way: str, peer_python: str) -> onnx.ModelProto | str:
    """A model as one way writes it, or why there is none."""
    if way == BEFORE:
        return onnx.load(path)
    if way in PEERS:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "model.onnx")
            child = run_child(HERE.parent / "convert_one.py", [PEERS[way], str(path), str(target)], python=peer_python)
            error = child.failure or child.report.get("error")
            return str(error) if error or not target.is_file() else onnx.load(target)
    short, level = way.split()
    try:
        return ampgraph.convert(onnx.load(path), level, dtype=DTYPES[short], target="tensorrt", check="off")
    except AmpError as error:
        return str(error)


def answers(path: Path, columns: list[str], args: argparse.Namespace) -> Iterator[tuple[str, BuildAnswer | str]]:
    """What becomes of a model in each way."""
    feeds = path.with_suffix(".npz")
    inputs = onnx.load(path, load_external_data=False).graph.input
    open_ = {size.dim_param for value in inputs for size in value.type.tensor_type.shape.dim}
    said = {name: size for name, size in dict(dims(args.dim)).items() if name in open_}
    samples = [dict(np.load(feeds))] if feeds.is_file() and not said else []
    sizes, values = engine_sizes(str(path), said) if said else sizes_of(samples)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for way in columns:
        # Other converters take minutes: what became of their models is kept by the file that they were given.
        key = f"{way} {digest} {sizes} {values}"
        with store(args.kept) as known:
            found = known.get(key) if way in PEERS else None
        if found is None:
            model = made(path, way, args.peer_python)
            job = BuildJob(model, str(path.parent), sizes=sizes, values=values)
            found = model if isinstance(model, str) else next(built([job], args.python, args.kept))
            with store(args.kept if way in PEERS else "") as known:
                known[key] = found
        yield way, found


def cell(answer: BuildAnswer | str) -> str:
    """What the table shows."""
    if isinstance(answer, str) or answer.engine is None:
        return "not converted" if isinstance(answer, str) else "refused"
    engine, count = answer.engine, len(answer.engine.kernels)
    others = count - on_floats(engine)
    return f"{count}{f' ({others})' if others else ''}{f' / {engine.attentions}' if engine.attentions else ''}"


def on_floats(engine: Engine) -> int:
    """Kernels that read or make floats: no choice of types is about the others, such as the ranges of a mask."""
    return sum(bool(kernel.reads | kernel.makes) for kernel in engine.kernels)


def short_of_best(found: Mapping[str, BuildAnswer | str]) -> Iterator[str]:
    """Ways of ours in which an engine has more kernels, or fewer attentions, than the best of the same type."""
    if isinstance(found[BEFORE], str) or not found[BEFORE].ok:
        return
    engines = {way: one.engine for way, one in found.items() if isinstance(one, BuildAnswer) and one.engine}
    for way in ways()[1:]:
        if way not in found:
            continue
        short, level = way.split()
        if level not in ASKED and way in engines:
            continue
        beside = [engines[other] for other in engines if other == BEFORE or other.startswith(short + " ")]
        factor, more = WIDER.get(level, (1, 0))
        most = min(map(on_floats, beside)) * factor + more
        least = max(one.attentions for one in beside)
        if way not in engines:
            yield f"{way}: {getattr(found[way], 'why', found[way])}"
        elif on_floats(engines[way]) > most or engines[way].attentions < least:
            yield f"{way}: {cell(found[way])}, at most {most:g} / {least}"


def page(path: Path, columns: list[str], rows: list[list[str]], bad: list[str]) -> str:
    """A page with the new rows in the places of the old ones, and what stood before the table."""
    before, _, after = path.read_text(encoding="utf-8").partition("| model |") if path.is_file() else ("", "", "")
    old = [[cell.strip() for cell in line.strip("|").split("|")] for line in after.splitlines() if line[:2] == "| "]
    known = {row[0]: row for row in old if len(row) == len(columns)} | {row[0]: row for row in rows}
    new = tuple(f"- {row[0]} " for row in rows)
    kept = [line for line in after.splitlines() if line.startswith("- ") and not line.startswith(new)]
    return "\n".join([before + markdown(columns, list(known.values())), "", *sorted([*kept, *bad]), ""])


def main() -> int:
    """Builds all of it, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--dim", action="append", default=[], help="batch=1:2:8: a range of sizes, or one")
    parser.add_argument("--python", default=PYTHON, help="of an environment with TensorRT for RTX")
    parser.add_argument("--peer-python", default="", help="of an environment with the other converters")
    parser.add_argument("--kept", default="", help="a file of answers, which a second run does not ask for again")
    parser.add_argument("--ways", default="", help="only those: 'f16 O2,bf16 O1', beside float32")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    chosen = [way for way in ways() if way == BEFORE or not args.ways or way in args.ways.split(",")]
    columns = [*chosen, *(PEERS if args.peer_python else ())]
    rows, bad = [], []
    for path in args.models:
        found = dict(answers(path, columns, args))
        rows.append([path.stem, *map(cell, found.values())])
        print(" | ".join(rows[-1]), flush=True)
        for line in short_of_best(found):
            bad.append(f"- {path.stem} {line}")
            print(bad[-1], flush=True)
    if args.out:
        args.out.write_text(page(args.out, ["model", *columns], rows, bad), encoding="utf-8")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
