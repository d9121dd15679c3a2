"""ONNX's node suite, converted and built by TensorRT: what it takes in float32 it has to take afterwards.

    python benchmarks/tensorrt/node_suite.py [MODEL.onnx ...] [--share 1/8] [--ways O2/float16,...] [--kept FILE]

Models in the place of the suite have the sizes of the inputs beside them (NAME.npz, by name), or of generated ones.

Each model with a float32 input or output is converted at every level and in both low types. A model counts where its
float32 file is parsed and built. What is refused is named, with what TensorRT says; and so is what became no lower
though the same operator is taken in the low type.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from engines import PYTHON, built  # noqa: E402
from onnx import ModelProto, TensorProto  # noqa: E402
from onnx.backend.test.case.test_case import TestCase  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.core.errors import AmpError  # noqa: E402
from ampgraph.report.fusions import engine_sizes  # noqa: E402
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob  # noqa: E402

LEVELS = ("O1", "O2", "O3", "auto", "O0")
DTYPES = ("float16", "bfloat16")
Way = Callable[[ModelProto], ModelProto]


@dataclass(frozen=True)
class Row:
    """One way of conversion over the suite. ``refused``: model -> what TensorRT says; ``low``: with a low kernel.
    ``before``: model -> what it says of the float32 file, which therefore does not count."""

    way: str
    taken: int
    low: tuple[str, ...]
    refused: Mapping[str, str]
    failed: Mapping[str, str]
    before: Mapping[str, str]


def suite(nth: int = 1, of: int = 1) -> dict[str, BuildJob]:
    """Every ``of``-th model with a float32 input or output, with the values of inputs that are no floats."""
    cases = {case.name: case for case in load_model_tests(kind="node")}
    return {name: _job(cases[name]) for name in sorted(cases)[nth - 1 :: of] if _has_float32(cases[name].model)}


def _has_float32(model: ModelProto) -> bool:
    values = (*model.graph.input, *model.graph.output)
    return any(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in values)


def _job(case: TestCase) -> BuildJob:
    given = zip(case.model.graph.input, case.data_sets[0][0], strict=False)
    integers = {
        value.name: array for value, array in given if isinstance(array, np.ndarray) and array.dtype.kind == "i"
    }
    return BuildJob(case.model, values={name: array.ravel().tolist() for name, array in integers.items()})


def files(paths: Iterable[Path]) -> dict[str, BuildJob]:
    """Models of files, by their names."""
    found: dict[str, BuildJob] = {}
    for path in paths:
        model, data = onnx.load(path), path.with_suffix(".npz")
        given = np.load(data).files if data.is_file() else []
        beside = {value.name for value in model.graph.input} <= set(given)
        sizes, values = engine_sizes(str(path), {}, str(data) if given and beside else None)
        found[path.stem] = BuildJob(model, str(path.parent), sizes, values)
    return found


def is_low(answer: BuildAnswer) -> bool:
    """Whether an engine has a kernel of a low type."""
    kernels = () if answer.engine is None else answer.engine.kernels
    return any(not set(DTYPES).isdisjoint(kernel.reads | kernel.makes) for kernel in kernels)


def ours(level: str, dtype: str) -> Way:
    """Our conversion."""
    return partial(ampgraph.convert, level=level, dtype=dtype, target="tensorrt", check="off")


def rows(jobs: Mapping[str, BuildJob], ways: Mapping[str, Way], python: str, kept: str = "") -> Iterator[Row]:
    """What becomes of the models that TensorRT takes as they are."""
    answers = dict(zip(jobs, built(jobs.values(), python, kept), strict=True))
    before = {name: answer.why for name, answer in answers.items() if not answer.ok}
    good = {name: job for name, job in jobs.items() if name not in before}
    for way, convert in ways.items():
        made: dict[str, BuildJob] = {}
        failed: dict[str, str] = {}
        for name, job in good.items():
            assert isinstance(job.model, ModelProto)
            try:
                made[name] = replace(job, model=convert(job.model))
            except (AmpError, ValueError, RuntimeError) as error:
                failed[name] = f"{type(error).__name__}: {error}"
        found = dict(zip(made, built(made.values(), python, kept), strict=True))
        refused = {name: answer.why for name, answer in found.items() if not answer.ok}
        low = tuple(name for name, answer in found.items() if is_low(answer))
        yield Row(way, len(found) - len(refused), low, refused, failed, before)


def main() -> int:
    """Builds a share of the suite; exit status 1 where something is refused, or our conversion fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--python", default=PYTHON, help="of an environment with TensorRT for RTX")
    parser.add_argument("--share", default="1/1", help="NTH/OF: every OF-th model, from the NTH")
    parser.add_argument("--kept", default="", help="a file of answers, which a second run does not ask for again")
    parser.add_argument("--ways", default="", help="only those: LEVEL/DTYPE,...")
    args = parser.parse_args()
    nth, of = map(int, args.share.split("/"))
    ways = {f"{level} {dtype}": ours(level, dtype) for level in LEVELS for dtype in DTYPES}
    if args.ways:
        ways = {name: way for name, way in ways.items() if name.replace(" ", "/") in args.ways.split(",")}
    bad = 0
    jobs = files(args.models) if args.models else suite(nth, of)
    for number, row in enumerate(rows(jobs, ways, args.python, args.kept)):
        for name, why in row.before.items() if number == 0 and args.models else ():
            print(f"refused in float32: {name}: {why[:150]}", flush=True)
        ended = f"{len(row.refused)} refused, {len(row.failed)} failed"
        print(f"{row.way}: {row.taken} taken, {len(row.low)} with low kernels, {ended}", flush=True)
        for name, why in {**row.refused, **row.failed}.items():
            print(f"  - {name}: {why[:300]}", flush=True)
        bad += len(row.refused) + len(row.failed)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
