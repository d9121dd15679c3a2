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


def attention(opset, said=False, scaled=True):
    """y = MatMul(Transpose(Reshape(x)) / c, Transpose(Reshape(x))) in float16, by sizes that are an input; ``said``:
    value_info gives the Reshapes' results three dimensions."""
    nodes = [helper.make_node("Reshape", ["x", "sizes"], [name]) for name in ("q", "k")]
    nodes += [
        helper.make_node("Transpose", ["q"], ["qt"], perm=(1, 0, 2)),
        helper.make_node("Div", ["qt", "two"], ["scaled"]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=(1, 2, 0)),
        helper.make_node("MatMul", ["scaled" if scaled else "qt", "kt"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["a", "b", 8]),
        helper.make_tensor_value_info("sizes", TensorProto.INT64, [3]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [None] * 3)]
    two = [helper.make_tensor("two", TensorProto.FLOAT16, [], [2.0])]
    graph = helper.make_graph(nodes if scaled else [*nodes[:3], *nodes[4:]], "attention", inputs, outputs, two)
    if said:
        graph.value_info.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT16, [None] * 3) for name in ("q", "k")
        )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


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
        "int64, perm (1, 2, 0, 3), other operand of 3 dimensions": model((1, 2, 0, 3), columns=(1, 8, 4)),
        "int64, perm (1, 2, 0, 3), other operand of 4 dimensions": model((1, 2, 0, 3), columns=(1, 1, 8, 4)),
        "attention, opset 13": attention(13),
        "attention, opset 13, ranks said": attention(13, said=True),
        "attention, opset 13, without the scale": attention(13, scaled=False),
        "attention, opset 17": attention(17),
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
