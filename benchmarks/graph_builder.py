"""Builds an ONNX file node by node with random weights; large ones are streamed to the file's external data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Below this a model is one file, as exporters write it; above, protobuf has no room for the weights.
SINGLE_FILE_BYTES = int(1.9 * 2**30)
INLINE_BYTES = 1024
# Memory maps start at pages.
PAGE = 4096


class Builder:
    """One graph in the making; values are known by name, and every method that adds one returns the name."""

    def __init__(self, path: Path, opset: int, seed: int = 0) -> None:
        self.path, self.opset = path, opset
        self.data_path = path.with_name(path.name + ".data")
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self._constants: dict[tuple[str, str, bytes], str] = {}
        self._sink = self.data_path.open("wb")

    def input(self, name: str, value: np.ndarray) -> str:
        """A graph input of the type and shape of `value`, which is what the benchmark feeds."""
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
        self.feeds[name] = value
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """A node with one output."""
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"node_{output}", **attributes))
        return output

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """An initializer with this value; equal ones are one, as exporters share them."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, str(array.shape), array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.tensor(f"constant_{len(self._constants)}", array)
        return self._constants[key]

    def weight(self, name: str, shape: Sequence[int], scale: float) -> str:
        """An initializer of random float32 numbers with this standard deviation."""
        data = self.rng.standard_normal(tuple(shape), dtype=np.float32)
        data *= np.float32(scale)
        return self.tensor(name, data)

    def tensor(self, name: str, array: np.ndarray) -> str:
        """An initializer: small ones in the graph, large ones in the data file."""
        if array.nbytes <= INLINE_BYTES:
            self.weights.append(numpy_helper.from_array(array, name))
            return name
        start = -(-self._sink.tell() // PAGE) * PAGE
        self._sink.seek(start)
        self._sink.write(np.ascontiguousarray(array).data)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.data_path.name), ("offset", start), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return name

    def finish(self, output: str, shape: Sequence[int]) -> None:
        """Name the output `out`, write the model and its feeds, check it; small models become a single file."""
        next(node for node in self.nodes if node.output[0] == output).output[0] = "out"
        size = self._sink.tell()
        self._sink.close()
        out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, self.path.stem, self.inputs, [out], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        # Exporters note the shape of every value, and converters may count on that.
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.save(model, str(self.path))
        onnx.checker.check_model(str(self.path), full_check=True)
        if size < SINGLE_FILE_BYTES:
            onnx.save(onnx.load(str(self.path)), str(self.path))
            self.data_path.unlink()
        np.savez(self.path.with_suffix(".npz"), **self.feeds)
