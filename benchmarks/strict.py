"""What a strict run costs: beside an ordinary run of the same file, and how long a session takes to open.

    python benchmarks/strict.py [MODEL.onnx ...] [--nodes 20000] [--seconds 5]

Without models: the digits transformer. Each is converted at O2, and its converted file is run three ways, one after the
other, over and over, so that a busy machine meets all three alike: the float32 original, the converted file as ONNX
Runtime runs it (which hides float16), and strictly. Figures are medians; inputs lie in MODEL.npz or are generated.
`--nodes N` adds a chain of N small nodes, whose session is opened once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import synthetic
from measure import markdown, number

import ampgraph
from ampgraph.numerics.inputs.samples import load_samples
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.runtime.onnxruntime_session import OnnxSession

DIGITS = Path(__file__).resolve().parents[1] / "models" / "digits_transformer.onnx"
LEAST = 5  # runs of each kind


def opened(make: Callable[[], Any]) -> tuple[Any, float]:
    """What it makes, and the seconds that took."""
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def measured(source: Path, work: Path, seconds: float, threads: int) -> dict[str, Any]:
    """One row of the table."""
    low = work / f"{source.stem}.low.onnx"
    ampgraph.convert(source, "O2", output=low, check="off")
    data = source.with_suffix(".npz")
    feeds = next(iter(load_samples(source, str(data) if data.exists() else None)))
    float32, _ = opened(lambda: OnnxSession(source, "cpu", threads=threads))
    plain, plain_open = opened(lambda: OnnxSession(low, "cpu", threads=threads))
    strict, strict_open = opened(lambda: StrictSession(low, threads=threads))
    sessions = {"float32": float32, "plain": plain, "strict": strict}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        session.run(feeds)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["strict"]) < LEAST:
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(feeds)
            times[name].append(time.perf_counter() - start)
    row = {name: statistics.median(found) for name, found in times.items()}
    return {"model": source.stem, **row, "runs": len(times["strict"]), "open": strict_open, "plain_open": plain_open}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[DIGITS])
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each model")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work, models = Path(folder), list(args.models)
        if args.nodes:
            chain = work / f"chain{args.nodes}.onnx"
            synthetic.deep(chain, args.nodes)
            models.append(chain)
        rows = [measured(model, work, args.seconds, args.threads) for model in models]
    head = [
        "model",
        "float32 ms",
        "plain ms",
        "strict ms",
        "strict / float32",
        "strict / plain",
        "open s",
        "plain open s",
    ]
    print(markdown(head, [line(row) for row in rows]))


def line(row: dict[str, Any]) -> list[str | None]:
    """A row as text."""
    times = [number(1e3 * row[name], ".3g") for name in ("float32", "plain", "strict")]
    ratios = [number(row["strict"] / row[name]) for name in ("float32", "plain")]
    return [row["model"], *times, *ratios, number(row["open"]), number(row["plain_open"])]


if __name__ == "__main__":
    main()
