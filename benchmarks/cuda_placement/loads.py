"""Whether every model of ONNX's backend suite opens on CUDA and on the CPU, with all of ONNX Runtime's optimisations.

    python benchmarks/cuda_placement/loads.py --python build/cuda_placement/bin/python --share 1/8 --out FILE.md

Each is converted at every level, in both low types, for either target. A model counts where the float32 file opens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

import onnx  # noqa: E402
from onnx import GraphProto, ModelProto  # noqa: E402
from onnx.backend.test.case.test_case import TestCase  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

import ampgraph  # noqa: E402

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
LEVELS = ("O1", "O2", "O3", "auto")
DTYPES = ("float16", "bfloat16")
PROVIDERS = {"cuda": "CUDAExecutionProvider,CPUExecutionProvider", "cpu": "CPUExecutionProvider"}


@dataclass(frozen=True)
class Fault:
    """A conversion that does not open where its original does."""

    model: str
    way: str
    why: str


def suite(nth: int = 1, of: int = 1) -> dict[str, ModelProto]:
    """Every ``of``-th model with a float32 input or output, in the order of their names."""
    cases = {case.name: case for kind in KINDS for case in load_model_tests(kind=kind)}
    names = [name for name in sorted(cases) if cases[name].model is not None or cases[name].model_dir]
    models = {name: _model(cases[name]) for name in names[nth - 1 :: of]}
    return {name: model for name, model in models.items() if _has_float32(model.graph)}


def _model(case: TestCase) -> ModelProto:
    return case.model if case.model is not None else onnx.load(Path(case.model_dir, "model.onnx"))


def _has_float32(graph: GraphProto) -> bool:
    return any(v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for v in (*graph.input, *graph.output))


def opened(paths: Sequence[Path], python: str, providers: str) -> dict[Path, str]:
    """Why each file does not open, or an empty string."""
    told: dict[Path, str] = {}
    while rest := [path for path in paths if path not in told]:
        words, lines = [python, "-I", str(HERE / "open_many.py"), providers], "\n".join(map(str, rest))
        ended = subprocess.run(words, input=lines, capture_output=True, text=True, check=False)
        last = None
        for line in ended.stdout.splitlines():
            row = json.loads(line)
            last = Path(row["opens"]) if "opens" in row else None
            if "path" in row:
                told[Path(row["path"])] = row["why"]
        if last is not None:
            told[last] = f"the runtime dies of it: status {ended.returncode}"
        elif ended.returncode:
            raise SystemExit(ended.stderr)
    return told


Way = tuple[str, str, str]
"""Target, level, type."""


def faults(models: Mapping[str, ModelProto], ways: Sequence[Way], python: str) -> tuple[Counter[str], list[Fault]]:
    """Conversions that were opened, by target, and those that do not open."""
    counts, found = Counter[str](), list[Fault]()
    for target in dict.fromkeys(target for target, _, _ in ways):
        with tempfile.TemporaryDirectory() as folder:
            given = {_written(model, Path(folder, f"{name}.onnx")): name for name, model in models.items()}
            before = opened(list(given), python, PROVIDERS[target])
            good = {name: models[name] for path, name in given.items() if not before[path]}
            made = dict(_converted(good, [way for way in ways if way[0] == target], Path(folder)))
            counts[target] += len(made)
            for path, why in opened(list(made), python, PROVIDERS[target]).items():
                found += [Fault(*made[path], why)] if why else []
    return counts, found


def _converted(
    models: Mapping[str, ModelProto], ways: Sequence[Way], folder: Path
) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Files and what they are: a model's name and the way it was converted."""
    for name, model in models.items():
        for target, level, dtype in ways:
            result = ampgraph.convert(model, level, dtype=dtype, target=target, check="off")
            path = _written(result, folder / f"{name}.{level}.{dtype}.onnx")
            yield path, (name, f"{target} {level} {dtype}")


def _written(model: ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def report(counts: Mapping[str, int], found: Sequence[Fault]) -> str:
    """Counts, and a line for each fault."""
    lines = [f"- {target}: {count} conversions opened" for target, count in counts.items()]
    return "\n".join([*lines, *(f"- {f.model}, {f.way}: {f.why}" for f in found), f"- {len(found)} do not open"]) + "\n"


def main() -> int:
    """Opens a share of the suite; exit status 1 where something does not open."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment whose onnxruntime has CUDA")
    parser.add_argument("--share", default="1/1", help="NTH/OF: every OF-th model, from the NTH")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    nth, of = map(int, args.share.split("/"))
    models = suite(nth, of)
    ways = [(target, level, dtype) for target in PROVIDERS for level in LEVELS for dtype in DTYPES]
    counts, found = faults(models, ways, args.python)
    text = report(counts, found)
    print(text, end="")
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
