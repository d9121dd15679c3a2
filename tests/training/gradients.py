"""Checks a gradient rule two ways: against torch autograd, and against numerical differences in float64.

``check("y = Relu (x)", {"x": array}, torch.relu)`` makes a model of nodes in onnx's text form, whose output ``y`` is
differentiated with a seeded gradient against every float input, or those named in ``wanted``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ampgraph.core.errors import AmpError
from ampgraph.training.gradients.driver import differentiate
from onnx_text import parse

Arrays = Mapping[str, np.ndarray]
Dims = str | Mapping[str, str]
Stored = Mapping[str, Any] | None
STEP = 1e-5  # of numerical differences: their error is near 1e-10 for values near 1


class Erf(OpRun):
    """onnx's own computes in float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.asarray(torch.erf(torch.tensor(x)).numpy(), x.dtype),)


class Gelu(OpRun):
    """onnx's own is a function whose Erf computes in float32."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
        found = torch.nn.functional.gelu(torch.tensor(x), approximate=approximate)
        return (np.asarray(found.numpy(), x.dtype),)


def model_of(text: str, stored: Stored = None, opset: int = 20) -> ModelProto:
    """``graph (...) => (...) { ... }`` as a model, its shapes inferred; other domains are imported when they are used.

    ``float[]`` is a scalar (in onnx's text form it has no known rank).
    """
    text = text.replace("[] ", " ")
    domains = ["com.microsoft"] if "com.microsoft." in text else []
    model = parse(text, stored, opset=opset, ir=9, domains=domains)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def symbols(shape: Sequence[int], known: str) -> str:
    """Sizes in the text form: all of them known, all but the first (``batch``), the second alone (``all``), or none."""
    kept = {"static": range(len(shape)), "batch": range(1, len(shape)), "all": (1,), "none": ()}[known]
    return ",".join(str(size) if axis in kept else f"S{axis}" for axis, size in enumerate(shape))


def network(
    body: str, arrays: Arrays, dims: Dims = "", rank: int = 2, stored: Stored = None, opset: int = 20
) -> ModelProto:
    """Nodes that make ``y`` of inputs like the arrays. ``dims``: sizes of the first in the text form, or of some by
    name; ``rank``: of ``y``; ``stored``: constants by name."""
    sizes = dims if isinstance(dims, Mapping) else {next(iter(arrays)): dims} if dims else {}
    given = []
    for name, array in arrays.items():
        kind = {"float32": "float"}.get(array.dtype.name, array.dtype.name)
        shape = sizes.get(name, ",".join(map(str, array.shape)))
        given.append(f"{kind}[{shape}] {name}")
    result = ",".join(f"R{n}" for n in range(rank))
    return model_of(f"g ({', '.join(given)}) => (float[{result}] y) {{ {body} }}", stored, opset)


def with_gradients(model: ModelProto, wanted: Sequence[str]) -> ModelProto:
    """The model with an input ``seed``, shaped as its first output, and outputs ``gradient:<name>``."""
    ir_model = ir.from_proto(model)
    graph = ir_model.graph
    result = graph.outputs[0]
    seed = ir.Value(name="seed", type=result.type, shape=result.shape)
    graph.inputs.append(seed)
    values = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    found = differentiate(graph, result, [values[name] for name in wanted], seed)
    for name, value in zip(wanted, found, strict=True):
        given = ir.Value(name=f"gradient:{name}", type=values[name].type, shape=values[name].shape)
        graph.append(ir.Node("", "Identity", [value], outputs=[given]))
        graph.outputs.append(given)
    proto = ir.to_proto(ir_model)
    onnx.checker.check_model(proto)
    return proto


def wider(array: np.ndarray) -> np.ndarray:
    """float32 as float64; an array of no dimensions stays an array."""
    return np.asarray(array, np.float64) if array.dtype == np.float32 else array


def floats(arrays: Arrays) -> list[str]:
    return [name for name, array in arrays.items() if array.dtype.kind == "f"]


def gradients(model: ModelProto, arrays: Arrays, wanted: Sequence[str], seed: np.ndarray) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes."""
    proto = with_gradients(model, wanted)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run([f"gradient:{name}" for name in wanted], {**arrays, "seed": np.asarray(seed)})
    return {name: np.asarray(array) for name, array in zip(wanted, found, strict=True)}


def forward(model: ModelProto, arrays: Arrays) -> np.ndarray:
    [result, *_] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(arrays))
    return np.asarray(result)


def numerical(model: ModelProto, arrays: Arrays, name: str, seed: np.ndarray, count: int = 12) -> dict[int, float]:
    """Central differences of sum(seed * output) in float64, for some elements of an input."""
    evaluator = ReferenceEvaluator(_as_double(model), new_ops=[Erf, Gelu])
    wide = {key: wider(a) for key, a in arrays.items()}

    def at(index: int, step: float) -> float:
        moved = wide[name].copy()
        moved.reshape(-1)[index] += step
        made: Any = evaluator.run(None, {**wide, name: moved})
        return float((made[0] * seed).sum())

    size = wide[name].size
    chosen = np.random.default_rng(0).permutation(size)[:count]
    return {int(i): (at(i, STEP) - at(i, -STEP)) / (2 * STEP) for i in chosen}


def check(
    body: str,
    arrays: Arrays,
    function: Callable[..., torch.Tensor] | None,
    dims: Dims = "",
    stored: Stored = None,
    *,
    wanted: Sequence[str] | None = None,
    tolerance: float = 2e-5,
    opset: int = 20,
    rank: int | None = None,
    differences: bool = True,
) -> None:
    """``function`` takes the arrays as tensors, in order. Errors count relative to the largest gradient of an input.

    ``body``: nodes, as `network` takes with ``dims`` and ``stored``, or a whole graph; ``rank`` without a function.
    """
    tensors, names = {key: torch.tensor(wider(a)) for key, a in arrays.items()}, list(wanted or floats(arrays))
    for name in names:
        tensors[name].requires_grad_()
    made = None if function is None else function(*tensors.values())
    if body.startswith("g ("):
        model = model_of(body, stored, opset)
    else:
        known = next(iter(arrays.values())).ndim if rank is None else rank
        model = network(body, arrays, dims, known if made is None else made.ndim, stored, opset)
    result = forward(model, arrays)
    seed = np.asarray(np.random.default_rng(1).standard_normal(result.shape), result.dtype)
    found = gradients(model, arrays, names, seed)
    references: dict[str, np.ndarray] = {}
    if made is not None:
        np.testing.assert_allclose(made.detach().numpy(), result, rtol=2e-4, atol=2e-4)
        (made * torch.tensor(seed.astype(np.float64))).sum().backward()
        for name in names:
            grad = tensors[name].grad
            references[name] = np.zeros(arrays[name].shape) if grad is None else grad.numpy()
    for name in names:
        assert found[name].shape == arrays[name].shape and np.isfinite(found[name]).all(), name
        if name in references:
            scale = max(float(np.abs(references[name]).max()), 1e-3)
            error = float(np.abs(found[name] - references[name]).max()) / scale
            assert error < tolerance, f"gradient of {name}: {error:.1e} from torch's"
        if differences:
            rows = numerical(model, arrays, name, seed)
            scale = max(float(np.abs(found[name]).max()), 1e-3)
            worst = max(abs(found[name].reshape(-1)[i] - value) for i, value in rows.items()) / scale
            assert worst < max(tolerance, 1e-4), f"gradient of {name}: {worst:.1e} from numerical differences"


def _as_double(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    _widen(copy.graph)
    return copy


def _widen(graph: onnx.GraphProto) -> None:
    """float32 becomes float64: inputs, outputs, initializers, constants, casts."""
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _widen(attribute.g)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
                array = np.array(values[0] if attribute.name == "value_float" else values, np.float64)
                attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.FLOAT:
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))


def normal(*shape: int, seed: int = 0, low: float | None = None) -> np.ndarray:
    """Seeded float32; with ``low`` positive, at least that far from 0."""
    found = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(found if low is None else np.abs(found) + low, np.float32)


def refused(
    told: str, body: str, arrays: Arrays, dims: str | Mapping[str, str] = "", rank: int = 2, **more: Any
) -> None:
    """The gradient of the first input is refused in these words."""
    model = network(body, arrays, dims, rank)
    with pytest.raises(AmpError, match=told):
        with_gradients(model, [next(iter(arrays))])
