"""The command line on MindIR files: the same commands, and what only one of the formats has."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from ampgraph.formats.mindir import schema, view
from cli_helpers import MODELS, contents, refused

NAME = "digits_cnn.mindir"
NORM = "Default/norm1-BatchNorm2d/BatchNorm-op0"
HIDDEN = "Default/hidden-Dense/MatMul-op0"


@pytest.fixture
def source(tmp_path):
    return shutil.copy(MODELS / NAME, tmp_path / NAME)


def kinds(file):
    """(nodes by operator, stored tensors by type) of a file."""
    model = schema.Model.FromString(file.read_bytes())
    known = view.primitives(model)
    return (
        Counter(view.kind_of(node, known) for node in model.graph.node),
        Counter(view.dtype_of(tensor) for tensor in model.graph.parameter),
    )


def border(file):
    """The element types of what a file takes and gives."""
    graph = schema.Model.FromString(file.read_bytes()).graph
    return [view.dtype_of(item.tensor[0]) for item in (*graph.input, *graph.output)]


# -- convert ----------------------------------------------------------------------------------------------------------


def test_the_report_as_data_agrees_with_the_file(amp, source):
    code, out, _ = amp("convert", source, "-o", source.with_name("out.mindir"), "--json")
    report, (nodes, weights) = json.loads(out), kinds(source.with_name("out.mindir"))
    assert code == 0 and report["changed"] and report["output"] == str(source.with_name("out.mindir"))
    assert report["casts_after"] == nodes["Cast"] and report["heavy"]["float32"] == 0
    stored = {name: row["count"] for name, row in report["weights_after"].items()}
    assert stored["float16"] >= weights["float16"] == 10  # five layers, each a weight and a bias
    assert report["nodes"] == {"float16": 17, "float32": 3} and report["bytes_after"] < 0.55 * report["bytes_before"]


def test_options_reach_the_file(amp, source):
    made, mixed = source.with_name("low.mindir"), source.with_name("mixed.mindir")
    assert amp("convert", source, "--io", "low", "-o", made)[0] == 0
    assert border(made) == ["float16", "float16"]
    assert amp("convert", source, "--io", "image=low", "-o", mixed)[0] == 0
    assert border(mixed) == ["float16", "float32"]
    assert kinds(made)[0]["Cast"] == kinds(mixed)[0]["Cast"] - 1
    # a pattern keeps a layer in float32
    made = source.with_name("kept.mindir")
    code, out, _ = amp("convert", source, "--fp32", "scope:hidden", "--json", "-o", made)
    report = json.loads(out)
    assert code == 0 and report["reasons"]["float32"]["user"] == 2 and report["heavy"]["float32"] == 1
    assert kinds(made)[1]["float16"] == 8
    # weights can stay as they are stored
    made = source.with_name("keep.mindir")
    assert amp("convert", source, "--store-weights", "keep", "-o", made)[0] == 0
    assert kinds(made)[1] == kinds(source)[1] == {"float32": kinds(source)[1].total()}
    # policy mindspore is told as such
    code, out, _ = amp("convert", source, "--policy", "mindspore")
    assert code == 0 and "policy mindspore" in out and "float16: 17 by MindSpore's rules" in out
    assert "by guard" not in out and "none: the policy is its framework's" in out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--fp32", "nosuch"], "AMP305", ["nosuch matches no float32 node"]),
        (["--policy", "mindspore", "--fp32", "op:MatMul"], "AMP305", ["what MindSpore does", "--policy"]),
        (["--target", "cuda"], "AMP304", ["MindIR models do not run on 'cuda'", "ascend, cpu"]),
        (["--target", "tensorrt"], "AMP304", ["ascend, cpu"]),
        (["--opset", "18"], "AMP307", ["MindIR has no opsets"]),
        (["--policy", "apex"], "AMP303", ["PyTorch's modules", "--policy pytorch"]),
        (["--store-weights", "high"], "AMP301", ["high"]),
        (["--io", "imgae=low"], "AMP305", ["imgae"]),
        (["--dim", "batch=2"], "AMP310", ["batch"]),
    ],
)
def test_a_bad_option_is_refused(amp, source, words, code, told):
    before = contents(source.parent)
    refused(amp("convert", source, *words), code, *told)
    assert contents(source.parent) == before


def test_policy_mindspore_is_for_mindir(amp, tmp_path):
    shutil.copy(MODELS / "digits_cnn.onnx", tmp_path)
    before = contents(tmp_path)
    refused(amp("convert", tmp_path / "digits_cnn.onnx", "--policy", "mindspore"), "AMP303", ".mindir files")
    refused(amp("convert", tmp_path / "digits_cnn.onnx", "--target", "ascend"), "AMP304", "ONNX models do not run")
    assert contents(tmp_path) == before


def test_the_input_is_never_written_over(amp, source):
    link = source.with_name("soft.mindir")
    link.symlink_to(source)
    before = contents(source.parent)
    for output in (source, link, source.parent / ".." / source.parent.name / NAME):
        refused(amp("convert", source, "-o", output), "AMP106", "over the input")
    refused(amp("convert", source, "--plan-out", source), "AMP106")
    assert contents(source.parent) == before


# -- inspect, explain, lists ------------------------------------------------------------------------------------------


def test_inspect_explain_and_lists(amp, source):
    made = source.with_name("digits_cnn.O2.mindir")
    amp("convert", source)
    code, out, err = amp("inspect", made, "--against", source)
    assert (code, err) == (0, "")
    head = out.splitlines()[0]
    assert head.startswith(f"{made.name}: ") and ", mind_ir_version 3, " in head and "opset" not in out
    assert f"casts: {kinds(made)[0]['Cast']}" in out and f"against {NAME}" in out and "  hidden" in out
    report = json.loads(amp("inspect", made, "--against", source, "--json")[1])
    assert report["version"] == "mind_ir_version 3" and report["opset"] is None and report["fusions"] is None
    assert report["difference"]["casts"] == len(report["casts"]) == kinds(made)[0]["Cast"]
    assert report["heavy"] == {"float16": 5} and not report["difference"]["gone"]
    # explain
    code, out, err = amp("explain", source, NORM)
    assert (code, err) == (0, "") and "is float32" in out and "ampgraph.toml:" in out
    same = amp("explain", source, NORM, "--policy", "mindspore")[1]
    assert "is float32" in same and "by mindspore: in a black cell" in same
    assert "is float16" in amp("explain", source, HIDDEN)[1]
    assert {line.split()[0] for line in amp("explain", source, "op:Conv2D")[1].splitlines()} == {"Conv2D"}
    assert len(amp("explain", source, "*conv*")[1].splitlines()) == 6
    refused(amp("explain", source, HIDDEN.replace("MatMul", "MatMull")), "AMP308", HIDDEN)
    # lists
    code, out, _ = amp("lists", "MatMul", "--policy", "mindspore", "--level", "O1")
    assert code == 0 and "mindspore.toml:" in out and "low" in out
    refused(amp("lists", "MatMull", "--policy", "mindspore"), "AMP309", "MatMul")


def test_inspect_names_the_opset_of_onnx(amp):
    code, out, _ = amp("inspect", MODELS / "digits_cnn.onnx")
    assert code == 0 and ", opset 20, " in out.splitlines()[0]
    report = json.loads(amp("inspect", MODELS / "digits_cnn.onnx", "--json")[1])
    assert (report["version"], report["opset"]) == ("opset 20", 20)


# -- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.mindspore
def test_run_writes_and_tells_the_outputs(amp, source):
    pytest.importorskip("mindspore")
    made, results = source.with_name("digits_cnn.O2.mindir"), source.with_name("out.npz")
    amp("convert", source)
    data = MODELS / "digits_heldout.npz"  # the labels beside the image are no input
    plain = source.with_name("plain.npz")
    assert amp("run", source, "--data", data, "-o", plain)[0] == 0
    code, out, err = amp("run", made, "--data", data, "--device", "cpu", "-o", results)
    assert (code, err) == (0, "") and out.startswith("output0  float32 360x10  ")
    logits, labels = np.load(results)["output0"], np.load(data)["labels"]
    assert (logits.argmax(1) == labels).mean() > 0.97
    assert 0 < np.abs(logits - np.load(plain)["output0"]).max() < 0.1
    [row] = json.loads(amp("run", made, "--data", data, "--json")[1])
    assert (row["name"], row["shape"], row["nan"], row["largest"]) == ("output0", [360, 10], 0, float(logits.max()))


@pytest.mark.mindspore
def test_run_refuses_what_it_cannot_do(amp, source):
    pytest.importorskip("mindspore")
    data = MODELS / "digits_heldout.npz"
    before = contents(source.parent)
    out = source.with_name("out.npz")
    refused(amp("run", source, "--data", data, "--device", "cuda", "-o", out), "AMP321", "'cuda'", "ascend")
    refused(amp("run", source, "--data", source, "-o", out), "AMP108", "is not an .npz file")
    refused(amp("run", source, "--data", source.with_name("none.npz")), "AMP101", "no such file")
    assert contents(source.parent) == before
