"""What TensorFlow's auto_mixed_precision makes of random graphs, as `tensorflow.json`.

    FOLDER/tensorflow/bin/python -m oracles.tensorflow_answers write|check [RUN ...]    or new START STOP: printed

In tests; environments.sh makes FOLDER. The rewrite reads a cluster, not the machine, so a virtual GPU in it is enough.
It asks the registry of the wheel for GPU kernels, so the wheel must be `tensorflow`: tensorflow-cpu has none, and gives
other answers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.grappler import cluster as clusters
from tensorflow.python.grappler import tf_optimizer

from oracles.random_graphs import tensorflow_graph

ANSWERS = Path(__file__).with_name("tensorflow.json")
PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
OTHERS = """layout_optimizer constant_folding shape_optimization remapping common_subgraph_elimination
arithmetic_optimization dependency_optimization loop_optimization function_optimization debug_stripper
scoped_allocator_optimization pin_to_host_optimization implementation_selector use_plugin_optimizers"""
MODES = {"float16": "auto_mixed_precision", "bfloat16": "auto_mixed_precision_onednn_bfloat16"}
EDITS = {
    "ALLOWLIST_ADD": "Tanh",
    "INFERLIST_REMOVE": "Sigmoid,Mul,Tanh",
    "DENYLIST_ADD": "Relu,Sigmoid",
    "CLEARLIST_ADD": "Sin",
    "CLEARLIST_REMOVE": "Relu",
}
RUNS = {
    "auto": ("float16", {}, range(300)),
    "O1": ("float16", {"LEVEL": "TENSOR_CORES_ONLY"}, range(60)),
    "O2": ("float16", {"LEVEL": "TREAT_INFER_AS_DENY"}, range(60)),
    "O3": ("float16", {"LEVEL": "UNSAFE_FORCE_ALL"}, range(60)),
    "lists": ("float16", EDITS, range(60)),
    "bfloat16": ("bfloat16", {}, range(100)),
}
"""By name: low type, environment, seeds."""

R = tf.raw_ops
UNARY = """Relu:features Tanh:x Sigmoid:x Exp:x Softmax:logits LogSoftmax:logits Identity:input Sqrt:x Sin:x Erf:x Abs:x
Elu:features Softplus:features Floor:x Log:x Neg:x Sign:x Round:x Ceil:x LeakyRelu:features Selu:features
Softsign:features Reciprocal:x"""
BINARY = "Add:AddV2 Mul:Mul Sub:Sub Div:RealDiv Max:Maximum Min:Minimum Pow:Pow Greater:Greater"
REDUCTIONS = "ReduceMean:Mean ReduceSum:Sum ReduceMax:Max ReduceMin:Min"


def _pairs(text):
    return [pair.split(":") for pair in text.split()]


def _named(operator, *arguments):
    """What makes an operator's node of (name, operands, weights): the operands by these names."""
    return lambda n, o, w: operator(**dict(zip(arguments, o, strict=True)), name=n)


def _reduction(operator):
    return lambda n, o, w: operator(input=o[0], axis=[1], keep_dims=True, name=n)


def _shaped(shape):
    return lambda n, o, w: R.Reshape(tensor=o[0], shape=shape, name=n)


def _make_nodes():
    """Kind -> what makes its node of (name, operands, weights)."""
    made = {kind: _named(getattr(R, kind), argument) for kind, argument in _pairs(UNARY)}
    made.update({kind: _named(getattr(R, name), "x", "y") for kind, name in _pairs(BINARY)})
    made.update({kind: _reduction(getattr(R, name)) for kind, name in _pairs(REDUCTIONS)})
    made["Reshape"] = made["ToMatrix"] = _shaped((8, 8))
    made["ToImage"] = _shaped((1, 8, 8, 1))
    window = {"ksize": [1, 1, 1, 1], "strides": [1, 1, 1, 1], "padding": "VALID", "data_format": "NCHW"}
    made["MaxPool"] = lambda n, o, w: R.MaxPool(input=o[0], **window, name=n)
    made["AveragePool"] = lambda n, o, w: R.AvgPool(value=o[0], **window, name=n)
    made["Conv"] = lambda n, o, w: R.Conv2D(
        input=o[0], filter=w[0], strides=[1, 1, 1, 1], padding="VALID", data_format="NCHW", name=n
    )
    made["BatchNormalization"] = lambda n, o, w: R.FusedBatchNormV3(
        x=o[0], scale=w[0], offset=w[1], mean=w[2], variance=w[3], is_training=False, data_format="NCHW", name=n
    )[0]
    made["Transpose"] = lambda n, o, w: R.Transpose(x=o[0], perm=[1, 0], name=n)
    made["CumSum"] = lambda n, o, w: R.Cumsum(x=o[0], axis=0, name=n)
    made["Gather"] = lambda n, o, w: R.GatherV2(params=o[0], indices=list(range(8)), axis=0, name=n)
    made["Tile"] = lambda n, o, w: R.Tile(input=o[0], multiples=[1, 1], name=n)
    made["Unsqueeze"] = lambda n, o, w: R.ExpandDims(input=o[0], axis=0, name=n)
    made["Squeeze"] = lambda n, o, w: R.Squeeze(input=o[0], axis=[0], name=n)
    made["Split"] = lambda n, o, w: R.Split(axis=0, value=o[0], num_split=2, name=n)
    made["Concat"] = lambda n, o, w: R.ConcatV2(values=list(o), axis=0, name=n)
    made["Slice"] = lambda n, o, w: R.Slice(input=o[0], begin=[0, 0], size=[8, 8], name=n)
    made["Where"] = lambda n, o, w: R.SelectV2(condition=o[0], t=o[1], e=o[2], name=n)
    made["Sum"] = lambda n, o, w: R.AddN(inputs=list(o), name=n)
    made["ToInt"] = lambda n, o, w: R.Cast(x=o[0], DstT=tf.int32, name=n)
    made["ToFloat"] = lambda n, o, w: R.Cast(x=o[0], DstT=tf.float32, name=n)
    made["ArgMax"] = lambda n, o, w: R.ArgMax(input=o[0], dimension=0, name=n)
    made["BiasAdd"] = lambda n, o, w: R.BiasAdd(value=o[0], bias=w[0], name=n)
    made["Clip"] = lambda n, o, w: R.ClipByValue(t=o[0], clip_value_min=w[0], clip_value_max=w[1], name=n)
    made["MatMul"] = lambda n, o, w: R.MatMul(a=o[0], b=[*o, *w][1], name=n)
    made["Einsum"] = lambda n, o, w: R.Einsum(inputs=[o[0], w[0]], equation="ij,jk->ik", name=n)
    return made


NODES = _make_nodes()


def graph_def(seed, low):
    """The graph of a seed, and what is fetched."""
    steps, outputs = tensorflow_graph(seed, low)
    with tf.Graph().as_default() as made:
        known = {name: tf.compat.v1.placeholder(tf.float32, (8, 8), name=name) for name in ("x", "y")}
        for number, step in enumerate(steps):
            weights = [
                tf.constant(np.full(shape[2:] + shape[:2], 0.5, "f4"), name=f"w{number}_{place}")  # filters are HWIO
                for place, shape in enumerate(step.weights)
            ]
            result = NODES[step.kind](f"n{number}", [known[name] for name in step.operands], weights)
            for port, value in enumerate(result if isinstance(result, (list, tuple)) else [result]):
                known[f"n{number}:{port}"] = value
                known.setdefault(f"n{number}", value)
        fetched = [R.Identity(input=known[name], name=f"out{place}").op.name for place, name in enumerate(outputs)]
    return made.as_graph_def(), fetched


def _virtual_gpu():
    device = device_properties_pb2.NamedDevice()
    device.name = "/job:localhost/replica:0/task:0/device:GPU:0"
    facts = device.properties
    facts.type, facts.vendor, facts.num_cores, facts.frequency = "GPU", "NVIDIA", 80, 1500
    facts.bandwidth, facts.memory_size = 10**6, 1 << 34
    facts.environment["architecture"] = "8.0"  # the pass skips everything below 7.0
    facts.environment["cuda"], facts.environment["cudnn"] = "12020", "8900"  # the lists depend on them
    return device


def rewritten(definition, fetched, low, environment):
    """The graph after the rewrite, with all others off."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(definition)
    meta.collection_def["train_op"].node_list.value.extend(fetched)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    for name in OTHERS.split():
        setattr(options, name, rewriter_config_pb2.RewriterConfig.OFF)
    options.disable_model_pruning, options.min_graph_nodes = True, -1
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    setattr(options, MODES[low], rewriter_config_pb2.RewriterConfig.ON)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ.update({PREFIX + name: value for name, value in environment.items()})
    cluster = clusters.Cluster(devices=[_virtual_gpu()] if low == "float16" else None)
    try:
        return tf_optimizer.OptimizeGraph(config, meta, verbose=False, cluster=cluster)
    finally:
        cluster.Shutdown()


def answer(seed, low, environment):
    """``n`` and the numbers of low nodes, then a sign and what is cast: ``-`` to low, ``+`` to float32."""
    definition, fetched = graph_def(seed, low)
    result = rewritten(definition, fetched, low, environment)
    kind, old = tf.dtypes.as_dtype(low).as_datatype_enum, {node.name for node in definition.node}
    nodes = {node.name: node for node in result.node}
    low_nodes, casts = [], set()
    for name, node in nodes.items():
        if name in old and any(node.attr[key].type == kind for key in ("T", "SrcT", "DstT", "Tparams")):
            low_nodes.append(name)
        elif name not in old and node.op == "Cast":
            source = node.input[0] if node.input[0].partition(":")[0] in old else ""
            casts.add(("-" if node.attr["DstT"].type == kind else "+") + source)
    steps = sorted(int(name[1:]) for name in low_nodes if name.startswith("n"))
    return " ".join([",".join(map(str, steps)), *sorted(casts)])


def run_answers(name, others=()):
    """A run anew, or of other seeds."""
    low, environment, seeds = RUNS[name]
    seeds = others or seeds
    answers = [answer(seed, low, environment) for seed in seeds]
    return {"dtype": low, "environment": environment, "answers": answers}


def main():
    if sys.argv[1] == "new":
        print(json.dumps({name: run_answers(name, range(*map(int, sys.argv[2:])))["answers"] for name in RUNS}))
        return
    found = json.loads(ANSWERS.read_text())["runs"] if ANSWERS.exists() else {}
    made = {name: run_answers(name) for name in sys.argv[2:] or RUNS}
    if sys.argv[1] == "check":
        sys.exit(", ".join(name for name in made if made[name] != found[name]) or 0)
    ANSWERS.write_text(json.dumps({"version": tf.__version__, "runs": {**found, **made}}, indent=0) + "\n")


if __name__ == "__main__":
    main()
