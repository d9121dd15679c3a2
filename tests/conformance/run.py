"""Run the conformance suite from the command line: `python tests/conformance/run.py --levels O2 --case lstm`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conformance.cases import index  # noqa: E402
from conformance.checks import LEVELS, Result  # noqa: E402
from conformance.pool import Outcome, run_cases  # noqa: E402

CONVERTER = "ampgraph:convert"


def sample(count: int, seed: int = 0) -> list[str]:
    """A fixed choice that spreads over first operators, and takes cases of every kind."""
    found = index()
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(found.ops):
        kind = found.kinds[name]
        groups.setdefault((kind, found.ops[name] if kind == "node" else ""), []).append(name)
    rng = random.Random(seed)
    order = sorted(groups)
    rng.shuffle(order)
    # Kinds other than single nodes first: they are few and differ most.
    order.sort(key=lambda g: g[0] == "node")
    return [rng.choice(groups[g]) for g in order if g[0] != "real"][:count]


def table(results: list[Result], limit: int = 1000) -> str:
    """Failures, one a line."""
    bad = [r for r in results if r.stage]
    rows = [f"{r.case:<60} {r.level:<5} {r.stage:<10} {r.message}" for r in bad[:limit]]
    return "\n".join(rows + ([f"... and {len(bad) - limit} more"] if len(bad) > limit else []))


def summary(outcomes: list[Outcome]) -> str:
    """Counts by level: passed, failed by stage, excused, effective."""
    lines = []
    results = [r for o in outcomes for r in o.results]
    for level in dict.fromkeys(r.level for r in results):
        mine = [r for r in results if r.level == level]
        stages = Counter(r.stage for r in mine if r.stage)
        excuses = Counter(r.excuse.split(":")[0] for r in mine if r.excuse and not r.stage)
        share, lowered, able = effectiveness(mine)
        lines.append(
            f"{level:<5} {len(mine) - sum(stages.values())}/{len(mine)} pass"
            f"  failed: {dict(stages) or 'none'}  excused: {dict(excuses) or 'none'}"
            f"  lowered {lowered} of {able} that it can ({share:.1%})  {sum(r.seconds for r in mine):.0f} s"
        )
    return "\n".join(lines)


def effectiveness(results: list[Result]) -> tuple[float, int, int]:
    """Share, count and total of the cases with something to lower in which something was, or a guard is named."""
    able = [r for r in results if r.can_lower and not r.stage]
    lowered = [r for r in able if r.low_nodes or r.held]
    return (len(lowered) / len(able) if able else 1.0), len(lowered), len(able)


def _arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--levels", nargs="+", default=list(LEVELS))
    p.add_argument("--case", action="append", help="substring of a name; several may be given")
    p.add_argument("--op", help="only cases whose first node is this operator")
    p.add_argument("--sample", type=int, help="the stratified sample of so many cases")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--converter", default=CONVERTER, help="module:function or file.py:function")
    p.add_argument("--also", action="store_true", help="print what is excused, not lowered or not in the suite, too")
    return p.parse_args()


def choose(args: argparse.Namespace) -> list[str]:
    found = index()
    names = sample(args.sample) if args.sample else sorted(found.ops)
    if args.case:
        names = [n for n in names if any(c in n for c in args.case)]
    if args.op:
        names = [n for n in names if found.ops[n] == args.op]
    return names


def main() -> int:
    args = _arguments()
    started = time.perf_counter()
    names, outcomes = choose(args), []
    try:
        for outcome in run_cases(names, tuple(args.levels), args.converter, args.jobs):
            outcomes.append(outcome)
            if sys.stderr.isatty():
                print(f"\r{len(outcomes)}/{len(names)}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    results = sorted((r for o in outcomes for r in o.results), key=lambda r: (r.stage, r.case, r.level))
    print(table(results))
    for r in (r for r in results if args.also and not r.stage):
        if r.excuse or (r.can_lower and not r.low_nodes and not r.held):
            print(f"{r.case:<60} {r.level:<5} {r.excuse or 'nothing lowered'}")
    for o in (o for o in outcomes if args.also and o.skipped):
        print(f"{o.case:<60} skipped: {o.skipped}")
    skipped = sum(bool(o.skipped) for o in outcomes)
    found = index()
    print(
        f"{len(names)} chosen, {skipped} that ONNX Runtime does not reproduce in float32, {len(found.absent)} absent, "
        f"{len(found.without_float)} without float32 in or out"
    )
    print(summary(outcomes))
    print(f"{time.perf_counter() - started:.1f} s")
    return 1 if any(r.stage for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
