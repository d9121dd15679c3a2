"""What the check behind `convert` costs beside the conversion and the runs of the two models, in CPU seconds.

    python benchmarks/zoo_check_cost.py FOLDER [NAME ...] [--most 100] [--out FILE.json] [--table]

FOLDER holds models/NAME.onnx. Each figure is of a process of its own, with its children: a conversion with --check off,
one with the check, and as many runs of the two models, float32 and strict, as the check made (the runs alone, without
opening the models). The check may cost twice the conversion and its runs, and two seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

Facts = dict[str, Any]
TIMES, MORE = 2, 2.0  # what the check may cost: so many times the conversion and its runs, and so many seconds more


# -- what a process of its own does -----------------------------------------------------------------------------------


def converted(source: str, result: str, check: str) -> Facts:
    """A conversion, with its verdict."""
    import warnings

    import ampgraph

    warnings.simplefilter("ignore")
    _, summary = ampgraph.convert(source, output=result, check=check, report=True)
    verdict = summary.check
    return {} if verdict is None else {"outcome": verdict.outcome, "samples": verdict.samples, "said": str(verdict)}


def runs(source: str, result: str, count: str) -> Facts:
    """Runs of both models on the inputs of the check."""
    from ampgraph.numerics.inputs.samples import load_samples
    from ampgraph.numerics.pairs import make_pair

    pair = make_pair(source, result, "cpu")
    pair.open()
    drawn = list(load_samples(pair.reference, None, count=int(count)).fit_to(pair.run_reference))
    start = time.process_time()
    for feeds in drawn:
        pair.run_both(feeds)
    return {"cpu": time.process_time() - start}


# -- all models -------------------------------------------------------------------------------------------------------


def asked(*words: str) -> Facts:
    """What a process of its own answers, with the CPU seconds of it and of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--child", *words]
    out = subprocess.run(command, capture_output=True, text=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if out.returncode:
        return {"error": (out.stderr.strip().splitlines() or ["it died"])[-1][:160]}
    return {"cpu": cpu, **json.loads(out.stdout.splitlines()[-1])}


def measured(source: Path) -> Facts:
    """The figures of one model."""
    with tempfile.TemporaryDirectory() as folder:
        low = str(Path(folder) / "low.onnx")
        plain, checked = (asked("converted", str(source), low, mode) for mode in ("off", "auto"))
        if "error" in plain or "error" in checked:
            return {"error": plain.get("error") or checked.get("error")}
        made = asked("runs", str(source), low, str(checked["samples"])) if checked.get("samples") else {"cpu": 0.0}
    size, share = source.stat().st_size / 1e6, {key: checked.get(key) for key in ("outcome", "samples", "said")}
    return {
        "mb": size,
        "convert": plain["cpu"],
        "runs": made.get("cpu"),
        "check": checked["cpu"] - plain["cpu"],
        **share,
    }


def over(facts: Facts) -> float:
    """CPU seconds beyond twice the conversion and its runs."""
    return float(facts["check"] - TIMES * (facts["convert"] + facts["runs"]))


def table(results: dict[str, Facts]) -> str:
    """The page."""
    known = {name: facts for name, facts in results.items() if facts.get("samples") and facts.get("runs") is not None}
    excess = [over(facts) for facts in known.values()]
    few = sorted(name for name, facts in known.items() if facts["samples"] < 6)
    lines = [
        f"{len(known)} models. Beyond {TIMES} times the conversion and its runs: {median(excess):+.1f} CPU s in median,"
        f" at most {max(excess):+.1f}; {sum(e <= MORE for e in excess)} of {len(excess)} within {MORE:+.1f}.",
        f"Fewer than six inputs: {', '.join(few) or 'none'}.",
        "",
        "| model | MB | convert | runs | check | beyond | inputs | outcome |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, facts in results.items():
        if name not in known:
            lines.append(f"| {name} | | | | | | | {facts.get('error') or facts.get('said') or 'nothing to check'} |")
            continue
        figures = " | ".join(f"{facts[key]:.1f}" for key in ("mb", "convert", "runs", "check"))
        lines.append(f"| {name} | {figures} | {over(facts):+.1f} | {facts['samples']} | {facts['outcome']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--most", type=float, default=100.0, help="megabytes of a model")
    parser.add_argument("--out", type=Path, default=Path("zoo_check_cost.json"))
    parser.add_argument("--table", action="store_true", help="prints what is known, and measures nothing")
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    paths = sorted((args.folder / "models").glob("*.onnx"), key=lambda path: path.stat().st_size)
    for path in () if args.table else paths:
        if path.stat().st_size <= args.most * 1e6 and (path.stem in args.names or not args.names):
            results[path.stem] = measured(path)
            print(path.stem, results[path.stem], flush=True)
            args.out.write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps({"converted": converted, "runs": runs}[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
