"""Convolutions that WebGPU computes wrongly in float32: the plan warns of those, and of no others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.runtime.executed import Runtime
from ampgraph.runtime.targets import executed_session
from onnx_text import parse

CASES = (  # groups, inputs per group, outputs per group, size of the kernel
    (1, 3, 4, 3), (1, 6, 4, 1), (1, 6, 4, 3), (1, 6, 6, 3), (1, 9, 8, 2), (1, 12, 4, 3), (1, 15, 4, 3), (1, 7, 8, 3),
    (2, 3, 2, 3), (2, 6, 4, 3), (2, 1, 5, 1), (4, 3, 6, 3), (2, 4, 8, 3), (4, 2, 3, 3), (2, 2, 7, 3), (6, 1, 2, 3),
)  # fmt: skip
TRANSPOSED = ((1, 4, 1, 2), (2, 1, 1, 2), (2, 2, 1, 2), (3, 3, 1, 2), (4, 4, 1, 2), (2, 4, 2, 2), (8, 6, 1, 3))


@pytest.fixture(scope="module")
def runtime(webgpu_python: str) -> Runtime:
    return Runtime("webgpu", webgpu_python)


@pytest.mark.parametrize(
    ("kind", "groups", "inputs", "outputs", "size"),
    [*(("Conv", *case) for case in CASES), *(("ConvTranspose", *case) for case in TRANSPOSED)],
)
def test_the_plan_warns_of_what_is_wrong(
    runtime: Runtime, tmp_path: Path, kind: str, groups: int, inputs: int, outputs: int, size: int
) -> None:
    text = f"""g (float[1, {groups * inputs}, 7, 7] x) => (float[1, {groups * outputs}, M, M] y) {{
        y = {kind} <group = {groups}> (x, w) }}"""
    first, second = (groups * outputs, inputs) if kind == "Conv" else (groups * inputs, outputs)
    model = parse(text, w=(first, second, size, size), opset=17)
    onnx.save(model, tmp_path / "conv.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, groups * inputs, 7, 7)).astype(np.float32)}
    session = executed_session(runtime, tmp_path / "conv.onnx")
    (found,) = session.run(feeds).values()
    session.close()
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    wrong = np.linalg.norm(np.asarray(found) - wanted) > 0.01 * np.linalg.norm(wanted)
    notes = [note for note in ampgraph.plan(model, "O2", target="webgpu").notes if note.topic == "fault"]
    assert bool(notes) == bool(wrong)
    assert not [note for note in ampgraph.plan(model, "O2", target="cuda").notes if note.topic == "fault"]


def report(name: str) -> ModuleType:
    """The script of a report for upstream."""
    path = Path(__file__).parents[2] / "docs" / "upstream" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("last", ["Relu", "Clip", "HardSigmoid", "Softmax", "Max", "Tanh"])
def test_what_is_finite_there_is_not_in_a_strict_run(runtime: Runtime, tmp_path: Path, last: str) -> None:
    """As docs/upstream/webgpu_nan.md says: four operators make numbers of NaN. A check for NaN there proves nothing."""
    path, model = tmp_path / "nan.onnx", report("webgpu_nan").model(last, TensorProto.FLOAT16)
    onnx.save(model, path)
    feeds = {"x": np.array([[300, 1, 2, 3]], np.float16)}
    (found,) = executed_session(runtime, path).run(feeds).values()
    (strict,) = StrictSession(model, target="webgpu").run(feeds).values()
    assert np.isfinite(np.asarray(found, np.float32)).all() == (last not in ("Max", "Tanh"))
    assert not np.isfinite(np.asarray(strict, np.float32)).all()


def test_an_empty_name_for_a_bias_kills_it(webgpu_python: str, tmp_path: Path) -> None:
    path, model = tmp_path / "conv.onnx", report("webgpu_conv").model(inputs=8)
    model.graph.node[0].input.append("")
    onnx.save(model, path)
    with pytest.raises(ampgraph.AmpError, match="AMP504"):
        executed_session(Runtime("webgpu", webgpu_python), path).run({"x": np.zeros((1, 8, 7, 7), np.float32)})


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("level", ["O1", "O2", "auto", "O3"])
def test_a_norm_that_is_fused_has_one_type(webgpu_python: str, tmp_path: Path, opset: int, level: str) -> None:
    """It would take the Cast of a low operand into a LayerNormalization of two types, which it cannot run."""
    text = """g (float[2, 5, 32] x) => (float[2, 5, 32] y) {
        h = MatMul (x, w)
        m = ReduceMean <axes = [-1]> (h) d = Sub (h, m) p = Pow (d, two)
        v = ReduceMean <axes = [-1]> (p) a = Add (v, e) q = Sqrt (a)
        n = Div (d, q) u = Mul (n, s) r = Add (u, s) y = MatMul (r, w)
    }"""
    numbers = {"two": np.float32(2), "e": np.float32(1e-5), "s": np.ones(32, np.float32)}
    low = tmp_path / "low.onnx"
    ampgraph.convert(parse(text, numbers, w=(32, 32), opset=opset), level, target="webgpu", output=low, check="off")
    executed_session(Runtime("webgpu", webgpu_python), low).run({"x": np.ones((2, 5, 32), np.float32)})
