"""Makes float16 models that overflow, and shows where ONNX Runtime's WebGPU provider makes finite numbers of that.

python webgpu_nan.py [FILE]    # needs onnx, onnxruntime and onnxruntime-ep-webgpu, and a GPU or a software driver
"""

import os
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, save

os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
LAST = {
    "Relu": [],
    "Clip": [0.0, 6.0],
    "HardSigmoid": [],
    "Softmax": [],
    "Max": [0.0],
    "Sigmoid": [],
    "Tanh": [],
    "LayerNormalization": [[1.0] * 4],
}


def model(last, floats):
    """y = last(x * x - x * x): 300 * 300 is infinite in float16, and infinite less infinite is NaN."""
    given = [f"c{place}" for place in range(len(LAST[last]))]
    constants = [
        helper.make_tensor(name, floats, np.shape(value), np.ravel(value))
        for name, value in zip(given, LAST[last], strict=True)
    ]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Sub", ["square", "square"], ["nothing"]),
        helper.make_node(last, ["nothing", *given], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, floats, [1, 4]) for name in "xy")
    graph = helper.make_graph(nodes, "nan", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(path="webgpu_nan.onnx"):
    """Prints one line for each operator and type: what WebGPU gives, and the CPU, which has float32 kernels alone."""
    import onnxruntime_ep_webgpu as webgpu

    ort.register_execution_provider_library("webgpu", webgpu.get_library_path())
    options = ort.SessionOptions()
    options.add_provider_for_devices([d for d in ort.get_ep_devices() if "WebGpu" in d.ep_name][:1], {})
    for last in LAST:
        save(model(last, TensorProto.FLOAT16), path)
        (low,) = ort.InferenceSession(path, options).run(None, {"x": np.float16([[300, 1, 2, 3]])})
        save(model(last, TensorProto.FLOAT), path)
        feeds = {"x": np.float32([[1e20, 1, 2, 3]])}
        (found,) = ort.InferenceSession(path, options).run(None, feeds)
        (wanted,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
        said = {"WebGPU float16": low, "WebGPU float32": found, "CPU float32": wanted}
        print(f"{last}: " + ", ".join(f"{name} {value[0].tolist()}" for name, value in said.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
