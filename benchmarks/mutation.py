"""Whether the measure of the check notices what is wrong with one part of an output, and nothing else.

    python benchmarks/mutation.py FOLDER [NAME ...] [-o benchmarks/mutation.md]

FOLDER holds trained models as models/NAME.onnx. Each is run in float32 on the inputs that the check generates. Then
one part of one output at a time is zeroed, scaled by 1.05, shifted by one place along its axis, or its rows are
permuted: the verdict on that must not be ok. On the same outputs, and on those rounded to float16, it must be.

Parts are what the model's documents say (`PARTS`), else the whole output. A change that leaves a part as it is within
its tolerance (of a constant, of zeros) is none and is left out. Exit status 1 where a change passes, or what is right
is called wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from measure import markdown  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.api.check import GENERATED  # noqa: E402
from ampgraph.core.verdict import OK, TOLERANCES  # noqa: E402
from ampgraph.numerics.inputs.samples import load_samples  # noqa: E402
from ampgraph.numerics.metrics.metric import own_metric  # noqa: E402
from ampgraph.numerics.metrics.verdict import Compared  # noqa: E402
from ampgraph.numerics.pairs import make_pair  # noqa: E402

Outputs = dict[str, Any]
Change = Callable[[np.ndarray, int], np.ndarray]
BOXES = {"boxes": slice(0, 4), "scores": slice(4, None)}
PARTS: dict[str, dict[str, tuple[int, dict[str, slice]]]] = {
    "nudenet": {"output0": (1, BOXES)},
    "slider_captcha": {"output0": (1, {"boxes": slice(0, 4), "score": slice(4, 5), "masks": slice(5, None)})},
    "dddd_det": {"output": (2, {"boxes": slice(0, 4), "scores": slice(4, None)})},
    "dnsmos_p835": {"Identity:0": (1, {"speech": slice(0, 1), "noise": slice(1, 2), "overall": slice(2, 3)})},
}
"""By model and output: the axis, and what lies along it."""
CHANGES: dict[str, Change] = {
    "zeroed": lambda part, axis: np.zeros_like(part),
    "times 1.05": lambda part, axis: part * np.float32(1.05),
    "shifted": lambda part, axis: np.roll(part, 1, axis),
    "permuted": lambda part, axis: np.flip(part, -1 if axis != part.ndim - 1 else max(part.ndim - 2, 0)),
}
ALIKE = 3e-2  # of the part's norm: what a change must move to be one


def floats(outputs: Outputs) -> Iterator[str]:
    """The outputs of floating numbers."""
    return (name for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f")


def verdict(references: list[Outputs], changed: list[Outputs]) -> str:
    """What the check would say."""
    seen = Compared(own_metric(True), numbers_first=True)
    for reference, result in zip(references, changed, strict=True):
        seen.add(reference, result)
    return seen.verdict(TOLERANCES["float16"], True).outcome


def mutants(model: str, references: list[Outputs]) -> Iterator[tuple[str, str, list[Outputs]]]:
    """Part, change, and the outputs with it; changes that change little are left out."""
    for name in floats(references[0]):
        known = PARTS.get(model, {}).get(name)
        axis, parts = known or (max(references[0][name].ndim - 1, 0), {"whole": slice(None)})
        for part, where in parts.items():
            for change, function in CHANGES.items():
                made, moved = [], 0.0
                for outputs in references:
                    array = outputs[name].copy()
                    index = (*[slice(None)] * axis, where) if array.ndim else ...
                    before = array[index].copy()
                    array[index] = (
                        function(before, axis) if array.ndim or change in ("zeroed", "times 1.05") else before
                    )
                    size = np.linalg.norm(before.astype(np.float64)) or 1.0
                    moved = max(moved, float(np.linalg.norm((array[index] - before).astype(np.float64)) / size))
                    made.append({**outputs, name: array})
                if moved > ALIKE:
                    yield f"{name} {part}", change, made


def row(path: Path) -> tuple[list[str], list[str]]:
    """A line of the table, and what passed or was called wrong."""
    model = onnx.load(path)
    pair = make_pair(model, model, "cpu")
    pair.open()
    drawn = load_samples(pair.reference, None, count=GENERATED, dims={}).fit_to(pair.run_reference)
    references = [pair.run_reference(feeds) for feeds in drawn.first(GENERATED)]
    low = ampgraph.convert(model, check="off")
    converted = make_pair(model, low, "cpu")
    converted.open()
    results = [converted.run_both(feeds)[1] for feeds in drawn.first(GENERATED)]
    bad, noticed, count = [], 0, 0
    for part, change, made in mutants(path.stem, references):
        count += 1
        if verdict(references, made) == OK:
            bad.append(f"{path.stem}: {part} {change} is not noticed")
        else:
            noticed += 1
    rounded = [
        {n: v.astype(np.float16).astype(v.dtype) if n in set(floats(one)) else v for n, v in one.items()}
        for one in references
    ]
    same, stored, converted_as = (verdict(references, each) for each in (references, rounded, results))
    bad += [
        f"{path.stem}: called {said} as {what}" for what, said in (("it is", same), ("rounded", stored)) if said != OK
    ]
    return [path.stem, f"{noticed} of {count}", same, stored, converted_as], bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    paths = sorted((given.folder / "models").glob("*.onnx"))
    rows, faults = [], []
    for path in paths:
        if not given.names or path.stem in given.names:
            made, bad = row(path)
            rows.append(made)
            faults += bad
            print(*made, *bad, sep="\n  " if bad else "  ", flush=True)
    table = markdown(["model", "changes noticed", "as it is", "rounded to float16", "converted"], rows)
    if given.output:
        head = (
            f"# Changes to a part of an output that the check notices\n\nMade by `benchmarks/mutation.py`.\n\n{table}\n"
        )
        given.output.write_text(head + "".join(f"- {fault}\n" for fault in faults), encoding="utf-8")
    sys.exit(bool(faults))
