"""Makes the smallest ConvTransposes that ONNX Runtime's WebGPU provider computes wrongly in float32, and tries their
neighbours.

python webgpu_convtranspose.py [FILE]    # needs onnx, onnxruntime, onnxruntime-ep-webgpu, a GPU or a software driver
"""

import os
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper, save

os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")


def model(groups=2, inputs=2, outputs=1, kernel=(2, 2), strides=(1, 1)):
    """y = ConvTranspose(x, w): ``inputs`` and ``outputs`` are channels of each group."""
    weight = np.random.default_rng(0).standard_normal((groups * inputs, outputs, *kernel)).astype(np.float32)
    size = [1, groups * inputs, *[4] * len(kernel)]
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=groups, strides=strides[: len(kernel)])],
        "convtranspose",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def error(path, made):
    """By group, the relative L2 distance of WebGPU's result from the CPU's."""
    save(made, path)
    groups = helper.get_node_attr_value(made.graph.node[0], "group")
    shape = [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    options = ort.SessionOptions()
    options.add_provider_for_devices([d for d in ort.get_ep_devices() if "WebGpu" in d.ep_name][:1], {})
    (found,) = ort.InferenceSession(path, options).run(None, feeds)
    (wanted,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
    pairs = zip(np.split(found, groups, axis=1), np.split(wanted, groups, axis=1), strict=True)
    return " ".join(f"{np.linalg.norm(a - b) / np.linalg.norm(b):.1e}" for a, b in pairs)


def main(path="webgpu_convtranspose.onnx"):
    """Prints one line for each ConvTranspose."""
    import onnxruntime_ep_webgpu as webgpu

    ort.register_execution_provider_library("webgpu", webgpu.get_library_path())
    for groups, inputs, outputs in (
        (2, 2, 1), (2, 4, 1), (2, 6, 1), (2, 8, 1), (3, 2, 1), (2, 1, 1), (2, 3, 1), (2, 5, 1), (1, 2, 1), (1, 4, 1),
        (2, 2, 2), (2, 4, 2), (2, 4, 4),
    ):  # fmt: skip
        words = f"{groups} groups of {inputs} channels into {outputs}, kernel 2x2"
        print(f"{words}: {error(path, model(groups, inputs, outputs))}")
    for kernel in ((1, 1), (3, 3), (1, 2), (2,)):
        print(
            f"2 groups of 2 channels into 1, kernel {'x'.join(map(str, kernel))}: {error(path, model(kernel=kernel))}"
        )
    print(f"2 groups of 2 channels into 1, kernel 2x2, strides of 2: {error(path, model(strides=(2, 2)))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
