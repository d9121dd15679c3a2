"""The recorded answers of the frameworks, made again by the frameworks themselves.

APEX=CHECKOUT sh tests/oracles/environments.sh FOLDER && AMPGRAPH_ORACLES=FOLDER pytest tests/oracles
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = os.environ.get("AMPGRAPH_ORACLES", "")
TESTS = Path(__file__).parents[1]
RUNS = [
    *(("tensorflow", "tensorflow_answers", run) for run in ("auto", "O1", "O2", "O3", "lists", "bfloat16")),
    *(("mxnet", "mxnet_answers", run) for run in ("auto", "names", "params")),
    *(("tensorflow", "scalers", framework) for framework in ("keras", "tf_keras")),
    ("mxnet", "scalers", "mxnet"),
    ("torch", "make_pytorch", ""),
    ("torch", "make_apex", f"{FOLDER}/torch-apex"),
]


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="AMPGRAPH_ORACLES: the folder of the frameworks' environments")
@pytest.mark.parametrize(("environment", "module", "run"), RUNS)
def test_the_framework_gives_the_recorded_answers(environment: str, module: str, run: str) -> None:
    python = Path(FOLDER) / environment / "bin" / "python"
    command = [str(python), "-m", f"oracles.{module}", "check", run]
    if run.endswith("apex") and not Path(run).is_dir():
        pytest.skip("APEX: a checkout of NVIDIA/apex, when the environments are made")
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
