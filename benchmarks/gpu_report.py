"""The results of `gpu.py` as JSON and as Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measure import markdown, number

Row = dict[str, Any]


def fused(row: Row) -> str | None:
    """The com.microsoft operators of the optimized graph, most frequent first."""
    if "fused" not in row:
        return None
    counts = sorted(row["fused"].items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {kind}" for kind, count in counts) or "none"


def times_faster(rows: list[Row], row: Row, base: str) -> str | None:
    """How many times faster than float32 of the same model, without (`float32`) or with TF32."""
    for other in rows:
        if (other["model"], other["variant"]) == (row["model"], base) and "median_ms" in other and "median_ms" in row:
            return f"{other['median_ms'] / row['median_ms']:.2f}x"
    return None


def estimated(row: Row, device: str) -> str | None:
    """The speed that was estimated for the device, beside float32 with TF32."""
    for name, (low, high) in row.get("estimate", {}).items():
        if name in device:
            return f"{low:.1f} to {high:.1f}"
    return None


def predicted(row: Row) -> float | None:
    """The relative L2 error of a strict run."""
    error: float | None = row.get("predicted", {}).get("rel_l2")
    return error


def ratio(row: Row) -> str | None:
    """The error on the device by the one that was predicted."""
    told, real = predicted(row), (row.get("error_to_float32") or {}).get("rel_l2")
    return f"{real / told:.2f}" if told and real is not None else None


def timed_table(rows: list[Row], device: str) -> str:
    """One model's variants, fastest or not, in the order they ran."""
    unit = rows[0]["unit"]
    header = [
        "variant",
        "median ms",
        "p10-p90 ms",
        f"{unit}/s",
        "to float32",
        "to TF32",
        "estimated",
        "GPU MB",
        "file MB",
        "load s",
    ]
    header += ["casts run", "copies", "heavy on CPU", "rel L2", "fused operators"]
    body = []
    for row in rows:
        if row["error"]:
            body.append([row["variant"], f"failed: {row['error'][:120]}"] + [None] * (len(header) - 2))
            continue
        error = row.get("error_to_float32") or {}
        body.append(
            [row["variant"], number(row["median_ms"]), f"{row['p10_ms']:.2f}-{row['p90_ms']:.2f}"]
            + [number(row["items_per_s"], ",.0f")]
            + [times_faster(rows, row, "float32"), times_faster(rows, row, "float32, TF32")]
            + [
                estimated(row, device),
                number(row["peak_mb"], ",.0f"),
                number(row["out_mb"], ",.1f"),
                number(row["load_s"]),
            ]
            + [row["casts"], row["copies"], f"{len(row['heavy_on_cpu'])}/{row['heavy']}"]
            + [number(error.get("rel_l2"), ".1e"), fused(row)]
        )
    return markdown(header, body)


def export_table(rows: list[Row], device: str) -> str:
    """The exports: what passed, and what did not and why."""
    header = ["model", "variant", "result", "median ms", "to TF32", "estimated", "heavy on CPU", "rel L2", "predicted"]
    header += ["real / predicted", "fused operators"]
    body = []
    for row in rows:
        error = row.get("error_to_float32") or {}
        on_cpu = f"{len(row['heavy_on_cpu'])}/{row['heavy']}" if "heavy" in row else None
        body.append(
            [row["model"], row["variant"], "pass" if row["passed"] else "FAIL: " + "; ".join(row["failures"])[:160]]
            + [number(row.get("median_ms")), times_faster(rows, row, "float32, TF32"), estimated(row, device), on_cpu]
            + [number(error.get("rel_l2"), ".1e"), number(predicted(row), ".1e"), ratio(row), fused(row)]
        )
    return markdown(header, body)


def write_report(folder: Path, facts: Row, rows: list[Row]) -> None:
    """Write `gpu.json` and `gpu.md`; called after every row, so that an interrupted run keeps what it has."""
    runtime = next((row["onnxruntime"] for row in rows if "onnxruntime" in row), None)
    facts = {**facts, "onnxruntime": runtime}
    (folder / "gpu.json").write_text(json.dumps({"machine": facts, "rows": rows}, indent=1))
    lines = ["# On the device", "", ", ".join(f"{key}: {value}" for key, value in facts.items()), ""]
    if facts["tiny"] or facts["provider"] != "cuda":
        lines += ["**A trial of the script: these figures mean nothing.**", ""]
    device = facts["gpu"] or ""
    timed = [row for row in rows if row["part"] == "timed"]
    for model in dict.fromkeys(row["model"] for row in timed):
        lines += [f"## {model}", "", timed_table([row for row in timed if row["model"] == model], device), ""]
    exports = [row for row in rows if row["part"] == "export"]
    if exports:
        lines += ["## Exports", "", export_table(exports, device), ""]
    lines += ["GPU MB: the device's peak above its use before the process, CUDA's context included.", ""]
    (folder / "gpu.md").write_text("\n".join(lines))
