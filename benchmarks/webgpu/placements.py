"""Writes op_lists/kernels/onnxruntime-webgpu.toml from where ONNX Runtime places every operator, and from runs of it.

    python benchmarks/webgpu/placements.py [--python build/webgpu/bin/python] [--check]

Some 6,000 sessions of one node, ten minutes on a core. --check writes nothing; exit status 1 where the file is not what
WebGPU does.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "tensorrt")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from kernel_table import broken, refused, ties  # noqa: E402
from onnx import ModelProto, helper  # noqa: E402
from sweep import Form, Tried, all_forms, form_of, retyped, ways  # noqa: E402

from ampgraph.core.errors import AmpError  # noqa: E402
from ampgraph.runtime.executed import Runtime  # noqa: E402
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob  # noqa: E402

PYTHON = str(HERE.parents[1] / "build" / "webgpu" / "bin" / "python")
KERNELS = HERE.parents[1] / "op_lists" / "kernels"
FILE = KERNELS / "onnxruntime-webgpu.toml"
FIRST, LAST = 7, 25
"""Opsets that are asked for: ONNX Runtime promises nothing of earlier ones, and has no kernels of later ones here."""
KEPT = 21
"""The last opset of most kernels: forms are run there, and a model is not moved beyond."""
WRONG = 0.05
"""Relative L2 from the CPU's result, beyond which a kernel is broken; low inputs and accumulators make 0.01 of it."""
WIDE = (
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LogSoftmax",
    "RMSNormalization",
    "Softmax",
)
"""Asked for sums beyond float16 inside, on data and with results that it holds."""
HEAD: dict[str, object] = {
    "provider": "WebGpuExecutionProvider",
    "missing": "float32",
    "fallback": "cpu",
    "executes": "webgpu",
    "accumulates": "float16",
    "stepwise": [
        *("AveragePool", "BatchNormalization", "Erf", "Exp", "Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish"),
        *("InstanceNormalization", "LayerNormalization", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum"),
        *("ReduceSumSquare", "Sigmoid", "Softmax", "Tanh"),
    ],
    "folds": ["BatchNormalization"],
    "wrong": {"Conv": ["channels_by_3", "groups_by_4"], "ConvTranspose": ["even_groups_into_one"]},
    "lacks": {"bfloat16": "WGSL has no bfloat16"},
    "newest_opset": KEPT,
    "fusions": {"LayerNormalization": {"since": {"float16": 1, "bfloat16": 1}}},
}
_PLACES = re.compile(r".*(?:Status Message|initialization): |\S*\w+\.\w+:\d+ |\S+\(const [^)]*\) |<>")
"""What names a node, or a place in the provider's source, in its words."""
ELSEWHERE = "no kernel: it runs on the CPU"
COMMENT = """
# Every operator of ONNX was opened in forms of ONNX's node suite and of tests/fuzz/forms.toml
# (benchmarks/tensorrt/sweep.py) at every version of its schema, in float32, in float16 and in both at once; where
# float16 was placed on WebGPU, it was run beside the CPU.
#
# accumulates: products add up in it, each product and each sum rounded (tests/webgpu).
# stepwise: each step of their formula or sum is rounded to it (formats/onnx/accumulators.py; tests/webgpu).
# folds: ONNX Runtime takes it into a Conv in front when it opens a file, each step rounded to it (tests/webgpu).
# wrong: operators that are computed wrongly in every type, and when (planner/rules/faults.py; tests/webgpu).
# lacks: low types of which it has nothing. newest_opset: the newest to which a model is moved for it.
# fusions: over onnxruntime-fusions.toml, as a norm of two types has no kernel at any opset (tests/webgpu).
# [float32_inside]: right although a sum inside is beyond float16. [tied], [refused], [broken]: as in tensorrt.toml;
# here an operator that is refused is placed on the CPU in float16, between Casts and copies. [kernels]: 'first
# opset-last opset TYPE VARIABLE=float types'. An operator without an entry at an opset runs on the fallback provider.
"""


class Sweep:
    """What WebGPU does with models of one node."""

    def __init__(self, python: str) -> None:
        self._python = python

    @cached_property
    def runtime(self) -> Runtime:
        """Asked again by another process where one has died."""
        return Runtime("webgpu", self._python)

    def placed(self, model: ModelProto, run: bool) -> str:
        """Why a model is not wholly on WebGPU, or fails there, or is wrong; empty where all is well."""
        try:
            return self._placed(model, run)
        except AmpError as error:  # it died
            del self.runtime
            return error.message.split(": ", 1)[-1]
        except RuntimeError as error:
            return _PLACES.sub("", str(error).splitlines()[0]).strip(" .")

    def _placed(self, model: ModelProto, run: bool) -> str:
        path = self.runtime.scratch / "one.onnx"
        path.write_bytes(model.SerializeToString())
        session = self.runtime.ask("open", model=str(path), threads=1, hint="")["session"]
        rows = self.runtime.ask("layers", session=session)["layers"]
        if not rows or any(row["on"] != "webgpu" for row in rows):
            said = ELSEWHERE
        else:
            said = self._ran(model, session) if run else ""
        self.runtime.ask("close", session=session)
        return said

    def _ran(self, model: ModelProto, session: int) -> str:
        feeds = drawn(model)
        paths = [str(self.runtime.scratch / name) for name in ("in.npz", "out.npz")]
        np.savez(paths[0], **{str(place): array for place, array in enumerate(feeds.values())})
        self.runtime.ask("feed", session=session, feeds=paths[0])
        self.runtime.ask("run", session=session)
        self.runtime.ask("results", session=session, results=paths[1])
        wanted = expected(model, feeds) or []
        with np.load(paths[1]) as found:
            errors = [apart(found[str(place)], one) for place, one in enumerate(wanted)]
        return "its result is wrong" if max(errors, default=0.0) > WRONG else ""


def drawn(model: ModelProto) -> dict[str, np.ndarray]:
    """Numbers between a half and one and a half, and ones, for the inputs of a model."""
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.elem_type), [d.dim_value or 1 for d in tensor.shape.dim]
        numbers = rng.uniform(0.5, 1.5, shape) if dtype.kind == "f" else np.ones(shape)
        feeds[value.name] = numbers.astype(dtype)
    return feeds


def expected(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """What the CPU makes of it; None where it does not run there either, as a shape that was drawn makes no sense."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
    except Exception:  # onnxruntime raises kinds of its own for every fault
        return None


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative L2."""
    if found.shape != wanted.shape or found.dtype.kind not in "fiub":
        return 1.0
    given, known = found.astype(np.float64), wanted.astype(np.float64)
    if not np.isfinite(known).all():
        return 0.0
    return float(np.linalg.norm(given - known) / (np.linalg.norm(known) or 1.0))


def versions(operator: str) -> list[tuple[int, int | None]]:
    """First and last opset of each version of a schema; the newest has no last one, and is asked in two parts."""
    since = sorted(
        {s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (operator, "")}
    )
    ends = [*(first - 1 for first in since[1:]), None]
    found = [(first, end) for first, end in zip(since, ends, strict=True) if (end or LAST) >= FIRST]
    first, _ = found[-1]
    return [*found[:-1], *([(first, KEPT), (KEPT + 1, None)] if first <= KEPT else [(first, None)])]


def at(form: Form, opset: int) -> Form | None:
    """The same use in another opset; None where that has another form of it."""
    model = ModelProto()
    model.CopyFrom(form.model)
    model.opset_import[0].version = opset
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return form_of(form.name, BuildJob(model, values=form.job.values))


def tried(sweep: Sweep, form: Form, run: bool) -> list[Tried]:
    """A form in float16, all of it and some; nothing where it is not placed in float32, or not right."""
    if sweep.placed(form.model, run):
        return []
    rows = []
    for low in ways(form.variables):
        job = retyped(form, "float16", low)
        if job is not None:
            assert isinstance(job.model, ModelProto)
            said = sweep.placed(job.model, run)
            rows.append(Tried(form, "float16", low, BuildAnswer("", died=said)))
    return rows


def table(forms: Mapping[str, list[Form]], python: str) -> dict[str, dict[str, Any]]:
    """Section -> operator -> its row."""
    sweep = Sweep(python)
    sections = ("float32_inside", "tied", "refused", "broken", "kernels")
    made: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for operator, listed in forms.items():
        entries: list[tuple[int, int | None, str]] = []
        last: list[Tried] = []
        for first, end in versions(operator):
            run = end == KEPT or (first <= KEPT < (end or LAST))
            moved = [form for form in (at(form, min(end or LAST, LAST)) for form in listed) if form is not None]
            rows = [row for form in moved for row in tried(sweep, form, run)]
            if rows:
                entries.append((first, end, typed(rows)))
                last = rows if run or not last else last
        uniform = whole(last)
        row_of = {
            "float32_inside": inside(sweep, operator) if operator in WIDE else "",
            "tied": ties([row for row in last if not row.uniform], uniform),
            "refused": {low: why for low, why in refused(uniform).items() if low == "float16"},
            "broken": broken(uniform),
            "kernels": joined(entries),
        }
        for section, row in row_of.items():
            if row:
                made[section][operator] = row
    return made


def typed(rows: list[Tried]) -> str:
    """The types of each type variable."""
    low = {variable for row in rows if row.answer.ok for variable in row.low}
    variables = sorted({variable for row in rows for variable in row.form.variables})
    return " ".join(f"{name}=float{',float16' * (name in low)}" for name in variables)


def joined(entries: list[tuple[int, int | None, str]]) -> list[str]:
    """Opsets in a row that have the same types are one entry."""
    found: list[tuple[int, int | None, str]] = []
    for first, end, types in entries:
        if found and found[-1][1] == first - 1 and found[-1][2] == types:
            found[-1] = (found[-1][0], end, types)
        else:
            found.append((first, end, types))
    return [f"{first}-{end or ''} {types}" for first, end, types in found]


def whole(rows: list[Tried]) -> list[Tried]:
    """Of each form the row with most low that is fine, or else the one that is low as a whole."""
    best: dict[str, Tried] = {}
    for row in sorted(rows, key=lambda row: (not row.answer.ok, -len(row.low), row.answer.died != ELSEWHERE)):
        best.setdefault(row.form.key, row)
    return list(best.values())


def inside(sweep: Sweep, operator: str) -> str:
    """Whether a kernel is right where a sum inside is beyond float16."""
    vector = ", float16[8] s, float16[8] b"
    text = {
        "LayerNormalization": "(float16[2,8,4096] x, float16[4096] s, float16[4096] b) => (float16[2,8,4096] y)",
        "RMSNormalization": "(float16[2,8,4096] x, float16[4096] s) => (float16[2,8,4096] y)",
        "GroupNormalization": f"(float16[2,8,64,64] x{vector}) => (float16[2,8,64,64] y)",
        "InstanceNormalization": f"(float16[2,8,64,64] x{vector}) => (float16[2,8,64,64] y)",
    }.get(operator, "(float16[2,8,4096] x) => (float16[2,8,4096] y)")
    attribute = " <num_groups = 2>" if operator == "GroupNormalization" else ""
    reads = "x, s, b" if "b)" in text.split("=>")[0] else "x, s" if " s)" in text.split("=>")[0] else "x"
    opset = 23 if operator == "RMSNormalization" else KEPT
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g {text} {{ y = {operator}{attribute} ({reads}) }}'
    )
    return "right although a sum inside is beyond float16" if not sweep.placed(model, run=True) else ""


def render(made: Mapping[str, Mapping[str, Any]], version: str) -> str:
    """The text of the file."""
    spec = importlib.util.spec_from_file_location("_generate", KERNELS / "_generate.py")
    assert spec is not None and spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    lines = [f"# Generated by benchmarks/webgpu/placements.py from {version}. Do not edit.", "#"]
    lines += COMMENT.strip().splitlines() + [""]
    lines += [f"{key} = {shared.toml_value(value)}" for key, value in HEAD.items()]
    for section, rows in made.items():
        lines += ["", f"[{section}]"]
        lines += [f"{shared.toml_key(key)} = {shared.toml_value(row)}" for key, row in sorted(rows.items())]
    return "\n".join(lines) + "\n"


def main(arguments: Iterable[str] | None = None) -> int:
    """Writes or checks the file; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=PYTHON, help="of an environment with the WebGPU provider")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(arguments)
    text = render(table(all_forms(), args.python), Runtime("webgpu", args.python).name)
    same = FILE.exists() and FILE.read_text(encoding="utf-8") == text
    if not args.check:
        FILE.write_text(text, encoding="utf-8")
    print(f"{FILE.name}: {'as WebGPU does' if same else 'is not current' if args.check else 'written'}")
    return int(args.check and not same)


if __name__ == "__main__":
    sys.exit(main())
