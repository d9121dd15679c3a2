"""``optimize=``: ONNX Runtime's own offline fusions first, where they save nodes, and then the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import ampgraph
from ampgraph.api import prepare
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.resolve import resolve
from ampgraph.runtime import optimizing
from onnx_text import parse
from planner.support import kinds

MODEL = Path(__file__).parents[2] / "models" / "digits_transformer.onnx"
PRODUCT = parse("g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  y = Relu (a) }", w=np.eye(8, dtype=np.float32))
FUSED = parse(
    "g (float[4,8] x, float[4,8] s) => (float[4,8] y) { a = MatMul (x, w)"
    " b = com.microsoft.SkipLayerNormalization (a, s, g)  y = MatMul (b, w) }",
    w=np.eye(8, dtype=np.float32), g=np.ones(8, np.float32), domains=["com.microsoft"],
)  # fmt: skip


def own_kinds(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}


def only(monkeypatch: pytest.MonkeyPatch, architectures: Sequence[str]) -> None:
    """Tries these architectures alone."""
    monkeypatch.setattr(optimizing, "ARCHITECTURES", tuple(architectures))


@pytest.mark.slow
def test_a_transformer_is_fused_and_then_low(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, ["bert"])
    out, again = tmp_path / "low.onnx", tmp_path / "again.onnx"
    ampgraph.convert(MODEL, optimize=True, output=out, check="off")
    result, plain = onnx.load(out), ampgraph.convert(onnx.load(MODEL))
    assert "SkipLayerNormalization" in own_kinds(result)
    assert (
        len(result.graph.node) < len(plain.graph.node)
        and kinds(result).count("Cast") == kinds(plain).count("Cast") == 2
    )
    assert ampgraph.verify(MODEL, out, samples=2).ok
    for optimize_again in (False, True):
        ampgraph.convert(out, output=again, check="off", optimize=optimize_again)
        assert again.read_bytes() == out.read_bytes()


@pytest.mark.slow
def test_what_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, ["bert"])
    assert ampgraph.convert(PRODUCT, optimize=True) == ampgraph.convert(PRODUCT)
    # low models are not fused anew
    monkeypatch.setattr(prepare, "best_fused", None)  # it must not be asked
    low = ampgraph.convert(PRODUCT)
    assert ampgraph.convert(low, optimize=True) == low


@pytest.mark.parametrize(
    ("target", "fused", "taken"), [("cuda", "BiasSoftmax", False), ("cuda", "BiasGelu", True), ("cpu", "Gelu", True)]
)
def test_only_what_the_target_runs_is_taken(
    monkeypatch: pytest.MonkeyPatch, target: str, fused: str, taken: bool
) -> None:
    """BiasSoftmax has no kernel on the CPU: what holds it could not be checked."""
    made = ModelProto()
    made.CopyFrom(PRODUCT)
    made.graph.node.add(op_type=fused, domain="com.microsoft")
    made.opset_import.add(domain="com.microsoft", version=1)
    monkeypatch.setattr(
        optimizing, "_node_counter", lambda *asked: optimizing.NodeCounter("CPUExecutionProvider", "", "ENABLE_ALL")
    )
    monkeypatch.setattr(optimizing.NodeCounter, "__call__", lambda self, proto: 1 if proto is made else 2)
    monkeypatch.setattr(optimizing, "_fusions", lambda *asked: iter([(made, "a test")]))
    options = resolve(Recipe(target=target), "ONNX")
    found = optimizing.best_fused(PRODUCT, options.kernels.provider, lambda m: prepare.runs_on(options, m))
    assert found.how == ("a test" if taken else "")


@pytest.mark.parametrize("change", ["name", "type"])
def test_the_interface_must_stay(change: str) -> None:
    other = ModelProto()
    other.CopyFrom(PRODUCT)
    if change == "name":
        other.graph.output[0].name = "z"
    else:
        other.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    assert optimizing._interface(PRODUCT) != optimizing._interface(other)


def test_stored_inputs_are_no_part_of_the_interface() -> None:
    """ONNX Runtime lists them or not, as the version of the format has it."""
    other = ModelProto()
    other.CopyFrom(PRODUCT)
    for tensor in PRODUCT.graph.initializer:
        other.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    assert len(other.graph.input) > len(PRODUCT.graph.input)
    assert optimizing._interface(PRODUCT) == optimizing._interface(other)


def test_what_has_no_cast_or_no_node() -> None:
    for level in ("O2", "O3", "auto"):
        assert kinds(ampgraph.convert(FUSED, level)).count("Cast") == 3  # of the three borders
    # a model without nodes is left as it is
    given = parse("g (float[4] x) => (float[4] x) { }")
    assert ampgraph.convert(given, optimize=True) == given
    assert prepare.optimise(*asked(given)).notes[0].text == "not done: the model has no nodes"


@pytest.mark.parametrize(
    ("options", "code"), [({"target": "tensorrt"}, "AMP304"), ({"optimize": "/no/python"}, "AMP508")]
)
def test_what_cannot_be_is_said(options: dict[str, Any], code: str) -> None:
    with pytest.raises(AmpError) as error:
        ampgraph.convert(PRODUCT, **{"optimize": True, **options})
    assert error.value.code == code


def test_a_plan_is_of_the_graph_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(AmpError, match="AMP404"):
        ampgraph.convert(PRODUCT, plan=ampgraph.plan(PRODUCT), optimize=True)
    mindir = MODEL.with_name("digits_cnn.mindir")
    with pytest.raises(AmpError, match="AMP304"):
        ampgraph.convert(mindir, optimize=True)


@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
def test_a_mask_in_a_fused_softmax_is_low(level: str) -> None:
    """The -3.4e38 of a mask means minus infinity there as in front of a Softmax."""
    mask = np.triu(np.full((4, 4), np.finfo(np.float32).min, np.float32), 1)
    text = """g (float[4,8] x, float[8,4] y) => (float[4,4] z) { a = MatMul (x, y)
        b = com.microsoft.BiasSoftmax <axis = 1, is_inner_broadcast = 0> (a, m)  z = MatMul (b, v) }"""
    model = parse(text, m=mask, v=np.eye(4, dtype=np.float32), domains=["com.microsoft"])
    result = ampgraph.convert(model, level)
    assert kinds(result).count("Cast") == 3  # of the three borders
    stored = next(numpy_helper.to_array(tensor) for tensor in result.graph.initializer if tensor.name.startswith("m"))
    assert stored.dtype == np.float16 and np.isfinite(stored).all()


def fused_by_a_test(monkeypatch: pytest.MonkeyPatch, counts: dict[bool, int], provider: str = "CPU") -> ModelProto:
    """``counts``: nodes that are run of a conversion, by whether it holds the runtime's own operators."""
    made = ModelProto()
    made.CopyFrom(FUSED)
    counter = optimizing.NodeCounter(f"{provider}ExecutionProvider", "", "ENABLE_ALL")
    monkeypatch.setattr(optimizing.NodeCounter, "__call__", lambda self, proto: counts[bool(own_kinds(proto))])
    monkeypatch.setattr(prepare, "best_fused", lambda *a, **k: optimizing.FusedModel(made, "a test", 9, 3, counter))
    return PRODUCT


@pytest.mark.parametrize(("after", "kept"), [(7, True), (8, True), (9, False)])
def test_never_more_low_nodes_than_without_it(monkeypatch: pytest.MonkeyPatch, after: int, kept: bool) -> None:
    given = fused_by_a_test(monkeypatch, {False: 8, True: after}, "CUDA")
    found = prepare.optimise(*asked(given)).notes[0].text
    assert ("not kept" in found) is not kept and (
        kept or f"{after} nodes that CUDA runs in float16, 8 without" in found
    )
    result = ampgraph.convert(given, optimize=True)
    assert bool(own_kinds(result)) is kept
    assert kept or result == ampgraph.convert(given)


def test_without_the_targets_provider_the_files_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    given = fused_by_a_test(monkeypatch, {})
    text = prepare.optimise(*asked(given)).notes[0].text
    assert text.startswith("not kept, by a test: 6 nodes of the file in float16, 4 without it")


def test_what_does_not_open_once_it_is_low_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: object, proto: ModelProto) -> int:
        if own_kinds(proto):
            raise prepare.NotOptimized("a test refuses it")
        return 8

    given = fused_by_a_test(monkeypatch, {}, "CUDA")
    monkeypatch.setattr(optimizing.NodeCounter, "__call__", refuses)
    assert "converted then, a test refuses it" in prepare.optimise(*asked(given)).notes[0].text


def asked(model: ModelProto) -> tuple[Any, bool, Any]:
    """The arguments of a step."""
    graph, _ = adapters.load(model)
    return graph, True, resolve(Recipe(target="cuda"), "ONNX")
