"""Write onnxruntime-cuda.toml and onnxruntime-cpu.toml from tables of ONNX Runtime's kernels.

    python op_lists/kernels/_generate.py onnxruntime-cuda.json onnxruntime-cpu.json

Each table is JSON, operator -> [[versions, types], ...], as in ONNX Runtime's docs/OperatorKernels.md. What the
tables do not say (what a kernel keeps in float32 inside, what is registered but fails) is written down here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NAMES = HERE.parent / "schemas" / "names.json"
CONTRIB = HERE.parent / "schemas" / "com_microsoft.json"
FLOATS = ("float", "float16", "bfloat16", "double")
SOURCE = "ONNX Runtime 1.25-dev, docs/OperatorKernels.md"

HEADS: dict[str, dict[str, Any]] = {
    "cuda": {
        "provider": "CUDAExecutionProvider",
        "missing": "float32",
        "fallback": "cpu",
        "float32_inside": {
            "BatchNormalization": "float16 data: scale, bias, mean and variance are widened to float32 for cuDNN",
            "InstanceNormalization": "float16 data: mean and variance are float32 buffers",
            "LayerNormalization": "accumulates in float32 whatever the data; stash_type 1 asks for that",
            "LogSoftmax": "accumulates in float32",
            "RMSNormalization": "the LayerNormalization kernel without a mean: accumulates in float32",
            "SimplifiedLayerNormalization": "the LayerNormalization kernel without a mean: accumulates in float32",
            "Softmax": "accumulates in float32",
            "com.microsoft::GroupNorm": "sums and squares are float32",
            "com.microsoft::SkipGroupNorm": "sums and squares are float32",
        },
        "tied": {
            "BatchNormalization": [["T", "T1", "T2", "U"]],
        },
        "broken": {},
    },
    "cpu": {
        "provider": "CPUExecutionProvider",
        "missing": "wraps",
        "wraps": ["float16"],
        "wraps_since": 6,
        "float32_inside": {},
        "tied": {},
        "broken": {
            "EyeLike": {"float16": "no kernel, and with no float input there is nothing to wrap"},
            "RandomNormal": {"float16": "no kernel, and with no float input there is nothing to wrap"},
            "RandomNormalLike": {"float16": "no kernel writes float16 unless its input is float16"},
            "RandomUniform": {"float16": "no kernel, and with no float input there is nothing to wrap"},
            "RandomUniformLike": {"float16": "no kernel writes float16 unless its input is float16"},
            "ScatterElements": {
                "float16": "the kernel refuses to add and multiply float16 values",
                "attribute": "reduction",
            },
            "ScatterND": {"float16": "the kernel refuses every reduction of float16 values", "attribute": "reduction"},
        },
    },
}

COMMENTS = {
    "cuda": """
# SkipLayerNormalization is not in float32_inside: its kernel sums in the type of its data. Nor is BiasSoftmax, which
# adds its bias in the type of its data on long rows. Reductions are not: nothing promises their accumulator.
# An operator without an entry at an opset runs on the fallback provider in either type.
""",
    "cpu": """
# A float16 node without a kernel is wrapped in casts by the runtime, which then removes its own round trips, so an
# accurate CPU run says nothing about float16; no such help exists for bfloat16, nor below opset 6, where the cast that
# it inserts is invalid. Found by running every single-node model of the ONNX backend suite in float16, at each
# version of its operator, with ONNX Runtime 1.31.1.
""",
}


def schema_versions() -> dict[str, list[int]]:
    """ai.onnx operator -> the opsets in which its schema changed, as ONNX Runtime registers it."""
    import onnx

    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, set()).add(schema.since_version)
    for row in json.loads(CONTRIB.read_text(encoding="utf-8"))["operators"]:
        if row["domain"] == "":
            found.setdefault(row["name"], set()).add(row["since_version"])
    return {name: sorted(versions) for name, versions in found.items()}


def parse_versions(text: str) -> tuple[int, int | None]:
    """`13+`, `[6, 12]` or `13`."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return numbers[0], None if text.endswith("+") else numbers[-1]


def effective(since: int, until: int | None, versions: list[int]) -> tuple[int, int | None] | None:
    """The opsets that a registration serves; an open one matches the schema version that it names and no later one."""
    served = [v for v in versions if (v == since if until is None else since <= v <= until)]
    if not served:
        return None
    later = [v for v in versions if v > served[-1]]
    return served[0], later[0] - 1 if later else None


def parse_types(text: str) -> dict[str, set[str]]:
    """Type variable -> float types; `tensor(x)` and sequences of it count alike."""
    found = {}
    for part in text.split("<br/>"):
        variable, types = part.split(" = ", 1)
        floats = set(re.findall(r"tensor\((\w+)\)", types)) & set(FLOATS)
        if floats:
            found[variable.strip().strip("*")] = floats
    return found


def kind_of(name: str, versions_text: str, known: dict[str, object]) -> str | None:
    """The table mixes domains; a contrib operator is registered once, at `1+`."""
    contrib = f"com.microsoft::{name}"
    if contrib in known and (name not in known or versions_text == "1+"):
        return contrib
    if name in known:
        return name
    traditional = f"ai.onnx.ml::{name}"
    return traditional if traditional in known else None


def collect(table: dict[str, list[list[str]]]) -> dict[str, dict[tuple[int, int | None], dict[str, set[str]]]]:
    """Operator -> opset range -> type variable -> float types."""
    known = json.loads(NAMES.read_text(encoding="utf-8"))["operators"]
    versions = schema_versions()
    kernels: dict[str, dict[tuple[int, int | None], dict[str, set[str]]]] = {}
    for name, rows in table.items():
        for versions_text, types_text in rows:
            kind = kind_of(name, versions_text, known)
            types = parse_types(types_text)
            if kind is None or not types:
                continue
            since, until = parse_versions(versions_text)
            opsets = effective(since, until, versions[name]) if kind in versions else (since, until)
            if opsets is None:
                continue
            slot = kernels.setdefault(kind, {}).setdefault(opsets, {})
            for variable, floats in types.items():
                slot.setdefault(variable, set()).update(floats)
    return kernels


def _quote(kind: str) -> str:
    return kind if re.fullmatch(r"[A-Za-z0-9_-]+", kind) else f'"{kind}"'


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quote(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return json.dumps(value)


def _entry(opsets: tuple[int, int | None], types: dict[str, set[str]]) -> str:
    since, until = opsets
    variables = [f"{v}={','.join(t for t in FLOATS if t in floats)}" for v, floats in sorted(types.items())]
    return f"'{since}-{'' if until is None else until} {' '.join(variables)}'"


def render(target: str, table: dict[str, list[list[str]]]) -> str:
    head = HEADS[target]
    lines = [f"# Generated by _generate.py from {SOURCE}. Do not edit.", "#"]
    lines += ["# [kernels]: operator = ['first opset-last opset TYPE VARIABLE=float types ...', ...]"]
    lines += COMMENTS[target].strip().splitlines() + [""]
    lines += [f"{key} = {_value(value)}" for key, value in head.items() if not isinstance(value, dict)]
    for section in ("float32_inside", "tied", "broken"):
        entries = head[section]
        assert isinstance(entries, dict)
        lines += ["", f"[{section}]"] + [f"{_quote(k)} = {_value(v)}" for k, v in sorted(entries.items())]
    lines += ["", "[kernels]"]
    for kind, ranges in sorted(collect(table).items()):
        ordered = sorted(ranges.items(), key=lambda item: item[0][0])
        lines.append(f"{_quote(kind)} = [{', '.join(_entry(opsets, types) for opsets, types in ordered)}]")
    return "\n".join(lines) + "\n"


def main(paths: list[str]) -> None:
    for path in paths:
        target = "cuda" if "cuda" in Path(path).name else "cpu"
        out = HERE / f"onnxruntime-{target}.toml"
        out.write_text(render(target, json.loads(Path(path).read_text(encoding="utf-8"))), encoding="utf-8")
        print(f"{out.name}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
