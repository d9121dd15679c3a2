"""Models that measure size: `deep` has as many small nodes as asked for, `big` has 2.68 GB of external weights.

python benchmarks/synthetic.py OUT [--nodes 2000 20000 100000] [--big]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, ROWS, OPSET, IR_VERSION = 32, 8, 18, 10
NODES_PER_LAYER = 11
BIG_WIDTH, BIG_HIDDEN, BIG_LAYERS = 4096, 16384, 5


def deep_layer(layer: int, x: str) -> tuple[list[onnx.NodeProto], str]:
    """Eleven nodes: norm, two MatMuls, a gated Tanh, two Transposes, a residual, and Relu or a halving."""
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, name: str, *inputs: str, **attributes: object) -> str:
        output = f"layer{layer}/{name}"
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    h = add("LayerNormalization", "norm", x, "gain", "shift", axis=-1)
    h = add("MatMul", "up", h, f"up{layer}")
    h = add("Add", "bias", h, f"bias{layer}")
    h = add("Tanh", "tanh", h)
    gate = add("Softmax", "gate", h, axis=-1)
    h = add("Mul", "gated", h, gate)
    h = add("MatMul", "down", h, f"down{layer}")
    h = add("Transpose", "turn", h, perm=[1, 0])
    h = add("Transpose", "back", h, perm=[1, 0])
    h = add("Add", "residual", h, x)
    h = add("Mul", "out", h, "half") if layer % 2 else add("Relu", "out", h)
    return nodes, h


def deep(path: Path, nodes: int) -> int:
    """Write a chain of whole layers with at least `nodes` nodes, and its inputs; return how many nodes it has."""
    rng = np.random.default_rng(0)
    layers = -(-nodes // NODES_PER_LAYER)
    constants = {"gain": np.ones(WIDTH), "shift": np.zeros(WIDTH), "half": np.array(0.5)}
    chain: list[onnx.NodeProto] = []
    x = "x"
    for layer in range(layers):
        for name in ("up", "down"):
            constants[f"{name}{layer}"] = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
        constants[f"bias{layer}"] = 0.1 * rng.standard_normal(WIDTH)
        more, x = deep_layer(layer, x)
        chain += more
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()]
    save(path, chain, weights, x, [ROWS, WIDTH])
    return len(chain)


def big(path: Path, width: int = BIG_WIDTH, hidden: int = BIG_HIDDEN, layers: int = BIG_LAYERS) -> int:
    """Write feed-forward layers whose weights lie in PATH.data, and its inputs; return the bytes of weights."""
    rng = np.random.default_rng(0)
    chain: list[onnx.NodeProto] = []
    gain, shift = np.ones(width, np.float32), np.zeros(width, np.float32)
    weights = [numpy_helper.from_array(gain, "gain"), numpy_helper.from_array(shift, "shift")]
    x, offset = "x", 0
    with path.with_name(path.name + ".data").open("wb") as sink:
        for layer in range(layers):
            for name, shape, scale in (("up", (width, hidden), 1 / 64), ("down", (hidden, width), 1 / 128)):
                data = rng.standard_normal(shape, dtype=np.float32)
                data *= np.float32(scale)
                weights.append(external(f"{name}{layer}", shape, path.name + ".data", offset, data.nbytes))
                sink.write(data.data)
                offset += data.nbytes
            steps = [("LayerNormalization", "norm", [x, "gain", "shift"]), ("MatMul", "a", ["norm", f"up{layer}"])]
            steps += [("Relu", "b", ["a"]), ("MatMul", "c", ["b", f"down{layer}"]), ("Add", "out", ["c", x])]
            for kind, output, inputs in steps:
                local = [f"layer{layer}/{i}" if i in {"norm", "a", "b", "c"} else i for i in inputs]
                name = f"layer{layer}/{output}"
                chain.append(helper.make_node(kind, local, [name], name=name))
            x = f"layer{layer}/out"
    save(path, chain, weights, x, [4, width])
    return offset


def external(name: str, shape: tuple[int, ...], location: str, offset: int, length: int) -> TensorProto:
    """A float32 initializer whose bytes lie in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(path: Path, nodes: list[onnx.NodeProto], weights: list[TensorProto], output: str, shape: list[int]) -> None:
    """Check and write the model, and one input beside it."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", output)]
    graph = helper.make_graph(nodes, path.stem, ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.save(model, str(path))
    onnx.checker.check_model(str(path))
    np.savez(path.with_suffix(".npz"), x=np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def main() -> None:
    """Write the models that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, nargs="*", default=[20_000], help="a deep model for each number")
    parser.add_argument("--big", action="store_true", help="also the 2.68 GB model")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for nodes in args.nodes:
        print(f"deep{nodes}: {deep(args.out / f'deep{nodes}.onnx', nodes):,} nodes")
    if args.big:
        print(f"big: {big(args.out / 'big.onnx'):,} bytes of weights")


if __name__ == "__main__":
    main()
