"""A run of an ONNX model: what is fed, where it runs, what comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.api.run import open_session
from ampgraph.core.errors import AmpError
from ampgraph.report.fusions import TargetGraph, fused_operators
from ampgraph.runtime import devices, optimizing
from ampgraph.runtime.devices import choose
from ampgraph.runtime.onnxruntime_session import OnnxSession, as_numpy, device_value, refusal_error, stop_error
from ampgraph.runtime.optimized import name_nodes, placements, read_optimized
from ampgraph.runtime.optimizing import NotOptimized, fuse_for, optimized, with_named_nodes
from ampgraph.runtime.ports import Port, Session, check_feeds
from cli_helpers import MODELS
from onnx_text import parse, proto
from runtime.adder import BIAS, FEEDS, X, model, written

GPU = SimpleNamespace(
    __version__="9.9", get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
)
NPU = SimpleNamespace(
    __version__="9.9", get_available_providers=lambda: ["CANNExecutionProvider", "CPUExecutionProvider"]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


# -- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_outputs_are_those_of_the_model(folder: Path, device: str, strict: bool) -> None:
    got = ampgraph.run(folder / "m.onnx", folder / "data.npz", device=device, strict=strict)
    assert list(got) == ["y", "rows"]
    np.testing.assert_array_equal(got["y"], (X + BIAS) * 2)
    np.testing.assert_array_equal(got["rows"], -np.ones(4, np.float32))
    assert got["y"].dtype == np.float32


@pytest.mark.filterwarnings("ignore:input 'x' holds NaN")
def test_nan_and_infinity_go_in_and_come_out() -> None:
    fed = X.copy()
    fed[0] = np.nan
    fed[1, 0] = -np.inf
    for strict in (False, True):
        got = ampgraph.run(model(), {**FEEDS, "x": fed}, strict=strict)["y"]
        assert np.isnan(got[0]).all() and got[1, 0] == -np.inf and np.isfinite(got[2:]).all()


def test_bfloat16_comes_and_goes_as_ml_dtypes_has_it(tmp_path: Path) -> None:
    low = X.astype(ml_dtypes.bfloat16)
    given = parse("g (bfloat16[batch, 3] x) => (bfloat16[batch, 3] y) { y = Identity (x) }", opset=18)
    session = OnnxSession(given, "cpu")
    for fed in (low, low.view("V2")):  # numpy's files say V2
        got = session.run({"x": fed})["y"]
        assert got.dtype == ml_dtypes.bfloat16 and (got == low).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_value_of_the_runtime_is_a_copy(dtype: Any) -> None:
    """Of a view, too: what happens to the array later is nothing to the runtime, nor the reverse."""
    array = np.arange(6).astype(dtype).reshape(2, 3).T
    value = device_value(array, "cpu")
    array[:] = 0
    found = as_numpy(value)
    assert found.dtype == dtype and found.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_strict_runs_and_placement() -> None:
    feeds = {"image": np.load(MODELS / "digits_heldout.npz")["image"][:8]}
    plain = ampgraph.run(MODELS / "digits_cnn.onnx", feeds)["logits"]
    low = proto(ampgraph.convert(MODELS / "digits_cnn.onnx", "O2"))
    strict = ampgraph.run(low, feeds, strict=True)["logits"]
    assert 0 < np.abs(strict - plain).max() < 0.1
    # placement says where nodes ran
    session = OnnxSession(model(), "cpu", profile=True)
    session.run(FEEDS)
    placed = list(session.placed().values())
    assert placed.count(("Mul", "CPUExecutionProvider")) == 1 and {one for _, one in placed} == {"CPUExecutionProvider"}
    assert not Path(session._profile).exists()
    # an input with a default may be fed
    session = OnnxSession(model(), "cpu")
    assert session.device == "cpu" and session.required == ["x", "scale", "n"] and session.optional == {"bias"}
    got = session.run({**FEEDS, "bias": BIAS * 0}, outputs=["y"])
    assert list(got) == ["y"]
    np.testing.assert_array_equal(got["y"], X * 2)


# -- what is fed ------------------------------------------------------------------------------------------------------

UNFIT = [
    ({"x": None}, "no value for input 'x'\nhint: feed x, scale, n"),
    ({"scael": X}, "no input 'scael'\nhint: did you mean 'scale'?"),
    ({"zzzzz": X}, "no input 'zzzzz'\nhint: there are: x, scale, n"),
    ({"x": X[:, :2]}, "'x' takes float32 [batch, 3] but the array fed has shape [4, 2]"),
    ({"x": X[0]}, "has shape [3]"),
    ({"x": X[None]}, "has shape [1, 4, 3]"),
    ({"x": X.astype(np.float64)}, "float64 was fed\nhint: array.astype('float32') if its values fit"),
    ({"n": np.array(2.0)}, "'n' takes int64 [] but float64 was fed"),
    ({"x": X.tolist()}, "float64 was fed"),
    ({"x": "text"}, "'x' takes float32 [batch, 3] but <U4 was fed"),
    ({"x": [[1.0, 2.0, 3.0], [1.0]]}, "is not an array"),
    ({"x": None, "scale": None}, "no value for input 'x'"),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("change", "told"), UNFIT)
def test_what_does_not_fit_is_told(change: dict[str, Any], told: str, strict: bool) -> None:
    feeds = {name: value for name, value in {**FEEDS, **change}.items() if value is not None}
    with pytest.raises(AmpError) as caught:
        ampgraph.run(model(), feeds, strict=strict)
    assert caught.value.code == "AMP503" and caught.value.hint and told in str(caught.value)


def test_a_file_without_an_input_says_what_it_holds(folder: Path) -> None:
    np.savez(folder / "less.npz", x=X, picture=X)
    with pytest.raises(AmpError, match="AMP503.*less.npz: no array for input 'scale'\nhint: it holds x, picture"):
        ampgraph.run(folder / "m.onnx", folder / "less.npz")


# -- where it runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "told"),
    [("cdua", "unknown device 'cdua'\nhint: did you mean 'cuda'"), ("", "there are"), (["cpu"], "not a text")],
)
def test_an_unknown_device(device: Any, told: str) -> None:
    with pytest.raises(AmpError) as caught:
        ampgraph.run(model(), FEEDS, device=device)
    assert caught.value.code == ("AMP321" if isinstance(device, str) else "AMP301")
    assert caught.value.hint and told in str(caught.value)


@pytest.mark.parametrize(
    ("device", "provider", "install"),
    [
        ("cuda", "CUDA", "-m pip install 'onnxruntime-gpu>=1.22'"),
        ("tensorrt", "Tensorrt", "TensorRT itself"),
        ("cann", "CANN", "onnxruntime-cann"),
    ],
)
def test_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch, device: str, provider: str, install: str) -> None:
    plain = SimpleNamespace(__version__="9.9", get_available_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(devices, "import_onnxruntime", lambda: plain)
    with pytest.raises(AmpError) as caught:
        choose(device)
    assert caught.value.code == "AMP505" and install in (caught.value.hint or "")
    assert f"onnxruntime 9.9 has no {provider} here, only CPU" in str(caught.value)


@pytest.mark.parametrize(
    ("here", "device", "chosen"),
    [
        (GPU, "auto", ("cuda", ("CUDAExecutionProvider", "CPUExecutionProvider"))),
        (NPU, "auto", ("cann", ("CANNExecutionProvider", "CPUExecutionProvider"))),
        (GPU, "cpu", ("cpu", ("CPUExecutionProvider",))),
    ],
)
def test_auto_takes_the_best_that_is_here(
    monkeypatch: pytest.MonkeyPatch, here: Any, device: str, chosen: tuple[str, tuple[str, ...]]
) -> None:
    """By stand-ins."""
    monkeypatch.setattr(devices, "import_onnxruntime", lambda: here)
    assert choose(device) == chosen


def test_formats_have_devices_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(AmpError, match="AMP321.*ONNX models do not run on 'ascend'\nhint: auto, cpu, cuda"):
        open_session(model(), "ascend")
    with pytest.raises(AmpError, match="AMP321.*MindIR models do not run on 'tensorrt'\nhint: auto, cpu, ascend"):
        open_session(MODELS / "digits_cnn.mindir", "tensorrt")
    with pytest.raises(AmpError, match="AMP323.*strict.*not on cuda\nhint: omit one"):
        open_session(model(), "cuda", strict=True)


def test_onnxruntime_missing_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for strict in (False, True):
        with pytest.raises(AmpError, match=r"AMP501.*\nhint: .* -m pip install 'onnxruntime>=1.22'"):
            open_session(model(), "cpu", strict)


# -- models that do not run -------------------------------------------------------------------------------------------


def test_what_the_runtime_refuses(tmp_path: Path, capfd: Any) -> None:
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"no model at all")
    with pytest.raises(AmpError, match=r"AMP502.*m\.onnx.*ONNX Runtime refuses the model"):
        ampgraph.run(broken, FEEDS)
    with pytest.raises(AmpError, match="AMP101.*no such file"):
        ampgraph.run(tmp_path / "none.onnx", FEEDS)
    low = model()
    low.graph.node[0].op_type, low.graph.node[0].domain = "Nonsense", "mine"
    low.opset_import.add(domain="mine", version=1)
    with pytest.raises(AmpError, match="AMP502.*Nonsense"):
        ampgraph.run(low, FEEDS)
    assert capfd.readouterr() == ("", ""), "what is raised is not logged as well"


@pytest.mark.parametrize("strict", [False, True])
def test_sessions_and_older_runtimes(strict: bool) -> None:
    young = model()
    young.ir_version = 99
    with pytest.raises(
        AmpError, match=r"AMP502.*IR version: 99(.|\n)*hint: onnxruntime .* may be older than the model"
    ):
        open_session(young, "cpu", strict)
    # sessions of onnx
    check(open_session(SESSION_MODELS / "digits_cnn.onnx", "cpu", strict))


def test_runs_that_stop(capfd: Any) -> None:
    made = parse("g (float[rows] x, int64[n] i) => (float[n] y) { y = Gather (x, i) }", opset=18)
    feeds = {"x": X[0], "i": np.array([7], np.int64)}
    with pytest.raises(AmpError, match=r"AMP504.*ONNX Runtime stopped: .*\nhint: "):
        ampgraph.run(made, feeds)
    # a type that a kernel refuses is no matter of shapes
    inputs = "float16[8, 4] x, int64[6, 1] i, float16[6, 4] u"
    text = f'g ({inputs}) => (float16[8, 4] y) {{ y = ScatterND <reduction = "add"> (x, i, u) }}'
    feeds = {"x": np.ones((8, 4), np.float16), "i": np.zeros((6, 1), np.int64), "u": np.ones((6, 4), np.float16)}
    with pytest.raises(AmpError) as raised:
        ampgraph.run(parse(text), feeds)
    assert raised.value.code == "AMP504" and "--strict needs none, or convert for --target cpu" in raised.value.hint
    assert ampgraph.run(parse(text), feeds, strict=True)["y"][0, 0] == 7
    assert capfd.readouterr() == ("", ""), "what is raised is not logged as well"


@pytest.mark.slow
def test_a_transpose_in_front_of_a_product_with_a_low_weight(tmp_path):
    """In a process of its own: ONNX Runtime 1.31 died of it, with all of its optimizers."""
    text = """g (float[N,5,16] x) => (float16[5,N,48] y) {
        c = Cast <to = 10> (x)  d = Transpose <perm = [1, 0, 2]> (c)  y = MatMul (d, w) }"""
    model = parse(text, w=np.ones((16, 48), np.float16), opset=20)
    onnx.save(model, tmp_path / "net.onnx")
    code = (
        "import numpy, sys, ampgraph; print(ampgraph.run(sys.argv[1], {'x': numpy.ones((2, 5, 16), 'f')})['y'].sum())"
    )
    made = subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.onnx")], capture_output=True, timeout=60)
    assert (made.returncode, made.stdout.split()) == (0, [b"7680.0"])


# Every session is a `Session`: its ports, what must be fed, and runs that give all outputs or some.

SESSION_MODELS = Path(__file__).resolve().parents[2] / "models"


def check(session: Session) -> None:
    [(name, port)] = session.inputs.items()
    assert list(session.required) == [name] and isinstance(port, Port) and port.dtype == "float32"
    sizes = [size if isinstance(size, int) else 2 for size in port.shape]
    feeds = {name: np.zeros(sizes, np.float32)}
    found = session.run(feeds)
    assert list(found) == list(session.outputs) and all(isinstance(p, Port) for p in session.outputs.values())
    last = list(session.outputs)[-1]
    np.testing.assert_array_equal(session.run(feeds, outputs=[last])[last], found[last])
    with pytest.raises(AmpError, match="AMP503|AMP504"):
        session.run(feeds, outputs=["nothing is called so"])


@pytest.mark.mindspore
def test_sessions_of_mindspore() -> None:
    pytest.importorskip("mindspore")
    check(open_session(SESSION_MODELS / "digits_cnn.mindir", "cpu"))


def test_what_a_session_is() -> None:
    assert str(Port("x", "float32", ("N", None, 3))) == "float32 [N, any, 3]"
    assert str(Port("x", "float16", (), ranked=False)) == "float16 of any shape"
    # sizes that nothing names are free
    ports = {"a": Port("a", "float32", (None, 2)), "b": Port("b", "float32", (None, 2)), "s": Port("s", "", ())}
    feeds = {"a": np.zeros((1, 2), np.float32), "b": np.zeros((5, 2), np.float32), "s": [X]}
    checked = check_feeds(ports, feeds, set())
    assert checked["a"].shape == (1, 2) and checked["s"] == [X]
    assert str(ports["a"]) == "float32 [any, 2]"
    turned = check_feeds({"a": ports["a"]}, {"a": np.asfortranarray(X[:, :2])}, set())["a"]
    assert turned.flags.c_contiguous and (turned == X[:, :2]).all()


def test_a_runtime_without_cuda_is_not_asked_for_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones say on standard output that they have none, in front of what a command prints."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    asked: list[object] = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda *_: asked.append(1), raising=False)
    assert choose("auto")[0] == "cpu" and asked == []


# bfloat16 in and out of ONNX Runtime, which has no numpy type for it.

MODEL = """<ir_version: 10, opset_import: ["": 21]>
low (bfloat16[2,n] x, float[2,n] y) => (bfloat16[2,n] both, float[2,n] z) {{
  {first}
  z = Neg(y)
}}"""
FIRSTS = {"moved": "both = Identity(x)", "rounded": "both = Cast<to = 16>(y)"}


@pytest.mark.parametrize("first", FIRSTS)
def test_bfloat16_outputs_beside_others(first):
    y = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
    low = y.astype(ml_dtypes.bfloat16)
    found = ampgraph.run(parse(MODEL.format(first=FIRSTS[first])), {"x": low, "y": y}, device="cpu")
    assert found["both"].dtype == ml_dtypes.bfloat16 and found["both"].tobytes() == low.tobytes()
    assert np.array_equal(found["z"], -y)


# The graph that a runtime would run: how it is asked for, and how it is read.

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
    graph = TargetGraph.from_optimized(found)
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
    for one in (before, after):
        name_nodes(one.graph)
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


def answering(path: Path, **told: Any) -> str:
    """A Python that answers this to whatever it is asked."""
    return script(path / "python", f"echo '{json.dumps(told)}'")


def test_a_provider_that_the_session_does_not_have_cannot_start(norm, tmp_path):
    told = {"runtime": "1.0", "available": ["OneProvider", "CPUExecutionProvider"]}
    python = answering(tmp_path, **told, providers=["CPUExecutionProvider"])
    with pytest.raises(NotOptimized, match=r"^ONNX Runtime 1\.0 cannot start OneProvider here$") as caught:
        optimized(norm, "OneProvider", python=python)
    assert caught.value.elsewhere


@pytest.mark.parametrize(("provider", "elsewhere"), [("OneProvider", False), ("OtherProvider", True)])
def test_the_environment_is_at_fault_where_it_has_no_such_provider(norm, tmp_path, provider, elsewhere):
    python = answering(tmp_path, runtime="1.0", available=["OneProvider"], error="no")
    with pytest.raises(NotOptimized, match=r"^ONNX Runtime 1\.0: no$") as caught:
        optimized(norm, provider, python=python)
    assert caught.value.elsewhere is elsewhere


def test_what_protobuf_cannot_write_in_one_piece_is_refused(norm, monkeypatch):
    size = with_named_nodes(norm, "")[0].ByteSize()
    monkeypatch.setattr(optimizing, "SIZE_LIMIT", size - 1)
    with pytest.raises(NotOptimized, match="over 2 GB in one piece") as caught:
        optimized(norm, "CPUExecutionProvider")
    assert not caught.value.elsewhere
    monkeypatch.setattr(optimizing, "SIZE_LIMIT", size)
    with pytest.raises(AmpError, match="AMP508"):  # it was asked
        optimized(norm, python=str(norm.parent / "nothing"))


def test_a_session_that_takes_too_long_is_told_in_words(norm, tmp_path, monkeypatch):
    monkeypatch.setattr(optimizing, "SECONDS", 0.05)
    with pytest.raises(NotOptimized, match=r"^no session was made within 0\.05 seconds$"):
        optimized(norm, python=script(tmp_path / "python", "exec sleep 60"))


def test_an_environment_without_the_optimizer_is_at_fault(tmp_path):
    python = answering(tmp_path, error="sympy is not installed")
    with pytest.raises(NotOptimized, match="^the transformers optimizer cannot be used: sympy is not") as caught:
        fuse_for(tmp_path / "m.onnx", tmp_path, ["bert"], python=python)
    assert caught.value.elsewhere
    assert fuse_for(tmp_path, tmp_path, ["bert"], python=answering(tmp_path, made=["bert"])) == [tmp_path / "bert.onnx"]


@pytest.mark.parametrize(
    ("text", "why"), [("exit 3", "exit status 3"), ("echo hello", "hello"), (None, "cannot be started")]
)
def test_what_is_no_python_is_a_mistake_of_the_user(norm, tmp_path, text, why):
    python = script(tmp_path / "python", text) if text else str(tmp_path / "nothing")
    with pytest.raises(AmpError, match=why) as caught:
        optimized(norm, python=python)
    assert caught.value.code == "AMP508" and "onnxruntime-gpu" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("NOT_IMPLEMENTED : Could not find an implementation for Mish(18)", "AMP502", "no kernel for it"),
        ("File doesn't exist", "AMP101", "check the path"),
        ("std::bad_alloc", "AMP504", "fewer rows"),
        ("Fatal error: No Op registered for Convv with domain_version of 17", "AMP502", "Conv"),
        ("No Op registered for Conv with domain_version of 99", "AMP502", "older than the model"),
        ("a shape is wrong", "AMP502", "ampgraph inspect"),
    ],
)
def test_why_a_model_is_refused_says_what_to_do(words: str, code: str, told: str) -> None:
    found = refusal_error(RuntimeError(words), "m.onnx")
    assert found.code == code and told in found.hint


def test_why_a_run_stops_says_what_to_do() -> None:
    """A missing kernel comes before what was fed; what was fed before the shapes."""
    contradiction = "'n' is 2 in input 'x' and 3 in 'y'"
    hints = [stop_error(RuntimeError(words), "cuda", contradiction).hint for words in ("NOT_IMPLEMENTED", "wrong")]
    assert "--target cuda" in hints[0] and hints[1].startswith(contradiction)
    assert "shapes" in stop_error(RuntimeError("wrong"), "cuda").hint
    assert stop_error(RuntimeError("Failed to allocate memory for 8"), "cuda").message == "out of memory on cuda"
