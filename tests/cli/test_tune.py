"""`ampgraph tune`: what it prints and writes, its exit codes, and its answers to bad input."""

import json
import os
import re

import onnx
import pytest

from cli_helpers import MODELS, contents, process, refused
from hard_models import HARD_MODELS
from npz import write_npz
from onnx_text import parse

HELDOUT = MODELS / "digits_heldout.npz"
DIGITS = MODELS / "digits_transformer.onnx"


@pytest.fixture
def t5(tmp_path):
    """A T5 whose feed-forward leaves float16, with a folder of four samples."""
    onnx.save(HARD_MODELS["t5"].build(), tmp_path / "t5.onnx")
    (tmp_path / "data").mkdir()
    for number, feed in enumerate(HARD_MODELS["t5"].feeds(4)):
        write_npz(tmp_path / "data" / f"{number}.npz", feed)
    return tmp_path


@pytest.mark.slow
def test_what_is_printed(amp, t5):
    status, out, err = amp(
        "tune", t5 / "t5.onnx", "--data", t5 / "data", "--tolerance", "5e-3", "-o", t5 / "tuned.onnx"
    )
    assert (status, err) == (0, "")
    assert "4 samples from" in out and "strict runs over 4 samples" in out and "relative L2 of the worst output" in out
    assert re.search(r"not finite  the level's plan", out) and "<- chosen" in out
    assert re.search(r"verdict     met: error 0\.00\d+ with [\d,]+ of [\d,]+ nodes in float32", out)
    verified, _, _ = amp("verify", t5 / "t5.onnx", t5 / "tuned.onnx", "--data", t5 / "data", "--tolerance", "5e-3")
    assert verified == 0
    # the patterns that are printed make the same model
    patterns = re.findall(r"--fp32 (\S+)", out)
    assert patterns
    status, _, _ = amp(
        "convert", t5 / "t5.onnx", "-o", t5 / "again.onnx", *(w for p in patterns for w in ("--fp32", p))
    )
    assert status == 0 and (t5 / "again.onnx").read_bytes() == (t5 / "tuned.onnx").read_bytes()


@pytest.mark.slow
def test_json_has_the_frontier(amp):
    status, out, _ = amp("tune", DIGITS, "--data", HELDOUT, "--tolerance", "4e-4", "--json")
    found = json.loads(out)
    assert status == 0 and found["met"] and found["output"] is None and found["runs"] <= 20
    assert found["error"] <= 4e-4 and found["patterns"] and found["metric"] == "l2"
    errors = [p["error"] for p in found["frontier"]]
    assert errors == sorted(errors, reverse=True) and found["frontier"][0]["bytes"] == 0
    assert sum(p["chosen"] for p in found["candidates"]) == 1


def test_a_tolerance_that_cannot_be_met_exits_one_and_writes_nothing(amp, tmp_path):
    status, out, err = amp(
        "tune", DIGITS, "--tolerance", "1e-6", "--samples", "2", "--low", "op:Gemm", "--low", "op:MatMul",
        "-o", tmp_path / "out.onnx",
    )  # fmt: skip
    assert (status, err) == (1, "") and contents(tmp_path) == {}
    assert "result      not written: the tolerance is missed" in out and "verdict     missed: " in out
    assert "--fp32" not in out


def test_without_output_nothing_is_written(amp, tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(DIGITS.read_bytes())
    status, out, _ = amp("tune", model, "--metric", "argmax", "--samples", "2")
    assert status == 0 and set(contents(tmp_path)) == {"m.onnx"} and "result      not written" in out
    assert "share of other classes of the worst output, on average" in out and "2 samples" in out


@pytest.mark.slow
def test_a_pipe_shows_no_progress(tmp_path):
    found = process("tune", DIGITS, "--data", HELDOUT)
    assert (found.returncode, found.stderr) == (0, "") and found.stdout.startswith("model ")


def test_bad_input(amp, tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(DIGITS.read_bytes())
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    refused(amp("tune", model, "--tolerance", "nan"), "AMP312", "tolerance")
    refused(amp("tune", model, "--metric", "l3"), "AMP312", "unknown metric 'l3'")
    refused(amp("tune", model, "-o", model), "AMP106", "written over the input")
    refused(amp("tune", model, "--data", HELDOUT, "-o", HELDOUT), "AMP106", "written over the input")
    refused(amp("tune", model, "-o", tmp_path / "no" / "out.onnx"), "AMP105", "folder")
    refused(amp("tune", model, "--data", tmp_path / "empty"), "AMP108", "no .npz")
    refused(amp("tune", model, "--data", tmp_path / "gone.npz"), "AMP101", "no such file")
    refused(amp("tune", model, "--samples", "0"), "AMP503", "0 samples")
    refused(amp("tune", model, "--level", "O9"), "AMP302", "O9")
    refused(amp("tune", MODELS / "digits_cnn.mindir"), "AMP304", "MindIR", "hint: tune the ONNX model")
    refused(amp("tune", tmp_path / "gone.onnx"), "AMP101", "no such file")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--data", "data", "-o", "data/0.npz"], "AMP106", "written over the input"),
        (["--lists", "my.toml", "-o", "my.toml"], "AMP106", "written over the input"),
        (["-o", "pipe"], "AMP105", "is not a file"),
    ],
)
def test_nothing_that_is_there_is_destroyed(amp, t5, monkeypatch, words, code, told):
    monkeypatch.chdir(t5)
    (t5 / "my.toml").write_text("[allow]\nMatMul = 'mine'\n")
    os.mkfifo(t5 / "pipe")
    before = contents(t5)
    refused(amp("tune", "t5.onnx", *words), code, told)
    assert contents(t5) == before and (t5 / "pipe").is_fifo()


def test_argmax_without_classes(amp, tmp_path):
    """A regression has none."""
    path = tmp_path / "m.onnx"
    onnx.save(parse("g (float[2, 8] x) => (float[2, 1] y) { y = MatMul (x, w) }", w=(8, 1)), path)
    refused(amp("tune", path, "--metric", "argmax"), "AMP312", "classes", "hint: use --metric l2")


def test_time_left_is_told_on_a_terminal():
    """The column itself: rich draws it only where it knows a speed."""
    from rich.console import Console

    from ampgraph.cli.terminal import TerminalDisplay, progress_bars

    screen = Console(force_terminal=True, width=120)
    clock = iter(float(n) for n in range(1000))
    with screen.capture() as captured, progress_bars(screen, get_time=lambda: next(clock)) as shown:
        told = TerminalDisplay(shown)
        for done in range(0, 60, 10):
            told.part("run 1", done, 168)
        shown.refresh()
    assert re.search(r"run 1.*about \d+:\d\d left", captured.get())


def test_a_line_of_the_report_stands_alone_beside_the_bar(capsys):
    """The bar is taken down for it, and goes on."""
    from rich.console import Console

    from ampgraph.cli.terminal import TerminalDisplay, progress_bars

    screen = Console(force_terminal=True, width=120)
    with screen.capture() as captured, progress_bars(screen) as shown:
        told = TerminalDisplay(shown)
        told.part("run 1", 1, 168)
        told.line("a line of the report")
        assert shown.live.is_started and capsys.readouterr().out == "a line of the report\n"
        told.part("run 2", 2, 168)
        shown.refresh()
    assert "a line" not in captured.get() and "run 2" in captured.get()


def test_a_graph_without_nodes_is_told(amp, tmp_path):
    path = tmp_path / "empty.onnx"
    onnx.save(parse("empty () => () { }"), path)
    code, out, err = amp("tune", path, "--tolerance", "1e-3")
    assert code == 2 and not out and "error[AMP502]" in err and "\nhint: " in err
