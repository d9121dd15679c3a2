"""`convert` with data: ranges that steer the plan, are written, read again, and refused for another model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ampgraph
from ampgraph import AmpError
from ampgraph.core.ranges import Ranges
from ampgraph.report.outputs import describe_outputs
from ampgraph.runtime.data import save_npz
from cli_helpers import MODELS, contents, data_model, process, refused
from hard_models import HARD_MODELS
from npz import write_npz
from onnx_text import parse
from runtime.adder import BIAS, FEEDS, X, written

CHAIN = """
g (float[2, 4] x) => (float[2, 4] y) { [one] a = MatMul(x, w)  [two] b = MatMul(a, big)  [three] c = MatMul(b, small)
    [four] y = MatMul(c, w) }"""


@pytest.fixture
def folder(tmp_path):
    """A model that overflows on its data, a folder of samples, and the models of the repository."""
    eye = np.eye(4, dtype=np.float32)
    onnx.save(parse(CHAIN, w=eye, big=eye * 40000, small=eye / 40000), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for number in range(3):
        np.savez(tmp_path / "data" / f"{number}.npz", x=np.full((2, 4), number, np.float32), label=np.array(number))
    for name in ("digits_transformer.onnx", "digits_cnn.onnx", "digits_cnn.mindir", "digits_heldout.npz"):
        shutil.copy(MODELS / name, tmp_path)
    return tmp_path


def products(path):
    """Names of the MatMul nodes that read float32."""
    made = onnx.shape_inference.infer_shapes(onnx.load(path))
    types = {v.name: v.type.tensor_type.elem_type for v in [*made.graph.value_info, *made.graph.input]}
    return [n.name for n in made.graph.node if n.op_type == "MatMul" and types[n.input[0]] == 1]


def test_what_ranges_keep_is_told(amp, folder):
    given = ("convert", folder / "m.onnx", "-o", folder / "o.onnx", "--data", folder / "data", "--verbose")
    code, out, _ = amp(*given)
    assert code == 0 and "as 'b' reaches 8e+04 (exponent)" in " ".join(out.split())
    assert "all values in range" in out and not products(folder / "o.onnx")
    code, out, _ = amp(*given, "--rewrite", "no-exponent")
    assert code == 0
    assert products(folder / "o.onnx") == ["two", "three"]
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "ranges 1 value out of range, 2 nodes float32 for it" in rows
    assert "'b' reaches 8e+04 (limit 3.275e+04 with margin 2)" in rows
    assert f"3 samples from {folder / 'data'}" in rows
    assert "left out, as no input has the name: label" in rows
    assert any("(two ...): 'b' reaches 8e+04 (limit 3.275e+04 with margin 2)" in row for row in rows)
    assert "products 2 of 4 MatMul, Conv and the like in float16" in rows
    amp("convert", folder / "m.onnx", "-o", folder / "plain.onnx")
    assert products(folder / "plain.onnx") == []
    # one file and a number of samples
    code, out, _ = amp("convert", folder / "m.onnx", "--dry-run", "--data", folder / "data", "--samples", 1)
    assert code == 0 and "all values in range" in out and "1 sample from" in out and "(of 3)" in out
    code, out, _ = amp(
        "convert", folder / "m.onnx", "--dry-run", "--data", folder / "data" / "2.npz", "--rewrite", "no-exponent"
    )
    assert code == 0 and "1 value out of range, 2 nodes" in out
    # without data inputs are generated and the report says so
    code, out, _ = amp("convert", folder / "m.onnx", "--dry-run", "--samples", 2, "--json")
    notes = [note["text"] for note in json.loads(out)["notes"] if note["topic"] == "samples"]
    assert code == 0 and notes[0] == "inputs were generated: 2 samples, seed 0"
    assert notes[1] == "'x' float32 [2, 4]: about standard normal, and of 4 and 1/16 times that"
    code, out, _ = amp("convert", folder / "digits_cnn.onnx", "--dry-run", "--samples", 1, "--dim", "batch=5")
    assert code == 0 and "'image' float32 [5, 1, 8, 8]" in out


def test_ranges_are_written_and_used_again(amp, folder):
    written = folder / "r.json"
    data = ("--data", folder / "data")
    one = amp("convert", folder / "m.onnx", "-o", folder / "a.onnx", *data, "--ranges-out", written, "--json")
    two = amp("convert", folder / "m.onnx", "-o", folder / "b.onnx", "--ranges", written, "--json")
    assert one[0] == two[0] == 0
    assert (folder / "a.onnx").read_bytes() == (folder / "b.onnx").read_bytes()
    first, second = (json.loads(result[1]) for result in (one, two))
    assert {**first, "output": ""} == {**second, "output": ""}
    assert json.loads(written.read_text())["samples"] == 3
    code, out, _ = amp("convert", folder / "m.onnx", "--dry-run", "--ranges", written, "--range-margin", 0.5)
    assert code == 0 and "all values in range" in out
    again = written.read_bytes()
    assert amp("convert", folder / "m.onnx", "-o", folder / "c.onnx", *data, "--ranges-out", written)[0] == 0
    assert written.read_bytes() == again
    # explain names the range
    amp("convert", folder / "m.onnx", "--data", folder / "data", "--ranges-out", folder / "r.json")
    explained = ("explain", folder / "m.onnx", "two", "--ranges", folder / "r.json")
    code, out, _ = amp(*explained)
    assert code == 0 and "'b' reaches 8e+04: what it reads or writes is scaled by a power of two" in " ".join(
        out.split()
    )
    code, out, _ = amp(*explained, "--rewrite", "no-exponent")
    assert code == 0 and "float32, by range: 'b' reaches 8e+04 (limit 3.275e+04 with margin 2)" in out
    code, out, _ = amp("explain", folder / "m.onnx", "two", "--ranges", folder / "r.json", "--range-margin", "0.5")
    assert code == 0 and "float16, by list" in out
    code, out, _ = amp("explain", folder / "m.onnx", "one", "--ranges", folder / "r.json", "--json")
    assert code == 0 and json.loads(out)["precision"] == "float16"


def test_weights_are_named_and_nothing_is_left(amp, folder):
    made = parse(
        "g (float[1, 4] x) => (float[1, 100] y) {"
        + " ".join(f"y{k} = MatMul(x, w{k})" for k in range(6))
        + " y = Sum(y0, y1, y2, y3, y4, y5) }"
    )
    for k in range(6):
        weight = np.ones((4, 100), np.float32)
        weight[0, : 10 + k] = 1e-9
        made.graph.initializer.append(numpy_helper.from_array(weight, f"w{k}"))
    onnx.save(made, folder / "w.onnx")
    _, out, _ = amp("convert", folder / "w.onnx", "--dry-run")
    lost = "w5: 3.75 % of its elements become zero in float16, and it is stored so: a check counts the error"
    assert f"weight      {lost} (and 5 more such notes: --verbose)" in out
    _, out, _ = amp("convert", folder / "w.onnx", "--dry-run", "--json")
    notes = [note for note in json.loads(out)["notes"] if note["topic"] == "weight"]
    assert [note["where"] for note in notes] == ["w5", "w4", "w3", "w2", "w1", "w0"]
    # a conversion that fails leaves no ranges behind
    words = ("convert", folder / "m.onnx", "-o", folder / "none" / "o.onnx", "--data", folder / "data")
    code, _, _ = amp(*words, "--ranges-out", folder / "r.json")
    assert code == 2 and not (folder / "none").exists() and not (folder / "r.json").exists()
    # the models of the repository pass nothing
    for name in ("digits_transformer", "digits_cnn"):
        code, out, _ = amp("convert", folder / f"{name}.onnx", "--dry-run", "--data", folder / "digits_heldout.npz")
        assert code == 0 and "all values in range" in out and "as no input has the name: labels" in out


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--data", "none.npz"], "AMP101", "none.npz"),
        (["--data", "empty"], "AMP108", "no .npz file"),
        (["--data", ""], "AMP101", "no path"),
        (["--data", "x" * 5000], "AMP101", "too long"),
        (["--data", "zero.npz"], "AMP503", "[0, 4]"),
        (["--data", "m.onnx"], "AMP108", "m.onnx"),
        (["--data", "digits_heldout.npz"], "AMP503", "no array for input 'x'"),
        (["--data", "nan.npz"], "AMP503", "holds NaN"),
        (["--data", "shape.npz"], "AMP503", "[2, 4]"),
        (["--data", "data", "--ranges", "r.json"], "AMP311", "--ranges and --data"),
        (["--samples", "2", "--ranges", "r.json"], "AMP311", "--samples"),
        (["--samples", "0"], "AMP311", "--samples 0"),
        (["--samples", "100000000"], "AMP311", "give 1 to 1,000,000"),
        (["--samples", "-3"], "AMP311", "--samples -3"),
        (["--range-margin", "2"], "AMP311", "--range-margin"),
        (["--data", "data", "--range-margin", "0"], "AMP311", "a positive number, not 0"),
        (["--data", "data", "--range-margin", "nan"], "AMP311", "a positive number, not nan"),
        (["--ranges", "none.json"], "AMP401", "none.json"),
        (["--ranges", "m.onnx"], "AMP401", "m.onnx"),
        (["--ranges", "other.json"], "AMP403", "another model"),
        (["--data", "data", "--ranges-out", "m.onnx"], "AMP106", "m.onnx"),
        (["--data", "data", "--ranges-out", "o.onnx"], "AMP106", "o.onnx"),
        (["--data", "data", "--ranges-out", "none/r.json"], "AMP105", "none"),
        (["--data", "data", "--ranges-out", "data/1.npz"], "AMP106", "1.npz"),
        (["--data", "shape.npz", "--ranges-out", "shape.npz"], "AMP106", "shape.npz"),
        (["--lists", "my.toml", "-o", "my.toml"], "AMP106", "my.toml"),
        (["--lists", "my.toml", "--plan-out", "my.toml"], "AMP106", "my.toml"),
        (["--lists", "my.toml", "--ranges-out", "my.toml"], "AMP106", "my.toml"),
        (["--data", "data", "-o", "data/0.npz"], "AMP106", "0.npz"),
        (["--ranges", "r.json", "-o", "r.json"], "AMP106", "r.json"),
        (["-o", "pipe"], "AMP105", "is not a file"),
        (["-o", "link"], "AMP105", "is not a file"),
        (["--plan-out", "pipe"], "AMP105", "--plan-out"),
        (["--samples", "1", "--ranges-out", "pipe"], "AMP105", "--ranges-out"),
        (["--samples", "1", "--ranges-out", "new.json", "--fp32", "nothing"], "AMP305", "nothing"),
        (["--samples", "1", "--ranges-out", "new.json", "--dry-run"], "AMP311", "--dry-run"),
        (["--data", "data", "--plan-in", "p.json"], "AMP404", "--data"),
    ],
)
def test_mistakes(amp, folder, monkeypatch, words, code, told):
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "my.toml").write_text("[allow]\nMatMul = 'mine'\n")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    np.savez(folder / "nan.npz", x=np.full((2, 4), np.nan, np.float32))
    np.savez(folder / "shape.npz", x=np.ones((2, 5), np.float32))
    np.savez(folder / "zero.npz", x=np.ones((0, 4), np.float32))
    assert amp("convert", "digits_cnn.onnx", "--samples", 1, "--ranges-out", "other.json")[0] == 0
    assert amp("convert", "m.onnx", "--ranges-out", "r.json", "--plan-out", "p.json")[0] == 0
    before = contents(folder)
    refused(amp("convert", "m.onnx", "-o", "o.onnx", *words), code, told)
    assert contents(folder) == before
    assert (folder / "pipe").is_fifo() and (folder / "link").is_symlink()


def test_a_pipe_is_no_place_for_arrays_or_ranges(folder):
    os.mkfifo(folder / "pipe")
    for write in (Ranges("digest").write, lambda path: save_npz(path, {"x": np.ones(2)})):
        with pytest.raises(AmpError, match="AMP105.*not a file"):
            write(folder / "pipe")
    assert (folder / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"ranges": {}}, "AMP311"),
        ({"ranges": 5}, "AMP311"),
        ({"ranges": "r.json", "range_margin": "2"}, "AMP311"),
        ({"ranges": "r.json", "range_margin": True}, "AMP311"),
        ({"data": "x.npz", "range_margin": "2"}, "AMP311"),
        ({"data": np.array(3)}, "AMP108"),
        ({"data": [{0: 1}]}, "AMP503"),
    ],
)
def test_mistakes_of_programs(folder, options, code):
    for call in (ampgraph.convert, ampgraph.plan):
        with pytest.raises(AmpError) as told:
            call(folder / "m.onnx", **options)
        assert told.value.code == code and told.value.hint


# `ampgraph run`: what it tells, what it writes, and its answers to mistakes.


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_outputs_in_a_line_each() -> None:
    rows = describe_outputs(
        {
            "plain": np.array([[1.0, -2.0], [0.5, 4.0]], np.float16),
            "odd": np.array([np.nan, np.inf, -np.inf, 3.0], np.float32),
            "lost": np.full((2, 1), np.nan),
            "none": np.zeros((0, 3), np.float32),
            "number": np.int64(7),
            "flags": np.array([True, False]),
            "low": np.ones(2, ml_dtypes.bfloat16),
            "texts": np.array(["a"], object),
            "parts": [X, X],
        }
    )
    assert [str(row) for row in rows] == [
        "plain  float16 2x2  -2 to 4, mean 0.875",
        "odd  float32 4  3 to 3, mean 3  2 infinite, 1 NaN",
        "lost  float64 2x1  0 infinite, 2 NaN",
        "none  float32 0x3",
        "number  int64 scalar  7 to 7, mean 7",
        "flags  bool 2  0 to 1, mean 0.5",
        "low  bfloat16 2  1 to 1, mean 1",
        "texts  object 1",
        "parts  sequence of 2 0",
    ]
    data = json.loads(json.dumps([row.to_dict() for row in rows], allow_nan=False))
    assert data[1]["infinite"] == 2 and data[1]["nan"] == 1 and data[2]["smallest"] is None


def test_run_tells_and_writes(amp: Any, run_folder: Path) -> None:
    out = run_folder / "out.npz"
    code, told, err = amp("run", run_folder / "m.onnx", "--data", run_folder / "data.npz", "-o", out)
    assert (code, err) == (0, "") and told.splitlines()[0].startswith("y  float32 4x3  ")
    assert told.splitlines()[1] == "rows  float32 4  -1 to -1, mean -1"
    with np.load(out) as found:
        assert list(found) == ["y", "rows"] and (found["y"] == (X + BIAS) * 2).all()
    before = out.read_bytes()
    code, told, _ = amp(
        "run", run_folder / "m.onnx", "--data", run_folder / "data.npz", "-o", out, "--strict", "--json"
    )
    assert code == 0 and json.loads(told)[1]["mean"] == -1.0
    assert out.read_bytes() == before  # the same numbers, the same bytes
    # inputs are generated where none are given
    code, told, err = amp("run", run_folder / "m.onnx", "--dim", "batch=5")
    assert code == 0 and told.startswith("y  float32 5x3  ")
    assert err.startswith("inputs were generated: 1 sample, seed 0")
    assert amp("run", run_folder / "m.onnx", "--dim", "batch=5", "--strict")[1] == told
    assert amp("run", run_folder / "m.onnx", "--dim", "batch=5", "-q") == (0, "", "")
    assert amp("run", run_folder / "m.onnx", "--dim", "batch=5", "--seed", "1")[1] != told
    refused(amp("run", run_folder / "m.onnx", "--dim", "rows=5"), "AMP310", "there are: batch")
    # nan in what is fed is told
    fed = {**FEEDS, "x": np.where(np.arange(12).reshape(4, 3) == 7, np.float32(np.nan), X)}
    write_npz(run_folder / "nan.npz", fed)
    code, told, err = amp("run", run_folder / "m.onnx", "--data", run_folder / "nan.npz")
    assert (code, err) == (0, "input 'x' holds NaN, first at [2, 1]\n") and "1 NaN" in told
    with pytest.warns(UserWarning, match="input 'x' holds NaN"):
        ampgraph.run(run_folder / "m.onnx", fed)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--data", "none.npz"], "AMP101", "no such file"),
        (["--data", "m.onnx"], "AMP108", "is not an .npz file"),
        (["--data", "less.npz"], "AMP503", "no array for input 'scale'"),
        (["--data", "wrong.npz"], "AMP503", "float64 was fed"),
        (["--data", "data.npz", "--device", "gpx"], "AMP321", "unknown device 'gpx'"),
        (["--data", "data.npz", "--device", "ascend"], "AMP321", "ONNX models"),
        (["--data", "data.npz", "-o", "none/out.npz"], "AMP105", "does not exist"),
        (["--data", "data.npz", "-o", "folder"], "AMP105", "is a directory"),
        (["--data", "data.npz", "-o", "pipe"], "AMP105", "is not a file"),
        (["--data", "data.npz", "-o", "m.onnx"], "AMP106", "over the input"),
        (["--data", "data.npz", "-o", "data.npz"], "AMP106", "over the input"),
    ],
)
def test_mistakes_write_nothing(
    amp: Any, run_folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: str, told: str
) -> None:
    monkeypatch.chdir(run_folder)
    (run_folder / "folder").mkdir()
    os.mkfifo("pipe")
    np.savez("less.npz", x=X)
    write_npz("wrong.npz", {**FEEDS, "x": X.astype(np.float64)})
    before = contents(run_folder)
    more = [] if "-o" in words else ["-o", "out.npz"]
    refused(amp("run", "m.onnx", *words, *more), code, told)
    assert contents(run_folder) == before


# `ampgraph verify`: what it prints, its exit codes, and its answers to bad input.

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


def test_good_and_missed_models(amp, digits):
    status, out, err = amp("verify", *digits, "--data", HELDOUT)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[0] == "reference" and lines[-1].startswith("verdict     ok: relative L2 within 0.01")
    assert "strict, on the CPU: every float16 value rounded" in out and "not modelled" in out
    assert "argmax 100 % of 360; all finite" in out and "90th percentile" in out
    assert "left out, as no input has the name: labels" in out and "error grows" not in out
    # a tolerance that is missed exits one and names nodes
    status, out, _ = amp("verify", *digits, "--tolerance", "1e-5", "--samples", 2, "--seed", 3)
    assert status == 1
    assert "inputs were generated: 2 samples, seed 3" in out
    assert "error       made at" in out and "layer layers." in out
    assert "repair      none found" in out and "chaotic in itself" in out and "--fp32" not in out
    assert out.splitlines()[-1].startswith("verdict     missed: logits")
    status, out, _ = amp("verify", *digits, "--tolerance", "1e-5", "--nodes", 0)
    assert status == 1 and "repair      " not in out
    # a missing provider says what is here and what to install
    status, out, err = amp("verify", *digits, "--device", "cann")
    refused((status, out, err), "AMP505", "only", "CPU", "CANN toolkit")


@pytest.mark.slow
def test_an_overflow_is_told(amp, t5):
    reference, model, data = t5
    status, out, _ = amp("verify", reference, model, "--data", data)
    assert status == 1
    assert "not finite  first at block.2.wo (MatMul, float16): its result reaches" in out
    assert "repair      --fp32 block.2.wo" in out and "tried with O2,float16" in out and "or: --dtype bfloat16" in out
    assert "elements are not finite where the reference is" in out
    # json has everything
    reference, model, data = t5
    status, out, _ = amp("verify", reference, model, "--data", data, "--json")
    found = json.loads(out)
    assert status == 1 and found["ok"] is False and found["strict"] is True and found["device"] == "cpu"
    born = found["first_nonfinite"]
    assert born["node"] == "block.2.wo" and born["operator"] == "MatMul" and born["dtype"] == "float16"
    assert {"layer", "inside", "reads", "makes", "why", "suggestion", "hints"} <= set(born)
    assert born["reads"][0]["range"]["infinite"] == 0 and born["makes"][0]["range"]["infinite"] > 0
    assert found["outputs"][0]["nonfinite_mismatches"] > 0 and len(found["growth"]) <= 5


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


def test_bad_input_exits_two(amp, digits, tmp_path):
    reference, model = digits
    (tmp_path / "bad.onnx").write_bytes(b"not a model at all" * 50)
    data_model(tmp_path / "other.onnx")
    np.savez(tmp_path / "nan.npz", image=np.full((2, 1, 8, 8), np.nan, np.float32))
    np.savez(tmp_path / "none.npz", one=np.zeros(3), other=np.zeros(3))
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
