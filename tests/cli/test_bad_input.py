"""No bad input ends in a traceback or a half-written file: one line, one hint, exit 2."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from ampgraph.cli import terminal
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.runtime import data
from cli_helpers import COMMAND, MODELS, NAMES, contents, data_model, process, refused
from onnx_text import parse


@pytest.fixture
def folder(tmp_path):
    """A folder with both models."""
    for name in NAMES:
        shutil.copy(MODELS / f"{name}.onnx", tmp_path)
    return tmp_path


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"


def test_a_pointer_of_git_lfs_is_named(amp, folder):
    for name in ("m.onnx", "m.mindir", "samples.npz"):
        (folder / name).write_text(POINTER)
    for name in ("m.onnx", "m.mindir"):
        done = amp("convert", folder / name)
        refused(done, "AMP102", "is a Git LFS pointer")
        assert "git lfs pull" in done[2]
    done = amp("convert", folder / "digits_cnn.onnx", "--data", folder / "samples.npz")
    refused(done, "AMP108", "is a Git LFS pointer", "git lfs pull")


def test_a_fault_is_told_once(tmp_path):
    """What onnx_ir logs of the file does not stand beside it; a process of its own, as loggers are the process's."""
    onnx.save(parse("g (float[2, 4] x) => (float[2, 4] y) { [mm] y = MatMul (x, nope) }"), tmp_path / "m.onnx")
    for verb in ("convert", "check", "inspect", "explain"):
        words = [sys.executable, "-m", "ampgraph", verb, str(tmp_path / "m.onnx")]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert done.returncode and (done.stdout + done.stderr).count("nope") == 1, (verb, done.stdout, done.stderr)


def test_an_archive_that_unpacks_to_more_than_memory_is_refused(amp, folder, monkeypatch):
    np.savez_compressed(folder / "large.npz", image=np.zeros((1 << 8, 1, 8, 8), np.float32))
    assert (folder / "large.npz").stat().st_size < 1 << 11
    monkeypatch.setattr(data, "MOST", 1 << 15)
    for command in ("convert", "run"):
        words = "unpacks to 0.0 GB, and 0.0 GB of one file are read at once", "give a folder of .npz files"
        refused(amp(command, folder / "digits_cnn.onnx", "--data", folder / "large.npz"), "AMP108", *words)


@pytest.mark.parametrize(("option", "code"), [("--lists", "AMP301"), ("--plan-in", "AMP401"), ("--ranges", "AMP401")])
def test_what_is_nested_too_deeply_is_bad_input(amp, folder, option, code):
    start = "a = " if option == "--lists" else ""
    (folder / "deep").write_text(start + "[" * 100_000 + "]" * 100_000)
    refused(amp("convert", folder / "digits_cnn.onnx", option, folder / "deep"), code, "deep")


@pytest.mark.parametrize(
    ("command", "source", "other"),
    [
        ("convert", "digits_cnn.onnx", ".mindir"),
        ("convert", "digits_cnn.mindir", ".onnx"),
        ("tune", "digits_cnn.onnx", ".mindir"),
    ],
)
def test_a_result_keeps_the_name_of_its_format(amp, folder, command, source, other):
    shutil.copy(MODELS / source, folder)
    before = contents(folder)
    done = amp(command, folder / source, "-o", (folder / "out").with_suffix(other))
    refused(done, "AMP105", "the name is of another format")
    assert f"-o {(folder / 'out').with_suffix(Path(source).suffix)}" in done[2] and contents(folder) == before


def data_changed(folder, **entries):
    """A model with what it says of its data, or its shape, replaced."""
    data_model(folder / "m.onnx")
    model = onnx.load(folder / "m.onnx", load_external_data=False)
    tensor = model.graph.initializer[0]
    for entry in tensor.external_data:
        entry.value = str(entries.get(entry.key, entry.value))
    tensor.dims[:] = entries.get("dims", tensor.dims)
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def data_elsewhere(folder, linked):
    """A model whose data lies outside of its folder, by its path or through a link."""
    outside = folder.parent / "outside.bin"
    outside.write_bytes(bytes(4096 * 16))
    data_changed(folder, **({} if linked else {"location": "../outside.bin"}))
    if linked:
        (folder / "data.bin").unlink()
        (folder / "data.bin").symlink_to(outside)


WHOLE = (MODELS / "digits_cnn.onnx").read_bytes()
BAD_FILES = {
    "garbage": (lambda folder: (folder / "m.onnx").write_bytes(b"not a model at all" * 50), "AMP102"),
    "truncated": (lambda folder: (folder / "m.onnx").write_bytes(WHOLE[:70_000]), "AMP102"),
    "empty": (lambda folder: (folder / "m.onnx").write_bytes(b""), "AMP102"),
    "directory": (lambda folder: (folder / "m.onnx").mkdir(), "AMP101"),
    "missing": (lambda folder: None, "AMP101"),
    "data missing": (lambda folder: data_model(folder / "m.onnx").unlink(), "AMP103"),
    "data cut short": (lambda folder: os.truncate(data_model(folder / "m.onnx"), 1000), "AMP103"),
    "data above": (lambda folder: data_elsewhere(folder, linked=False), "AMP103"),
    "data elsewhere": (lambda folder: data_changed(folder, location="/etc/hostname"), "AMP103"),
    "data through a link": (lambda folder: data_elsewhere(folder, linked=True), "AMP103"),
    "absurd length": (lambda folder: data_changed(folder, length=1 << 62), "AMP103"),
    "absurd shape": (lambda folder: data_changed(folder, dims=[1 << 40, 1 << 20]), "AMP102"),
    "negative shape": (lambda folder: data_changed(folder, dims=[-4, -4096]), "AMP102"),
}


@pytest.mark.parametrize("command", ["convert", "inspect", "explain"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused(amp, tmp_path, name, command):
    folder = tmp_path / "models"
    folder.mkdir()
    make, code = BAD_FILES[name]
    make(folder)
    before = contents(tmp_path)
    refused(amp(command, folder / "m.onnx", *(["product"] if command == "explain" else [])), code, "m.onnx")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("source", "words", "code", "told"),
    [
        ("digits_cnn.onnx", "--level O5", "AMP302", "O5"),
        ("digits_cnn.onnx", "--level=", "AMP302", ""),
        ("digits_cnn.onnx", "--dtype flaot16", "AMP301", "flaot16"),
        ("digits_cnn.onnx", "--policy jax", "AMP303", "jax"),
        ("digits_cnn.onnx", "--policy mindspore", "AMP303", ".mindir files"),
        ("digits_cnn.onnx", "--target cdua", "AMP304", "cdua"),
        ("digits_cnn.onnx", "--target ascend", "AMP304", "ONNX models do not run"),
        ("digits_cnn.onnx", "--fp32 no_such_node", "AMP305", "no_such_node"),
        ("digits_cnn.onnx", "--low op:Comv", "AMP305", "op:Comv"),
        ("digits_cnn.onnx", "--fp32 scope:layer.9", "AMP305", "scope:layer.9"),
        ("digits_cnn.onnx", "--low value:nothing", "AMP305", "value:nothing"),
        ("digits_cnn.onnx", "--fp32 op:Conv --low op:Conv", "AMP306", "asked for in both precisions"),
        ("digits_cnn.onnx", "--io imgae=low", "AMP305", "imgae"),
        ("digits_cnn.onnx", "--opset 999", "AMP307", "999"),
        ("digits_cnn.onnx", "--opset x", "AMP307", "x"),
        ("digits_cnn.onnx", "--dim batch", "AMP310", "batch"),
        ("digits_cnn.onnx", "--dim bacth=3", "AMP310", "bacth"),
        ("digits_cnn.onnx", "--lists missing.toml", "AMP301", "missing.toml"),
        ("digits_cnn.onnx", "--plan-in missing.json", "AMP401", "missing.json"),
        ("digits_cnn.mindir", "--fp32 nosuch", "AMP305", "nosuch matches no float32 node"),
        ("digits_cnn.mindir", "--policy mindspore --fp32 op:MatMul", "AMP305", "what MindSpore does"),
        ("digits_cnn.mindir", "--target cuda", "AMP304", "MindIR models do not run on 'cuda'"),
        ("digits_cnn.mindir", "--target tensorrt", "AMP304", "ascend, cpu"),
        ("digits_cnn.mindir", "--opset 18", "AMP307", "MindIR has no opsets"),
        ("digits_cnn.mindir", "--policy apex", "AMP303", "--policy pytorch"),
        ("digits_cnn.mindir", "--store-weights high", "AMP301", "high"),
        ("digits_cnn.mindir", "--io imgae=low", "AMP305", "imgae"),
        ("digits_cnn.mindir", "--dim batch=2", "AMP310", "batch"),
    ],
)
def test_a_bad_option_is_refused(amp, folder, source, words, code, told):
    shutil.copy(MODELS / source, folder)
    before = contents(folder)
    refused(amp("convert", folder / source, *words.split()), code, told)
    assert contents(folder) == before


def test_usage_errors_exit_2():
    wrong = (
        ("convert",),
        ("convert", "m.onnx", "--no-such"),
        ("nothing",),
        ("convert", "m.onnx", "--range-margin", "x"),
    )
    for words in wrong:
        done = process(*words)
        assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
        assert "Usage: ampgraph" in done.stderr


def test_plans_are_refused_for_other_models_and_beside_options(amp, folder):
    plan = folder / "plan.json"
    amp("convert", folder / "digits_cnn.onnx", "--dry-run", "--plan-out", plan)
    refused(amp("convert", folder / "digits_transformer.onnx", "--plan-in", plan), "AMP403")
    refused(amp("convert", folder / "digits_cnn.onnx", "--plan-in", plan, "--level", "O1"), "AMP404", "--level")
    plan.write_text("{}")
    refused(amp("convert", folder / "digits_cnn.onnx", "--plan-in", plan), "AMP401")


@pytest.mark.parametrize("name", ["digits_cnn.onnx", "digits_cnn.mindir"])
def test_the_input_is_never_written_over(amp, folder, name):
    source = Path(shutil.copy(MODELS / name, folder))
    soft, hard = folder / f"soft{source.suffix}", folder / f"hard{source.suffix}"
    soft.symlink_to(source)
    os.link(source, hard)
    data_model(folder / "m.onnx")
    before = contents(folder)
    for output in (source, soft, hard, folder / ".." / folder.name / name):
        refused(amp("convert", source, "-o", output), "AMP106", "over the input")
    refused(amp("convert", source, "--plan-out", source), "AMP106")
    refused(amp("convert", folder / "m.onnx", "-o", folder / "data.bin"), "AMP106")
    refused(amp("convert", source, "-o", folder / "x", "--plan-out", folder / "x"), "AMP106")
    assert contents(folder) == before


def test_places_that_cannot_be_written(amp, folder):
    source = folder / "digits_cnn.onnx"
    before = contents(folder)
    refused(amp("convert", source, "-o", folder / "none" / "out.onnx"), "AMP105", "does not exist")
    refused(amp("convert", source, "-o", folder), "AMP105", "is a directory")
    refused(amp("convert", source, "--plan-out", folder / "none" / "plan.json"), "AMP105")
    assert contents(folder) == before


@pytest.mark.parametrize("words", [(), ("--level", "O0"), ("--plan-out", "plan.json")])
def test_a_full_disk_leaves_nothing_behind(amp, folder, monkeypatch, words):
    from errno import ENOSPC

    def full(*args, **kwargs):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.chdir(folder)
    before = contents(folder)
    monkeypatch.setattr(os, "replace", full)
    refused(amp("convert", "digits_cnn.onnx", *words), "AMP105", "full")
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_cnn.onnx", "m.onnx"])
def test_a_write_that_really_fails_leaves_nothing_behind(folder, name):
    data_model(folder / "m.onnx", count=65536)
    before = contents(folder)
    limit = (20_000, 20_000)
    done = process("convert", folder / name, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    refused((done.returncode, done.stdout, done.stderr), "AMP105", "cannot be written")
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_report_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "lists"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error[AMP105]") and len(done.stderr.splitlines()) == 2


@pytest.mark.slow
def test_a_closed_pipe_is_quiet():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "lists"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == terminal.PIPE_CLOSED and done.stderr == ""


def _listens(pid: int) -> bool:
    """Whether the process has its handlers: Python itself catches SIGINT from the start, SIGTERM never."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
@pytest.mark.parametrize("moment", ["early", "writing"])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing_behind(tmp_path, sent, code, moment):
    data_model(tmp_path / "m.onnx", count=4096 * 1500)  # 98 MB
    before = sorted(os.listdir(tmp_path))
    words = [*COMMAND, "convert", tmp_path / "m.onnx"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while moment == "early" and not _listens(running.pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    while moment == "writing" and running.poll() is None and time.monotonic() < deadline:
        if any(name.endswith(".tmp") for name in os.listdir(tmp_path)):
            break
        time.sleep(0.001)
    running.send_signal(sent)
    out, err = running.communicate(timeout=60)
    assert running.returncode == code and out == "" and "Traceback" not in err
    assert err == ("interrupted\n" if sent == signal.SIGINT else "")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_defect_is_told_in_one_line(amp, folder, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr(onnx_io, "save", broken)
    monkeypatch.delenv("AMPGRAPH_DEBUG", raising=False)
    refused(amp("convert", folder / "digits_cnn.onnx"), "AMP900", "ZeroDivisionError: oh: this is a defect of ampgraph")
    monkeypatch.setenv("AMPGRAPH_DEBUG", "1")
    assert "Traceback" in amp("convert", folder / "digits_cnn.onnx")[2]


def test_names_cannot_steer_the_terminal(amp, tmp_path):
    data_model(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.node[0].name = "a\x1b[31mred\nerror[AMP999]: forged"
    onnx.save(model, tmp_path / "named.onnx")
    _, out, _ = amp("explain", tmp_path / "named.onnx", "y")
    assert "\x1b" not in out and "\\x1b[31mred\\nerror" in out
