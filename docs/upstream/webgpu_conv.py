"""Makes the smallest Convs that ONNX Runtime's WebGPU provider computes wrongly in float32, or dies of, and tries their
neighbours.

python webgpu_conv.py [FILE]    # needs onnx, onnxruntime and onnxruntime-ep-webgpu, and a GPU or a software driver
"""

import multiprocessing
import os
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper, save

os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")


def model(groups=1, inputs=6, outputs=4, kernel=(3, 3)):
    """y = Conv(x, w): ``inputs`` and ``outputs`` are channels of each group."""
    weight = np.random.default_rng(0).standard_normal((groups * outputs, inputs, *kernel)).astype(np.float32)
    size = [1, groups * inputs, *[7] * len(kernel)]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], group=groups)],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def error(path, made):
    """The relative L2 distance of WebGPU's result from the CPU's."""
    save(made, path)
    shape = [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    options = ort.SessionOptions()
    options.add_provider_for_devices([d for d in ort.get_ep_devices() if "WebGpu" in d.ep_name][:1], {})
    (found,) = ort.InferenceSession(path, options).run(None, feeds)
    (wanted,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def registered():
    """Makes the provider known to ONNX Runtime."""
    import onnxruntime_ep_webgpu as webgpu

    ort.register_execution_provider_library("webgpu", webgpu.get_library_path())


def without_bias(path):
    """A Conv whose third input has an empty name: ONNX's way to say that it has no bias."""
    registered()
    made = model(inputs=8)
    made.graph.node[0].input.append("")
    error(path, made)


def main(path="webgpu_conv.onnx"):
    """Prints one line for each Conv."""
    process = multiprocessing.get_context("spawn").Process(target=without_bias, args=[path])
    process.start()
    process.join()
    print(f"8 channels, an empty name for the bias: the process ends with {process.exitcode}")
    registered()
    for inputs in (3, 5, 6, 7, 8, 9, 12, 15):
        print(f"{inputs} channels, 4 outputs, kernel 3x3: {error(path, model(inputs=inputs)):.1e}")
    for outputs in (3, 6, 8):
        print(f"6 channels, {outputs} outputs, kernel 3x3: {error(path, model(outputs=outputs)):.1e}")
    for kernel in ((1, 1), (1, 2), (2, 2), (3,)):
        print(f"6 channels, 4 outputs, kernel {'x'.join(map(str, kernel))}: {error(path, model(kernel=kernel)):.1e}")
    for groups, inputs, outputs in ((2, 6, 4), (2, 3, 2), (2, 1, 5), (2, 2, 7), (4, 3, 6), (2, 4, 8), (2, 2, 4)):
        words = f"{groups} groups of {inputs} channels and {outputs} outputs, kernel 3x3"
        print(f"{words}: {error(path, model(groups, inputs, outputs)):.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
