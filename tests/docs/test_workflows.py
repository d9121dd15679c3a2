"""The GitHub Action, the hook of pre-commit and the container file do what docs/workflows.md says of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from onnx_text import parse

ROOT = Path(__file__).resolve().parents[2]
GOOD = "g (float[2, 8] x) => (float[2, 4] y) { y = MatMul (x, w) }"


def action() -> Any:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models that are sound, one of them in a folder below, and one that is none."""
    (tmp_path / "deep er").mkdir()
    for path in (tmp_path / "good.onnx", tmp_path / "deep er" / "other.onnx"):
        onnx.save(parse(GOOD, {"w": (8, 4)}), path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    return tmp_path


def ran(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The step of the action that checks, as a runner calls it."""
    made, step = action(), action()["runs"]["steps"][-1]
    values = {name: str(given.get("default", "")) for name, given in made["inputs"].items()} | inputs
    named = {name: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text) for name, text in step["env"].items()}
    around = {name: values[found[1]] for name, found in named.items() if found}
    assert len(around) == len(step["env"]) and set(around) == {name.upper() for name in values} - {"PYTHON-VERSION"}
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **around, "PATH": paths}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_action_checks(models: Path) -> None:
    fine = ran(models, models="good.onnx **/other.onnx", against="good.onnx", tolerance="0.01", arguments="--samples 1")
    assert fine.returncode == 0 and "good.onnx" in fine.stdout and "other.onnx" in fine.stdout, fine.stderr
    bad = ran(models, models="*.onnx", format="sarif", report="models.sarif")
    assert bad.returncode != 0
    report = json.loads((models / "models.sarif").read_text(encoding="utf-8"))
    assert json.loads(bad.stdout) == report and "bad.onnx" in json.dumps(report)


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["github-actions", "github-workflows"])
def test_github_s_own_schemas_take_the_action_and_the_workflow(tmp_path: Path, schema: str) -> None:
    pytest.importorskip("check_jsonschema", reason="the schemas are in check-jsonschema: pip install '.[test]'")
    page = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(jobs:\n.*?)```", page, re.S)
    assert found
    (tmp_path / "workflow.yml").write_text(f"on: push\n{found[1]}", encoding="utf-8")
    (tmp_path / "broken.yml").write_text("runs: {using: composite}\njobs: {models: {}}\n", encoding="utf-8")
    file = ROOT / "action.yml" if schema == "github-actions" else tmp_path / "workflow.yml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert subprocess.run([*check, str(tmp_path / "broken.yml")], capture_output=True, check=False).returncode == 1


def test_the_action_installs_what_it_runs() -> None:
    install = action()["runs"]["steps"][1]
    assert install["run"].endswith('"$PLACE[cpu]"') and "github.action_path" in install["env"]["PLACE"]


@pytest.mark.slow
def test_the_hook_checks_models(models: Path, amp: Any) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    named = re.compile(hook["files"])
    assert named.search("a/model.onnx") and named.search("net.mindir") and not named.search("model.onnx.data")
    program, *words = shlex.split(hook["entry"])
    assert program == "ampgraph" and hook["language"] == "python"
    assert amp(*words, models / "good.onnx", models / "deep er" / "other.onnx")[0] == 0
    assert amp(*words, models / "good.onnx", models / "bad.onnx")[0] != 0


def test_the_container_is_the_command() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["ampgraph"]' in text and '"/src[cpu]"' in text and "\nWORKDIR /work\n" in text
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not {"ampgraph", "op_lists", "passes", "models", "pyproject.toml", "README.md", "LICENSE"} & set(ignored)
