"""`ampgraph convert DIR`: a line for each model, what else is there copied, what is done skipped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import numpy as np
import onnx
import pytest

from ampgraph.cli.folder import FIXED, MemoryBudget, named_for_web
from cli_helpers import COMMAND, MODELS, contents, data_model, process, refused


@pytest.fixture
def pipeline(tmp_path):
    """A folder as exporters write them: models in a tree, one with a data file; what else a library reads."""
    source = tmp_path / "in"
    for name in ("encoder", "decoder"):
        (source / name).mkdir(parents=True)
        (source / name / "config.json").write_text("{}")
    shutil.copy(MODELS / "digits_cnn.onnx", source / "encoder" / "model.onnx")
    data_model(source / "decoder" / "model.onnx", location="model.onnx_data")
    (source / "model_index.json").write_text("{}")
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("x")
    return source


@pytest.mark.usefixtures("models_here")
def test_a_folder_keeps_its_tree_and_names(amp, pipeline, tmp_path):
    target = tmp_path / "out"
    code, out, err = amp("convert", pipeline, "-o", target)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["decoder/model.onnx", "encoder/model.onnx", "2"]
    assert [*contents(target)] == [
        "ampgraph-convert.json", "decoder/config.json", "decoder/model.onnx", "decoder/model.onnx_data",
        "encoder/config.json", "encoder/model.onnx", "model_index.json",
    ]  # fmt: skip
    made = onnx.load(target / "decoder" / "model.onnx")
    assert onnx.numpy_helper.to_array(made.graph.initializer[0]).dtype == np.float16


def test_the_same_folder_gives_the_same_bytes(amp, pipeline, tmp_path):
    """In whatever order its models end."""
    for name, more in (("one", ()), ("two", ("--jobs", 2))):
        assert amp("convert", pipeline, "-o", tmp_path / name, *more)[0] == 0
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    manifest = "ampgraph-convert.json"
    assert one.pop(manifest).replace(b"/one", b"/two") == two.pop(manifest)
    assert one == two


def test_what_fails_is_counted_and_the_rest_done(amp, pipeline, tmp_path):
    (pipeline / "bad.onnx").write_bytes(b"bad")
    code, out, _ = amp("convert", pipeline, "-o", tmp_path / "out", "--json")
    report = json.loads(out)
    states = {one["file"]: one["state"] for one in report["models"]}
    assert code == 2 and states["bad.onnx"] == "failed" and report["counts"]["failed"] == 1
    assert "AMP102" in report["models"][0]["error"]
    assert (tmp_path / "out" / "encoder" / "model.onnx").is_file() and not (tmp_path / "out" / "bad.onnx").exists()


def skipped(amp, source, target, *more):
    report = json.loads(amp("convert", source, "-o", target, "--json", *more)[1])
    return [one["file"] for one in report["models"] if one["skipped"]]


@pytest.mark.usefixtures("models_here")
def test_a_second_call_does_what_is_left(amp, pipeline, tmp_path):
    target = tmp_path / "out"
    assert skipped(amp, pipeline, target) == []
    before = contents(target)
    assert skipped(amp, pipeline, target) == ["decoder/model.onnx", "encoder/model.onnx"] and contents(target) == before
    (target / "encoder" / "model.onnx").write_bytes(b"broken")
    assert skipped(amp, pipeline, target) == ["decoder/model.onnx"] and contents(target) == before
    with open(pipeline / "decoder" / "model.onnx_data", "r+b") as file:
        file.write(np.float32(0.25).tobytes())
    assert skipped(amp, pipeline, target) == ["encoder/model.onnx"]
    assert skipped(amp, pipeline, target, "--level", "O1") == []
    (target / "ampgraph-convert.json").write_text("damaged")
    assert skipped(amp, pipeline, target) == []


def test_a_missed_check_is_1_a_second_time_too(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    shutil.copy(MODELS / "digits_cnn.onnx", source)
    checked = {**os.environ, "AMPGRAPH_CHECK": "auto"}
    for again in (False, True):
        done = process("convert", source, "-o", tmp_path / "out", "--tolerance", "1e-9", env=checked)
        assert done.returncode == 1 and "MISSED" in done.stdout and ("as before" in done.stdout) is again


@pytest.mark.usefixtures("models_here")
def test_a_dry_run_writes_nothing(amp, pipeline, tmp_path):
    code, out, _ = amp("convert", pipeline, "-o", tmp_path / "out", "--dry-run")
    assert code == 0 and "2 models" in out and not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.usefixtures("models_here")
def test_links_to_files_are_followed_and_to_folders_not(amp, pipeline, tmp_path):
    (pipeline / "again").symlink_to(pipeline)
    (pipeline / "encoder" / "linked.json").symlink_to(pipeline / "model_index.json")
    (pipeline / "linked.onnx").symlink_to(pipeline / "encoder" / "model.onnx")
    code, out, _ = amp("convert", pipeline, "-o", tmp_path / "out")
    made, copy = tmp_path / "out", tmp_path / "out" / "encoder" / "linked.json"
    assert code == 0 and "again: a link to a folder, not followed" in out and not (made / "again").exists()
    assert copy.read_text() == "{}" and not copy.is_symlink()
    assert (made / "linked.onnx").read_bytes() == (made / "encoder" / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "AMP101"),
        (("-o", "in/out"), "AMP106"),
        (("-o", "."), "AMP106"),
        (("-o", "out", "--plan-out", "plan.json"), "AMP404"),
        (("-o", "out", "--level", "O7"), "AMP302"),
    ],
)
def test_what_a_folder_refuses(amp, pipeline, tmp_path, monkeypatch, words, code):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    refused(amp("convert", "in", *words), code)
    assert contents(tmp_path) == before


def test_a_folder_without_a_model(amp, tmp_path):
    (tmp_path / "in").mkdir()
    refused(amp("convert", tmp_path / "in", "-o", tmp_path / "out"), "AMP101", "no .onnx or .mindir file")


@pytest.mark.usefixtures("models_here")
def test_names_of_transformers_js(amp, pipeline, tmp_path):
    for name, to in (("m.onnx", "m_fp16.onnx"), ("a/m_q4.onnx", "a/m_q4f16.onnx"), ("m_int8.onnx", "")):
        assert named_for_web(name) == to
    (pipeline / "encoder" / "model_quantized.onnx").write_bytes(b"as it is")
    target = tmp_path / "out"
    assert amp("convert", pipeline, "-o", target, "--transformers-js")[0] == 0
    made = contents(target)
    assert made["encoder/model_quantized.onnx"] == b"as it is"
    assert {"decoder/model_fp16.onnx", "encoder/model_fp16.onnx"} <= made.keys() and "encoder/model.onnx" not in made


def test_options_of_a_folder_are_refused_for_a_file(amp, pipeline):
    for words in (("--jobs", 2), ("--transformers-js",)):
        refused(amp("convert", pipeline / "encoder" / "model.onnx", *words), "AMP404")


def test_what_does_not_fit_waits_but_for_the_first():
    room = MemoryBudget()
    free = room.free
    with room.reserve(free + FIXED):
        assert (room.running, room.free) == (1, -FIXED)
    assert (room.running, room.free) == (0, free)


@pytest.mark.usefixtures("models_here")
def test_words_mean_something_in_one_of_the_models(amp, pipeline, tmp_path):
    """Names of nodes, dimensions, inputs: each component has its own."""
    given = ("--fp32", "product", "--io", "x=low", "--json")
    code, out, _ = amp("convert", pipeline, "-o", tmp_path / "out", *given)
    unmatched = {one["file"]: one["unmatched"] for one in json.loads(out)["models"]}
    assert code == 0 and unmatched == {"decoder/model.onnx": [], "encoder/model.onnx": ["x=low", "product"]}
    code, out, _ = amp("convert", pipeline, "-o", tmp_path / "out", "--dim", "nowhere=3")
    assert code == 2 and "error[AMP305]: 'nowhere=3' matches nothing in any of the models" in out


@pytest.mark.usefixtures("models_here")
def test_data_in_shards_and_files_that_are_in_the_way(amp, pipeline, tmp_path):
    """Data files of models are not copied; what is written is not written over by what is copied."""
    folder = pipeline / "decoder"
    data_model(folder / "second.onnx", location="one.bin")
    other = onnx.load(folder / "model.onnx", load_external_data=False)
    weight = other.graph.initializer[0]
    weight.name = "v"
    model = onnx.load(folder / "second.onnx", load_external_data=False)
    model.graph.initializer.append(weight)
    model.graph.node.add(op_type="MatMul", input=["x", "v"], output=["z"])
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["batch", 4]))
    onnx.save(model, folder / "second.onnx")
    (folder / "second.onnx.data").write_bytes(b"of nobody")
    (pipeline / "encoder" / "model_fp16.onnx").write_bytes(b"of another converter")
    code, out, _ = amp("convert", pipeline, "-o", tmp_path / "out", "--transformers-js")
    made = contents(tmp_path / "out")
    assert code == 0 and not [name for name in made if name.endswith(".bin") or name == "decoder/model.onnx_data"]
    assert {"decoder/model_fp16.onnx_data", "decoder/second_fp16.onnx.data"} <= made.keys()
    assert made["encoder/model_fp16.onnx"] != b"of another converter"
    assert onnx.load(tmp_path / "out" / "decoder" / "second_fp16.onnx").graph.initializer[1].data_type == 10
    assert skipped(amp, pipeline, tmp_path / "out", "--transformers-js") != []


@pytest.mark.skipif(os.name == "nt", reason="no such signal there")
@pytest.mark.usefixtures("interruptible", "models_here")
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_was_interrupted_is_continued(amp, tmp_path, jobs):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(6):
        shutil.copy(MODELS / "digits_cnn.onnx", source / f"{number}.onnx")
    words = [*COMMAND, "convert", str(source), "-o", str(target), "--jobs", str(jobs)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline().startswith("0.onnx")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 130
    done = [name for name in contents(target) if name.endswith(".onnx")]
    assert 1 <= len(done) < 6 and not [name for name in contents(target) if ".tmp" in name]
    assert amp("convert", source, "-o", target)[0] == 0
    assert len(contents(target)) == 7
