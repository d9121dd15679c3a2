"""BatchNormalization as it trains, against torch's modules in training mode."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, shape_inference
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ampgraph.core.errors import AmpError
from ampgraph.training.forward.batch_norm import lower_batch_norm
from ampgraph.training.gradients.driver import differentiate
from onnx_text import parse
from present import present
from training.gradients import normal

MODULES = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
NODE = "BatchNormalization <epsilon = 0.001, momentum = 0.8>"


def model_of(x: tuple[int, ...], body: str, dynamic: bool = False, opset: int = 20) -> ir.Model:
    dims = ",".join(["N", str(x[1]), *"HWD"][: len(x)] if dynamic else map(str, x))
    vectors = ", ".join(f"float[{x[1]}] {name}" for name in "wcmv")
    text = f"g (float[{dims}] x, {vectors}) => (float[{dims}] y) {{ {body} }}"
    proto = parse(text, opset=opset)
    for name in "mv":  # stored, and fed all the same
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(x[1], np.float32), name))
    return ir.from_proto(shape_inference.infer_shapes(proto))


def arrays(x: tuple[int, ...]) -> dict[str, np.ndarray]:
    found = {"x": 2 * normal(*x) + 1} | {name: normal(x[1], seed=n + 1) for n, name in enumerate("wcm")}
    return found | {"v": normal(x[1], seed=5, low=0.5)}


def trained(model: ir.Model, given: dict[str, np.ndarray], seed: np.ndarray) -> list[np.ndarray]:
    """y, the gradients of x, w and c, the new mean and variance."""
    graph = model.graph
    running = lower_batch_norm(graph)
    assert [old.name for old, _ in running] == ["m", "v"]
    start = ir.Value(name="seed", type=graph.inputs[0].type, shape=graph.inputs[0].shape)
    wanted = list(graph.inputs[:3])
    graph.inputs.append(start)
    graph.outputs.extend(differentiate(graph, graph.outputs[0], wanted, start))
    graph.outputs.extend(new for _, new in running)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, given | {"seed": seed})


def module_of(given: dict[str, np.ndarray]) -> _BatchNorm:
    module = MODULES[given["x"].ndim](given["x"].shape[1], eps=1e-3, momentum=0.2).double()
    with torch.no_grad():
        for value, name in ((module.weight, "w"), (module.bias, "c"), (module.running_mean, "m")):
            present(value).copy_(torch.tensor(given[name]))
        present(module.running_var).copy_(torch.tensor(given["v"]))
    return module.train()


def compare(found: list[np.ndarray], module: _BatchNorm, x: torch.Tensor, y: torch.Tensor, seed: np.ndarray) -> None:
    (y * torch.tensor(seed)).sum().backward()
    expected = [y, x.grad, module.weight.grad, module.bias.grad, module.running_mean, module.running_var]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, present(other).detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (3, 4, 5, 2), (2, 3, 2, 3, 2)])
def test_as_in_torch(shape, dynamic):
    given, seed = arrays(shape), normal(*shape, seed=9)
    found = trained(model_of(shape, f"y = {NODE} (x, w, c, m, v)", dynamic), given, seed)
    module, x = module_of(given), torch.tensor(given["x"].astype(np.float64), requires_grad=True)
    compare(found, module, x, module(x), seed)


@pytest.mark.parametrize("opset", [14, 17])
def test_training_mode_and_its_outputs(opset):
    """A graph that reads the running values reads the new ones; the mode goes, CUDA refuses it."""
    shape, seed = (4, 3, 5), normal(4, 3, 5, seed=9)
    body = f"z, rm, rv = {NODE.replace('>', ', training_mode = 1>')} (x, w, c, m, v)  y = Add (z, z)  d = Neg (rv)"
    model = model_of(shape, body, opset=opset)
    reader = {node.op_type: node for node in model.graph}["Neg"]
    given = arrays(shape)
    found = trained(model, given, seed)
    assert present(present(reader.inputs[0]).producer()).op_type == "Add"
    assert not [node for node in model.graph if "training_mode" in node.attributes or len(node.outputs) > 1]
    module, x = module_of(given), torch.tensor(given["x"].astype(np.float64), requires_grad=True)
    compare(found, module, x, 2 * module(x), seed)


def test_a_module_that_is_used_twice_is_updated_twice():
    shape, seed = (5, 3, 4), normal(5, 3, 4, seed=9)
    model = model_of(shape, f"z = {NODE} (x, w, c, m, v)  t = Mul (z, z)  y = {NODE} (t, w, c, m, v)")
    given = arrays(shape)
    found = trained(model, given, seed)
    module, x = module_of(given), torch.tensor(given["x"].astype(np.float64), requires_grad=True)
    compare(found, module, x, module(module(x) ** 2), seed)


def test_a_large_mean_leaves_the_variance_exact():
    """1,000 squared in float32 would leave nothing of a deviation of 0.01."""
    shape = (8, 2, 64)
    given = arrays(shape) | {"x": (1000 + 0.01 * normal(*shape)).astype(np.float32)}
    *_, variance = trained(model_of(shape, f"y = {NODE} (x, w, c, m, v)"), given, normal(*shape))
    expected = 0.8 * given["v"] + 0.2 * given["x"].astype(np.float64).transpose(1, 0, 2).reshape(2, -1).var(1, ddof=1)
    batch = (variance - 0.8 * given["v"]) / 0.2
    np.testing.assert_allclose(variance, expected, rtol=1e-6)
    assert np.all(batch > 0)


def test_one_value_a_channel_is_no_division_by_zero():
    found = trained(model_of((1, 3), f"y = {NODE} (x, w, c, m, v)"), arrays((1, 3)), normal(1, 3))
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("frozen", ["m", "v"])
def test_frozen_statistics_are_those_of_inference(mode, frozen):
    shape, given = (4, 3, 5), arrays((4, 3, 5))
    node = NODE.replace(">", f", training_mode = {mode}>")
    model = model_of(shape, f"i = Identity (m)  y{', rm, rv' if mode else ''} = {node} (x, w, c, i, v)")
    assert lower_batch_norm(model.graph, frozen={frozen}) == []
    [found] = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, given)
    module = module_of(given).eval()
    np.testing.assert_allclose(found, module(torch.tensor(given["x"]).double()).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (3, 4, 5, 2)])
def test_statistics_that_the_graph_computes(shape):
    """As torch exports track_running_stats=False: they are no state, and part of the gradient."""
    axes = ", ".join(str(axis) for axis in range(len(shape)) if axis != 1)
    body = f"""axes = Constant <value_ints = [{axes}]> ()  mean = ReduceMean <keepdims = 0> (x, axes)
        far = ReduceMean <keepdims = 1> (x, axes)  away = Sub (x, far)  squares = Mul (away, away)
        variance = ReduceMean <keepdims = 0> (squares, axes)  y = {NODE} (x, w, c, mean, variance)"""
    model, given, seed = model_of(shape, body), arrays(shape), normal(*shape, seed=9)
    graph = model.graph
    assert lower_batch_norm(graph) == []
    start = ir.Value(name="seed", type=graph.inputs[0].type, shape=graph.inputs[0].shape)
    graph.inputs.append(start)
    graph.outputs.extend(differentiate(graph, graph.outputs[0], list(graph.inputs[:3]), start))
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    found = session.run(None, given | {"seed": seed})
    module, x = module_of(given), torch.tensor(given["x"].astype(np.float64), requires_grad=True)
    y = module(x)
    (y * torch.tensor(seed)).sum().backward()
    for one, other in zip(found, [y, x.grad, module.weight.grad, module.bias.grad], strict=True):
        np.testing.assert_allclose(one, present(other).detach().numpy(), rtol=2e-5, atol=2e-5)


def test_data_of_unknown_rank_is_told():
    model = model_of((2, 3, 4), f"y = {NODE} (x, w, c, m, v)")
    model.graph.inputs[0].shape = None
    with pytest.raises(AmpError, match="AMP212.*rank of 'x'"):
        lower_batch_norm(model.graph)


def test_low_data_is_raised_for_its_statistics():
    """A part of the forward that is float16 in the file."""
    x = (6, 3, 4)
    body = f"h = Cast <to = 10> (x)  n = {NODE} (h, w, c, m, v)  y = Cast <to = 1> (n)"
    given = arrays(x)
    seed = normal(*x, seed=9)
    found = trained(model_of(x, body), given, seed)
    module, data = module_of(given), torch.tensor(given["x"].astype(np.float64)).requires_grad_()
    y = module(data)
    (y * torch.tensor(seed.astype(np.float64))).sum().backward()
    for mine, theirs in zip(found, (y, data.grad, module.weight.grad, module.bias.grad), strict=False):
        theirs = theirs.detach().numpy()
        assert np.abs(mine - theirs).max() < 3e-3 * np.abs(theirs).max()
