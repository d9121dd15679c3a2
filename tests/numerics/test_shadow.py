"""Local errors against a naive oracle, node by node; masks, overflows, bodies, functions; errors of a chained run."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.numerics.tune.shadow import GrownErrors, LocalErrors
from hard_models import HARD_MODELS

pytest.importorskip("onnxruntime")
LOW = {TensorProto.FLOAT16: np.float16}
FLOAT = TensorProto.FLOAT


def model(nodes, inputs, outputs, weights=(), functions=(), domains=()):
    """Inputs and outputs by name and shape; weights by name and array."""
    stored = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in dict(weights).items()]
    ports = [[helper.make_tensor_value_info(n, FLOAT, s) for n, s in d.items()] for d in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ports, stored)
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))
    return onnx.shape_inference.infer_shapes(made)


def block(rng):
    """Products, a softmax, a norm, a GELU and a residual."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["q"], name="q"),
        node("Softmax", ["q"], ["p"], name="p"),
        node("MatMul", ["p", "w2"], ["v"], name="v"),
        node("Gelu", ["v"], ["g"], name="g"),
        node("Add", ["g", "x"], ["r"], name="r"),
        node("LayerNormalization", ["r", "s", "b"], ["n"], name="n"),
        node("Reshape", ["n", "shape"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w3", "b3"], ["y"], name="y"),
    ]
    sizes = {"w1": (16, 16), "w2": (16, 16), "s": (16,), "b": (16,), "w3": (16, 5), "b3": (5,)}
    weights = {name: rng.standard_normal(shape) for name, shape in sizes.items()}
    made = model(nodes, {"x": (4, 16)}, {"y": (4, 5)}, weights)
    made.graph.initializer.append(numpy_helper.from_array(np.array([4, 16]), "shape"))
    return made


def all_values(proto, feeds):
    """Every value of a float32 model, by onnx's evaluator."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    names = [name for node in proto.graph.node for name in node.output if name]
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = dict(zip(names, ReferenceEvaluator(whole).run(names, feeds), strict=True))
    return values | dict(feeds) | {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}


def oracle(reference, low, feeds):
    """Node by node: the reference's values, rounded as the low model reads them, one node, its result rounded."""
    values = all_values(reference, feeds)
    typed = onnx.shape_inference.infer_shapes(low)
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*typed.graph.value_info, *typed.graph.output)}
    kinds |= {i.name: i.data_type for i in low.graph.initializer}
    stored = {i.name: numpy_helper.to_array(i) for i in low.graph.initializer}
    casts = {node.output[0]: node.input[0] for node in low.graph.node if node.op_type == "Cast"}

    def read(name):
        if name in stored:
            return stored[name]
        value = values[name] if name in values else read(casts[name])
        return value.astype(LOW[kinds[name]]) if kinds.get(name) in LOW else value

    names = {}  # what the low model calls a value whose Cast has taken the name
    for output, source in casts.items():
        if output in values and source not in values:
            names[source] = output
    found = {}
    for node in low.graph.node:
        used = [*node.input, *node.output]
        if node.op_type == "Cast" or not any(kinds.get(name) in LOW for name in used):
            continue
        given = {name: read(name) for name in node.input if name}
        given = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in given.items()}
        ports = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None) for n, a in given.items()
        ]
        outs = [onnx.ValueInfoProto(name=name) for name in node.output]
        single = helper.make_model(helper.make_graph([node], "one", ports, outs), opset_imports=low.opset_import)
        for name, result in zip(node.output, ReferenceEvaluator(single).run(None, given), strict=True):
            want = values[names.get(name, name)].astype(np.float64)
            got = result.astype(LOW.get(kinds.get(name), np.float32)).astype(np.float64)
            found[names.get(name, name)] = np.linalg.norm(got - want) / np.linalg.norm(want)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_each_low_node_has_the_error_that_the_oracle_gives_it(seed, level):
    rng = np.random.default_rng(seed)
    reference = block(rng)
    low = ampgraph.convert(reference, level)
    feeds = {"x": rng.standard_normal((4, 16)).astype(np.float32)}
    wanted = oracle(reference, low, feeds)
    found = LocalErrors(reference, low).run(feeds)
    assert set(found) == set(wanted) and {"q", "v", "y"} <= set(found)
    for name, error in wanted.items():
        assert found[name] == pytest.approx(error, rel=0.05), name  # another order of summing flips a rounding or two


def test_a_node_that_overflows_is_infinite_and_its_neighbours_are_not():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["big"], name="big"),
        helper.make_node("Tanh", ["x"], ["t"], name="t"),
        helper.make_node("MatMul", ["t", "w"], ["small"], name="small"),
        helper.make_node("Mul", ["big", "half"], ["m"], name="m"),
        helper.make_node("Add", ["m", "small"], ["y"], name="y"),
    ]
    weights = {"w": np.eye(4) * 10, "half": np.float32(1e-4)}
    reference = model(nodes, {"x": (2, 4)}, {"y": (2, 4)}, weights)
    low = ampgraph.convert(reference, "O3")
    found = LocalErrors(reference, low).run({"x": np.full((2, 4), 1e4, np.float32)})
    assert found["big"] == found["m"] == np.inf
    assert found["t"] < 1e-3 and found["small"] < 1e-3 and found["y"] < 1e-2


def test_a_node_that_vanishes_has_lost_all():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["tiny"], name="tiny")]
    nodes.append(helper.make_node("MatMul", ["tiny", "w"], ["y"], name="y"))
    reference = model(nodes, {"x": (2, 4)}, {"y": (2, 4)}, {"w": np.eye(4) * 1e-3})
    low = ampgraph.convert(reference, "O2")
    assert LocalErrors(reference, low).run({"x": np.full((2, 4), 1e-6, np.float32)})["tiny"] == 1.0


@pytest.mark.parametrize("lowest", [-1e9, -3.4028234663852886e38, -np.inf])
def test_masks_are_no_errors(lowest):
    """Masks that are floored, or infinite: a row of them, added and chosen."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], name="scores"),
        helper.make_node("Add", ["scores", "mask"], ["masked"], name="masked"),
        helper.make_node("Softmax", ["masked"], ["p"], name="p"),
        helper.make_node("MatMul", ["p", "w"], ["y"], name="y"),
    ]
    mask = np.where(np.tri(4), 0, lowest)
    reference = model(nodes, {"x": (4, 4)}, {"y": (4, 4)}, {"w": np.eye(4), "mask": mask})
    low = ampgraph.convert(reference, "O3")
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)}
    for found in (LocalErrors(reference, low).run(feeds), GrownErrors(reference, low).run(feeds)):
        assert {"scores", "masked", "p"} <= set(found)
        assert max(found.values()) < 2e-3


def test_a_control_flow_node_is_computed_whole():
    hard = HARD_MODELS["lstm"]
    reference = hard.build()
    found = LocalErrors(reference, ampgraph.convert(reference, "O2")).run(hard.feeds(1)[0])
    (chosen,) = (node.output[0] for node in reference.graph.node if node.op_type == "If")
    assert 1e-5 < found[chosen] < 5e-3


def test_a_function_is_looked_into():
    body = [
        helper.make_node("MatMul", ["a", "b"], ["c"], name="inner"),
        helper.make_node("Tanh", ["c"], ["d"], name="t"),
    ]
    function = helper.make_function("my", "Cell", ["a", "b"], ["d"], body, [helper.make_opsetid("", 20)])
    nodes = [helper.make_node("Cell", ["x", "w"], ["h"], domain="my", name="one")]
    nodes.append(helper.make_node("Cell", ["h", "w"], ["y"], domain="my", name="two"))
    reference = model(nodes, {"x": (2, 4)}, {"y": (2, 4)}, {"w": np.eye(4) * 0.3}, [function], ["my"])
    low = ampgraph.convert(reference, "O2")
    found = LocalErrors(reference, low).run({"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)})
    assert len(found) == 4 and all(1e-6 < error < 1e-3 for error in found.values())


@pytest.mark.parametrize("name", ["llama", "vit", "lstm", "detector"])
def test_a_chained_run_ends_with_the_error_of_the_strict_run(name):
    hard = HARD_MODELS[name]
    reference, feeds = hard.build(), hard.feeds(1)[0]
    low = ampgraph.convert(reference, "O2")
    want, got = StrictSession(reference).run(feeds), StrictSession(low).run(feeds)
    found = GrownErrors(reference, low).run(feeds)
    for output, value in want.items():
        error = np.linalg.norm(got[output] - value) / np.linalg.norm(value)
        assert found[output] == pytest.approx(error, rel=0.02)


def test_models_of_two_opsets_are_refused():
    reference = block(np.random.default_rng(0))
    with pytest.raises(ampgraph.AmpError, match="AMP208.*opset"):
        LocalErrors(reference, ampgraph.convert(reference, "O2", opset=21))


MEMORY = """
import pathlib, re, sys
import subprocess
import sys

import numpy as np
import ampgraph
from onnx import TensorProto, helper, numpy_helper
from ampgraph.numerics.tune.shadow import GrownErrors, LocalErrors
from ampgraph.numerics.strict.session import StrictSession

names = ["x", *(f"v{i}" for i in range(200))]
nodes = [helper.make_node(("Add", "Mul")[i % 2], [a, "w"], [b]) for i, (a, b) in enumerate(zip(names, names[1:]))]
nodes.append(helper.make_node("ReduceMax", [names[-1]], ["y"], keepdims=0))
ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [512, 512]), ("y", []))]
weight = numpy_helper.from_array(np.array([1.0], np.float32), "w")
graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
low = ampgraph.convert(model, "O3")
feeds = {"x": np.zeros((512, 512), np.float32)}
session = {"strict": StrictSession, "local": LocalErrors, "grown": GrownErrors}[sys.argv[1]]
session = session(low) if sys.argv[1] == "strict" else session(model, low)
found = session.run(feeds)
assert sys.argv[1] == "strict" or len(found) >= 200
# Of this process alone: getrusage counts what the process had that started it.
print(int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read there")
def test_a_measuring_run_takes_little_more_memory_than_a_strict_run():
    """200 values of 1 MB, of which a run needs few at a time; peaks of a process each."""
    peaks = {}
    for kind in ("strict", "local", "grown"):
        done = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        peaks[kind] = int(done.stdout)
    assert max(peaks["local"], peaks["grown"]) < peaks["strict"] + 60, peaks
