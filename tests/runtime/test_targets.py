"""Which runtime executes a target's files, and what is said where none does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ampgraph.core.errors import AmpError
from ampgraph.oplists.kernels import load_kernels
from ampgraph.runtime import targets
from ampgraph.runtime.targets import executed_session, lacking_runtime, refuse_device, runtime_of, unproven_notes

EXECUTED = SimpleNamespace(name="Runtime 1.0", low=("float16",))


def test_a_device_of_the_other_format_is_refused() -> None:
    refuse_device("cuda", targets.ONNX_DEVICES, "ONNX")
    refuse_device("gpx", targets.ONNX_DEVICES, "ONNX")  # nobody's: who opens the session says so
    with pytest.raises(AmpError, match="AMP321.*MindIR models do not run on 'CUDA'\nhint: auto, cpu, ascend"):
        refuse_device("CUDA", targets.MINDIR_DEVICES, "MindIR")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tensorrt", "AMP404.*engines for tensorrt are built there, and not run"),
        ("cuda", "AMP404.*nothing executes files for cuda\nhint: give --target: cpu-arm64, webgpu, openvino"),
        ("", "AMP404.*--runtime is given, and no target"),
        ("webgpu", "AMP501.*webgpu is not installed here"),
        ("cpu-arm64", r"AMP501.*this CPU \(x86_64\) does not compute as cpu-arm64"),
    ],
)
def test_why_no_runtime_is_here(target: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    with pytest.raises(AmpError, match=words):
        raise lacking_runtime(target)


def test_a_runtime_is_looked_for_where_one_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime_of("") is None and runtime_of("cuda") is None
    for target in ("", "cuda"):
        with pytest.raises(AmpError, match="AMP404"):
            runtime_of(target, "python3")
    # what is installed is taken on its own processor alone; in another environment wherever it is
    given: list[Any] = []
    monkeypatch.setattr(targets, "Runtime", lambda *words: given.append(words))
    monkeypatch.setattr(targets, "is_here", lambda kind: True)
    (machine, *_), kind = sorted(load_kernels("cpu-arm64").machines), load_kernels("cpu-arm64").executes
    for here, python in (("x86_64", ""), (machine, ""), ("x86_64", "python3")):
        monkeypatch.setattr(targets.platform, "machine", lambda here=here: here)
        runtime_of("cpu-arm64", python)
    assert given == [(kind, ""), (kind, "python3")]


def test_what_a_runtime_does_not_take_or_show() -> None:
    with pytest.raises(AmpError, match="AMP304.*Runtime 1.0 runs no MindIR models"):
        executed_session(EXECUTED, "m.mindir")  # type: ignore[arg-type]
    said = unproven_notes(EXECUTED, ["bfloat16", "float16"])  # type: ignore[arg-type]
    assert said == ["Runtime 1.0 computes bfloat16 in float32 on this CPU: this run proves nothing about it"]
