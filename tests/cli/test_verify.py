"""`ampgraph verify`: what it prints, its exit codes, and its answers to bad input."""

import json

import numpy as np
import onnx
import pytest

import ampgraph
from cli_helpers import MODELS, data_model, process, refused
from hard_models import HARD_MODELS
from npz import write_npz
from onnx_text import parse

HELDOUT = MODELS / "digits_heldout.npz"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits transformer and its conversion."""
    path = tmp_path_factory.mktemp("digits") / "low.onnx"
    ampgraph.convert(MODELS / "digits_transformer.onnx", output=path)
    return MODELS / "digits_transformer.onnx", path


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """A T5 whose feed-forward leaves float16, its conversion, and an input that shows it."""
    folder = tmp_path_factory.mktemp("t5")
    model = HARD_MODELS["t5"].build()
    onnx.save(model, folder / "t5.onnx")
    ampgraph.convert(folder / "t5.onnx", output=folder / "low.onnx")
    write_npz(folder / "x.npz", HARD_MODELS["t5"].feeds(3)[2])
    return folder / "t5.onnx", folder / "low.onnx", folder / "x.npz"


def test_a_good_model_exits_zero(amp, digits):
    status, out, err = amp("verify", *digits, "--data", HELDOUT)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[0] == "reference" and lines[-1].startswith("verdict     ok: relative L2 within 0.01")
    assert "strict, on the CPU: every float16 value rounded" in out and "not modelled" in out
    assert "argmax 100 % of 360; all finite" in out and "90th percentile" in out
    assert "left out, as no input has the name: labels" in out and "error grows" not in out


def test_a_tolerance_that_is_missed_exits_one_and_names_nodes(amp, digits):
    status, out, _ = amp("verify", *digits, "--tolerance", "1e-5", "--samples", 2, "--seed", 3)
    assert status == 1
    assert "inputs were generated: 2 samples, seed 3" in out
    assert "error       made at" in out and "layer layers." in out
    assert "repair      none found" in out and "chaotic in itself" in out and "--fp32" not in out
    assert out.splitlines()[-1].startswith("verdict     missed: logits")
    status, out, _ = amp("verify", *digits, "--tolerance", "1e-5", "--nodes", 0)
    assert status == 1 and "repair      " not in out


def test_an_overflow_names_node_ranges_and_repair(amp, t5):
    reference, model, data = t5
    status, out, _ = amp("verify", reference, model, "--data", data)
    assert status == 1
    assert "not finite  first at block.2.wo (MatMul, float16): its result reaches" in out
    assert "repair      --fp32 block.2.wo" in out and "tried with O2,float16" in out and "or: --dtype bfloat16" in out
    assert "elements are not finite where the reference is" in out


@pytest.mark.slow
def test_json_has_everything(amp, t5):
    reference, model, data = t5
    status, out, _ = amp("verify", reference, model, "--data", data, "--json")
    found = json.loads(out)
    assert status == 1 and found["ok"] is False and found["strict"] is True and found["device"] == "cpu"
    born = found["first_nonfinite"]
    assert born["node"] == "block.2.wo" and born["operator"] == "MatMul" and born["dtype"] == "float16"
    assert {"layer", "inside", "reads", "makes", "why", "suggestion", "hints"} <= set(born)
    assert born["reads"][0]["range"]["infinite"] == 0 and born["makes"][0]["range"]["infinite"] > 0
    assert found["outputs"][0]["not_in_reference"] > 0 and len(found["growth"]) <= 5


@pytest.mark.slow
def test_the_repair_can_be_pasted(amp, t5, tmp_path):
    import shlex

    reference, model, data = t5
    _, out, _ = amp("verify", reference, model, "--data", data, "--json")
    repair = json.loads(out)["repair"]
    options = [word for text in repair["options"] for word in shlex.split(text)]
    assert amp("convert", reference, "-o", tmp_path / "m.onnx", *options)[0] == 0
    status, out, _ = amp("verify", reference, tmp_path / "m.onnx", "--data", data, "--json")
    assert status == 0 and json.loads(out)["outputs"][0]["error"]["judged"] == repair["error"]


def test_external_data_and_a_symbolic_dimension(amp, tmp_path):
    data_model(tmp_path / "m.onnx")
    assert amp("convert", tmp_path / "m.onnx")[0] == 0
    status, out, _ = amp("verify", tmp_path / "m.onnx", tmp_path / "m.O2.onnx", "--dim", "batch=3", "--json")
    found = json.loads(out)
    assert status == 0 and any("[3, 4096]" in note for note in found["notes"])
    assert found["outputs"][0]["argmax_agreement"] is not None


def test_bad_input_exits_two(amp, digits, tmp_path):
    reference, model = digits
    (tmp_path / "bad.onnx").write_bytes(b"not a model at all" * 50)
    data_model(tmp_path / "other.onnx")
    np.savez(tmp_path / "nan.npz", image=np.full((2, 1, 8, 8), np.nan, np.float32))
    np.savez(tmp_path / "none.npz", other=np.zeros(3))
    np.savez(tmp_path / "zero.npz", image=np.zeros((0, 1, 8, 8), np.float32))
    np.savez(tmp_path / "shape.npz", image=np.zeros((2, 1, 9, 8), np.float32))
    for words, code, told in (
        ((reference, tmp_path / "no.onnx"), "AMP101", "no such file"),
        ((tmp_path / "no.onnx", model), "AMP101", "no such file"),
        ((tmp_path / "bad.onnx", model), "AMP102", "not an ONNX model"),
        ((reference, tmp_path / "bad.onnx"), "AMP102", "not an ONNX model"),
        ((tmp_path / "other.onnx", model), "AMP209", "has no input 'x'"),
        ((MODELS / "digits_cnn.mindir", model), "AMP209", "MindIR"),
        ((reference, model, "--data", tmp_path / "nan.npz"), "AMP503", "NaN"),
        ((reference, model, "--data", tmp_path / "none.npz"), "AMP503", "no array for input 'image'"),
        ((reference, model, "--data", tmp_path / "shape.npz"), "AMP503", "[2, 1, 9, 8]"),
        ((reference, model, "--data", tmp_path / "no.npz"), "AMP101", "no such file"),
        ((reference, model, "--device", "gpx"), "AMP321", "gpx"),
        ((reference, model, "--device", "cann"), "AMP505", "CANN"),
        ((reference, model, "--tolerance", "-1"), "AMP312", "-1"),
        ((reference, model, "--samples", "0"), "AMP503", "0 samples"),
        ((reference, model, "--dim", "batch"), "AMP310", "NAME=N"),
        ((reference, model, "--dim", "foo=3"), "AMP310", "foo"),
        ((reference, model, "--data", HELDOUT, "--dim", "bach=3"), "AMP310", "did you mean 'batch'?"),
        ((reference, model, "--data", "x" * 5000), "AMP101", "too long"),
        ((reference, model, "--data", ""), "AMP101", "no path"),
        ((reference, model, "--data", tmp_path / "zero.npz"), "AMP503", "'image' has 0 rows"),
    ):
        refused(amp("verify", *words), code, told)


def test_a_reference_that_is_not_finite_is_never_ok(amp, tmp_path):
    model = parse("g (float[2] x) => (float[2] y) { a = Log(x) y = Mul(a, x) }")
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.full(2, -1, np.float32))
    status, out, err = amp("verify", tmp_path / "m.onnx", tmp_path / "m.onnx", "--data", tmp_path / "x.npz")
    assert (status, err) == (1, "")
    assert "the reference itself is not finite" in out and out.splitlines()[-1].startswith("verdict     missed: y")
    words = ("tune", tmp_path / "m.onnx", "--data", tmp_path / "x.npz")
    assert amp(*words)[0] in (1, 2)
    _, out, _ = amp("convert", tmp_path / "m.onnx", "--dry-run", "--data", tmp_path / "x.npz")
    assert "infinities or NaN in float32 already" in " ".join(out.split())


def test_a_swap_is_noticed(amp, digits):
    reference, model = digits
    _, out, _ = amp("verify", model, reference, "--samples", 1)
    assert "the reference is float16, the model is not: are the arguments swapped?" in out


def test_a_missing_provider_says_what_is_here_and_what_to_install(amp, digits):
    status, out, err = amp("verify", *digits, "--device", "cann")
    refused((status, out, err), "AMP505", "only", "CPU", "CANN toolkit")


@pytest.mark.slow
def test_as_a_process(digits):
    done = process("verify", *digits, "--samples", "1", "--tolerance", "1e-9")
    assert done.returncode == 1 and not done.stderr and "verdict     missed" in done.stdout


@pytest.mark.mindspore
def test_mindir_gets_the_same_report(amp, tmp_path):
    pytest.importorskip("mindspore")
    source = MODELS / "digits_cnn.mindir"
    assert amp("convert", source, "-o", tmp_path / "m.mindir")[0] == 0
    done = process("verify", source, tmp_path / "m.mindir", "--data", HELDOUT, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "rounds every low value by itself" in found["run"] and found["device"] == "cpu"
    assert 1e-5 < found["outputs"][0]["relative_l2"]["p90"] < 5e-3
    assert any("nodes of MindIR models are not looked at" in note for note in found["notes"])
    status, out, _ = amp("verify", source, tmp_path / "m.mindir", "--data", HELDOUT, "--tolerance", "1e-6")
    assert status == 1 and "verdict     missed" in out
