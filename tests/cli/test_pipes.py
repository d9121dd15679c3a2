"""`convert - -o -`: a model from stdin, a result to stdout."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from cli_helpers import MODELS, contents, data_model

SOURCE = MODELS / "digits_cnn.onnx"


@pytest.fixture
def streams(monkeypatch):
    """Runs a command with bytes on stdin: (exit code, bytes on stdout, text on stderr)."""

    def run(amp, given, *words, terminal=False):
        out = io.TextIOWrapper(io.BytesIO(), write_through=True)
        monkeypatch.setattr(out, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
        monkeypatch.setattr(sys, "stdout", out)
        code, _, err = amp("convert", *words, "--check", "off")
        return code, out.buffer.getvalue(), err

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    import ampgraph

    return ampgraph.convert(SOURCE, output=tmp_path_factory.mktemp("made") / "a.onnx", check="off").read_bytes()


@pytest.mark.parametrize("words", [("-",), ("-", "-o", "-"), (SOURCE, "-o", "-")])
def test_the_result_goes_to_stdout_and_the_report_to_stderr(amp, streams, made, words):
    code, out, err = streams(amp, SOURCE.read_bytes(), *words)
    assert code == 0 and out == made
    assert "result      -" in err and f"model       {words[0]}" in err


def test_from_stdin_to_a_file(amp, streams, made, tmp_path):
    code, out, err = streams(amp, SOURCE.read_bytes(), "-", "-o", tmp_path / "b.onnx")
    assert (code, err) == (0, "") and b"model       -" in out and contents(tmp_path) == {"b.onnx": made}


def test_json_of_a_dry_run(amp, streams):
    code, out, err = streams(amp, SOURCE.read_bytes(), "-", "--dry-run", "--json")
    report = json.loads(err)
    assert (code, out) == (0, b"") and report["model"] == "-" and report["output"] is None


def test_what_cannot_be_piped(amp, streams, tmp_path):
    code, out, err = streams(amp, b"no model", "-", "-o", "-")
    assert (code, out) == (2, b"") and err.startswith("error[AMP102]")
    data_model(tmp_path / "big.onnx")
    code, out, err = streams(amp, b"", tmp_path / "big.onnx", "-o", "-")
    assert (code, out) == (2, b"") and "stdout takes one file" in err


def test_an_error_names_no_file_that_is_gone(amp, streams):
    code, out, err = streams(amp, b"no model" * 9, "-")
    assert (code, out) == (2, b"") and err.startswith("error[AMP102]: -: is not an ONNX model")


def test_a_terminal_gets_no_model(amp, streams):
    code, out, err = streams(amp, SOURCE.read_bytes(), "-", terminal=True)
    assert (code, out) == (2, b"") and "a model cannot be printed on a terminal" in err
