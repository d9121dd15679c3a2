"""Two source trees beside each other: CPU seconds of conversions, strict sessions and training steps.

    python benchmarks/beside.py OTHER_TREE [--models FOLDER] [--repeat 3] [--only strict]

OTHER_TREE is a checkout of an earlier commit (`git worktree add`). Each figure is the least of `--repeat` fresh
processes, taken in turns, so that a busy machine meets both trees alike; a small model goes first, so that imports and
tables that are read once are not counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import markdown, number, run_child

ROOT = Path(__file__).resolve().parents[1]
STRICT = ("ampgraph.numerics.strict.session", "ampgraph.numerics.strict")  # where it is, and where it was
STEPS = 30
WARM_UP = ROOT / "models" / "digits_transformer.onnx"
Work = Callable[[], Any]


def convert(model: Path, level: str) -> Work:
    """Reading, converting and writing."""
    import ampgraph

    functions = (ampgraph.convert,)
    folder = tempfile.TemporaryDirectory()
    target = Path(folder.name) / "model.onnx"

    def work() -> Any:
        functions[0](model, level, output=target)
        return folder  # removed when nobody holds it

    return work


def strict(model: Path, level: str) -> Work:
    """Opening a strict session of the converted model, the runtime's own work included."""
    import onnxruntime  # noqa: F401

    import ampgraph

    low = Path(tempfile.gettempdir()) / f"ampgraph-beside.{model.stem}.{level}.onnx"
    if not low.exists():
        ampgraph.convert(model, level, output=low)
    for name in STRICT:
        try:
            session = importlib.import_module(name).StrictSession
            break
        except (ImportError, AttributeError):
            continue
    return lambda: session(low, threads=1)


def build(model: Path, level: str) -> Work:
    """Making a training step."""
    import ampgraph

    make = ampgraph.build_training_step
    return lambda: make(model, loss="cross_entropy", optimizer="adam", level=level)


def step(model: Path, level: str) -> Work:
    """Some training steps on one thread."""
    import numpy as np

    import ampgraph

    trainer = ampgraph.Trainer(build(model, level)(), "cpu", threads=1)
    random = np.random.default_rng(0)
    batch = {"image": random.random((64, 1, 8, 8), np.float32), "labels": random.integers(0, 10, 64)}

    def work() -> None:
        for _ in range(STEPS):
            trainer.step(batch)

    trainer.step(batch)
    return work


KINDS: dict[str, Callable[[Path, str], Work]] = {"convert": convert, "strict": strict, "build": build, "step": step}


def cases(models: Path) -> list[tuple[str, Path, str]]:
    """(kind, model, level) of every figure."""
    digits = ROOT / "models" / "digits_transformer.onnx"
    found = [("convert", path, level) for path in sorted(models.glob("*.onnx")) for level in ("O2", "auto")]
    found += [("strict", path, "O2") for path in sorted(models.glob("deep*.onnx"))]
    return [*found, ("build", digits, "O2"), ("step", digits, "O2")]


def child(kind: str, model: Path, level: str, report: Path) -> None:
    """One case in this process."""
    KINDS[kind](WARM_UP, level)()  # imports, and tables that are read once
    work = KINDS[kind](model, level)
    start = time.process_time()
    made = work()
    seconds = time.process_time() - start
    report.write_text(json.dumps({"cpu_s": seconds, "made": type(made).__name__}))


def spent(tree: Path, kind: str, model: Path, level: str) -> float | str:
    """CPU seconds of a case in a fresh process with a tree's package, or why there are none."""
    env = {"PYTHONPATH": str(tree), "AMPGRAPH_CHECK": "off"}
    found = run_child(Path(__file__), ["--child", kind, str(model), level], env={**os.environ, **env})
    return found.failure or float(found.report["cpu_s"])


def row(trees: list[Path], repeat: int, kind: str, model: Path, level: str) -> list[str | None]:
    """The least for each tree, and how they compare."""
    times: list[list[float]] = [[], []]
    for _ in range(repeat):
        for tree, found in zip(trees, times, strict=True):
            seconds = spent(tree, kind, model, level)
            if isinstance(seconds, str):
                return [kind, model.stem, level, f"{tree.name}: {seconds}"[:90], None, None]
            found.append(seconds)
    before, now = map(min, times)
    return [kind, model.stem, level, number(before, ".3f"), number(now, ".3f"), number(now / before)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?", help="the other source tree")
    parser.add_argument("--models", type=Path, help="a folder that synthetic.py wrote")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], Path(args.child[1]), args.child[2], args.report)
        return
    if args.tree is None:
        parser.error("give the other source tree")
    trees = [args.tree.resolve(), ROOT]
    models = [] if args.models is None else cases(args.models)
    chosen = [case for case in models or cases(Path("/nonexistent")) if case[0] in args.only]
    rows = [row(trees, args.repeat, *case) for case in chosen]
    print(markdown(["what", "model", "level", "before CPU s", "now CPU s", "now / before"], rows))


if __name__ == "__main__":
    main()
