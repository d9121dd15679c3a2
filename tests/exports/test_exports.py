"""Real exports: few casts, every product low, half the size, still right; never more casts than ONNX Runtime's tool."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from ampgraph.report.inspect import view_model
from exports.architectures import architectures
from present import present

pytestmark = pytest.mark.slow

NAMES = ("decoder", "vision", "residual", "branching")
LEVELS = ("O1", "O2", "O3", "auto")


@functools.cache
def exported(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and its inputs."""
    import torch

    module, example, feed, opset = architectures()[name]
    program = torch.onnx.export(
        module.eval(), (example,), dynamo=True, input_names=[feed], output_names=["out"], opset_version=opset,
        verbose=False,
    )  # fmt: skip
    return present(program).model_proto, {feed: example.numpy()}


@functools.cache
def expected(name: str) -> np.ndarray:
    """What the float32 model gives."""
    return run_strict(*exported(name))["out"]


def casts(model: onnx.ModelProto) -> int:
    def count(graph: onnx.GraphProto) -> int:
        inner = sum(count(a.g) for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH)
        return inner + sum(n.op_type == "Cast" for n in graph.node)

    return count(model.graph)


def heavy_in_float32(model: onnx.ModelProto, level: str) -> list[str]:
    kinds = ("MatMul", "Gemm", "Conv", "Attention")
    plan = ampgraph.plan(model, level=level)
    return [d.kind for d in plan.decisions if d.kind in kinds and d.dtype == "float32"]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", LEVELS)
def test_valid_and_right(name: str, level: str) -> None:
    model, feeds = exported(name)
    low = ampgraph.convert(model, level=level)
    onnx.checker.check_model(low, full_check=True)
    want, got = expected(name), run_strict(low, feeds)["out"]
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)
    again = ampgraph.convert(low, level=level)
    assert again.SerializeToString(deterministic=True) == low.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_product_is_low(name: str, level: str) -> None:
    assert heavy_in_float32(exported(name)[0], level) == []


@pytest.mark.parametrize("target", ["cuda", "tensorrt", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_auto_has_no_more_casts_than_o2(name: str, target: str) -> None:
    auto, most = (casts(ampgraph.convert(exported(name)[0], level, target=target)) for level in ("auto", "O2"))
    assert auto <= most


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_casts(name: str) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model, _ = exported(name)
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    peer = convert_float_to_float16(copy, keep_io_types=True)
    decisions = ampgraph.plan(model, "O3").decisions  # of a norm that CUDA fuses with its Casts (rule kernel)
    norms = sum(one.kind == "ReduceMean" and one.dtype == "float32" for one in decisions)
    assert casts(ampgraph.convert(model, level="O3")) <= casts(peer) + 2 * norms
    # auto halves the weights
    model, _ = exported(name)
    before, after = (_float_bytes(m) for m in (model, ampgraph.convert(model, level="auto")))
    assert 0.49 <= after / before <= 0.51


def _float_bytes(model: onnx.ModelProto) -> int:
    weights = view_model(model).census.weights
    return sum(held.bytes for dtype, held in weights.items() if "float" in dtype)


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_decomposed_norm_costs_at_most_two_casts(level: str) -> None:
    model, _ = exported("decoder")
    norms, border = 5, 1  # two in each of two layers and the last; the logits
    assert casts(ampgraph.convert(model, level=level)) <= casts(model) + 2 * norms + border


@pytest.mark.parametrize("name", ["vision", "branching"])
def test_auto_casts_nothing_around_kernels_that_keep_float32_inside(name: str) -> None:
    model, _ = exported(name)
    plan = ampgraph.plan(model, level="auto", target="cuda")
    kept = [d.kind for d in plan.decisions if d.kind in ("LayerNormalization", "Softmax") and d.dtype == "float32"]
    assert kept == []


def test_embeddings_are_low_at_auto() -> None:
    plan = ampgraph.plan(exported("decoder")[0], level="auto")
    gathers = [d.dtype for d in plan.decisions if d.kind == "Gather"]
    assert gathers and set(gathers) == {"float16"}
