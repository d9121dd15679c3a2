"""Where in a model the error of float16 comes from: strict runs with parts of it in float32, on real inputs.

    python benchmarks/origins.py FOLDER [NAME ...]      # as fresh.md has it; FOLDER as zoo_right.py takes it

A row each: the error of the default (O2, float16), by the measure of `zoo_right.py`; with inputs, weights or all
but the weights rounded; with products alone low, or all but products; with the first products and all that lies before
the next in float32 (two, a tenth, a fifth of all), or the last fifth and all behind; and how many products the first
nodes of a ranking, by what each makes alone on the worst sample, hold in float32 where that sample is right.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from zoo_right import TOLERANCE, frozen, p90, samples

import ampgraph
from ampgraph.numerics.strict.session import StrictSession, SwitchedSession
from ampgraph.oplists.traits import has

SAMPLES, LEAST = 8, 9  # of a model; elements of what counts as a weight
COLUMNS = (
    "default", "inputs", "weights", "all else", "products", "other nodes", "first 2", "first tenth", "first fifth",
    "last fifth", "fewest",
)  # fmt: skip
Feeds = dict[str, Any]
Run = Callable[[Feeds], Feeds]


def rounded(array: Any) -> Any:
    """Float32 numbers of which float16 has all digits; others as they are."""
    if array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def with_low_weights(path: Path) -> onnx.ModelProto:
    """The float32 model with weights of two dimensions and more rounded."""
    model = onnx.load(path)
    held = [*model.graph.initializer]
    held += [
        a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value"
    ]
    for tensor in held:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1 and np.prod(tensor.dims) >= LEAST:
            tensor.CopyFrom(numpy_helper.from_array(rounded(numpy_helper.to_array(tensor)), tensor.name))
    return model


def errors(run: Run, beside: Iterable[tuple[Feeds, Feeds]]) -> dict[str, list[float]]:
    """By output, the error of each sample."""
    found: dict[str, list[float]] = {}
    for feeds, expected in beside:
        given = run(feeds)
        for name, value in expected.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                found.setdefault(name, []).append(frozen(value, given[name]))
    return found


def worst(run: Run, beside: Iterable[tuple[Feeds, Feeds]]) -> float:
    """The error of the worst output."""
    return max(map(p90, errors(run, beside).values()))


class Parts:
    """A model and its conversion, run with some nodes low."""

    def __init__(self, source: Path, low: Path, data: Path) -> None:
        self.session = SwitchedSession(str(source), str(low))
        self.units = range(len(self.session.units))
        self.products = [i for i in self.units if has(self.session.units[i].kind, "products")]
        given = list(samples(data, SAMPLES))
        self.beside = [(feeds, self.session.run(feeds, ())) for feeds in given]

    def low(self, units: Collection[int]) -> float:
        """The error with these units low."""
        return worst(lambda feeds: self.session.run(feeds, units), self.beside)

    def behind(self, count: int) -> float | None:
        """With the first products in float32."""
        return self.low(range(self.products[count], len(self.units))) if 0 < count < len(self.products) else None

    def before(self, count: int) -> float | None:
        """With the last products in float32."""
        return self.low(range(self.products[-count])) if 0 < count < len(self.products) else None

    def fewest(self) -> str:
        """Products among the first units of a ranking on the worst sample, of how many."""
        found = errors(lambda feeds: self.session.run(feeds, self.units), self.beside)
        place = int(np.argmax(np.max(list(found.values()), axis=0)))
        one = self.beside[place : place + 1]

        def left(units: Collection[int]) -> float:
            return worst(lambda feeds: self.session.run(feeds, units), one)

        ranked = sorted(self.units, key=lambda unit: -left([unit]))
        few, many = 0, len(ranked)
        while few < many:
            middle = (few + many) // 2
            few, many = (few, middle) if left(sorted(ranked[middle:])) <= TOLERANCE else (middle + 1, many)
        return f"{len({*ranked[:few]} & {*self.products})} of {len(self.products)}"


def row(source: Path, data: Path, work: Path) -> list[str]:
    """What `COLUMNS` say of a model."""
    low = work / "low.onnx"
    ampgraph.convert(source, output=low, check="off")
    reference, result, weights = (StrictSession(one) for one in (source, low, with_low_weights(source)))
    given = list(samples(data, SAMPLES))
    beside, behind = ([(feeds, session.run(feeds)) for feeds in given] for session in (reference, weights))
    parts = Parts(source, low, data)
    count, products = len(parts.products), {*parts.products}
    near = lambda feeds: reference.run({name: rounded(array) for name, array in feeds.items()})  # noqa: E731
    found = [worst(result.run, beside), worst(near, beside), worst(weights.run, beside), worst(result.run, behind)]
    found += [parts.low(parts.products), parts.low([i for i in parts.units if i not in products])]
    fronts = [parts.behind(2), parts.behind(count // 10), parts.behind(count // 5), parts.before(count // 5)]
    return [*("-" if error is None else f"{error:.1e}" for error in (*found, *fronts)), parts.fewest()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    print("| model | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (1 + len(COLUMNS)))
    with tempfile.TemporaryDirectory() as work:
        for source in sorted((args.folder / "models").glob("*.onnx")):
            if source.stem in (args.names or [source.stem]):
                cells = row(source, args.folder / "data" / source.stem, Path(work))
                print(f"| {source.stem} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
