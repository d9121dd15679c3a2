"""Losses against torch: shapes, ignored labels, weights, labels that are no class."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import checker, shape_inference
from torch.nn import functional as F

from ampgraph.core.errors import AmpError
from ampgraph.training.forward.losses import cross_entropy, lower_losses, mse
from ampgraph.training.gradients.builder import Builder
from ampgraph.training.gradients.driver import differentiate
from onnx_text import parse
from present import present
from training.gradients import normal

FLOAT = ir.DataType.FLOAT


def declared(shape: tuple[int, ...], dynamic: bool) -> ir.Shape:
    """Equal sizes have equal names; classes are known."""
    return ir.Shape([f"S{size}" if dynamic and size != 7 else size for size in shape])


def value(name: str, array: np.ndarray, dynamic: bool) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    return ir.Value(name=name, type=kind, shape=declared(array.shape, dynamic))


def computed(make, x: np.ndarray, y: np.ndarray, dynamic: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The loss and its gradient."""
    inputs = [value("x", x, dynamic), value("y", y, dynamic)]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 20}, name="g")
    loss = make(Builder(graph, "loss"), *inputs)
    assert loss.dtype == FLOAT and list(loss.shape) == []
    found = differentiate(graph, loss, [inputs[0]])
    graph.outputs.extend([loss, *found])
    proto = ir.to_proto(ir.Model(graph, ir_version=9))
    checker.check_model(proto)
    return tuple(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x, "y": y}))


def against(found: tuple[np.ndarray, ...], x: np.ndarray, function) -> None:
    tensor = torch.tensor(x.astype(np.float64), requires_grad=True)
    loss = function(tensor)
    loss.backward()
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-5)
    scale = present(tensor.grad).abs().max().item()
    np.testing.assert_allclose(found[1] / scale, present(tensor.grad).numpy() / scale, atol=1e-5)


def labels_of(shape: tuple[int, ...], dtype=np.int64) -> np.ndarray:
    labels = np.random.default_rng(3).integers(0, 7, shape).astype(dtype)
    labels.reshape(-1)[1] = -100
    return labels


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(5, 7), (4, 7, 3), (2, 7, 3, 4)])
def test_cross_entropy(shape, dtype, dynamic):
    x, y = 3 * normal(*shape), labels_of((shape[0], *shape[2:]), dtype)
    found = computed(cross_entropy, x, y, dynamic)
    against(found, x, lambda x: F.cross_entropy(x, torch.tensor(y).long()))


@pytest.mark.parametrize("dynamic", [False, True])
def test_classes_may_come_last(dynamic):
    x, y = normal(4, 3, 7), labels_of((4, 3))
    found = computed(cross_entropy, x, y, dynamic)
    against(found, x, lambda x: F.cross_entropy(x.transpose(1, 2), torch.tensor(y)))


def test_the_axis_of_the_classes_can_be_told():
    """[N, 7, 7]: either would fit."""
    x, y = normal(4, 7, 7), labels_of((4, 7))
    found = computed(lambda b, x, y: cross_entropy(b, x, y, axis=-1), x, y)
    against(found, x, lambda x: F.cross_entropy(x.transpose(1, 2), torch.tensor(y)))
    against(computed(cross_entropy, x, y), x, lambda x: F.cross_entropy(x, torch.tensor(y)))


def test_another_label_is_ignored():
    x, y = normal(6, 7), np.array([0, 3, 3, 6, 1, 3])
    found = computed(lambda b, x, y: cross_entropy(b, x, y, ignore_index=3), x, y)
    against(found, x, lambda x: F.cross_entropy(x, torch.tensor(y), ignore_index=3))


def test_nothing_is_learnt_where_all_labels_are_ignored():
    loss, gradient = computed(cross_entropy, normal(3, 7), np.full(3, -100))
    assert loss == 0 and not gradient.any()


@pytest.mark.parametrize("bad", [7, -1, 2**40, -(2**40)])
def test_a_label_that_is_no_class_makes_the_loss_and_its_gradient_nan(bad):
    loss, gradient = computed(cross_entropy, normal(4, 7), np.array([0, bad, 2, -100]))
    assert np.isnan(loss) and np.isnan(gradient[1]).all() and np.isfinite(gradient[[0, 2, 3]]).all()


def test_large_logits_stay_numbers():
    x = np.array([[3e38, 0, -3e38, 0, 0, 0, 0]] * 2, np.float32)
    loss, gradient = computed(cross_entropy, x, np.array([0, 1]))
    assert np.isfinite(loss) and np.isfinite(gradient).all()


def test_ranks_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="labels of rank 2 do not fit logits of rank 2"):
        computed(cross_entropy, normal(3, 7), np.zeros((3, 1), np.int64))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_mse(shape, dynamic):
    x, y = normal(*shape), normal(*shape, seed=1)
    against(computed(mse, x, y, dynamic), x, lambda x: F.mse_loss(x, torch.tensor(y).double()))
    whole = y.round().astype(np.int64)
    against(computed(mse, x, whole, dynamic), x, lambda x: F.mse_loss(x, torch.tensor(whole).double()))


def lowered(body: str, weighted: bool, result: str) -> ir.Model:
    more = ", float[7] w" if weighted else ""
    text = f"g (float[N,7,S] x, int64[N,S] y{more}) => (float[{result}] z) {{ {body} }}"
    proto = parse(text)
    model = ir.from_proto(shape_inference.infer_shapes(proto))
    assert lower_losses(model.graph) == 1
    assert not [node for node in model.graph if node.op_type.endswith("Loss")]
    return model


@pytest.mark.parametrize("ignored", [-100, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_nodes_that_an_exporter_wrote(kind, reduction, weighted, ignored):
    x, y, w = normal(4, 7, 3), labels_of((4, 3)), normal(7, seed=4, low=0.1)
    y[y == -100] = ignored
    operands = "x, y, w" if weighted else "x, y"
    body = f'z = {kind} <reduction = "{reduction}", ignore_index = {ignored}> ({operands})'
    model = lowered(body, weighted, "N,S" if reduction == "none" else "")
    graph, function = model.graph, F.cross_entropy if kind.startswith("Softmax") else F.nll_loss
    seed = ir.Value(name="seed", type=ir.TensorType(FLOAT), shape=graph.outputs[0].shape)
    graph.inputs.append(seed)
    graph.outputs.extend(differentiate(graph, graph.outputs[0], [graph.inputs[0]], seed))
    proto = ir.to_proto(model)
    checker.check_model(proto)
    start = normal(4, 3, seed=5) if reduction == "none" else np.array(1.5, np.float32)
    given = {"x": x, "y": y, "seed": start} | ({"w": w} if weighted else {})
    names = [output.name for output in graph.outputs]
    assert names[0] == "z"
    z, dx = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    tensor, weight = torch.tensor(x, requires_grad=True), torch.tensor(w) if weighted else None
    made = function(tensor, torch.tensor(y), weight, ignore_index=ignored, reduction=reduction)
    np.testing.assert_allclose(z, made.detach().numpy(), rtol=1e-5, atol=1e-6)
    (made * torch.tensor(start)).sum().backward()
    np.testing.assert_allclose(dx, present(tensor.grad).numpy(), atol=1e-5)


def test_logarithms_that_a_loss_node_gives_out():
    model = lowered("l, p = SoftmaxCrossEntropyLoss (x, y)  z = Add (l, l)", False, "")
    model.graph.outputs.append(next(node for node in model.graph if node.op_type == "LogSoftmax").outputs[0])
    x, y = normal(4, 7, 3), labels_of((4, 3)) % 7
    z, p = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": x, "y": y})
    np.testing.assert_allclose(p, F.log_softmax(torch.tensor(x), 1).numpy(), rtol=1e-5)
    np.testing.assert_allclose(z, 2 * F.cross_entropy(torch.tensor(x), torch.tensor(y)).item(), rtol=1e-5)


def test_labels_of_unknown_rank_are_told():
    proto = parse("g (float[N,7] x, int64[N] y) => (float z) { z = SoftmaxCrossEntropyLoss (x, y) }")
    model = ir.from_proto(proto)
    model.graph.inputs[1].shape = None
    with pytest.raises(AmpError, match="AMP212.*rank of 'y'"):
        lower_losses(model.graph)
