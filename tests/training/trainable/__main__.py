"""``python -m training.trainable`` in tests/ runs all cases and writes benchmarks/trainable.json and .md; with words
behind it those whose name has one of them, and prints rows alone."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from .all import CASES
from .case import Case
from .measure import NEAR, STEPS, Measured, measure

RESULTS = Path(__file__).parents[3] / "benchmarks" / "trainable.json"
PACKAGES = ("torch", "onnxscript", "onnxruntime", "transformers")
HEAD = f"""# Kinds of modules that train, beside torch

Written by `python -m training.trainable` (in tests/; cases in tests/training/trainable/), with VERSIONS.
Each module is exported, and trained for {STEPS} steps of plain descent: at O0 beside torch (the largest difference of a
loss, at most {NEAR:g}; "drawn" where both draw numbers of their own), at O2 in a strict run (first and last loss).

| module | O0 from torch | O2, first and last loss | nodes at O0 |
|---|---|---|---|
"""


def row(case: Case, found: Measured) -> str:
    if found.refused:
        message, _, hint = found.refused.partition("\nhint: ")
        return f"| {case.name} | refused: {message} | do instead: {hint} | |"
    away = "drawn" if case.random else f"{found.away:.1e}"
    return f"| {case.name} | {away} | {found.low[0]:.4f} {found.low[-1]:.4f} | {found.nodes} |"


def main(words: list[str]) -> None:
    chosen = [case for name, case in CASES.items() if not words or any(word.lower() in name.lower() for word in words)]
    done = []
    for case in chosen:
        found = measure(case)
        done.append(found)
        print(row(case, found), "" if found.as_expected(case) else "OTHERWISE THAN EXPECTED", flush=True)
    if not words:
        write(done)


def write(rows: list[Measured]) -> None:
    """The results of all cases, in their order."""
    versions = {name: version(name) for name in PACKAGES}
    RESULTS.write_text(json.dumps({"versions": versions, "rows": [asdict(found) for found in rows]}, indent=1) + "\n")
    head = HEAD.replace("VERSIONS", ", ".join(f"{name} {number}" for name, number in versions.items()))
    trained = sum(not found.refused for found in rows)
    lines = "\n".join(row(CASES[found.name], found) for found in rows)
    RESULTS.with_suffix(".md").write_text(f"{head}{lines}\n\n{trained} of {len(rows)} train.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
