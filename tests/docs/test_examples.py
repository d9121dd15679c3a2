"""The scripts in examples/ run, and say what they promise."""

from __future__ import annotations

import json
import runpy
import sys
import types
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAID = {
    "classifier": "classifier.O2.onnx: 94.72% right",
    "cnn": "98.61% of 360 images right",
    "decoder_with_cache": "verdict ok over 16 steps",
    "encoder": "met with",
    "lstm": "LSTM is float32, by inside",
    "quantized": "DequantizeLinear 12 -> 12, Cast 0 -> 1\nverdict ok, left as they are: 3 Conv",
    "mindir": "Conv2D-op0 is float16",
    "train_digits": "epoch 2: loss 0.",
}
ELSEWHERE = ["gan_digits", "mnist", "vowels"]  # what takes longer: tests/training/test_sharing.py, test_training.py
NEEDS = {"encoder": ("torch", "onnxscript")}


def test_every_example_is_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*SAID, *ELSEWHERE])
    table = (EXAMPLES / "README.md").read_text()
    assert all(f"| {name}.py |" in table for name in (*SAID, *ELSEWHERE))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n != "mindir" else pytest.param(n, marks=pytest.mark.mindspore) for n in SAID])
@pytest.mark.filterwarnings("ignore")  # of torch's exporter, about itself
def test_example(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](tmp_path)
    assert SAID[name] in capsys.readouterr().out


@pytest.mark.slow
def test_the_notebook_runs_and_its_results_show_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell, without Jupyter: the last line of each is what it shows."""
    monkeypatch.chdir(tmp_path)
    shown = types.SimpleNamespace(
        IFrame=lambda page, **size: types.SimpleNamespace(_repr_html_=lambda: Path(page).read_text())
    )
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[arg-type]
    cells = json.loads((EXAMPLES / "first_look.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    pages = []
    for cell in cells:
        if cell["cell_type"] == "code":
            *first, last = "".join(cell["source"]).splitlines()
            exec("\n".join(first), names)
            pages.append(eval(last, names)._repr_html_())
    assert len(pages) == 6 and "digits_transformer" in pages[0] and "<svg" in pages[2]
    assert "LayerNormalization" in pages[3] and "verdict" in pages[4] and "met" in pages[5]
