"""Building training steps: losses, parameters, what is read and lowered, precision, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.gradients import registry
from onnx_text import parse
from training.small_steps import WEIGHTS, Runner, batches, regression, torch_loss, weights

MODELS = Path(__file__).resolve().parents[2] / "models"
SGD = "sgd:lr=0.5"


def linear(dims, weight=(6, 4), product="y = MatMul (x, w)", made=None, opset=20):
    """One product of data of some sizes and a weight ``w``."""
    sizes = ", ".join(str(dim) for dim in dims)
    made = ", ".join(str(dim) for dim in made or (*dims[:-1], weight[1]))
    head = f"g (float[{sizes}] x) => (float[{made}] y) {{ {product} }}"
    array = np.random.default_rng(2).standard_normal(weight).astype(np.float32) / 2
    return parse(head, opset=opset, w=array)


def build(model, **options):
    return build_training_step(model, **{"optimizer": SGD, "level": "O0", "loss": "loss", **options})


def refused(code, model, **options):
    with pytest.raises(AmpError) as caught:
        build(model, **options)
    assert caught.value.code == code and caught.value.hint, caught.value
    return str(caught.value)


def one_step(model, batch, reference, **options):
    """The loss and the weight after one step are torch's."""
    runner = Runner(build(model, **options))
    weight = torch.tensor(runner.state["w"]).double().requires_grad_()
    loss = reference(weight)
    loss.backward()
    told = runner(batch)[runner.step.layout.loss]
    assert told.shape == () and told.dtype == np.float32
    np.testing.assert_allclose(told, loss.item(), rtol=1e-5)
    np.testing.assert_allclose(runner.state["w"], (weight - 0.5 * weight.grad).detach(), rtol=1e-4, atol=1e-6)
    return runner.step


def normal(*shape):
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


# -- losses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(7, 6), (3, 5, 6), ("N", 6), ("N", "L", 6)])
def test_cross_entropy_of_rows(dims):
    shape = tuple({"N": 7, "L": 5}.get(dim, dim) for dim in dims)
    x, labels = normal(*shape), np.random.default_rng(5).integers(0, 4, shape[:-1])

    def reference(weight):
        scores = torch.tensor(x).double() @ weight
        return torch.nn.functional.cross_entropy(scores.reshape(-1, 4), torch.tensor(labels).reshape(-1))

    step = one_step(linear(dims), {"x": x, "labels": labels}, reference, loss="cross_entropy")
    assert (step.layout.labels, step.layout.classes, step.layout.inputs) == ("labels", 4, ("x", "labels"))
    [given] = [value for value in step.model.graph.inputs if value.name == "labels"]
    assert given.dtype == ir.DataType.INT64 and len(given.shape) == len(dims) - 1


def test_cross_entropy_of_pictures():
    x, labels = normal(2, 3, 4, 5), np.random.default_rng(5).integers(0, 4, (2, 4, 5))
    model = linear(("N", 3, 4, 5), (4, 3, 1, 1), "y = Conv (x, w)", ("N", 4, 4, 5))

    def reference(weight):
        scores = torch.nn.functional.conv2d(torch.tensor(x).double(), weight)
        return torch.nn.functional.cross_entropy(scores, torch.tensor(labels))

    step = one_step(model, {"x": x, "labels": labels}, reference, loss="cross_entropy")
    assert step.layout.classes == 4


def test_mse():
    x, labels = normal(7, 6), normal(7, 4)

    def reference(weight):
        return ((torch.tensor(x).double() @ weight - torch.tensor(labels)) ** 2).mean()

    step = one_step(linear(("N", 6)), {"x": x, "labels": labels}, reference, loss="mse")
    assert (step.layout.labels, step.layout.classes) == ("labels", 0)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_named_loss(keep):
    model = linear(
        (7, 6), product=f"m = MatMul (x, w)  s = Mul (m, m)  y = ReduceMean <keepdims = {keep}> (s)", made=(1,)
    )
    shape = helper.make_tensor_value_info("y", 1, [1, 1] if keep else [])
    model.graph.output[0].CopyFrom(shape)
    x = normal(7, 6)
    step = one_step(model, {"x": x}, lambda weight: ((torch.tensor(x).double() @ weight) ** 2).mean(), loss="y")
    assert (step.layout.labels, step.layout.inputs) == ("", ("x",))


def test_an_input_that_is_called_labels_keeps_its_name():
    model = linear(("N", 6))
    model.graph.input[0].name = model.graph.node[0].input[0] = "labels"
    assert build(model, loss="mse").layout.labels == "labels_1"


def test_losses_that_are_none():
    assert "no loss is named" in refused("AMP213", regression(), loss=None)
    assert "did you mean 'cross_entropy'" in refused("AMP213", regression(), loss="crossentropy")
    assert "there are: cross_entropy, mse, loss" in refused("AMP213", regression(), loss="qqq")
    assert "no float32 scalar" in refused("AMP213", linear((7, 6)), loss="y")
    assert "cannot take cross_entropy" in refused("AMP213", regression(), loss="cross_entropy")
    single = parse(
        """g (float[N,2] x) => (float[N,1] y) <float[2,1] w = {1, 2}>
        { y = MatMul (x, w) }""",
        opset=20,
    )
    assert "it has one class" in refused("AMP213", single, loss="cross_entropy")
    whole = linear((7, 6), product="m = MatMul (x, w)  y = Cast <to = 7> (m)")
    whole.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    for loss in ("mse", "cross_entropy", "y"):
        refused("AMP213", whole, loss=loss)


# -- parameters ----------------------------------------------------------------------------------------------------


def test_freeze():
    assert build(regression(), freeze=["w*", "b1"]).parameters == ["b2"]
    assert "nothing is left" in refused("AMP211", regression(), freeze=["*"])
    assert "did you mean 'w1'" in refused("AMP305", regression(), freeze=["w11"])
    state = build(regression(), freeze=["w1"]).initial_state
    assert "w1" not in state and "w2" in state


def test_a_parameter_without_gradient_is_named():
    model = regression()
    model.graph.initializer.append(numpy_helper.from_array(normal(3), "lost"))
    assert "'lost'" in refused("AMP211", model)
    model.graph.initializer.append(numpy_helper.from_array(normal(3), "gone"))
    assert "'lost' and 1 more" in refused("AMP211", model)
    assert build(model, freeze=["lost", "gone"]).parameters == list(WEIGHTS)


def test_running_statistics_are_no_parameters():
    model = parse(
        """g (float[N,3,4] x) => (float loss)
        <float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0},
         float[3] mean = {0, 0, 0}, float[3] variance = {1, 1, 1}> {
          y = BatchNormalization (x, scale, bias, mean, variance)
          a = Tanh (y)  loss = ReduceMean <keepdims = 0> (a)
        }""",
        opset=20,
    )
    step = build(model)
    assert step.parameters == ["scale", "bias"]
    assert [entry.name for entry in step.layout.of("running")] == ["mean", "variance"]


def test_weights_stored_low_are_refused():
    model = linear((7, 6))
    half = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(half, "w"))
    for place in (model.graph.input[0], model.graph.output[0]):
        place.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert "float32 model" in refused("AMP205", model, loss="mse")


@pytest.mark.parametrize("options", [{}, {"loss_scale": "dynamic"}, {"loss_scale": "dynamic", "clip_norm": 1e6}])
def test_one_parameter_alone(options):
    """Its gradient is the only reader of the inverse scale, which ONNX Runtime wants to fuse."""
    x, labels = normal(7, 6), normal(7, 4)

    def reference(weight):
        return ((torch.tensor(x).double() @ weight - torch.tensor(labels)) ** 2).mean()

    one_step(linear(("N", 6)), {"x": x, "labels": labels}, reference, loss="mse", **options)


# -- rules ---------------------------------------------------------------------------------------------------------


def mish():
    return linear((7, 6), product="m = MatMul (x, w)  s = Mish (m)  y = ReduceMean <keepdims = 0> (s)", made=(1,))


def scalar(model, name="y"):
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, 1, []))
    return model


def test_a_missing_rule_is_named_and_can_be_declared(monkeypatch):
    monkeypatch.setattr(registry, "_RULES", {k: v for k, v in registry._RULES.items() if k != "Mish"})
    model = scalar(mish())
    model.graph.node[1].name = "the_mish"
    told = refused("AMP210", model, loss="y")
    assert "node 'the_mish'" in told and '@ampgraph.gradient("Mish")' in told

    @ampgraph.gradient("Mish")
    def wrong(b, node, g):
        return b.op("Mul", g, b.number(0))

    @ampgraph.gradient("Mish")
    def right(b, node, g):
        """x tanh(softplus x): tanh(s) + x (1 - tanh(s)^2) sigmoid(x)."""
        x = node.inputs[0]
        t = b.op("Tanh", b.op("Softplus", x))
        slope = b.op("Mul", b.op("Sub", b.number(1), b.op("Mul", t, t)), b.op("Sigmoid", x))
        return b.op("Mul", g, b.op("Add", t, b.op("Mul", x, slope)))

    x = normal(7, 6)
    reference = torch.nn.functional.mish
    one_step(model, {"x": x}, lambda weight: reference(torch.tensor(x).double() @ weight).mean(), loss="y")


def test_a_rule_of_the_user_goes_before_ours(monkeypatch):
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    batch = next(batches(1))
    before = Runner(build(regression()))
    before(batch)

    @ampgraph.gradient("Tanh")
    def nothing(b, node, g):
        return b.op("Mul", g, b.number(0))

    after = Runner(build(regression()))
    after(batch)
    np.testing.assert_array_equal(after.state["w1"], weights()["w1"])
    np.testing.assert_array_equal(after.state["w2"], before.state["w2"])
    assert (before.state["w1"] != weights()["w1"]).any()


# -- what is read --------------------------------------------------------------------------------------------------


def trained(step, count=5):
    runner = Runner(step)
    losses = [float(runner(batch)[step.layout.loss]) for batch in batches(count)]
    return losses, runner.state


def same(ours, theirs):
    (ours, state), (theirs, other) = trained(ours), trained(theirs)
    assert ours == theirs
    for name in WEIGHTS:
        np.testing.assert_array_equal(state[name], other[name])


def test_it_is_torch_that_it_follows():
    parameters = {name: torch.tensor(array).requires_grad_() for name, array in weights().items()}
    optimizer = torch.optim.SGD(parameters.values(), 0.5)
    expected = []
    for batch in batches(5):
        optimizer.zero_grad()
        loss = torch_loss(parameters, batch)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    losses, state = trained(build(regression()))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, value in parameters.items():
        np.testing.assert_allclose(state[name], value.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_an_older_opset_is_lifted(opset):
    model = regression()
    model.opset_import[0].version = opset
    model.ir_version = 7
    onnx.checker.check_model(model, full_check=True)
    step = build(model)
    assert step.model.opset_imports[""] >= 18
    same(step, build(regression()))


def test_functions_are_inlined():
    model = regression()
    kept = [node for node in model.graph.node if node.output[0] not in ("m1", "a1")]
    body = [helper.make_node("MatMul", ["p", "q"], ["r"]), helper.make_node("Add", ["r", "s"], ["t"])]
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("local", "Dense", ["p", "q", "s"], ["t"], body, opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    del model.graph.node[:]
    model.graph.node.extend([helper.make_node("Dense", ["x", "w1", "b1"], ["a1"], domain="local"), *kept])
    onnx.checker.check_model(model, full_check=True)
    step = build(model)
    assert not step.model.functions
    same(step, build(regression()))


def test_mindir_and_steps_are_refused(tmp_path):
    assert "train_step" in refused("AMP104", MODELS / "digits_cnn.mindir")
    build(regression(), output=tmp_path / "step.onnx")
    assert "training step" in refused("AMP205", tmp_path / "step.onnx")


def test_options_are_checked_before_anything_is_built():
    assert "positive" in refused("AMP322", regression(), clip_norm=0.0)
    refused("AMP322", regression(), optimizer="lion")
    refused("AMP320", regression(), loss_scale="sometimes")
    with pytest.raises(AmpError, match="AMP30"):
        build(regression(), level="O7")


def test_the_model_that_is_given_stays_as_it_was(tmp_path):
    model = regression()
    before = model.SerializeToString(deterministic=True)
    build(model, level="O2")
    assert model.SerializeToString(deterministic=True) == before
    held = ir.from_proto(model)
    build(held, level="O3")
    assert ir.to_proto(held).SerializeToString(deterministic=True) == ir.to_proto(
        ir.from_proto(model)
    ).SerializeToString(deterministic=True)
