"""Digests of what conversion writes, and of its plans, through the public API alone."""

from __future__ import annotations

import gc
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ampgraph
from ampgraph.core.json_types import json_line
from ampgraph.core.plan import FORMAT
from digests.table import DIGITS, SAME, Row, digest

LEVELS = ("O0", "O1", "O2", "O3", "auto")
DTYPES = ("float16", "bfloat16")
COLUMNS = (*LEVELS, "plans")
OURS = "ampgraph"
VERSION = "0.2.0"  # which files say: a release by itself changes no digest
LARGE = (
    10 << 20
)  # bytes: a converted model is held by cycles, and hundreds of megabytes must not wait for the collector


def conversions(name: str, source: Path, policies: Sequence[str] = (OURS,)) -> Iterator[Row]:
    """A row for each low type and policy: the file of every level, and all plans together."""
    given = of_file(source)
    large = source.stat().st_size > LARGE
    for policy in policies:
        for dtype in DTYPES:
            cells, texts = [], []
            for level in LEVELS:
                cells.append(converted(source, given, level, dtype, policy))
                texts.append(plan(source, level, dtype, policy))
                if large:
                    gc.collect()
            words = [name, dtype] if policy == OURS else [name, dtype, policy]
            yield Row(" ".join(words), given, (*cells, digest("".join(texts).encode())))


def converted(source: Path, given: str, level: str, dtype: str, policy: str) -> str:
    def write(output: Path) -> None:
        ampgraph.convert(source, level, dtype=dtype, policy=policy, output=output)

    return written(write, source.suffix, given)


def written(write: Callable[[Path], object], suffix: str, given: str) -> str:
    """The digest of every file that ``write`` leaves beside the path that it is given; the code where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with patch("ampgraph.core.annotations.__version__", VERSION):
                write(Path(folder) / f"model{suffix}")
        except ampgraph.AmpError as error:
            return error.code
        files = sorted(Path(folder).iterdir())
        found = of_file(files[0]) if len(files) == 1 else digest(" ".join(map(_named, files)).encode())
    return SAME if found == given else found


def of_format_2(plan: dict[str, Any]) -> str:
    """The text of a plan as format 2 had it: fields that plans have gained since change no digest."""
    numbers: dict[tuple[str, str], int] = {}
    renumbered = [numbers.setdefault((rule, text), len(numbers)) for rule, text, _ in plan["reasons"]]
    plan["reasons"] = [*map(list, numbers)]
    plan["decisions"] = [[*row[:-1], renumbered[row[-1]]] for row in plan["decisions"]]
    plan["notes"] = [{key: note[key] for key in ("topic", "where", "text")} for note in plan["notes"]]
    lists = {key for key, value in plan.items() if isinstance(value, list) and key not in ("low_io", "pinned")}
    head = (f'"{key}": {json_line(value)}' for key, value in plan.items() if key not in lists)
    rows = (f'"{key}": [\n' + ",\n".join(map(json_line, plan[key])) + "]" for key in plan if key in lists)
    return "{" + ",\n".join([*head, *rows]).replace(f'"ampgraph_plan": {FORMAT}', '"ampgraph_plan": 2', 1) + "}\n"


def plan(source: Path, level: str, dtype: str, policy: str) -> str:
    """As JSON; the code where it is refused."""
    try:
        return of_format_2(ampgraph.plan(source, level, dtype=dtype, policy=policy).to_dict())
    except ampgraph.AmpError as error:
        return error.code


def of_file(path: Path) -> str:
    """Piece by piece: the exports have hundreds of megabytes."""
    with path.open("rb") as file:
        found = hashlib.sha256()
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()[:DIGITS]


def _named(path: Path) -> str:
    return f"{path.name} {of_file(path)}"
