"""`ampgraph demo`: the first example, without a checkout."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ampgraph.cli.conversion import write_demo
from ampgraph.core.errors import AmpError

pytestmark = pytest.mark.slow


def test_it_writes_converts_verifies_and_says_what_comes_next(amp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPGRAPH_CHECK", "off")
    code, out, err = amp("demo")
    assert (code, err) == (0, "") and "verdict     ok" in out
    names = ["digits_heldout.npz", "digits_transformer.O2.onnx", "digits_transformer.onnx"]
    assert sorted(path.name for path in (tmp_path / "ampgraph-demo").iterdir()) == names
    following = [shlex.split(line) for line in out.partition("next:\n")[2].splitlines()]
    for words in following[:-1]:  # the last one is of the user's own model
        assert amp(*words[words.index("ampgraph") + 1 :])[0] == 0


def test_json_and_a_second_time(amp, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPGRAPH_CHECK", "off")
    for _ in range(2):
        code, out, _ = amp("demo", tmp_path / "here", "--json")
        assert code == 0 and json.loads(out)["verify"]["ok"] and json.loads(out)["convert"]["changed"]


def test_without_a_runtime_it_says_what_to_install(amp, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPGRAPH_CHECK", "auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, out, _ = amp("demo", tmp_path / "here")
    assert code == 0 and "verify      not run: onnxruntime is not installed" in out
    assert "-m pip install 'onnxruntime>=1.22'" in out and "not checked: onnxruntime is not installed" in out


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").touch()
    for place in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(AmpError, match="AMP105"):
            write_demo(place)


def test_the_first_command_says_one_line_of_its_installation(tmp_path):
    """`./demo` begins with `./set-up cpu`: pip is quiet there."""
    for name in ("set-up", "pyproject.toml", "constraints.txt"):
        shutil.copy(Path(__file__).resolve().parents[2] / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {
        "python": "exit 0",
        "pip": 'case " $* " in *" -q "*) ;; *) echo "Collecting numpy" ;; esac',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(["./set-up", "cpu"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and "Installing ampgraph[cpu]" in done.stderr
