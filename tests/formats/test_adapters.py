"""Every kind of model comes back as its kind; the caller's object is never changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto

import ampgraph
from formats.onnx.helpers import code, data, kinds, low_kinds, run_plain, x
from near import difference
from onnx_text import parse, proto
from present import present

TEXT = "g (float[N,4] x) => (float[N,4] y) { a = MatMul (x, w)  b = Add (a, v)  y = Softmax (b) }"


def plain() -> ModelProto:
    return parse(TEXT, w=(4, 4), v=(4,))


def near(converted: ModelProto) -> None:
    onnx.checker.check_model(converted, full_check=True)
    assert "MatMul" in low_kinds(converted)
    feeds = {"x": x(2, 4)}
    assert not difference(run_plain(plain(), feeds)["y"], run_plain(converted, feeds)["y"])


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_protos_and_onnx_ir(level: str) -> None:
    given = plain()
    result = ampgraph.convert(given, level)
    assert type(result) is ModelProto and result is not given and data(given) == data(plain())
    if level == "O0":
        assert data(result) == data(given)
        result.graph.name = "mine"
        assert given.graph.name == "g"
    else:
        near(result)
    # onnx ir
    model = ir.from_proto(plain())
    before = data(ir.to_proto(model))
    made = ampgraph.convert(model, level)
    assert type(made) is ir.Model and made is not model
    assert data(ir.to_proto(model)) == before
    if level == "O2":
        near(ir.to_proto(made))
        assert model.graph.initializers["w"].dtype == ir.DataType.FLOAT
    else:
        assert data(ir.to_proto(made)) == before


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_a_converted_model_can_be_printed(level: str) -> None:
    """A low tensor shows its type, its shape and its name; its elements are rounded only when they are read."""
    converted = ampgraph.convert(ir.from_proto(plain()), level)
    weight = converted.graph.initializers["w"].const_value
    assert repr(weight) == str(weight) == "RoundedTensor<FLOAT16,[4,4]>(name='w')"
    for text in (str(converted), repr(converted), str(converted.graph), repr(converted.graph.initializers)):
        assert "MatMul" in text or "RoundedTensor<FLOAT16" in text


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_graphsurgeon(level: str) -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    given = gs.import_onnx(plain())
    before = data(gs.export_onnx(given))
    result = ampgraph.convert(given, level)
    assert type(result) is gs.Graph and result is not given
    assert data(gs.export_onnx(given)) == before
    if level == "O2":
        near(gs.export_onnx(result))
        assert next(t for t in result.tensors().values() if t.name == "w").dtype == np.float16


@pytest.mark.slow
def test_torch_program(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)

        def forward(self, value: Any) -> Any:
            return self.norm(self.product(value)).relu()

    layer = Layer().eval()
    program = torch.onnx.export(layer, (torch.ones(2, 4),), dynamo=True, verbose=False)
    before = data(program.model_proto)
    result = ampgraph.convert(program, "O2")
    assert type(result) is type(program) and data(program.model_proto) == before
    assert "LayerNormalization" in kinds(result.model_proto)
    result.save(tmp_path / "m.onnx")
    assert low_kinds(onnx.load(tmp_path / "m.onnx"))["Gemm"] == 1
    assert "Gemm" in str(result) and "Gemm" in repr(result)
    value = torch.from_numpy(x(2, 4))
    assert not difference(layer(value).detach().numpy(), result(value)[0].numpy())


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(plain(), path)
    before = path.read_bytes()
    for given in (path, str(path)):
        near(proto(ampgraph.convert(given, "O2")))
    out = tmp_path / "out.onnx"
    assert ampgraph.convert(path, "O2", output=out) == out
    near(onnx.load(out))
    assert path.read_bytes() == before
    onnx.save(plain(), path, save_as_external_data=True, location="d", size_threshold=0)
    external = ampgraph.convert(path, "O2")
    assert type(external) is ir.Model, "its weights stay where they are until somebody reads them"
    assert present(external.graph.initializers["w"].const_value).numpy().dtype == np.float16


def test_all_kinds_give_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(plain(), path)
    expected = data(ampgraph.convert(plain(), "O2"))
    assert data(proto(ampgraph.convert(path, "O2"))) == expected
    assert data(ir.to_proto(ampgraph.convert(ir.from_proto(plain()), "O2"))) == expected


def test_what_is_no_sound_model() -> None:
    things: tuple[Any, ...] = (None, 3, b"bytes", {"graph": 1}, object())
    for thing in things:
        assert code(partial(ampgraph.convert, thing)) == "AMP104"
    # a faulty model in memory is one clear error
    no_text = ModelProto.FromString(plain().SerializeToString().replace(b"\x0a\x01x", b"\x0a\x01\xff"))
    few = plain()
    few.graph.initializer[0].ClearField("raw_data")
    few.graph.initializer[0].float_data.append(1.0)
    assert code(partial(ampgraph.convert, no_text, "O3")) == "AMP204"
    assert code(partial(ampgraph.convert, few, "O3")) == "AMP204"
    undefined = ir.from_proto(parse("g (float[4] x) => (float[4] y) { y = Add (x, nowhere) }"))
    assert code(partial(ampgraph.convert, undefined, "O3")) == "AMP102"
