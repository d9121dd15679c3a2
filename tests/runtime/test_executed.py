"""What a runtime in a process of its own is asked and answers, without such a process: tests/openvino runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ampgraph.core.errors import NoMemory
from ampgraph.report.outputs import layer_lines
from ampgraph.runtime.executed import ExecutedLayer, _port_places, by_precision, runtime_refusal, telling_line
from ampgraph.runtime.session_one import OnnxRuntime, answer_question
from onnx_text import parse


def test_ports_are_known_by_name_or_by_place() -> None:
    assert _port_places([["b", "y"], ["a"]], ["a", "y"]) == {"a": 1, "y": 0}
    assert _port_places([["p"], ["a"]], ["a", "z"]) == {"a": 1, "z": 1}  # as many: z has another name there
    assert _port_places([["a"]], ["a", "gone"]) == {"a": 0}  # fewer: what was dropped is left out


def test_the_line_of_an_error_that_says_most() -> None:
    assert telling_line("Exception from a.cpp:1:\nshapes differ.\nCheck 'x == y' failed\n") == "shapes differ"
    assert telling_line("While validating\nCheck 'x' failed.") == "Check 'x' failed"
    assert runtime_refusal("A 1.0", "bad node", "m.onnx").code == "AMP502"
    assert isinstance(runtime_refusal("A 1.0", "std::bad_alloc", "m.onnx"), NoMemory)


def test_kinds_by_precision() -> None:
    rows = [("MatMul", "float16"), ("MatMul", "float16"), ("Const", "float16"), ("Add", "float32"), ("Shape", "int64")]
    layers = [ExecutedLayer(f"n{i}", kind, dtype, ()) for i, (kind, dtype) in enumerate(rows)]
    assert by_precision(layers) == {"float16": {"MatMul": 2}, "float32": {"Add": 1}}
    layers.insert(0, ExecutedLayer("n", "Relu", "float16", ()))  # in a line the most frequent kinds are first
    assert layer_lines(layers) == ["3 float16: 2 MatMul, 1 Relu", "1 float32: 1 Add"]


class Doubling:
    """A runtime with one session, number 7, of one input."""

    def __init__(self) -> None:
        self.opened: dict[int, object] = {7: None}
        self.fed: dict[int, Any] = {}

    def layers(self, session: int) -> list[dict[str, str]]:
        return [{"name": f"of {session}"}]

    def feed(self, session: int, feeds: dict[int, Any]) -> None:
        self.fed = feeds

    def infer(self, session: int) -> None:
        self.fed = {place: 2 * array for place, array in self.fed.items()}

    def results(self, session: int) -> list[Any]:
        return list(self.fed.values())


def test_questions(tmp_path: Path) -> None:
    """Arrays go through files; a run is timed; what is closed cannot be asked again."""
    runtime, feeds, results = Doubling(), tmp_path / "feeds.npz", tmp_path / "results.npz"
    np.savez(feeds, **{"0": np.arange(3)})
    assert answer_question(runtime, {"ask": "feed", "session": 7, "feeds": str(feeds)}) == {}
    assert answer_question(runtime, {"ask": "run", "session": 7}).keys() == {"seconds", "cpu"}
    assert answer_question(runtime, {"ask": "results", "session": 7, "results": str(results)}) == {}
    with np.load(results) as arrays:
        assert arrays["0"].tolist() == [0, 2, 4]
    assert answer_question(runtime, {"ask": "layers", "session": 7}) == {"layers": [{"name": "of 7"}]}
    assert answer_question(runtime, {"ask": "close", "session": 7}) == {"closed": False}  # it held None
    with pytest.raises(KeyError):
        answer_question(runtime, {"ask": "close", "session": 7})


def test_onnx_runtime_in_its_process(tmp_path: Path) -> None:
    """Inputs and outputs by place; the CPU provider tells no layers."""
    path = tmp_path / "m.onnx"
    onnx.save(parse("g (float[2] x, float[2] z) => (float[2] y) { y = Sub (x, z) }"), path)
    runtime = OnnxRuntime()
    opened = runtime.open(str(path), 1, "")
    assert opened["inputs"] == [["x"], ["z"]] and opened["outputs"] == [["y"]]
    runtime.feed(opened["session"], {1: np.ones(2, np.float32), 0: np.full(2, 3, np.float32)})
    runtime.infer(opened["session"])
    assert runtime.results(opened["session"])[0].tolist() == [2, 2] and runtime.layers(opened["session"]) == []
