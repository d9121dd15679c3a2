"""Tensors of attributes that lie in a data file: the result has them, wherever it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import ampgraph
from ampgraph import AmpError

VALUES = np.arange(8, dtype=np.float32)


def _written(path: Path, names: Sequence[str], location: str = "m.data") -> None:
    """A model with an operator that has one tensor, or several."""
    tensors = [numpy_helper.from_array(VALUES + k, name) for k, name in enumerate(names)]
    node = helper.make_node("Own", ["h"], ["y"], domain="own")
    node.attribute.append(helper.make_attribute("held", tensors if len(tensors) > 1 else tensors[0]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["h"]), node], "g", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)])
    made.ir_version = 8
    onnx.save_model(made, path, save_as_external_data=True, location="m.data", size_threshold=0, convert_attribute=True)
    if location != "m.data":
        for tensor in _tensors(made.graph.node[1].attribute[0]):
            tensor.external_data[0].value = location
        path.write_bytes(made.SerializeToString())


def _tensors(attribute: AttributeProto) -> list[TensorProto]:
    return [attribute.t] if attribute.type == AttributeProto.TENSOR else list(attribute.tensors)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_the_result_holds_them(tmp_path: Path, names: str) -> None:
    _written(tmp_path / "m.onnx", names)
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / "out.onnx"
    ampgraph.convert(tmp_path / "m.onnx", "O3", output=path, check="off")
    found = _tensors(onnx.load(path).graph.node[-1].attribute[0])
    assert [tensor.name for tensor in found] == list(names)
    for number, tensor in enumerate(found):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), VALUES + number)
    assert sorted(os.listdir(path.parent)) == ["out.onnx", "out.onnx.data"]


@pytest.mark.parametrize("read", [ir.load, lambda path: onnx.load(path, load_external_data=False)])
def test_of_models_in_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any]) -> None:
    _written(tmp_path / "m.onnx", "ab")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    model = read(tmp_path / "m.onnx")
    ampgraph.convert(model, "O3", output=tmp_path / "other" / "out.onnx", check="off")
    found = _tensors(onnx.load(tmp_path / "other" / "out.onnx").graph.node[-1].attribute[0])
    np.testing.assert_array_equal(numpy_helper.to_array(found[1]), VALUES + 1)


def test_their_file_is_not_written_over(tmp_path: Path) -> None:
    _written(tmp_path / "m.onnx", "ab", location="own.data")
    before = (tmp_path / "m.data").read_bytes()
    (tmp_path / "own.data").write_bytes(before)
    with pytest.raises(AmpError, match="AMP106"):
        ampgraph.convert(tmp_path / "m.onnx", "O3", output=tmp_path / "own.data", check="off")
    assert (tmp_path / "own.data").read_bytes() == before


def test_they_lie_in_the_folder_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(bytes(1 << 10))
    _written(tmp_path / "in" / "m.onnx", "ab", location="../secret")
    with pytest.raises(AmpError, match="AMP103"):
        ampgraph.convert(tmp_path / "in" / "m.onnx", "O3", check="off")
