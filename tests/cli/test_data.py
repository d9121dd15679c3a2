"""`convert` with data: ranges that steer the plan, are written, read again, and refused for another model."""

import json
import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ampgraph
from ampgraph import AmpError
from ampgraph.core.ranges import Ranges
from ampgraph.runtime.data import save_npz
from cli_helpers import MODELS, contents, process, refused
from onnx_text import parse

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


def test_data_keeps_what_overflows_in_float32_and_the_report_says_so(amp, folder):
    code, out, err = amp("convert", folder / "m.onnx", "-o", folder / "o.onnx", "--data", folder / "data")
    assert (code, err) == (0, "")
    assert products(folder / "o.onnx") == ["two", "three"]
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "ranges 1 value out of range, 2 nodes float32 for it" in rows
    assert "'b' reaches 8e+04 (limit 3.275e+04 with margin 2)" in rows
    assert f"3 samples from {folder / 'data'}" in rows
    assert "left out, as no input has the name: label" in rows
    assert any("(two ...): 'b' reaches 8e+04 (limit 3.275e+04 with margin 2)" in row for row in rows)
    assert "heavy 2 of 4 low" in rows
    amp("convert", folder / "m.onnx", "-o", folder / "plain.onnx")
    assert products(folder / "plain.onnx") == []


def test_one_file_and_a_number_of_samples(amp, folder):
    code, out, _ = amp("convert", folder / "m.onnx", "--dry-run", "--data", folder / "data", "--samples", 1)
    assert code == 0 and "all values in range" in out and "1 sample from" in out and "(of 3)" in out
    code, out, _ = amp("convert", folder / "m.onnx", "--dry-run", "--data", folder / "data" / "2.npz")
    assert code == 0 and "1 value out of range, 2 nodes" in out


def test_without_data_inputs_are_generated_and_the_report_says_so(amp, folder):
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


def test_explain_names_the_range(amp, folder):
    amp("convert", folder / "m.onnx", "--data", folder / "data", "--ranges-out", folder / "r.json")
    code, out, _ = amp("explain", folder / "m.onnx", "two", "--ranges", folder / "r.json")
    assert code == 0 and "float32, by range: 'b' reaches 8e+04 (limit 3.275e+04 with margin 2)" in out
    code, out, _ = amp("explain", folder / "m.onnx", "two", "--ranges", folder / "r.json", "--range-margin", "0.5")
    assert code == 0 and "float16, by list" in out
    code, out, _ = amp("explain", folder / "m.onnx", "one", "--ranges", folder / "r.json", "--json")
    assert code == 0 and json.loads(out)["precision"] == "float16"


def test_the_models_of_the_repository_pass_nothing(amp, folder):
    for name in ("digits_transformer", "digits_cnn"):
        code, out, _ = amp("convert", folder / f"{name}.onnx", "--dry-run", "--data", folder / "digits_heldout.npz")
        assert code == 0 and "all values in range" in out and "as no input has the name: labels" in out


def test_weights_are_named_with_their_share_and_json_lists_all(amp, folder):
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
    assert "weight      w5: 3.75 % of its elements flush to zero in float16" in out and "and 3 more" in out
    _, out, _ = amp("convert", folder / "w.onnx", "--dry-run", "--json")
    notes = [note for note in json.loads(out)["notes"] if note["topic"] == "weight"]
    assert [note["where"] for note in notes] == ["w5", "w4", "w3", "w2", "w1", "w0"]


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
    (folder / "my.toml").write_text("[white]\nMatMul = 'mine'\n")
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


@pytest.mark.parametrize("given", [{"data": "held.npz"}, {"data": "data"}, {"ranges": "r.json"}, {"lists": "my.toml"}])
def test_a_program_cannot_overwrite_what_it_gives(amp, folder, monkeypatch, given):
    monkeypatch.chdir(folder)
    np.savez(folder / "held.npz", x=np.ones((2, 4), np.float32))
    (folder / "my.toml").write_text("[white]\nMatMul = 'mine'\n")
    assert amp("convert", "m.onnx", "--ranges-out", "r.json")[0] == 0
    before = contents(folder)
    (source,) = given.values()
    with pytest.raises(AmpError, match="AMP106"):
        ampgraph.convert("m.onnx", **given, output="data/0.npz" if source == "data" else source)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("output", "code"), [("m.onnx", "AMP106"), ("held.npz", "AMP106"), ("pipe", "AMP105"), ("none/o.npz", "AMP105")]
)
def test_run_writes_over_nothing(amp, folder, output, code):
    np.savez(folder / "held.npz", x=np.ones((2, 4), np.float32))
    os.mkfifo(folder / "pipe")
    before = contents(folder)
    refused(amp("run", folder / "m.onnx", "--data", folder / "held.npz", "-o", folder / output), code)
    assert contents(folder) == before and (folder / "pipe").is_fifo()


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


def test_mindir_is_refused_clearly(amp, folder):
    words = ("convert", folder / "digits_cnn.mindir", "--data", folder / "digits_heldout.npz", "--dry-run")
    refused(amp(*words), "AMP304", "MindIR", "--fp32")


def test_a_conversion_that_fails_leaves_no_ranges_behind(amp, folder):
    words = ("convert", folder / "m.onnx", "-o", folder / "none" / "o.onnx", "--data", folder / "data")
    code, _, _ = amp(*words, "--ranges-out", folder / "r.json")
    assert code == 2 and not (folder / "none").exists() and not (folder / "r.json").exists()


def test_help_names_the_options():
    done = process("convert", "--help", env={**os.environ, "COLUMNS": "200"})
    for word in ("--data", "--samples", "--ranges ", "--ranges-out", "--range-margin"):
        assert word in done.stdout
