"""The command line: words that people bring from other tools."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ampgraph.cli.console import main
from ampgraph.core.errors import AmpError
from ampgraph.runtime.devices import choose
from cli_helpers import MODELS


def test_words_of_other_tools_mean_ours(amp, tmp_path):
    source = MODELS / "digits_cnn.onnx"
    theirs = ("--level", "2", "--dtype", "FP16", "--target", "trt", "--no_keep_io_types", "--store_weights", "low")
    ours = ("--level", "O2", "--dtype", "float16", "--target", "tensorrt", "--io", "low", "--store-weights", "low")
    for name, words in (("a", theirs), ("b", ours)):
        code, out, err = amp("convert", source, *words, "--check", "off", "-o", tmp_path / f"{name}.onnx")
        assert (code, err) == (0, "") and "level O2, float16, policy ampgraph, target tensorrt" in out
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize(("word", "dtype"), [("--fp16", "float16"), ("--half", "float16"), ("--bf16", "bfloat16")])
def test_options_of_other_tools_name_the_type(monkeypatch, capsys, word, dtype):
    words = ["ampgraph", "convert", str(MODELS / "digits_cnn.onnx"), word, "--dry-run"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and f"level O2, {dtype}, policy" in capsys.readouterr().out


def test_keep_io_types_cannot_change_a_plan(amp):
    code, _, err = amp("convert", "x.onnx", "--plan-in", "plan.json", "--keep-io-types")
    assert code == 2 and "--keep-io-types cannot change the given plan" in err


@pytest.mark.parametrize("device", ["gpu", "GPU", "cuda", 3, None, np.float16, ["cpu"]])
def test_a_device_is_known_or_refused(device):
    """No machine of the tests has to have a GPU: it is found, or said to be missing."""
    try:
        assert choose(device)[0] == "cuda"
    except AmpError as error:
        assert error.code == ("AMP505" if isinstance(device, str) else "AMP321") and error.hint
