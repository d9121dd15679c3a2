"""Makes the smallest model on which ONNX Runtime crashes as it opens it, and tries variants and options.

python transpose_cast_matmul.py [FILE]      # needs onnx and onnxruntime; each session has a process of its own
"""

import subprocess
import sys

from onnx import TensorProto, helper, save

OPEN = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
if sys.argv[2]:
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, sys.argv[2])
onnxruntime.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"], disabled_optimizers=sys.argv[3:])
"""


def model(perm=(1, 0, 2), given=TensorProto.INT64, columns=(8, 4)):
    """y = MatMul(Cast(Transpose(x)), w)"""
    shape = [2, 3, 4, 5][: len(perm) - 1] + [8]
    shape = [shape[perm.index(axis)] for axis in range(len(perm))]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node("Cast", ["t"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", given, shape),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, columns),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * max(len(perm), len(columns)))]
    graph = helper.make_graph(nodes, "transpose_cast_matmul", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def opened(path, level="", *disabled):
    """How a session ends that opens a file."""
    code = subprocess.run([sys.executable, "-c", OPEN, path, level, *disabled], capture_output=True).returncode
    return "opens" if code == 0 else f"dies of signal {-code}" if code < 0 else "is refused"


def main(path="transpose_cast_matmul.onnx"):
    """Prints one line for each variant of the model and of the options."""
    for name, made in {
        "int64, perm (1, 2, 0)": model((1, 2, 0)),
        "int64, perm (1, 2, 0, 3)": model((1, 2, 0, 3)),
        "int64, perm (0, 2, 1)": model((0, 2, 1)),
        "int64, other operand of 3 dimensions": model(columns=(1, 8, 4)),
        "float16": model(given=TensorProto.FLOAT16),
        "bfloat16": model(given=TensorProto.BFLOAT16),
        "double": model(given=TensorProto.DOUBLE),
        "float, so that there is nothing to cast": model(given=TensorProto.FLOAT),
        "int64, perm (1, 0, 2)": model(),
    }.items():
        save(made, path)
        print(f"{name}: {opened(path)}")
    for level in ("ORT_ENABLE_ALL", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"):
        print(f"the last one, {level}: {opened(path, level)}")
    for name in ("MatmulTransposeFusion", "NchwcTransformer", "NhwcTransformer", "TransposeOptimizer"):
        print(f"the last one, without {name}: {opened(path, '', name)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
