"""Converted files beside MindSpore's own mixed precision: by nodes, casts and outputs.

``python -m mindir.parity [NAME ...] [--all] [--folder FOLDER]`` (with ``tests`` on the path) exports networks of
``nets``, converts each at every level with the policy ``mindspore``, runs both files, and prints what differs; it ends
with 1 if something does that ``cases`` does not name. Without names: the networks that the tests use; ``--all``: all
of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ampgraph
from mindir import cases
from mindir.compare import Comparison, compare
from npz import read_numbered
from share import share

TESTS = Path(__file__).parents[1]
CORNERS = ("encoder", "casts", "branches", "promotion", "exact_values", "raw_parameters")
"""Networks that rules of their own go by."""

WHOLE = ("residual", "if")
"""Networks that every run compares at every level."""

IN_BFLOAT16 = [pair for pair in cases.half(cases.ESSENTIAL) if pair[0] in WHOLE or share([(*pair, "bfloat16")], 2)]
LOW = [(name, f"{level}-bfloat16") for name, level in IN_BFLOAT16]
"""What the tests compare in bfloat16: half of it, a run."""

ESSENTIAL = [*cases.every(WHOLE), *share(cases.half(name for name in cases.ESSENTIAL if name not in WHOLE), 2)]
"""What the tests compare of the networks that the goal names: a half of them, a run."""

USED = [*ESSENTIAL, *share(cases.half(CORNERS), 2)]
"""What the tests compare."""

NAMED = share(sorted({**cases.REFUSED, **cases.UNDECIDABLE, **cases.DIFFERENT}), 3)
"""What cannot match; of these networks no other level. It says more of MindSpore than of us: a third of it, a run."""


@dataclass(frozen=True)
class Verdict:
    """One network at one level: ours beside MindSpore's."""

    comparison: Comparison
    types_equal: bool
    identical: bool
    distance: float  # the largest difference of an output

    @property
    def equal(self) -> bool:
        ours = self.comparison
        return ours.agrees and ours.casts[0] == ours.casts[1] and self.types_equal and self.identical

    def __str__(self) -> str:
        outputs = "identical" if self.identical else f"up to {self.distance:.1e} apart"
        types = "" if self.types_equal else " and of other types"
        return f"{self.comparison}\noutputs {outputs}{types}"


def python(*arguments: str | Path, cwd: Path) -> None:
    """Runs ``mindir.export``, quietly, where MindSpore's files do no harm."""
    search = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "mindir.export", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search, "GLOG_v": "4"}
    )
    if done.returncode:
        raise RuntimeError(f"mindir.export failed: {done.stderr[-3000:]}")


def export(folder: Path, words: Sequence[str], levels: Sequence[str] = ()) -> None:
    """Exports ``NAME`` or ``NAME:LEVEL,LEVEL``, in two processes."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = ["--levels", *levels] if levels else []
    with ThreadPoolExecutor() as pool:
        halves = [part for part in (words[::2], words[1::2]) if part]
        jobs = [(folder, *half, *chosen, "--errors", f"errors_{n}.json") for n, half in enumerate(halves)]
        list(pool.map(lambda job: python(*job, cwd=folder), jobs))


def errors(folder: Path) -> set[cases.Pair]:
    """What MindSpore could not export, of all that was asked of it."""
    texts = [file.read_text() for file in folder.glob("errors_*.json")]
    return {tuple(key.split("/")) for text in texts for key in json.loads(text)}


def of_names(pairs: Iterable[cases.Pair]) -> list[str]:
    """Pairs as words for ``export``, each network with its float32."""
    levels: dict[str, list[str]] = {}
    for name, level in pairs:
        levels.setdefault(name, ["fp32"]).append(level)
    return [f"{name}:{','.join(found)}" for name, found in levels.items()]


def convertible(pairs: Iterable[cases.Pair]) -> list[cases.Pair]:
    """The (network, level) of which MindSpore makes a file."""
    return [pair for pair in pairs if pair not in cases.REFUSED]


def convert(folder: Path, name: str, level: str, policy: str, **options) -> Path:
    file = folder / name / f"{policy}_{level}.mindir"
    given = {"policy": policy, "output": file, "check": "off", **options}  # they are run and compared here
    return ampgraph.convert(folder / name / "fp32.mindir", level, **given)


def run(folder: Path, pairs: Iterable[cases.Pair], policy: str) -> None:
    """Runs converted files, all in one process."""
    jobs = []
    for name, level in pairs:
        place = folder / name
        jobs += [place / f"{policy}_{level}.mindir", place / "inputs.npz", place / f"outputs_{policy}_{level}.npz"]
    python("--run", *jobs, cwd=folder)


def outputs(folder: Path, name: str, what: str) -> list[np.ndarray]:
    return read_numbered(folder / name / f"outputs_{what}.npz")


def judge(folder: Path, name: str, level: str) -> Verdict:
    """Compares what ``export``, ``convert`` and ``run`` have left in the folder."""
    own, ours = outputs(folder, name, level), outputs(folder, name, f"mindspore_{level}")
    place = folder / name
    return Verdict(
        compare(place / f"{level}.mindir", place / f"mindspore_{level}.mindir"),
        [(a.dtype, a.shape) for a in own] == [(b.dtype, b.shape) for b in ours],
        all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(own, ours, strict=True)),
        max(float(np.max(np.abs(a.astype(np.float64) - b), initial=0)) for a, b in zip(own, ours, strict=True)),
    )


def table(folder: Path, names: Sequence[str]) -> bool:
    """Prints every (network, level); whether exactly those match that should."""
    pairs, good = convertible(cases.every(names)), True
    for name, level in pairs:
        convert(folder, name, level, "mindspore")
    run(folder, pairs, "mindspore")
    expected = set(cases.comparable(pairs))
    for pair in pairs:
        verdict = judge(folder, *pair)
        as_said = verdict.equal == (pair in expected) and len(verdict.comparison.mixed) == cases.MIXED.get(pair, 0)
        good &= as_said
        print(f"{'ok  ' if as_said else 'FAIL'} {' '.join(pair)}: {'equal' if verdict.equal else verdict}")
    print(f"{len(pairs)} compared; {len(expected)} must match, {len(pairs) - len(expected)} cannot")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every network")
    parser.add_argument("--folder", type=Path, help="keep the files, and use the exports that are there")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or list(cases.NAMES if options.all else (*cases.ESSENTIAL, *CORNERS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        missing = [name for name in names if not (folder / name / "fp32.mindir").exists()]
        if missing:
            export(folder, missing)
        sys.exit(0 if table(folder, names) else 1)


if __name__ == "__main__":
    main()
