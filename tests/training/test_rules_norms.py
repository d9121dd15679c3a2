"""Normalisation rules, sizes known or not."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional as F

from ampgraph.core.dataflow import HELD, KEPT
from ampgraph.training.gradients.driver import differentiate
from needs import needs_runtime
from onnx_text import parse
from training.gradients import check, gradients, model_of, network, normal, symbols, with_gradients

KNOWN = pytest.mark.parametrize("known", ["static", "none"])
EPSILON = "epsilon = 0.001"


def arrays(x, vector, names="xwc"):
    found = {"x": 2 * normal(*x) + 1, "w": normal(*vector, seed=1), "c": normal(*vector, seed=2)}
    found |= {"m": normal(*vector, seed=4), "v": normal(*vector, seed=5, low=0.5)}
    return {name: found[name] for name in names}


def checked(operator, given, function, known="static", **more):
    check(f"y = {operator} ({', '.join(given)})", given, function, symbols(given["x"].shape, known), **more)


@KNOWN
@pytest.mark.parametrize(("shape", "axis"), [((4, 6), -1), ((2, 3, 5), -1), ((2, 3, 5), 1), ((2, 3, 4, 2), -2)])
def test_layer_normalization(shape, axis, known):
    given, vector = arrays(shape, shape[axis:]), shape[axis:]
    operator = f"LayerNormalization <axis = {axis}, {EPSILON}>"
    checked(operator, given, lambda x, w, c: F.layer_norm(x, vector, w, c, 1e-3), known)


def test_layer_normalization_without_a_bias():
    checked("LayerNormalization", arrays((2, 3, 5), (5,), "xw"), lambda x, w: F.layer_norm(x, (5,), w), "none")


@needs_runtime("older ones take no scale of LayerNormalization that is broadcast")
def test_layer_normalization_with_a_scale_that_is_broadcast():
    given = arrays((2, 3, 5), (3, 1))
    operator = "LayerNormalization <axis = 1>"
    checked(operator, given, lambda x, w, c: F.layer_norm(x, (3, 5)) * w + c, differences=False)


def deviation(x):
    return (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()


def mean(x):
    return x.mean(-1, keepdim=True)


STATISTICS = {
    "n, m, s = LayerNormalization (x, w, c)  a = Mul (n, s)  y = Add (a, m)": (
        lambda x, w, c: F.layer_norm(x, (5,), w, c) * deviation(x) + mean(x)
    ),
    "n, m = LayerNormalization (x, w, c)  t = Sin (m)  y = Mul (t, t)": lambda x, w, c: torch.sin(mean(x)) ** 2,
    "n, , s = LayerNormalization (x, w, c)  y = Mul (s, s)": lambda x, w, c: deviation(x) ** 2,
    "n, m, s = LayerNormalization (x, w, c)  y = Mul (m, s)": lambda x, w, c: mean(x) * deviation(x),
}


@pytest.mark.parametrize("body", STATISTICS)
@pytest.mark.parametrize("dims", ["2,3,5", "A,B,5"])
def test_the_statistics_of_a_layer_normalization_have_gradients(dims, body):
    check(body, arrays((2, 3, 5), (5,)), STATISTICS[body], dims)


@KNOWN
@pytest.mark.parametrize(("shape", "axis"), [((4, 6), -1), ((2, 3, 5), 1)])
def test_rms_normalization(shape, axis, known):
    given, operator = arrays(shape, shape[axis:], "xw"), f"RMSNormalization <axis = {axis}, {EPSILON}>"
    checked(operator, given, lambda x, w: F.rms_norm(x, shape[axis:], w, 1e-3), known, opset=23)


@KNOWN
@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 4, 3, 2), (2, 4, 2, 3, 2)])
def test_group_normalization(shape, known):
    """Without differences: onnx's evaluator computes in float32."""
    operator, known = f"GroupNormalization <num_groups = 2, {EPSILON}>", known if len(shape) < 5 else "static"
    given = arrays(shape, shape[1:2])
    checked(operator, given, lambda x, w, c: F.group_norm(x, 2, w, c, 1e-3), known, opset=21, differences=False)


@KNOWN
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 2)])
def test_instance_normalization(shape, known):
    def function(x, w, c):
        return F.instance_norm(x, None, None, w, c, True, 0.0, 1e-3)

    checked(f"InstanceNormalization <{EPSILON}>", arrays(shape, (3,)), function, known)


@KNOWN
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 2)])
def test_batch_normalization_with_given_statistics(shape, known):
    """torch's own function gives mean and variance no gradient."""

    def function(x, *vectors):
        w, c, m, v = (vector.reshape(1, -1, *[1] * (x.ndim - 2)) for vector in vectors)
        return (x - m) * (v + 1e-3).rsqrt() * w + c

    checked(f"BatchNormalization <{EPSILON}>", arrays(shape, (3,), "xwcmv"), function, known)


def test_batch_normalization_in_training_mode_is_lowered_first():
    body = "y, rm, rv = BatchNormalization <training_mode = 1> (x, w, c, m, v)"
    vectors = ", ".join(f"float[3] {name}" for name in "wcmv")
    model = parse(f"g (float[2,3,4] x, {vectors}) => (float[2,3,4] y) {{ {body} }}")
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph
    with pytest.raises(Exception, match="AMP210.*lower_batch_norm"):
        differentiate(graph, graph.outputs[0], [graph.inputs[0]])


@KNOWN
@pytest.mark.parametrize(("shape", "size"), [((2, 6, 3, 2), 5), ((1, 7, 3, 1), 3)])
def test_local_response_normalization(shape, size, known):
    """onnx's own evaluator takes other channels, so torch alone is the reference; ONNX Runtime knows odd sizes."""
    operator = f"LRN <size = {size}, alpha = 0.3, beta = 0.6, bias = 1.5>"
    given = {"x": 2 * normal(*shape)}
    checked(operator, given, lambda x: F.local_response_norm(x, size, 0.3, 0.6, 1.5), known, differences=False)


NORMS = pytest.mark.parametrize(
    ("operator", "operands", "opset"),
    [
        ("LayerNormalization", "xwc", 20),
        ("RMSNormalization", "xw", 23),
        ("InstanceNormalization", "xwc", 22),
        ("GroupNormalization <num_groups = 2>", "xwc", 21),
        ("BatchNormalization", "xwcmv", 20),
    ],
)
LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "double": TensorProto.DOUBLE}


class LayerNormalization(OpRun):
    """onnx's own has mean and deviation in the type of the data."""

    op_domain = ""

    def _run(self, x, scale, bias=0, axis=-1, epsilon=1e-5, stash_type=1):
        wide = np.asarray(x, np.float32)
        mean = wide.mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(wide.var(-1, keepdims=True) + np.float32(epsilon))
        y = np.asarray((wide - mean) * inverse, x.dtype) * scale + bias
        return y, mean, inverse


@pytest.mark.parametrize("kind", LOW)
@NORMS
def test_data_of_other_types(operator, operands, opset, kind):
    """Computed in float32, and in double for doubles; each gradient has the type of its value."""
    given, seed = arrays((3, 4, 4), (4,), operands), normal(3, 4, 4, seed=9)
    casts = " ".join(f"l{name} = Cast <to = {LOW[kind]}> ({name}) " for name in operands)
    heads = ", ".join(f"float[{','.join(map(str, array.shape))}] {name}" for name, array in given.items())
    body = f"{casts} ly = {operator} ({', '.join(f'l{name}' for name in operands)})  y = Cast <to = 1> (ly)"
    text = f"g ({heads}) => (float[3,4,4] y) <{kind}[3,4,4] ly> {{ {body} }}"
    proto = with_gradients(model_of(text, opset=opset), list(operands))
    onnx.checker.check_model(proto, full_check=True)
    plain = network(f"y = {operator} ({', '.join(operands)})", given, rank=3, opset=opset)
    references = gradients(plain, given, list(operands), seed)
    evaluator = ReferenceEvaluator(proto, new_ops=[LayerNormalization])
    found = evaluator.run([f"gradient:{name}" for name in operands], {**given, "seed": seed})
    for array, reference in zip(found, references.values(), strict=True):
        scale = np.abs(reference).max()
        assert np.abs(array - reference).max() < {"float16": 0.01, "bfloat16": 0.1, "double": 1e-5}[kind] * scale


@NORMS
def test_everything_is_held_in_float32(operator, operands, opset):
    given = arrays((4, 4, 4), (4,), operands)
    graph = ir.from_proto(network(f"y = {operator} ({', '.join(operands)})", given, rank=3, opset=opset)).graph
    count = len(graph)
    seed = ir.Value(name="seed", type=graph.outputs[0].type, shape=graph.outputs[0].shape)
    graph.inputs.append(seed)
    differentiate(graph, graph.outputs[0], list(graph.inputs[:2]), seed)
    added = list(graph)[count:]
    assert len(added) > 5
    assert not [node.name for node in added if not {HELD, KEPT} & node.meta.keys()]


def by_group(x, w, c):
    return F.group_norm(x, 2, w.repeat_interleave(3), c.repeat_interleave(3), 1e-3)


@pytest.mark.parametrize(
    ("kind", "attributes", "given", "function", "opset"),
    [
        (  # ONNX Runtime's name for it; onnx has no schema of it
            "SimplifiedLayerNormalization",
            {"axis": -1},
            arrays((3, 4), (4,), "xw"),
            lambda x, w: F.rms_norm(x, (4,), w, 1e-3),
            20,
        ),
        # the form of opset 18, which is deprecated
        ("GroupNormalization", {"num_groups": 2}, arrays((2, 6, 5), (2,)), by_group, 18),
    ],
)
def test_what_the_checker_does_not_know_or_no_longer_wants(kind, attributes, given, function, opset):
    node = helper.make_node(kind, list(given), ["y"], epsilon=1e-3, **attributes)
    shape = list(given["x"].shape)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in given.items()]
    seed, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("seed", "y"))
    graph = helper.make_graph([node], "g", [*infos, seed], [result])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9))
    *wanted, seed_value = model.graph.inputs
    model.graph.outputs.extend(differentiate(model.graph, model.graph.outputs[0], wanted, seed_value))
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    start = normal(*shape, seed=9)
    y, *found = session.run(None, given | {"seed": start})
    tensors = [torch.tensor(a, requires_grad=True) for a in given.values()]
    made = function(*tensors)
    torch.testing.assert_close(torch.tensor(y), made.detach())
    (made * torch.tensor(start)).sum().backward()
    for gradient, tensor in zip(found, tensors, strict=True):
        torch.testing.assert_close(torch.tensor(gradient), tensor.grad)
