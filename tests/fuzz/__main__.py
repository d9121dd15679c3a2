"""Runs seeds, each share of them in a process of its own: what crashes there costs one seed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

SHARE = 100  # seeds a process


def run(first: int, last: int, count: int, folder: Path | None) -> None:
    """Some seeds, in this process: a line before each, one for each fault. ``folder``: where small models of them go"""
    warnings.simplefilter("ignore")
    from fuzz.checks import faults, keep, shrunk
    from fuzz.models import random_model

    for seed in range(first, last):
        print(f"draw {seed}", flush=True)
        case = random_model(seed)
        print(f"case {seed}" if case else f"none {seed}", flush=True)
        for fault in faults(case, count) if case else ():
            print(f"fault {fault}", flush=True)
            if folder is not None and case:
                keep(shrunk(case, fault.way, fault.stage), fault.way, folder)


def share(first: int, last: int, words: argparse.Namespace) -> tuple[Counter[str], list[str]]:
    """Some seeds in processes of their own, one after another where they crash; what happened, and the faults."""
    counts, found, at = Counter[str](), [], first
    while at < last:
        command = [sys.executable, "-m", "fuzz", "--one", f"{at}:{last}", "--ways", str(words.ways)]
        command += ["--keep", str(words.keep)] if words.keep else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        counts.update(line.split()[0] for line in lines)
        found += [line.removeprefix("fault ") for line in lines if line.startswith("fault ")]
        if done.returncode == 0:
            break
        stage, seed = next(
            line.split()[:2] for line in reversed(lines or [f"draw {at}"]) if not line.startswith("fault")
        )
        at = int(seed) + 1
        if stage == "draw" and done.returncode < 0:
            counts["runtime crashed while drawing"] += 1
            continue
        last_words = (done.stderr.strip().splitlines() or [""])[-1]
        found.append(f"{seed} - crash: {stage}: exit status {done.returncode} {last_words}")
    return counts, found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:last")
    parser.add_argument("--ways", type=int, default=3, help="conversions a model, of 8 levels and types")
    parser.add_argument("--out", type=Path, help="faults go to this file too")
    parser.add_argument("--keep", type=Path, help="a folder for small models with the same faults")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    words = parser.parse_args()
    first, last = map(int, (words.one or words.seeds).split(":"))
    if words.one:
        run(first, last, words.ways, words.keep)
        return 0
    counts: Counter[str] = Counter()
    found: list[str] = []
    for start in range(first, last, SHARE):
        some, faults = share(start, min(start + SHARE, last), words)
        counts, found = counts + some, found + faults
        print("\n".join([*faults, f"up to {min(start + SHARE, last)}: {dict(counts)}"]), flush=True)
        if words.out:
            words.out.write_text("\n".join(found) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
