"""build-step, train and export-weights as commands, from a forward graph to a converted model, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import ampgraph
from ampgraph.cli import train
from ampgraph.cli.app import app
from ampgraph.cli.terminal import Interrupted
from ampgraph.training.run import step_inputs
from ampgraph.training.run.fitting import FILE
from cli_helpers import COMMAND, contents, process, refused
from npz import write_npz
from onnx_text import parse
from present import present
from training.nets import batches, regression

SIZES = (8, 48, 3)
MLP = """mlp (float[batch, 8] x) => (float[batch, 3] scores) {
    [matmul] m = MatMul (x, first)  [add] a = Add (m, bias)  [relu] r = Relu (a)
    [dropout] d = Dropout (r, ratio, training)  [last_matmul] scores = MatMul (d, last) }"""


def forward(path):
    """An MLP with Dropout: 8 numbers to 3 classes; a MatMul weight of 1.5 KB."""
    rng = np.random.default_rng(1)
    first, last = (rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in (SIZES[:2], SIZES[1:]))
    stored = {"first": first, "bias": np.zeros(SIZES[1], np.float32), "last": last, "ratio": np.float32(0.1)}
    stored["training"] = np.array(True)
    model = parse(MLP, stored, opset=20, ir=10)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())
    return stored


def data(path, count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, SIZES[2], count)
    x = rng.standard_normal((count, SIZES[0])).astype(np.float32) * 0.4
    x[np.arange(count), labels] += 2
    np.savez(path, x=x, labels=labels, note=np.zeros(2))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    forward(folder / "forward.onnx")
    data(folder / "train.npz", 200, 0)
    data(folder / "val.npz", 60, 1)
    words = ["build-step", folder / "forward.onnx", "--loss", "cross_entropy", "--optimizer", "adam:lr=0.01"]
    assert run(*words, "--clip-norm", 1, "-o", folder / "step.onnx")[0] == 0
    return folder


def run(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    return result.exit_code, result.stdout, result.stderr


def test_from_a_forward_graph_to_a_converted_model(made, tmp_path):
    code, out, err = run(
        *("train", made / "step.onnx", "--data", made / "train.npz", "--validate", made / "val.npz", "--epochs", 6),
        *("--batch-size", 32, "--lr-schedule", "cosine:warmup=4", "--checkpoint", tmp_path / "run", "--strict"),
    )
    lines = out.strip().splitlines()
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in lines[:6]] == [f"{n}/6" for n in range(1, 7)]
    assert "left out     8 samples of each epoch" in out and str(tmp_path / "run" / FILE) in out
    accuracy = float(lines[5].rpartition(" ")[2])
    assert accuracy > 0.9
    trained = tmp_path / "trained.onnx"
    assert run("export-weights", made / "step.onnx", tmp_path / "run", "-o", trained)[0] == 0
    assert run("convert", trained, "-o", tmp_path / "low.onnx", "--json")[0] == 0
    held_out = np.load(made / "val.npz")
    for model in (trained, tmp_path / "low.onnx"):
        scores = ampgraph.run(model, {"x": held_out["x"]})["scores"]
        assert (scores.argmax(1) == held_out["labels"]).mean() == pytest.approx(accuracy, abs=0.02)
        assert np.array_equal(scores, ampgraph.run(model, {"x": held_out["x"]})["scores"]), "Dropout must be off"


def test_the_report_of_build_step(made, tmp_path):
    words = ("build-step", made / "forward.onnx", "--loss", "cross_entropy", "--optimizer", "sgd:lr=0.1,momentum=0.9")
    code, out, _ = run(*words, "--freeze", "first", "--loss-scale", "static:128", "-o", tmp_path / "s.onnx", "--json")
    told = json.loads(out)
    assert code == 0 and told["frozen"] == ["first"] and told["trained"] == 2
    assert told["trained_numbers"] == 48 + 48 * 3 and told["inputs"] == ["x", "labels"]
    assert told["state_bytes"] == sum(
        a.nbytes for a in ampgraph.TrainingStep.load(tmp_path / "s.onnx").initial_state.values()
    )
    assert told["products"]["forward"] == {"float16": 2} and told["products"]["backward"]["float16"] >= 2
    code, out, _ = run(*words, "--level", "O0", "-o", tmp_path / "s.onnx")
    assert code == 0 and "float16" not in out.replace("level O0, float16", "") and "loss scale  none" in out


def test_frozen_weights_come_back_as_they_were(made, tmp_path):
    """O2 stores them as float16; the exported model has all their digits."""
    given = {i.name: numpy_helper.to_array(i) for i in onnx.load(made / "forward.onnx").graph.initializer}
    words = ("build-step", made / "forward.onnx", "--loss", "cross_entropy", "--optimizer", "sgd:lr=0.1")
    assert run(*words, "--freeze", "first", "-o", tmp_path / "s.onnx")[0] == 0
    train = ("train", tmp_path / "s.onnx", "--data", made / "train.npz", "--epochs", 1, "--checkpoint", tmp_path / "c")
    assert run(*train)[0] == 0
    assert run("export-weights", tmp_path / "s.onnx", tmp_path / "c" / FILE, "-o", tmp_path / "t.onnx")[0] == 0
    found = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "t.onnx").graph.initializer}
    assert np.array_equal(found["first"], given["first"]) and found["first"].dtype == np.float32
    assert not np.array_equal(found["last"], given["last"])


def test_resumed_by_the_command_line(made, tmp_path):
    words = ("train", made / "step.onnx", "--data", made / "train.npz", "--batch-size", 32)
    assert run(*words, "--epochs", 4, "--checkpoint", tmp_path / "whole")[0] == 0
    assert run(*words, "--epochs", 2, "--checkpoint", tmp_path / "cut")[0] == 0
    code, out, _ = run(*words, "--epochs", 4, "--checkpoint", tmp_path / "cut", "--resume", "--json")
    told = json.loads(out)
    assert code == 0 and told["steps_before"] == 12 and [epoch["number"] for epoch in told["epochs"]] == [3, 4]
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()


def test_going_on_with_another_training_is_refused(made, tmp_path):
    words = ("train", made / "step.onnx", "--batch-size", 32, "--checkpoint", tmp_path / "run")
    first = (*words, "--data", made / "train.npz", "--epochs", 1, "--lr-schedule", "cosine")
    assert run(*first)[0] == 0
    kept = contents(tmp_path)
    data(tmp_path / "other.npz", 200, 5)
    for change, told in (
        (("--lr-schedule", "step:every=5"), "lr_schedule=cosine:warmup=0,end=0.0, not step:"),
        (("--epochs", 3), "epochs=1, not 3"),
        (("--data", tmp_path / "other.npz"), "other data"),
    ):
        refused(run(*first, *change, "--resume"), "AMP405", told, FILE, "another folder")
    (tmp_path / "other.npz").unlink()
    assert contents(tmp_path) == kept
    code, out, _ = run(*first, "--resume")
    assert code == 0 and "nothing was left to train" in out


@pytest.mark.slow
def test_a_bar_on_a_terminal_and_lines_in_a_pipe(made, tmp_path):
    words = [*COMMAND, "train", str(made / "step.onnx"), "--data", str(made / "train.npz"), "--epochs", "3"]
    leader, follower = pty.openpty()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=follower, text=True) as child:
        out = present(child.stdout).read()
    os.close(follower)
    drawn = _drain(leader)
    assert child.returncode == 0 and "training" in drawn
    assert len([line for line in out.splitlines() if line.startswith("epoch ")]) == 3
    piped = process(*words[len(COMMAND) :])
    assert piped.stderr == "" and piped.stdout == out


def _drain(handle):
    found = io.BytesIO()
    try:
        while piece := os.read(handle, 4096):
            found.write(piece)
    except OSError:
        pass  # how a terminal ends
    os.close(handle)
    return found.getvalue().decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("interruptible")
def test_ended_from_outside_nothing_half_written_stays(made, tmp_path, number, code):
    words = [*COMMAND, "train", str(made / "step.onnx"), "--data", str(made / "train.npz"), "--epochs", "100000"]
    words += ["--batch-size", "32", "--checkpoint", str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert present(child.stdout).readline().startswith("epoch 1/")
        time.sleep(0.2)
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == code and "Traceback" not in err
    assert (number == signal.SIGINT) == (f"the last checkpoint is {tmp_path / 'run' / FILE}\nhint:" in err)
    assert os.listdir(tmp_path / "run") == [FILE]
    ampgraph.Trainer(made / "step.onnx").load(tmp_path / "run" / FILE)


@pytest.mark.slow
def test_the_page_and_the_table_of_steps(made, tmp_path, monkeypatch):
    words = ("train", made / "step.onnx", "--data", made / "train.npz", "--epochs", 2, "--batch-size", 50)
    code, out, _ = run(*words, "--lr-schedule", "linear", "--html", tmp_path / "p.html", "--log", tmp_path / "s.csv")
    rows = (tmp_path / "s.csv").read_text().splitlines()
    page = (tmp_path / "p.html").read_text()
    assert code == 0 and f"page         {tmp_path / 'p.html'}" in out and len(rows) == 9
    assert all(f"<h2>{name}</h2>" in page for name in ("loss", "loss scale", "gradient norm", "learning rate"))
    rates = [float(row.split(",")[-1]) for row in rows[1:]]
    assert rates[0] == pytest.approx(0.01, rel=0.2) and rates == sorted(rates, reverse=True)
    opened, real = [], step_inputs.load_inputs

    def load(path, *more):
        opened.append(str(path))
        return real(path, *more)

    monkeypatch.setattr(step_inputs, "load_inputs", load)
    code, out, said = run(*words, "--validate", made / "val.npz", "--plot", tmp_path / "loss.png")
    assert code == 0 and "--plot is now --html" in said and not (tmp_path / "loss.png").exists()
    assert (tmp_path / "loss.html").read_text().count('<circle class="measured"') == 2, "a loss of each epoch"
    assert sorted(opened) == sorted(map(str, (made / "train.npz", made / "val.npz"))), "each is opened once"
    heard = []
    monkeypatch.setattr("ampgraph.training.run.step_log.EventLog.__call__", lambda log, row: heard.append(row))
    monkeypatch.setattr("ampgraph.api.train.check_tensorboard_folder", lambda folder: None)
    assert run(*words, "--tensorboard", tmp_path / "runs")[0] == 0 and len(heard) == 8
    monkeypatch.undo()
    before = contents(tmp_path)
    refused(run(*words, "--log", tmp_path / "s.txt"), "AMP105", ".csv")
    refused(run(*words, "--html", tmp_path / "none" / "p.html"), "AMP105")
    refused(run(*words, "--html", made / "step.onnx"), "AMP106")
    assert contents(tmp_path) == before


# -- what is refused --------------------------------------------------------------------------------------------------

BUILD = ["build-step", "forward.onnx", "--loss", "cross_entropy", "--optimizer", "adam", "-o", "new.onnx"]
TRAIN = ["train", "step.onnx", "--data", "train.npz", "--epochs", "1"]


def changed(words, **options):
    """The words with some options replaced or added."""
    words = list(words)
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


LOSS_FILE = str(Path(__file__).parents[2] / "models" / "digits_cnn_loss.mindir")
REFUSED = {
    "a loss that is none": (changed(BUILD, loss="crossentropy"), "AMP213", "did you mean 'cross_entropy'"),
    "a loss that is no scalar": (changed(BUILD, loss="scores"), "AMP213", "not a float32 scalar"),
    "an unknown optimizer": (changed(BUILD, optimizer="adamm"), "AMP322", "adam"),
    "an unknown option of it": (changed(BUILD, optimizer="adam:rate=1"), "AMP322", "'rate'"),
    "a wrong loss scale": (changed(BUILD, loss_scale="dynamic:init=x"), "AMP320", "init=x"),
    "a result that is no .onnx": (changed(BUILD, o="new.mindir"), "AMP105", "cannot be written as MindIR"),
    "an unknown level": (changed(BUILD, level="O9"), "AMP3", ""),
    "a pattern without a parameter": (changed(BUILD, freeze="encoder.*"), "AMP305", "--freeze encoder.*"),
    "everything frozen": (changed(BUILD, freeze="*"), "AMP211", "nothing is left to train"),
    "a negative norm": (changed(BUILD, clip_norm="-1"), "AMP322", "clip_norm"),
    "no file": (["build-step", "none.onnx", *BUILD[2:]], "AMP101", "none.onnx"),
    "a step of a step": (["build-step", "step.onnx", *BUILD[2:]], "AMP205", "training step"),
    "over its input": (changed(BUILD, o="forward.onnx"), "AMP106", "written over"),
    "into no folder": (changed(BUILD, o="none/new.onnx"), "AMP105", "folder"),
    "convert of a step": (["convert", "step.onnx", "-o", "new.onnx"], "AMP205", "ampgraph train"),
    "convert at O0 of a step": (
        ["convert", "step.onnx", "--level", "O0", "-o", "new.onnx"],
        "AMP205",
        "ampgraph train",
    ),
    "a plan of a step": (["convert", "step.onnx", "--dry-run"], "AMP205", "ampgraph train"),
    "train of a forward graph": (["train", "forward.onnx", *TRAIN[2:]], "AMP206", "build-step"),
    "train of no model": (["train", "train.npz", *TRAIN[2:]], "AMP102", "train.npz"),
    "train of forward and loss": (["train", LOSS_FILE, *TRAIN[2:]], "AMP205", "TrainOneStepWithLossScaleCell"),
    "a strict run of MindSpore": (["train", LOSS_FILE, *TRAIN[2:], "--strict"], "AMP325", ".mindir"),
    "no data": (changed(TRAIN, data="none.npz"), "AMP101", "none.npz"),
    "data without labels": (changed(TRAIN, data="unlabelled.npz"), "AMP503", "'labels'"),
    "labels out of range": (changed(TRAIN, data="label.npz"), "AMP503", "label 3"),
    "another number of labels": (changed(TRAIN, data="short.npz"), "AMP503", "200 samples and 'labels' 5"),
    "data of another shape": (changed(TRAIN, data="shape.npz"), "AMP503", "shape.npz"),
    "validation of another shape": (changed(TRAIN, validate="shape.npz"), "AMP503", "shape.npz"),
    "data of another type": (changed(TRAIN, data="whole.npz"), "AMP503", "int32"),
    "data with a NaN": (changed(TRAIN, data="nan.npz"), "AMP503", "nan.npz"),
    "too great a batch": (changed(TRAIN, batch_size="201"), "AMP503", "do not fill one batch"),
    "no epochs": (changed(TRAIN, epochs="0"), "AMP325", "epochs=0"),
    "a wrong schedule": (changed(TRAIN, lr_schedule="cos"), "AMP324", "cos"),
    "a wrong device": (changed(TRAIN, device="gpx"), "AMP321", "gpx"),
    "resume of nothing": ([*TRAIN, "--resume"], "AMP325", "--checkpoint DIR"),
    "a checkpoint that is a file": (changed(TRAIN, checkpoint="train.npz"), "AMP105", "train.npz"),
    "a checkpoint of another step": (["export-weights", "other.onnx", "run", "-o", "new.onnx"], "AMP405", "another"),
    "no checkpoint": (["export-weights", "step.onnx", "none", "-o", "new.onnx"], "AMP101", "none"),
    "a checkpoint that is none": (
        ["export-weights", "step.onnx", "train.npz", "-o", "new.onnx"],
        "AMP108",
        "train.npz",
    ),
    "weights over the step": (["export-weights", "step.onnx", "run", "-o", "step.onnx"], "AMP106", "step.onnx"),
    "weights over the checkpoint": (["export-weights", "step.onnx", "run", "-o", f"run/{FILE}"], "AMP106", "run"),
    "weights of a forward graph": (["export-weights", "forward.onnx", "run", "-o", "new.onnx"], "AMP206", "build-step"),
}


@pytest.fixture(scope="module")
def workshop(made):
    arrays = dict(np.load(made / "train.npz"))
    np.savez(made / "unlabelled.npz", x=arrays["x"])
    np.savez(made / "label.npz", **{**arrays, "labels": arrays["labels"] + 1})
    np.savez(made / "short.npz", **{**arrays, "labels": arrays["labels"][:5]})
    np.savez(made / "shape.npz", **{**arrays, "x": arrays["x"][:, :5]})
    np.savez(made / "whole.npz", **{**arrays, "x": arrays["x"].astype(np.int32)})
    np.savez(made / "nan.npz", **{**arrays, "x": np.where(arrays["x"] == arrays["x"].max(), np.nan, arrays["x"])})
    words = ("build-step", made / "forward.onnx", "--loss", "cross_entropy", "--optimizer", "sgd")
    assert run(*words, "-o", made / "other.onnx")[0] == 0
    train = ("train", made / "step.onnx", "--data", made / "train.npz", "--epochs", 1, "--checkpoint", made / "run")
    assert run(*train)[0] == 0
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_refused(workshop, monkeypatch, name):
    words, code, told = REFUSED[name]
    monkeypatch.chdir(workshop)
    before = contents(workshop)
    result = run(*words)
    found = result[2].split("]")[0].removeprefix("error[")
    assert found.startswith(code)
    refused(result, found, told)
    assert contents(workshop) == before


# Options of build-step that shape the update and the loss, from the words of the command line to a trained model.


@pytest.fixture
def option_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(regression(), "forward.onnx")
    rows = list(batches(4))
    write_npz("train.npz", {name: np.concatenate([batch[name] for batch in rows]) for name in ("x", "t")})


def option_run(words):
    result = CliRunner().invoke(app, words.split())
    return result.exit_code, result.stdout, result.stderr


def weights(path):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_groups_and_an_average_of_the_weights(option_made):
    code, out, err = option_run(
        "build-step forward.onnx --loss loss --optimizer b*=adamw:weight_decay=0 --optimizer w1=frozen "
        "--optimizer *=sgd:lr=0.1 --clip-value 0.5 --ema 0.9 -o step.onnx"
    )
    assert code == 0, err
    assert "optimizer   b*=adamw:lr=0.001" in out and "w1=frozen" in out and "clip value  0.5" in out
    assert "ema         0.9" in out and "frozen      w1" in out
    train = "train step.onnx --data train.npz --epochs 2 --batch-size 16 --checkpoint run"
    assert option_run(f"{train} --lr-schedule b*=cosine --lr-schedule *=linear:end=0.1")[0] == 0
    assert option_run("export-weights step.onnx run -o trained.onnx")[0] == 0
    assert option_run("export-weights step.onnx run --ema -o average.onnx")[0] == 0
    first, trained, average = weights("forward.onnx"), weights("trained.onnx"), weights("average.onnx")
    assert np.array_equal(first["w1"], average["w1"])
    for name in ("w2", "b2"):
        assert not np.array_equal(trained[name], average[name]) and not np.array_equal(trained[name], first[name])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--optimizer b*=sgd", "error[AMP305]: no optimizer's pattern matches parameter 'w1', nor 1 more"),
        ("--optimizer sgd --clip-norm 1 --clip-value 1", "error[AMP322]: clip_norm and clip_value"),
    ],
)
def test_what_is_refused(option_made, tmp_path, words, told):
    code, _, err = option_run(f"build-step forward.onnx --loss loss {words} -o step.onnx")
    assert code == 2 and told in err and "hint: " in err and not (tmp_path / "step.onnx").exists()


def test_no_average_to_export(option_made):
    assert option_run("build-step forward.onnx --loss loss --optimizer sgd -o step.onnx")[0] == 0
    assert option_run("train step.onnx --data train.npz --epochs 1 --batch-size 16 --checkpoint run")[0] == 0
    code, _, err = option_run("export-weights step.onnx run --ema -o average.onnx")
    assert code == 2 and "keeps no running average" in err and "--ema 0.999" in err


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("kept", [None, "nothing", "a checkpoint"])
def test_an_interrupt_names_the_checkpoint_if_there_is_one(kept, stop, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "ignore_interrupts", lambda: None)  # of this process
    if kept == "a checkpoint":
        (tmp_path / FILE).touch()
    with pytest.raises(SystemExit) as ended, train._report_checkpoint_on_interrupt(kept and str(tmp_path)):
        raise stop
    there = f"interrupted: the last checkpoint is {tmp_path / FILE}\nhint: go on with --resume\n"
    none = "interrupted: there is no checkpoint (--checkpoint DIR keeps them)\n"
    assert ended.value.code == 130 and capsys.readouterr().err == (there if kept == "a checkpoint" else none)
