"""A whole random model of a seed, with inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from fuzz.bodies import FREE, Body, Shared
from fuzz.control import fill, want
from fuzz.runtime import opened, type_of

OLDEST, NEWEST = 7, 26
FUNCTIONS, SPARSE = 8, 5  # versions of the file format that have them


@dataclass(frozen=True)
class Random:
    """A model that ONNX Runtime runs on two samples. ``checked``: the checker takes it too."""

    seed: int
    model: ModelProto
    feeds: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    checked: bool


def random_model(seed: int, size: int = 12) -> Random | None:
    """The model of a seed, None where nothing came of it that ONNX Runtime runs."""
    rng = np.random.default_rng(seed)
    opset = int(rng.integers(OLDEST, NEWEST + 1))
    body = Body(Shared(rng, opset, {"": opset}, version=_version(rng, opset)))
    for _ in range(int(rng.integers(1, 4))):
        body.bind(body.example(want(body)))
    fill(body, int(rng.integers(2, size + 1)), 0)
    model = _model(body)
    if model is None:
        return None
    feeds = [body.formals, {name: _moved(value, rng) for name, value in body.formals.items()}]
    try:
        session = opened(model)
        names = [value.name for value in model.graph.output]
        expected = [dict(zip(names, session.run(names, one), strict=True)) for one in feeds]
    except Exception:  # the runtime raises kinds of its own; what it refuses is no case
        return None
    return Random(seed, model, feeds, expected, checks(model))


def _moved(value: Any, rng: np.random.Generator) -> Any:
    factors = rng.uniform(0.5, 1.2, value.shape)
    return np.asarray(value * factors, value.dtype) if value.dtype.kind == "f" else value


def checks(model: ModelProto) -> bool:
    """Whether the checker takes a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # of several kinds
        return False
    return True


def _model(body: Body) -> ModelProto | None:
    shared = body.shared
    leaves = [name for name in body.made() if name not in body.read]
    outputs = leaves[-5:] or body.made()[-1:]
    if not outputs:
        return None
    version = max(shared.version, FUNCTIONS if shared.functions else 0)
    inputs = [helper.make_value_info(n, type_of(v, _sizes(shared, v.shape))) for n, v in body.formals.items()]
    stored = [numpy_helper.from_array(value, name) for name, value in body.constants.items()]
    listed = version < FREE or shared.chance(0.1)
    inputs += [helper.make_value_info(n, type_of(v)) for n, v in body.constants.items() if listed]
    graph = helper.make_graph(body.nodes, "fuzz", inputs, [_output(body, name) for name in outputs], stored)
    if version >= SPARSE and shared.chance(0.1) and not listed:
        _make_sparse(graph)
    imports = [helper.make_opsetid(domain, v) for domain, v in shared.imports.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=shared.functions, ir_version=version)
    return onnx.shape_inference.infer_shapes(model) if shared.chance(0.3) else model


def _version(rng: np.random.Generator, opset: int) -> int:
    least = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    return max(least, 10 if rng.random() < 0.3 else 0)


def _sizes(shared: Shared, shape: tuple[int, ...]) -> list[int | str | None]:
    """Sizes as a file may have them: numbers, names, or nothing."""
    how = shared.rng.random()
    if how < 0.6:
        return list(shape)
    if how > 0.97:
        return [-1 for _ in shape]  # as some exporters write what they do not know
    return [f"n{size}" if how < 0.85 else None for size in shape]


def _output(body: Body, name: str) -> onnx.ValueInfoProto:
    value = body.array(name)
    return helper.make_value_info(name, type_of(value, _sizes(body.shared, value.shape)))


def _make_sparse(graph: onnx.GraphProto) -> None:
    """The first float constant with a shape, as a sparse one."""
    for place, tensor in enumerate(graph.initializer):
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim == 1 and array.size > 1:
            at = np.flatnonzero(array)
            sparse = helper.make_sparse_tensor(
                numpy_helper.from_array(array[at], tensor.name),
                numpy_helper.from_array(at.astype(np.int64)),
                array.shape,
            )
            graph.sparse_initializer.append(sparse)
            del graph.initializer[place]
            return
