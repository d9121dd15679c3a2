"""Kernels and fused attentions of engines that TensorRT builds of whole models: ours, float32's and other converters'.

    python benchmarks/tensorrt/whole_models.py MODEL.onnx ... [--peer-python PYTHON] [--kept FILE] [--out FILE.md]

Inputs beside a model as NAME.npz give the sizes of its open dimensions. A cell is kernels, then fused attentions where
there are any. Exit status 1 where ours is refused, or has more kernels or fewer attentions than the best of the row: at
O1, whose arithmetic is float32 by promise, more than 1.2 times as many and one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from engines import PYTHON, built  # noqa: E402
from measure import markdown, run_child  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.core.errors import AmpError  # noqa: E402
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob, sizes_of  # noqa: E402

BEFORE = "float32"
LEVELS = ("O1", "O2", "O3", "auto")
DTYPES = {"f16": "float16", "bf16": "bfloat16"}
PEERS = {"f16 AutoCast": "autocast", "bf16 AutoCast": "autocast_bfloat16", "f16 OnnxModel": "ort_model"}
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
    sizes, values = sizes_of([dict(np.load(feeds))] if feeds.is_file() else [])
    for way in columns:
        model = made(path, way, args.peer_python)
        if isinstance(model, str):
            yield way, model
        else:
            job = BuildJob(model, str(path.parent), sizes=sizes, values=values)
            yield way, next(built([job], args.python, args.kept))


def cell(answer: BuildAnswer | str) -> str:
    """What the table shows."""
    if isinstance(answer, str) or answer.engine is None:
        return "not converted" if isinstance(answer, str) else "refused"
    engine = answer.engine
    return f"{len(engine.kernels)}{f' / {engine.attentions}' if engine.attentions else ''}"


def short_of_best(found: Mapping[str, BuildAnswer | str]) -> Iterator[str]:
    """Ways of ours in which an engine has more kernels, or fewer attentions, than the best of the same type."""
    if isinstance(found[BEFORE], str) or not found[BEFORE].ok:
        return
    engines = {way: one.engine for way, one in found.items() if isinstance(one, BuildAnswer) and one.engine}
    for way in ways()[1:]:
        if way not in found:
            continue
        short, level = way.split()
        beside = [engines[other] for other in engines if other == BEFORE or other.startswith(short + " ")]
        factor, more = WIDER.get(level, (1, 0))
        most = min(len(one.kernels) for one in beside) * factor + more
        least = max(one.attentions for one in beside)
        if way not in engines:
            yield f"{way}: {getattr(found[way], 'why', found[way])}"
        elif len(engines[way].kernels) > most or engines[way].attentions < least:
            yield f"{way}: {cell(found[way])}, at most {most:g} / {least}"


def main() -> int:
    """Builds all of it, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
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
        before = args.out.read_text(encoding="utf-8").partition("| model |")[0] if args.out.is_file() else ""
        table = markdown(["model", *columns], rows)
        args.out.write_text("\n".join([before + table, "", *bad, ""]), encoding="utf-8")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
