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
from training.gradients import check, gradients, model_of, normal, with_gradients

SYMBOLS = ["N", "C", "S", "T"]


def dims(shape: tuple[int, ...], dynamic: bool) -> str:
    return ",".join(SYMBOLS[: len(shape)] if dynamic else map(str, shape))


def text(operator: str, x: tuple[int, ...], vector: tuple[int, ...], dynamic: bool, operands: str = "x, w, c") -> str:
    name, _, attributes = operator.partition(" ")
    more = ", ".join(f"float[{','.join(map(str, vector))}] {letter}" for letter in operands.split(", ")[1:])
    shape = dims(x, dynamic)
    return f"g (float[{shape}] x, {more}) => (float[{shape}] y) {{ y = {name} {attributes} ({operands}) }}"


def arrays(x: tuple[int, ...], vector: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"x": 2 * normal(*x) + 1, "w": normal(*vector, seed=1), "c": normal(*vector, seed=2)}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((4, 6), -1), ((2, 3, 5), -1), ((2, 3, 5), 1), ((2, 3, 4, 2), -2)])
def test_layer_normalization(shape, axis, dynamic):
    vector = shape[axis:]
    check(
        text(f"LayerNormalization <axis = {axis}, epsilon = 0.001>", shape, vector, dynamic),
        arrays(shape, vector),
        lambda x, w, c: F.layer_norm(x, vector, w, c, 1e-3),
    )


def test_layer_normalization_without_a_bias():
    given = arrays((2, 3, 5), (5,))
    check(
        text("LayerNormalization", (2, 3, 5), (5,), True, "x, w"),
        {"x": given["x"], "w": given["w"]},
        lambda x, w: F.layer_norm(x, (5,), w),
    )


@needs_runtime("older ones take no scale of LayerNormalization that is broadcast")
def test_layer_normalization_with_a_scale_that_is_broadcast():
    check(
        text("LayerNormalization <axis = 1>", (2, 3, 5), (3, 1), False),
        arrays((2, 3, 5), (3, 1)),
        lambda x, w, c: F.layer_norm(x, (3, 5)) * w + c,
        differences=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        "n, m, s = LayerNormalization (x, w, c)  a = Mul (n, s)  y = Add (a, m)",
        "n, m = LayerNormalization (x, w, c)  t = Sin (m)  y = Mul (t, t)",
        "n, , s = LayerNormalization (x, w, c)  y = Mul (s, s)",
        "n, m, s = LayerNormalization (x, w, c)  y = Mul (m, s)",
    ],
)
@pytest.mark.parametrize("dims", ["2,3,5", "A,B,5"])
def test_the_statistics_of_a_layer_normalization_have_gradients(dims, body):
    def function(x, w, c):
        m = x.mean(-1, keepdim=True)
        s = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
        if "Add" in body:
            return F.layer_norm(x, (5,), w, c) * s + m
        return torch.sin(m) ** 2 if "Sin" in body else s * s if "m" not in body.split("=")[0] else m * s

    given = arrays((2, 3, 5), (5,))
    result = dims if "Add" in body else dims[:-1] + "1"
    check(f"g (float[{dims}] x, float[5] w, float[5] c) => (float[{result}] y) {{ {body} }}", given, function)


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
@pytest.mark.parametrize(
    ("operator", "operands", "opset"),
    [
        ("LayerNormalization", "x, w, c", 20),
        ("RMSNormalization", "x, w", 23),
        ("InstanceNormalization", "x, w, c", 22),
        ("GroupNormalization <num_groups = 2>", "x, w, c", 21),
        ("BatchNormalization", "x, w, c, m, v", 20),
    ],
)
def test_data_of_other_types(operator, operands, opset, kind):
    """Computed in float32, and in double for doubles; each gradient has the type of its value."""
    casts = " ".join(f"l{name} = Cast <to = {LOW[kind]}> ({name}) " for name in operands.split(", "))
    name, _, attributes = operator.partition(" ")
    low = ", ".join(f"l{name}" for name in operands.split(", "))
    body = f"{casts} ly = {name} {attributes} ({low})  y = Cast <to = 1> (ly)"
    vectors = ", ".join(f"float[4] {name}" for name in operands.split(", ")[1:])
    given = arrays((3, 4, 4), (4,)) | {"m": normal(4, seed=4), "v": normal(4, seed=5, low=0.5)}
    given = {name: given[name] for name in operands.split(", ")}
    typed = f"<{kind}[3,4,4] ly>"
    model = model_of(f"g (float[3,4,4] x, {vectors}) => (float[3,4,4] y) {typed} {{ {body} }}", opset=opset)
    proto = with_gradients(model, list(given))
    onnx.checker.check_model(proto, full_check=True)
    plain = model_of(
        f"g (float[3,4,4] x, {vectors}) => (float[3,4,4] y) {{ y = {name} {attributes} ({operands}) }}", opset
    )
    seed = normal(3, 4, 4, seed=9)
    references = gradients(plain, given, list(given), seed)
    evaluator = ReferenceEvaluator(proto, new_ops=[LayerNormalization])
    found = evaluator.run([f"gradient:{name}" for name in given], {**given, "seed": seed})
    for array, reference in zip(found, references.values(), strict=True):
        scale = np.abs(reference).max()
        assert np.abs(array - reference).max() < {"float16": 0.01, "bfloat16": 0.1, "double": 1e-5}[kind] * scale


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((4, 6), -1), ((2, 3, 5), 1)])
def test_rms_normalization(shape, axis, dynamic):
    given, vector = arrays(shape, shape[axis:]), shape[axis:]
    check(
        text(f"RMSNormalization <axis = {axis}, epsilon = 0.001>", shape, vector, dynamic, "x, w"),
        {"x": given["x"], "w": given["w"]},
        lambda x, w: F.rms_norm(x, vector, w, 1e-3),
        opset=23,
    )


def unchecked(node: onnx.NodeProto, given: dict[str, np.ndarray], function, opset: int) -> None:
    """`check` for what onnx's checker does not know or no longer wants."""
    shape = list(given["x"].shape)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in given.items()]
    seed, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("seed", "y"))
    graph = helper.make_graph([node], "g", [*infos, seed], [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    model = ir.from_proto(proto)
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


def test_simplified_layer_normalization():
    """ONNX Runtime's name for it; onnx has no schema of it."""
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["y"], epsilon=1e-3, axis=-1)
    given = {"x": normal(3, 4), "w": normal(4, seed=1)}
    unchecked(node, given, lambda x, w: F.rms_norm(x, (4,), w, 1e-3), 20)


def test_group_normalization_by_group():
    """The form of opset 18, which is deprecated."""
    node = helper.make_node("GroupNormalization", ["x", "w", "c"], ["y"], epsilon=1e-3, num_groups=2)

    def function(x, w, c):
        return F.group_norm(x, 2, w.repeat_interleave(3), c.repeat_interleave(3), 1e-3)

    unchecked(node, arrays((2, 6, 5), (2,)), function, 18)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 4, 3, 2), (2, 4, 2, 3, 2)])
def test_group_normalization(shape, dynamic):
    channels = shape[1]
    dynamic = dynamic and len(shape) < 5
    check(
        text("GroupNormalization <num_groups = 2, epsilon = 0.001>", shape, (channels,), dynamic),
        arrays(shape, (channels,)),
        lambda x, w, c: F.group_norm(x, 2, w, c, 1e-3),
        opset=21,
        differences=False,  # onnx's evaluator computes in float32
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 2)])
def test_instance_normalization(shape, dynamic):
    check(
        text("InstanceNormalization <epsilon = 0.001>", shape, (3,), dynamic),
        arrays(shape, (3,)),
        lambda x, w, c: F.instance_norm(x, None, None, w, c, True, 0.0, 1e-3),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 2)])
def test_batch_normalization_with_given_statistics(shape, dynamic):
    given = arrays(shape, (3,)) | {"m": normal(3, seed=4), "v": normal(3, seed=5, low=0.5)}
    check(
        text("BatchNormalization <epsilon = 0.001>", shape, (3,), dynamic, "x, w, c, m, v"),
        given,
        lambda x, w, c, m, v: (x - rows(m, x)) * rows((v + 1e-3).rsqrt() * w, x) + rows(c, x),
    )


def rows(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """By channel; torch's own function gives mean and variance no gradient."""
    return vector.reshape(1, -1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize(
    ("operator", "operands", "opset"),
    [
        ("LayerNormalization", "x, w, c", 20),
        ("RMSNormalization", "x, w", 23),
        ("InstanceNormalization", "x, w, c", 20),
        ("GroupNormalization <num_groups = 1>", "x, w, c", 21),
        ("BatchNormalization", "x, w, c, m, v", 20),
    ],
)
def test_everything_is_held_in_float32(operator, operands, opset):
    graph = ir.from_proto(model_of(text(operator, (4, 4, 4), (4,), False, operands), opset=opset)).graph
    count = len(graph)
    seed = ir.Value(name="seed", type=graph.outputs[0].type, shape=graph.outputs[0].shape)
    graph.inputs.append(seed)
    differentiate(graph, graph.outputs[0], list(graph.inputs[:2]), seed)
    added = list(graph)[count:]
    assert len(added) > 5
    assert not [node.name for node in added if not {HELD, KEPT} & node.meta.keys()]


def test_batch_normalization_in_training_mode_is_lowered_first():
    body = "y, rm, rv = BatchNormalization <training_mode = 1> (x, w, c, m, v)"
    vectors = ", ".join(f"float[3] {name}" for name in "wcmv")
    model = parse(f"g (float[2,3,4] x, {vectors}) => (float[2,3,4] y) {{ {body} }}")
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph
    with pytest.raises(Exception, match="AMP210.*lower_batch_norm"):
        differentiate(graph, graph.outputs[0], [graph.inputs[0]])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shape", "size"), [((2, 6, 3, 2), 5), ((1, 7, 3, 1), 3)])
def test_local_response_normalization(shape, size, dynamic):
    """onnx's own evaluator takes other channels, so torch alone is the reference; ONNX Runtime knows odd sizes."""
    check(
        f"g (float[{dims(shape, dynamic)}] x) => (float[{dims(shape, dynamic)}] y) "
        f"{{ y = LRN <size = {size}, alpha = 0.3, beta = 0.6, bias = 1.5> (x) }}",
        {"x": 2 * normal(*shape)},
        lambda x: F.local_response_norm(x, size, 0.3, 0.6, 1.5),
        differences=False,
    )
