"""Six hard models, ampgraph beside AutoCast: strict errors over 32 seeded inputs, casts, heavy nodes in the low type.

    python benchmarks/hard_models.py --out benchmarks/hard_models.json --peer-python PYTHON
    python benchmarks/hard_models.py --out benchmarks/hard_models_bfloat16.json --dtype bfloat16

The models are those of tests/hard_models. AutoCast is calibrated with all 32 inputs; `heavy only` is the plan that a
careful user would make by hand; `as CUDA fuses it` rounds a norm and its scale once, as the one kernel does that ONNX
Runtime makes of them; `fp32 stream` is the option, where a model has such a stream. The table goes beside the JSON, as
Markdown. Without --peer-python AutoCast's rows are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import markdown, number, run_child
from model_facts import heavy_share, typed
from onnx import ModelProto

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
from hard_models import HARD_MODELS, measure  # noqa: E402

Row = dict[str, Any]
Feeds = list[dict[str, np.ndarray]]
PEER = "autocast, data"
BRANCHES = ["rising*", "falling*"]  # AutoCast leaves the bodies of an If in float32


def autocast(model: ModelProto, feeds: Feeds, python: str) -> ModelProto:
    """AutoCast's result, from a process and an interpreter of its own."""
    with tempfile.TemporaryDirectory() as work:
        source, target = Path(work, "model.onnx"), Path(work, "low.onnx")
        onnx.save(model, str(source))
        source.with_suffix("").mkdir()
        for number_, feed in enumerate(feeds):
            np.savez(source.with_suffix("") / f"{number_:02d}.npz", **feed)
        child = run_child(HERE / "convert_one.py", ["autocast", str(source), str(target)], python=python, timeout=300)
        error = child.failure or child.report.get("error")
        if error:
            raise SystemExit(f"autocast: {error}")
        return onnx.load(str(target))


def converters(
    name: str, model: ModelProto, feeds: Feeds, python: str, dtype: str
) -> Iterator[tuple[str, Callable[[], ModelProto]]]:
    """Each way to convert a model, by the name of its row."""
    import ampgraph

    def low(level: str, **options: Any) -> ModelProto:
        return ampgraph.convert(model, level, dtype=dtype, check="off", **options)

    yield "heavy only", lambda: measure.heavy_only(model, dtype)
    for level in ("O2", "auto"):
        yield f"ampgraph {level}", lambda level=level: low(level)
        yield f"ampgraph {level}, data", lambda level=level: low(level, data=feeds)
        if has_stream(model):
            yield f"ampgraph {level}, data, fp32 stream", lambda lv=level: low(lv, data=feeds, fp32_stream=True)
        if name == "lstm":
            yield f"ampgraph {level}, branches float32", lambda lv=level: low(lv, fp32=BRANCHES)
    if python:
        yield PEER, lambda: autocast(model, feeds, python)


def has_stream(model: ModelProto) -> bool:
    """Whether `--fp32-stream` changes anything."""
    import ampgraph

    return any(d.why.rule == "fp32_stream" for d in ampgraph.plan(model, fp32_stream=True).decisions)


def measured(name: str, python: str, dtype: str) -> list[Row]:
    """All rows of one model."""
    model, feeds = HARD_MODELS[name].build(), HARD_MODELS[name].feeds()
    expected = measure.reference(model, feeds)
    rows = []
    for converter, convert in converters(name, model, feeds, python, dtype):
        result = convert()
        low, _, heavy = heavy_share(typed(result).graph, {})
        casts, fused = measure.casts(result), measure.as_fused(result)
        views = {converter: result}
        if measure.casts(fused) > casts:
            views[f"{converter}, as CUDA fuses it"] = fused
        for title, view in views.items():
            figures = {**measure.figures(view, feeds, expected).to_dict(), "casts": casts}
            finite = {key: value if np.isfinite(value) else None for key, value in figures.items()}  # for JSON
            rows.append({"model": name, "converter": title, **finite, "heavy_low": low, "heavy": heavy})
            print(f"{name} {title}: {figures}", file=sys.stderr, flush=True)
    return rows


def kept(out: Path, name: str) -> list[Row]:
    """AutoCast's row of a model as an earlier run wrote it."""
    rows: list[Row] = json.loads(out.read_text()) if out.exists() else []
    return [row for row in rows if (row["model"], row["converter"]) == (name, PEER)]


def table(rows: list[Row]) -> str:
    """The Markdown table of a run."""
    header = ["model", "converter", "median", "p90", "worst", "not finite", "casts", "heavy low"]
    body = [
        [row["model"], row["converter"]]
        + [number(row[key], ".2e") for key in ("median", "p90", "worst")]
        + [f"{row['failed']} of 32", row["casts"], f"{row['heavy_low']} of {row['heavy']}"]
        for row in rows
    ]
    return markdown(header, body)


def main(argv: list[str] | None = None) -> None:
    """Measure, save, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON results; the table goes beside it as .md")
    parser.add_argument("--peer-python", default="", help="interpreter that has nvidia-modelopt[onnx]")
    parser.add_argument("--models", nargs="+", default=list(HARD_MODELS), choices=list(HARD_MODELS))
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    args = parser.parse_args(argv)
    rows = []
    for name in args.models:
        rows += measured(name, args.peer_python, args.dtype) + ([] if args.peer_python else kept(args.out, name))
    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
