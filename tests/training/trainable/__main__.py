"""``python -m training.trainable [NAME ...]``: runs all cases, or those whose name has these words, and prints rows."""

from __future__ import annotations

import sys

from .all import CASES
from .measure import measure


def main(words: list[str]) -> None:
    for name, case in CASES.items():
        if words and not any(word.lower() in name.lower() for word in words):
            continue
        try:
            found = measure(case)
        except Exception as error:  # noqa: BLE001
            print(f"| {name} | CRASH {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        low = " ".join(f"{loss:.4g}" for loss in found.low)
        mark = "as expected" if found.as_expected(case) else "OTHERWISE"
        print(f"| {name} | {mark} | {found.away:.1e} | {low} | {found.nodes} | {found.refused}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
