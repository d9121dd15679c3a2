"""The Python in the pages runs, on models that have what it speaks of."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from onnx_text import parse

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
MODEL = """g (float[2, 8] x, float[2, 8] past_k) => (float[2, 8] y) <float two = {2}> {
    h = MatMul (x, w)  [add] a = Add (h, past_k)  s = Pow (a, two)  y = MatMul (s, v)
}"""
ELSEWHERE = {
    "ascend": "an NPU",
    "distributed": "several processes: tests/training/test_parallel.py",
    "how-to": "Optimum and a GPU",
    "mindir": "MindSpore's training: tests/training/test_mindspore_train.py",
    "openvino": "OpenVINO: tests/openvino/test_executed.py",
}
"""Page -> what its Python needs, and what runs it where something does."""
OTHERS = {
    "class Critic": "torch's exporter: tests/training/test_losses.py",
    "generator_step": "two networks: examples/gan_digits.py",
    "straight_through": "it would hold for all that runs behind it: tests/training/test_rules_graphs.py",
}
Names = dict[str, object]


def blocks(name: str) -> list[str]:
    """The Python of a page, but what runs elsewhere."""
    page = ROOT / f"{name}.md" if name == "README" else ROOT / "docs" / f"{name}.md"
    found = FENCED.findall(page.read_text(encoding="utf-8"))
    return [text for text in found if not any(part in text for part in OTHERS)]


def a_batch() -> Names:
    """Eight pictures of digits."""
    with np.load(ROOT / "models" / "digits_heldout.npz") as held:
        return {"image": held["image"][:8], "labels": held["labels"][:8].astype(np.int64)}


def a_step() -> Names:
    """A step that was saved."""
    text = "g (float[N,4] x) => (float[N,2] y) { h = MatMul (x, w)  y = Relu (h) }"
    ampgraph.build_training_step(parse(text, w=(4, 2), opset=18), loss="mse", optimizer="sgd").save("step.onnx")
    return {}


def inputs() -> dict[str, np.ndarray]:
    """Of `MODEL`."""
    return {"x": np.ones((2, 8), np.float32), "past_k": np.ones((2, 8), np.float32)}


HERE: dict[str, Callable[[], Names]] = {
    "README": lambda: {name: onnx.load("model.onnx") for name in ("proto", "decoder")} | {"inputs": inputs()},
    "from-other-converters": dict,
    "using": lambda: {"proto": onnx.load("model.onnx")},
    "metrics": lambda: {"edit_distance": lambda a, b: (a != b).sum()},
    "training-steps": a_batch,
    "training": a_step,
}


def test_every_page_with_python_is_run_or_says_where() -> None:
    pages = {
        path.stem for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if FENCED.search(path.read_text())
    }
    assert pages == {*HERE, *ELSEWHERE}
    assert all(word in (ROOT / "docs" / "training.md").read_text(encoding="utf-8") for word in OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_python_of_a_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPGRAPH_CHECK", "off")
    (tmp_path / "models").mkdir()
    shutil.copy(ROOT / "models" / "digits_cnn_forward.onnx", tmp_path / "models")
    model = parse(MODEL, w=(8, 8), v=(8, 8), opset=21)
    model.graph.node[1].name = "/encoder/Add_3"  # the text form has no slashes
    onnx.save(model, "model.onnx")
    names = HERE[name]() | {"ampgraph": ampgraph}
    assert blocks(name)
    for text in blocks(name):
        exec(compile(text, f"{name}.md", "exec"), names)
    if name == "metrics":
        measured = names["word_errors"]
        assert callable(measured)
        assert measured({"ids": np.array([1, 2, 3, 4])}, {"ids": np.array([1, 2, 3, 5])}) == 0.25
    if name == "training-steps":
        assert (tmp_path / "digits.safetensors").is_file()
