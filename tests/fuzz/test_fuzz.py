"""A slice of the random models, those that had a fault once, and that the fuzz finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto

from fuzz import checks
from fuzz.checks import Way, casts, convert, distance, faults, kept, look, shrunk
from fuzz.models import random_model
from needs import OLD, needs_runtime, needs_runtime_that_opens
from share import FULL

FOUND = sorted((Path(__file__).parent / "found").glob("*.onnx"))
SEEDS = range(0, 400 if FULL else 24)
O2 = Way("O2", "float16", "cpu")


@pytest.mark.slow
def test_random_models() -> None:
    cases = [case for seed in SEEDS if (case := random_model(seed)) is not None]
    assert len(cases) > (0.7 if OLD else 0.9) * len(SEEDS)  # the others are what ONNX Runtime refuses
    assert [str(fault) for case in cases for fault in faults(case, 2)] == []


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_that_had_a_fault(file: Path) -> None:
    case, way = kept(file)
    needs_runtime_that_opens(case.model)
    assert look(case, way) is None


@pytest.mark.parametrize("target", ["cuda", "tensorrt", "cpu"])
@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_auto_has_no_more_casts_than_o2(file: Path, target: str) -> None:
    case, way = kept(file)
    auto, most = (casts(convert(case.model, Way(level, way.dtype, target))) for level in ("auto", "O2"))
    assert auto <= most


def test_the_same_seed_gives_the_same_model() -> None:
    one, other = random_model(3), random_model(3)
    assert one is not None and other is not None
    assert one.model == other.model
    assert all((one.feeds[1][name] == value).all() for name, value in other.feeds[1].items())


def test_a_body_lists_an_output_once() -> None:
    """ONNX Runtime leaves one of two outputs of a branch that have the same name as its memory was."""
    case = random_model(26387)
    assert case is not None
    bodies = [a.g for node in case.model.graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
    listed = [[value.name for value in body.output] for body in bodies]
    assert listed and all(len(names) == len(set(names)) for names in listed)


@needs_runtime("no bfloat16 values handed out as arrays")
def test_a_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: ModelProto, way: Way) -> ModelProto:
        made = ModelProto()
        made.CopyFrom(model)
        for node in made.graph.node:
            if node.op_type == "MatMul":
                node.op_type = "MatMuul"
        return made

    monkeypatch.setattr(checks, "convert", broken)
    cases = (case for seed in range(40) if (case := random_model(seed)) is not None)
    case = next(
        case for case in cases if case.checked and any(node.op_type == "MatMul" for node in case.model.graph.node)
    )
    fault = look(case, O2)
    assert fault is not None and fault.stage == "checker"
    left = [node.op_type for node in shrunk(case, O2, "checker").model.graph.node]
    assert "MatMul" in left and len(left) < 8


def test_distance() -> None:
    one = np.array([3.0, 4.0], np.float32)
    assert distance(one, one * np.float32(1.01)) == pytest.approx(0.01, rel=1e-3)
    assert distance(one, np.array([3, np.inf], np.float32)) == np.inf
    assert distance(np.zeros(2, np.float32), np.full(2, 1e-4, np.float32)) == pytest.approx(0.1)
    assert distance(np.array([np.inf, 1], np.float32), np.array([np.inf, 1], np.float32)) == 0
