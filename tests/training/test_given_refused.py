"""Training graphs that have their backward, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from training.joint_graphs import build, joint, refused, trajectory
from training.small_steps import WEIGHTS, regression, weights


def test_without_a_seed_there_is_no_scale():
    model = joint(seed="")
    assert "would protect nothing" in refused("AMP215", model)
    assert "would protect nothing" in refused("AMP215", model, level="O2", loss_scale="default")
    ours, theirs = build(model, loss_scale="none"), build(regression(), loss="loss", loss_scale="none")
    assert trajectory(ours, 4) == trajectory(theirs, 4)


def test_a_missing_gradient():
    model = joint(wanted=("w1", "b1", "w2"))
    assert "'b2'" in refused("AMP211", model)
    assert build(model, freeze=["b2"]).parameters == ["w1", "b1", "w2"]


def changed(model, name, dims, kind, *nodes):
    """Output ``name`` is another one."""
    [output] = [value for value in model.graph.output if value.name == name]
    [node] = [node for node in model.graph.node if list(node.output) == [name]]
    node.output[0] = "before"
    model.graph.node.extend(nodes)
    output.CopyFrom(helper.make_tensor_value_info(name, kind, dims))
    return model


def test_a_gradient_of_another_shape_or_type():
    turned = helper.make_node("Transpose", ["before"], ["gradient:w1"], perm=[1, 0])
    told = refused("AMP215", changed(joint(), "gradient:w1", [8, 6], TensorProto.FLOAT, turned))
    assert "FLOAT [8, 6]" in told and "FLOAT [6, 8]" in told
    wide = helper.make_node("Cast", ["before"], ["gradient:w1"], to=TensorProto.DOUBLE)
    assert "DOUBLE" in refused("AMP215", changed(joint(), "gradient:w1", [6, 8], TensorProto.DOUBLE, wide))
    rows = [
        helper.make_node("NonZero", ["before"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["gradient:w1"], to=1),
    ]
    assert "N" in refused("AMP215", changed(joint(), "gradient:w1", [2, "N"], TensorProto.FLOAT, *rows))


def test_options_that_name_nothing():
    assert "did you mean 'gradient:w" in refused("AMP215", joint(), gradients={"w1": "gradient:w"})
    assert "no parameter 'w9'" in refused("AMP215", joint(), gradients={"w9": "gradient:w1"})
    assert "did you mean 'seed'" in refused("AMP215", joint(), seed="seeds")
    assert "no output is a parameter's gradient" in refused("AMP215", regression(), loss="loss", seed="x")


@pytest.mark.parametrize("seed, word", [("x", "no float32 scalar"), ("other", "does not depend on it")])
def test_seeds_that_are_none(seed, word):
    model = joint()
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, []))
    assert word in refused("AMP215", model, seed=seed)


def test_a_loss_that_is_scaled_is_refused():
    model = changed(joint(), "loss", [], TensorProto.FLOAT, helper.make_node("Mul", ["before", "seed"], ["loss"]))
    for node in model.graph.node:
        node.input[:] = ["before" if name == "loss" else name for name in node.input]
    assert "depends on it too" in refused("AMP215", model, seed="seed")
    assert "would protect nothing" in refused("AMP215", model)


def test_losses_that_are_none():
    assert "which is one of its outputs" in refused("AMP213", joint(), loss="cross_entropy")
    assert "which is one of its outputs" in refused("AMP213", joint(), loss="gradient:w1")
    model = joint()
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3]))
    assert "no float32 scalar" in refused("AMP213", model, loss="y")
    model.graph.output.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, []))
    model.graph.node.append(helper.make_node("ReduceMax", ["y"], ["second"], keepdims=0))
    assert "may each be the loss" in refused("AMP213", model)
    assert trajectory(build(model, loss="loss"), 2) == trajectory(build(regression(), loss="loss"), 2)
    del model.graph.output[0], model.graph.output[-1]
    assert "no output is a float scalar" in refused("AMP213", model)


def test_a_folded_copy_of_a_weight_is_refused():
    """The backward of the product with w2 reads its transpose: as torch exports it with constants folded."""
    model = joint()
    [reader] = [
        n for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and "w2" in n.input and "h" not in n.input
    ]
    array = weights()["w2"]
    stored = array if reader.op_type == "Gemm" else np.ascontiguousarray(array.T)
    model.graph.initializer.append(numpy_helper.from_array(stored, "folded"))
    reader.input[list(reader.input).index("w2")] = "folded"
    assert "a copy of parameter 'w2'" in refused("AMP215", model)


def test_two_outputs_for_one_parameter():
    model = joint()
    model.graph.output.append(helper.make_tensor_value_info("w1.grad", TensorProto.FLOAT, WEIGHTS["w1"]))
    model.graph.node.append(helper.make_node("Identity", ["gradient:w1"], ["w1.grad"]))
    assert "may both be the gradient" in refused("AMP215", model)
    assert build(model, gradients={"w1": "w1.grad"}).parameters == list(WEIGHTS)
