"""MindIR models without MindSpore, in the form that mindspore.export gives them.

``build = Build(); x = build.input("x", 2, 4); w = build.parameter("w", array)``
``build.output(build.node("MatMul", x, w, False, False, shape=(2, 3))); build.model``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ampgraph.formats.mindir import schema

NUMBERS = {name: number for number, name in reversed(schema.ELEMENT_TYPES.items())}


class Build:
    """One graph of a model; ``model`` is complete at any time."""

    def __init__(self, name: str = "main", model: Any = None) -> None:
        """Starts a model, or with ``model`` another function of it."""
        self.model = model or schema.Model(
            ir_version="1.1", producer_name="MindSpore", model_version="2.10.0", little_endian=True, mind_ir_version=3
        )
        self.graph = self.model.graph if model is None else self.model.functions.add()
        self.graph.name = name
        self.constants: dict[str, str] = {}

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        info = self.graph.input.add(name=f"{self.graph.name}:{name}")
        info.tensor.add(data_type=NUMBERS[dtype], dims=shape)
        return info.name

    def parameter(self, name: str, data: np.ndarray, load: bool = True) -> str:
        """A weight; gives the name of what its ``Load`` reads, or of the parameter itself."""
        tensor = self.graph.parameter.add(name=f"{self.graph.name}:{name}", ref_key=name)
        fill(tensor, data)
        tensor.compression_type = 0
        monad = self.constant(None, schema.UMONAD) if load else ""
        return self.node("Load", tensor.name, monad, shape=data.shape, dtype=data.dtype.name) if load else tensor.name

    def constant(self, value: Any, kind: int = schema.NONE_TYPE) -> str:
        """A value node: a bool, an int, a float, a string, an array, or nothing of a ``kind`` (a monad, None)."""
        key = repr((type(value), value, kind))
        if key in self.constants and not isinstance(value, np.ndarray):
            return self.constants[key]
        name = self.constants[key] = f"{self.graph.name}_ValueNode_{len(self.graph.node)}"
        node = self.graph.node.add(op_type="Constant", name=name, output=[name])
        attribute = node.attribute.add(name="value", type=kind)
        if isinstance(value, bool):
            attribute.type, attribute.i = schema.BOOL, int(value)
        elif isinstance(value, int):
            attribute.type, attribute.i = schema.INT64, value
        elif isinstance(value, float):
            attribute.type, attribute.f = schema.FLOAT, value
        elif isinstance(value, str):
            attribute.type, attribute.s = schema.STRING, value.encode()
        elif isinstance(value, np.ndarray):
            attribute.type = schema.TENSORS
            fill(attribute.tensors.add(name="value0"), value)
        return name

    def node(
        self, op: str, *operands: Any, shape: tuple[int, ...] | None = (), dtype: str = "float32", scope: str = ""
    ) -> str:
        """A CNode; operands that are no names become constants. ``shape=None``: it has no abstract."""
        names = [item if isinstance(item, str) else self.constant(item) for item in operands]
        output = f"{self.graph.name}:{op}_{len(self.graph.node)}"
        domain = scope or f"Default/{op}-op0"
        node = self.graph.node.add(op_type=f"REF::{self.primitive(op)}", name=output, output=[output], domain=domain)
        node.input.extend(names)
        if shape is not None:
            abstract = node.attribute.add(name="shape", type=schema.TENSORS)
            abstract.tensors.add(data_type=NUMBERS[dtype], dims=shape)
        return output

    def primitive(self, op: str, **attributes: int | float | str) -> str:
        """The name of an operator's primitive, made when it is not there."""
        for known in self.model.primitives:
            if known.op_type == op and not attributes:
                return known.name
        made = self.model.primitives.add(name=f"{op}:{len(self.model.primitives)}", op_type=op)
        made.prim_type = schema.PRIMITIVE
        for name, value in attributes.items():
            attribute = made.attribute.add(name=name)
            if isinstance(value, str):
                attribute.type, attribute.s = schema.STRING, value.encode()
            elif isinstance(value, float):
                attribute.type, attribute.f = schema.FLOAT, value
            else:
                attribute.type, attribute.i = schema.INT64, value
        return made.name

    def output(self, value: str, *shape: int, dtype: str = "float32") -> None:
        self.graph.output.add(name=value).tensor.add(data_type=NUMBERS[dtype], dims=shape)


def fill(tensor: Any, data: np.ndarray) -> None:
    """A Tensor message that holds an array."""
    tensor.data_type, tensor.raw_data = NUMBERS[data.dtype.name], data.tobytes()
    del tensor.dims[:]
    tensor.dims.extend(data.shape)


def dense(rows: int = 6, columns: int = 5, seed: int = 0) -> Any:
    """A model of one layer: parameters ``layer.weight`` and ``layer.bias``, and a tensor constant."""
    random = np.random.default_rng(seed)
    build = Build()
    x = build.input("x", 2, rows)
    weight = build.parameter("layer.weight", random.standard_normal((rows, columns)).astype(np.float32))
    bias = build.parameter("layer.bias", random.standard_normal(columns).astype(np.float32))
    y = build.node("MatMul", x, weight, False, False, shape=(2, columns), scope="Default/layer-Dense/MatMul-op0")
    y = build.node("BiasAdd", y, bias, 0, shape=(2, columns), scope="Default/layer-Dense/BiasAdd-op0")
    y = build.node("Add", y, build.constant(np.arange(columns, dtype=np.float32)), shape=(2, columns))
    build.output(y, 2, columns)
    return build.model


def write(model: Any, path: Path) -> Path:
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def write_split(model: Any, folder: Path, name: str = "net", files: int = 1) -> Path:
    """Writes the model with its parameters in ``<name>_variables/data_<i>``, in MindSpore's layout; it is changed."""
    parameters = sorted(model.graph.parameter, key=lambda tensor: tensor.ref_key)
    variables = folder / f"{name}_variables"
    variables.mkdir(parents=True)
    for number in range(files):
        with open(variables / f"data_{number}", "wb") as stream:
            stream.write(b"\1" + bytes(63))
            for tensor in parameters[number::files]:
                raw = tensor.raw_data
                place = tensor.external_data
                place.location = f"{variables.name}/data_{number}"
                place.offset, place.length = stream.tell(), len(raw)
                stream.write(raw + bytes(-len(raw) % 64))
                tensor.ClearField("raw_data")
    return write(model, folder / f"{name}_graph.mindir")
