"""Convolutions that WebGPU computes wrongly in float32: the plan warns of those, and of no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ampgraph
from ampgraph.api.executing import executed
from ampgraph.runtime.executed import Runtime
from onnx_text import parse

CASES = (  # groups, inputs per group, outputs per group, kernel
    (1, 3, 4, 3), (1, 6, 4, 1), (1, 6, 4, 3), (1, 6, 6, 3), (1, 9, 8, 2), (1, 12, 4, 3), (1, 15, 4, 3), (1, 7, 8, 3),
    (2, 3, 2, 3), (2, 6, 4, 3), (2, 1, 5, 1), (4, 3, 6, 3), (2, 4, 8, 3), (4, 2, 3, 3), (2, 2, 7, 3), (6, 1, 2, 3),
)  # fmt: skip


@pytest.mark.parametrize(("groups", "inputs", "outputs", "size"), CASES)
def test_the_plan_warns_of_what_is_wrong(
    webgpu_python: str, tmp_path: Path, groups: int, inputs: int, outputs: int, size: int
) -> None:
    text = f"""g (float[1, {groups * inputs}, 7, 7] x) => (float[1, {groups * outputs}, M, M] y) {{
        y = Conv <group = {groups}> (x, w) }}"""
    model = parse(text, w=(groups * outputs, inputs, size, size), opset=17)
    onnx.save(model, tmp_path / "conv.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, groups * inputs, 7, 7)).astype(np.float32)}
    (found,) = executed(Runtime("webgpu", webgpu_python), tmp_path / "conv.onnx").run(feeds).values()
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    wrong = np.linalg.norm(np.asarray(found) - wanted) > 0.01 * np.linalg.norm(wanted)
    notes = [note for note in ampgraph.plan(model, "O2", target="webgpu").notes if note.topic == "fault"]
    assert bool(notes) == bool(wrong)
    assert not [note for note in ampgraph.plan(model, "O2", target="cuda").notes if note.topic == "fault"]
