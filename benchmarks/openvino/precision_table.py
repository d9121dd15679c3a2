"""Writes op_lists/kernels/openvino.toml from what OpenVINO's CPU plugin does with every operator, in the file's types.

    python benchmarks/openvino/precision_table.py [--python build/openvino/bin/python] [--check]

Some 3,500 runs of one node, four minutes on a core with avx512_bf16. --check writes nothing; exit status 1 where the
file is not what OpenVINO does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tensorrt")]

from executions import PYTHON, Done, Sweep  # noqa: E402
from kernel_table import KERNELS, broken, kernels, refused, render, ties  # noqa: E402
from sweep import LOW, Form, all_forms  # noqa: E402

FILE = KERNELS / "openvino.toml"
BY = "benchmarks/openvino/precision_table.py"
HEAD: dict[str, object] = {
    "provider": "OpenVINO",
    "missing": "schema",
    "executes": "openvino",
    "level": "O1",
    "no_gain": {
        "float16": "on today's CPUs: OpenVINO computes float16 in float32 there, and only the file is smaller; "
        "bfloat16 gains where the CPU has it"
    },
    "raises_opset": ["bfloat16"],
    "newest_opset": 24,
}
COMMENT = """
# The types in the file are those of the layers, with INFERENCE_PRECISION_HINT=f32 (or EXECUTION_MODE_HINT=ACCURACY) on
# a CPU with avx512_bf16. Every operator of ONNX was run in forms of ONNX's node suite and of tests/fuzz/forms.toml
# (benchmarks/tensorrt/sweep.py), first in float32, then in each low type and in two types at once.
#
# level: the best where nobody says one (docs/openvino.md). raises_opset: its frontend takes
# these types at any opset, so a model is moved to the one whose schemas admit them. newest_opset: the newest to which
# that is. [float32_inside]: every layer that computes is float32 on bfloat16 data. [tied], [refused], [broken],
# [kernels]: as in tensorrt.toml; `computed`: the forms of which this operand is not stored, `gives`: those with this
# output.
"""
SECTIONS = ("float32_inside", "tied", "refused", "broken", "kernels")


def table(forms: Mapping[str, list[Form]], python: str) -> dict[str, dict[str, Any]]:
    """Section -> operator -> its row."""
    made: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    sweep = Sweep(python)
    for operator, listed in forms.items():
        rows = [row for row in sweep.all(listed) if row.dtype in LOW]
        uniform = [row for row in rows if row.uniform]
        row_of = {
            "float32_inside": inside(uniform),
            "tied": ties([row for row in rows if not row.uniform], uniform),  # type: ignore[arg-type]
            "refused": refused(uniform),  # type: ignore[arg-type]
            "broken": broken_where(uniform),
            "kernels": kernels(uniform),  # type: ignore[arg-type]
        }
        for section, row in row_of.items():
            if row:
                made[section][operator] = row
    return made


def broken_where(rows: list[Done]) -> dict[str, Any]:
    """As TensorRT's: refusals of some forms, and which; also by an operand that is computed, or by a further output."""
    found = broken(rows)  # type: ignore[arg-type]
    if not found or set(found) - set(LOW):
        return found
    bad, good = ([row for row in rows if row.answer.ok is ok and row.dtype in found] for ok in (False, True))
    for place in range(1, 6):
        if all(_computes(row, place) for row in bad) and not all(_computes(row, place) for row in good):
            return {**found, "computed": place}
        if all(row.form.node.output[place:] for row in bad) and not all(row.form.node.output[place:] for row in good):
            return {**found, "gives": place}
    return found


def _computes(row: Done, place: int) -> bool:
    """Whether an operand is fed."""
    return bool({value.name for value in row.form.model.graph.input}.intersection(row.form.node.input[place:][:1]))


def inside(rows: Iterable[Done]) -> str:
    """Whether all layers that compute do so in float32, on bfloat16 data."""
    found = {row.types for row in rows if row.dtype == "bfloat16" and row.types}
    return "computes in float32 between conversions" if found == {frozenset({"float32"})} else ""


def version_of(python: str) -> str:
    """The runtime, and what low types it computes in here. It has to compute bfloat16."""
    runtime = Sweep(python).runtime
    if "bfloat16" not in runtime.low:
        raise SystemExit(f"{runtime.name} computes no bfloat16 on this CPU: the table cannot be made here")
    return runtime.name


def main() -> int:
    """Writes or checks the file; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=PYTHON, help="of an environment with OpenVINO")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = render(table(all_forms(), args.python), version_of(args.python), HEAD, COMMENT, BY)
    same = FILE.exists() and FILE.read_text(encoding="utf-8") == text
    if not args.check:
        FILE.write_text(text, encoding="utf-8")
    print(f"{FILE.name}: {'as OpenVINO does' if same else 'is not current' if args.check else 'written'}")
    return int(args.check and not same)


if __name__ == "__main__":
    sys.exit(main())
