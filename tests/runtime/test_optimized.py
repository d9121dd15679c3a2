"""The graph that a runtime would run: how it is asked for, and how it is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.report.fusions import TargetGraph, fused_operators
from ampgraph.runtime.optimized import name_nodes, placements, read_optimized
from ampgraph.runtime.optimizing import NotOptimized, optimized
from onnx_text import parse

LOG = """
2026 [V:onnxruntime:, session_state.cc:1584 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on [CPUExecutionProvider]. Number of nodes: 2
2026 [V:onnxruntime:, session_state.cc:1586 VerifyEachNodeIsAssignedToAnEp]   Add (a node (of mine))
2026 [V:onnxruntime:, session_state.cc:1586 VerifyEachNodeIsAssignedToAnEp]   Mul ()
2026 [V:onnxruntime:, session_state.cc:1584 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 1
2026 [V:onnxruntime:, session_state.cc:1586 VerifyEachNodeIsAssignedToAnEp]   Mul ()
2026 [V:onnxruntime:, allocation_planner.cc:1 Plan] Mul (not placed here)
"""  # noqa: E501
NORM = """g (float[2, 8] x) => (float[2, 8] y) <float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] shift =
    {1, 2, 3, 4, 5, 6, 7, 8}, float two = {2}, float eps = {0.00001}>
{ a = Relu(x) m = ReduceMean<axes = [-1]>(a) d = Sub(a, m) q = Pow(d, two) v = ReduceMean<axes = [-1]>(q)
  e = Add(v, eps) s = Sqrt(e) n = Div(d, s) w = Mul(n, scale) y = Add(w, shift) }"""


def test_what_the_log_and_the_graph_tell():
    assert placements(LOG) == {("Add", "a node (of mine)"): "CPU", ("Mul", ""): "?"}
    assert placements("AssignedToAnEp]  All nodes placed on [CPUExecutionProvider]. Number") == {("", ""): "CPU"}
    # every node gets a name of its own bodies included
    body = "g (float[1] x, bool c) => (float[1] y) { y = If (c) <then_branch = a () => (float[1] p) { p = Relu(x) }, "
    proto = parse(body + "else_branch = b () => (float[1] q) { q = Relu(x) }> }")
    name_nodes(proto.graph)
    (node,) = proto.graph.node
    names = [node.name, *(inner.name for a in node.attribute for inner in a.g.node)]
    assert len(set(names)) == 3 and all(names)
    # types casts and copies are read
    after = parse("""g (float[2] x) => (float16[2] y) <float16[2] h>
        { h = Cast<to = 10>(x) k = MemcpyFromHost(h) y = Add(k, h) }""")
    found = read_optimized(after, after, "AssignedToAnEp]  All nodes placed on [CUDAExecutionProvider].")
    assert [node.dtype for node in found.nodes] == ["float32->float16", "float16", "float16"]
    assert found.copied() == {"MemcpyFromHost": 1} and found.cast() == {"float32->float16": 1}
    assert found.providers() == {"CUDA": 3} and not found.fused()
    # types that the runtime does not write follow from the operators
    after = parse("""g (float[2] x, int64[1] n) => (float16[2] y) {
        a = com.microsoft.Gelu(x) b = Expand(a, n) c = Softmax(b) h = Cast<to = 10>(c)
        s = Shape(h) f = Cast<to = 1>(s) k = Cast<to = 10>(f) w = Less(k, h) v = Cast<to = 10>(w) y = Add(h, v) }""")
    found = read_optimized(after, after, "AssignedToAnEp]  All nodes placed on [CUDAExecutionProvider].")
    told = [node.dtype for node in found.nodes if node.kind == "Cast"]
    assert told == ["float32->float16", "float32", "float32->float16", "float16"]
    assert found.cast() == {"float32->float16": 2}


@pytest.fixture(scope="module")
def norm(tmp_path_factory) -> Path:
    """A decomposed LayerNormalization whose scale lies in another file."""
    path = tmp_path_factory.mktemp("norm") / "norm.onnx"
    proto = parse(NORM, opset=13)
    onnx.save(proto, path, save_as_external_data=True, location="norm.data", size_threshold=0)
    return path


def test_sessions_in_processes(norm):
    found = optimized(norm, "CPUExecutionProvider")
    assert found.fused() == {"LayerNormalization": 1} and found.providers() == {"CPU": 2}
    assert found.runtime.startswith("ONNX Runtime 1.")
    graph = TargetGraph.of(found)
    assert graph.rows() == {("nodes", ""): 2, ("run by", "CPU"): 2, ("fused", "LayerNormalization"): 1}
    # a fused node knows what it computes
    relu, fused = optimized(norm, "CPUExecutionProvider").nodes
    assert relu.computes == ("a",) and set(fused.computes) == {*"mdqvesnwy"}
    # a provider that is not here is no fault of the model
    with pytest.raises(NotOptimized, match="no NoSuchExecutionProvider here") as caught:
        optimized(norm, "NoSuchExecutionProvider")
    assert caught.value.elsewhere
    told = fused_operators(str(norm), None, "NoSuchExecutionProvider")
    assert told.after is None and "--runtime PYTHON" in told.note


def test_kernels_are_known():
    """It gives what a node makes another name, and the first one to its Cast; a Relu is part of a Conv."""
    before = parse(
        "g (float16[2] x) => (float16[2] z) { [one] y = Add(x, x) [two] c = Conv(y, y) [three] z = Relu(c) }"
    )
    after = parse("""g (float16[2] x) => (float16[2] z) {
        [in] a = Cast<to = 1>(x) [one] b = Add(a, a) [out] y = Cast<to = 10>(b) [two] z = Conv(y, y) }""")
    for proto in (before, after):
        name_nodes(proto.graph)
    found = read_optimized(before, after, "")
    assert [node.computes for node in found.nodes] == [(), ("y",), (), ("z", "c")]
    # A product and an Add over three axes become a Gemm between two Reshapes; one Reshape was in the file.
    before = parse("""g (float[2,3,4] x) => (float[2,3,4] z) <float[4,4] w, float[4] b, int64[3] s>
        { [one] y = MatMul(x, w) [two] a = Add(y, b) [three] z = Reshape(a, s) }""")
    after = parse("""g (float[2,3,4] x) => (float[2,3,4] z) <float[4,4] w, float[4] b, int64[3] s, int64[2] t>
        { [in] r = Reshape(x, t) [new] g = Gemm(r, w, b) [out] z = Reshape(g, s) }""")
    found = read_optimized(before, after, "")
    assert [(node.kind, node.computes) for node in found.nodes] == [
        ("Reshape", ()), ("Gemm", ("z", "a", "y")), ("Reshape", ()),
    ]  # fmt: skip


def test_a_model_that_is_refused_is_named(tmp_path):
    (tmp_path / "m.onnx").write_bytes(
        parse("g (float[2] x) => (float[2] y) { y = NoSuchThing(x) }").SerializeToString()
    )
    told = fused_operators(str(tmp_path / "m.onnx"), None, "CPUExecutionProvider")
    assert told.after is None and "does not take m.onnx: ONNX Runtime 1." in told.note and "NoSuchThing" in told.note


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_runtime_that_dies_is_told_in_words(norm, tmp_path):
    with pytest.raises(NotOptimized, match="dies of it while it loads: Segmentation fault"):
        optimized(norm, python=script(tmp_path / "python", "kill -SEGV $$"))


@pytest.mark.parametrize(("text", "why"), [("exit 3", "exit status 3"), (None, "cannot be started")])
def test_what_is_no_python_is_a_mistake_of_the_user(norm, tmp_path, text, why):
    python = script(tmp_path / "python", text) if text else str(tmp_path / "nothing")
    with pytest.raises(AmpError, match=why) as caught:
        optimized(norm, python=python)
    assert caught.value.code == "AMP508"
