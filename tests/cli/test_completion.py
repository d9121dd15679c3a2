"""Completion in shells, --quiet and --verbose."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from ampgraph.cli.console import joined, main
from cli_helpers import MODELS, process

MODEL = MODELS / "digits_transformer.onnx"


@pytest.fixture
def complete(amp, monkeypatch, capsys):
    """What bash would show behind a line."""

    def run(*words):
        monkeypatch.setenv("_AMPGRAPH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(map(str, ("ampgraph", *words))))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return amp()[1].split()

    return run


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["exp"], ["explain", "export-mixlist", "export-weights"]),
        (["convert", "--store"], ["--store-weights"]),
        (["convert", MODEL, "--level", "O"], ["O0", "O1", "O2", "O3"]),
        (["convert", MODEL, "--dtype", "b"], ["bfloat16"]),
        (["convert", "--policy", "py"], ["pytorch"]),
        (["convert", "--target", "c"], ["cuda", "cann", "cpu"]),
        (["run", MODEL, "--device", "ten"], ["tensorrt"]),
        (["convert", MODEL, "--check", "r"], ["require"]),
        (["convert", MODEL, "--fp32", "node_add_1"], ["node_add_167", "node_add_188"]),
        (["convert", MODEL, "--level", "O1", "--low", "op:So"], ["op:Softmax"]),
        (["explain", MODEL, "node_add_7"], ["node_add_77"]),
        (["explain", MODEL, "op:So"], ["op:Softmax"]),
        (["explain", MODELS / "digits_cnn.mindir", "Default/head-Dense/M"], ["Default/head-Dense/MatMul-op0"]),
        (["convert", "no_such.onnx", "--fp32", "n"], []),
    ],
)
def test_words_behind_a_line(complete, words, found):
    assert complete(*words) == found


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["--low", "op", ":", "So"], ["Softmax"]),
        (["--low", "op", ":"], ["Add", "Concat"]),
        (["--level", "=", "O"], ["O0", "O1", "O2", "O3"]),
        (["--low", "op:So"], ["op:Softmax"]),  # where ":" is no break
        (["--low", "op", ":", "Softmax", "--dty"], ["--dtype"]),
    ],
)
def test_bash_ends_words_at_colons_and_takes_what_stands_behind(monkeypatch, capsys, pieces, found):
    words = ["ampgraph", "convert", str(MODEL), *pieces]
    monkeypatch.setenv("_AMPGRAPH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out.split()
    assert said[: len(found)] == found and (said == found or pieces[-1] == ":")


def test_words_of_bash_are_joined_as_they_were_typed():
    assert joined(["a", "op", ":", "x", "::", "y", "b"], 5) == (["a", "op:x::y", "b"], 1)
    assert joined(["a", "--level", "="], 2) == (["a", "--level="], 1)
    assert joined(["a", "b"], 2) == (["a", "b", ""], 2)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell):
    done = process("--show-completion", shell, env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.returncode == 0 and f"complete_{shell}" in done.stdout and "_AMPGRAPH_COMPLETE" in done.stdout
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=done.stdout, text=True).returncode == 0


def test_quiet_says_errors_and_json_alone(amp, tmp_path):
    source = shutil.copy(MODELS / "digits_cnn.onnx", tmp_path)
    assert amp("convert", source, "-q", "--check", "off") == (0, "", "")
    assert (tmp_path / "digits_cnn.O2.onnx").is_file()
    assert json.loads(amp("convert", source, "--quiet", "--json", "--dry-run")[1])["changed"]
    code, out, err = amp("convert", tmp_path / "missing.onnx", "--quiet")
    assert (code, out) == (2, "") and err.startswith("error[AMP101]")


def test_verbose_says_the_stages_and_where_an_error_happened(amp, tmp_path):
    source = shutil.copy(MODELS / "digits_cnn.onnx", tmp_path)
    code, out, err = amp("convert", source, "-v", "--check", "off")
    assert code == 0 and "level O2" in out
    assert [line.partition("] ")[2] for line in err.splitlines()] == ["reading", "planning", "converting", "writing"]
    code, _, err = amp("convert", tmp_path / "missing.onnx", "--verbose")
    assert code == 2 and "Traceback" in err and "error[AMP101]" in err
    assert "exclude each other" in amp("lists", "Softmax", "-q", "-v")[2]
