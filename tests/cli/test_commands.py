"""The command line: what each command prints."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import ampgraph
from ampgraph.cli.console import join_pieces, main
from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import schema, view
from ampgraph.runtime.devices import choose
from cli_helpers import COMMAND, MODELS, NAMES, contents, data_model, process, refused
from onnx_text import parse


@pytest.fixture
def folder(tmp_path):
    """A folder with both models."""
    for name in NAMES:
        shutil.copy(MODELS / f"{name}.onnx", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_convert_writes_beside_the_input_and_says_what_it_did(amp, folder, name):
    source = folder / f"{name}.onnx"
    before = source.read_bytes()
    code, out, err = amp("convert", source)
    assert (code, err) == (0, "")
    assert source.read_bytes() == before
    onnx.checker.check_model(onnx.load(folder / f"{name}.O2.onnx"), full_check=True)
    for word in ("level O2, float16", "nodes ", "products ", "casts ", "weights ", "float32 "):
        assert word in out


@pytest.mark.parametrize("name", NAMES)
def test_convert_json_agrees_with_the_file(amp, folder, name):
    code, out, _ = amp("convert", folder / f"{name}.onnx", "-o", folder / "out.onnx", "--json")
    report = json.loads(out)
    made = onnx.load(folder / "out.onnx")
    assert code == 0 and report["output"] == str(folder / "out.onnx") and report["changed"]
    assert report["casts_after"] == sum(node.op_type == "Cast" for node in made.graph.node)
    constants = [a for node in made.graph.node if node.op_type == "Constant" for a in node.attribute]
    stored = sum(
        numpy_helper.to_array(t).nbytes for t in [*made.graph.initializer, *(a.t for a in constants if a.HasField("t"))]
    )
    stored += sum(8 * len(a.ints) for a in constants) + sum(8 for a in constants if a.name == "value_int")
    assert report["bytes_after"] == stored < report["bytes_before"]
    assert report["products"]["float32"] == 0 and report["products"]["low"] > 0
    others = sum(node.op_type != "Cast" for node in made.graph.node)
    assert sum(report["nodes"].values()) + report["other"] == others


def test_dry_runs_and_o0(amp, folder):
    before = contents(folder)
    _, dry, _ = amp("convert", folder / "digits_cnn.onnx", "--dry-run", "--json")
    assert contents(folder) == before
    _, real, _ = amp("convert", folder / "digits_cnn.onnx", "--json")
    unwritten = {"output": None, "without_file": "not written (dry run)"}
    assert {**json.loads(real), **unwritten} == json.loads(dry)
    # level o0 copies the file
    code, out, _ = amp("convert", folder / "digits_cnn.onnx", "--level", "O0")
    assert code == 0 and "nothing to lower" in out
    assert (folder / "digits_cnn.O0.onnx").read_bytes() == (folder / "digits_cnn.onnx").read_bytes()
    # patterns and dims reach the plan
    source = folder / "digits_transformer.onnx"
    _, out, _ = amp(
        "convert", source, "--fp32", "op:Softmax", "--fp32", "scope:layers.0.attention", "--json", "--dry-run"
    )
    rules = json.loads(out)["reasons"]["float32"]
    assert rules["user"] > 1
    # operators held back by the opset are named
    code, out, _ = amp("convert", folder / "digits_cnn.onnx", "--dtype", "bfloat16", "--dry-run")
    assert code == 0 and "opset 22 does" in out and "(opset)" in out
    assert "--opset auto raises" in out
    _, out, _ = amp("convert", folder / "digits_cnn.onnx", "--dtype", "bfloat16", "--dry-run", "--opset", "auto")
    assert "--opset auto raises" not in out


def test_explain_of_a_model_lists_what_is_float32_by_reason(amp, folder):
    source = folder / "digits_transformer.onnx"
    assert amp("explain", source)[1] == "nothing that could be low is float32\n"
    code, out, _ = amp("explain", source, "--fp32", "op:LayerNormalization", "--fp32", "node_linear_13")
    first, names, *_ = out.splitlines()
    assert code == 0 and first.startswith("5 LayerNormalization float32, by user: ") and names.endswith("and 2 more")
    assert "\n1 Gemm float32, by user: " in out and "\n    'node_linear_13'\n" in out
    _, out, _ = amp("explain", source, "--fp32", "op:LayerNormalization", "--json")
    found = json.loads(out)
    assert [node["kind"] for node in found].count("LayerNormalization") == 5
    assert all("float32" in [slot["dtype"] for slot in node["slots"]] for node in found)


def test_a_plan_gives_the_same_bytes(amp, folder):
    source, plan = folder / "digits_transformer.onnx", folder / "plan.json"
    code, told, _ = amp("convert", source, "--level", "auto", "--plan-out", plan)
    assert code == 0
    first = (folder / "digits_transformer.auto.onnx").read_bytes()
    code, again, _ = amp("convert", source, "--plan-in", plan, "-o", folder / "again.onnx")
    assert code == 0 and [s for s in again.splitlines() if "A100" in s] == [s for s in told.splitlines() if "A100" in s]
    assert (folder / "again.onnx").read_bytes() == first
    assert amp("convert", source, "--dry-run", "--plan-out", folder / "dry.json")[0] == 0
    assert (folder / "dry.json").exists() and not (folder / "digits_transformer.O2.onnx").exists()


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("cpu", "", "none to gain on an x86 CPU: ONNX Runtime computes float16 in float32"),
        ("cpu", "--dtype=bfloat16", ""),
        ("cpu", "--level=O0", ""),
        ("openvino", "--dtype=float16", "none to gain on today's CPUs: OpenVINO computes float16 in float32"),
        ("openvino", "", "estimate, times as fast as float32"),
        ("cpu-arm64", "", "no estimate: no data on devices of target cpu-arm64; time both files on yours"),
    ],
)
def test_a_target_says_how_much_faster_or_why_not(amp, folder, target, options, said):
    source = folder / "digits_transformer.onnx"
    _, out, _ = amp("convert", source, "--target", target, "--dry-run", *options.split())
    assert said in out and out.count("\nspeed ") == bool(said)
    assert ("none to gain" in out) == ("none to gain" in said)


def test_small_files(amp, tmp_path):
    data = data_model(tmp_path / "m.onnx")
    before = data.read_bytes()
    code, _, _ = amp("convert", tmp_path / "m.onnx", "--io", "low")
    assert code == 0 and data.read_bytes() == before
    made = onnx.load(tmp_path / "m.O2.onnx")
    assert made.graph.initializer[0].data_type == TensorProto.FLOAT16
    assert made.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    # words of other tools mean ours
    source = MODELS / "digits_cnn.onnx"
    theirs = ("--level", "2", "--dtype", "FP16", "--target", "trt", "--no_keep_io_types", "--store_weights", "low")
    ours = ("--level", "O2", "--dtype", "float16", "--target", "tensorrt", "--io", "low", "--store-weights", "low")
    for name, words in (("a", theirs), ("b", ours)):
        code, out, err = amp("convert", source, *words, "--check", "off", "-o", tmp_path / f"{name}.onnx")
        assert (code, err) == (0, "") and "level O2, float16, policy ampgraph, target tensorrt" in out
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_suffix_in_capitals_is_one(amp, tmp_path):
    data_model(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").rename(tmp_path / "m.ONNX")
    assert amp("convert", tmp_path / "m.ONNX")[0] == 0
    assert (tmp_path / "m.O2.ONNX").exists() and not list(tmp_path.glob("m.ONNX.*"))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("double", "as only float32 is lowered (2 nodes of float64; export the model in float32)"),
        ("float16", "as the file computes in float16 already (2 nodes)"),
        ("int64", "as no node makes floating numbers"),
    ],
)
def test_nothing_to_lower_says_why(amp, tmp_path, kind, why):
    text = f"g ({kind}[4, 4] x) => ({kind}[4, 4] y) {{ a = MatMul(x, x) y = Mul(a, x) }}"
    (tmp_path / "m.onnx").write_bytes(parse(text).SerializeToString())
    code, out, _ = amp("convert", tmp_path / "m.onnx")
    assert code == 0 and f"nothing to lower, {why}: the result is an unchanged copy" in out


@pytest.mark.parametrize("name", NAMES)
def test_inspect(amp, folder, name):
    source, made = folder / f"{name}.onnx", folder / f"{name}.O2.onnx"
    amp("convert", source)
    code, out, err = amp("inspect", made, "--against", source)
    assert (code, err) == (0, "")
    for word in ("products", "casts: ", "layers", f"against {name}.onnx", "fused operators", "graph input 'image'"):
        assert word in out
    report = json.loads(amp("inspect", made, "--against", source, "--json")[1])
    casts = [node for node in onnx.load(made).graph.node if node.op_type == "Cast"]
    assert len(report["casts"]) == len(casts) == report["difference"]["casts"]
    assert {cast["value"] for cast in report["casts"]} == {node.output[0] for node in casts}
    assert all(cast["reason"] and cast["sort"] in ("input", "output", "between") for cast in report["casts"])
    assert report["nodes"]["float16"] > 0 and report["products"]["float16"] > 0
    assert report["difference"]["bytes"] < 0
    assert set(report["difference"]["gone"]) <= {"Slice"}  # of sizes: what follows from known ones is stored


def test_inspect_of_a_file(amp, folder):
    source = folder / "digits_cnn.onnx"
    amp("convert", source, "-o", folder / "a.onnx")
    report = json.loads(amp("inspect", folder / "a.onnx", "--against", folder / "a.onnx", "--json")[1])
    assert {cast["sort"] for cast in report["casts"]} == {"existing"}
    assert report["difference"]["changed"] == [] and report["difference"]["bytes"] == 0
    # kinds that one file has alone stand in the order of its graph, whatever Python's hashes are
    kinds = [["Sin", "Cos", "Neg", "Abs", "Exp", "Tan"], ["Relu", "Tanh", "Sqrt", "Sigmoid", "Log", "Ceil"]]
    for name, own in zip("pq", kinds, strict=True):
        lines = [f"v{i + 1} = {kind}(v{i})" for i, kind in enumerate(own)]
        text = f"g (float[4] v0) => (float[4] v6) {{ {' '.join(lines)} }}"
        (folder / f"{name}.onnx").write_bytes(parse(text).SerializeToString())
    report = json.loads(amp("inspect", folder / "q.onnx", "--against", folder / "p.onnx", "--json")[1])
    assert [list(report["difference"][side]) for side in ("gone", "new")] == kinds
    # inspect shows layers as a tree
    _, out, _ = amp("inspect", folder / "digits_transformer.onnx")
    lines = out.splitlines()
    tree = lines[lines.index("layers") :]
    assert any(line.startswith("    0-1 ") and line.endswith("each") for line in tree)  # two equal layers share a line
    assert any(line.startswith("      attention ") for line in tree)


def test_inspect_without_onnxruntime_says_so(amp, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, _ = amp("inspect", folder / "digits_cnn.onnx")
    assert code == 0 and "onnxruntime is not installed" in out


def test_explain_lists_and_refuses(amp, folder):
    source = folder / "digits_transformer.onnx"
    norm = next(n for n in onnx.load(source).graph.node if n.op_type == "LayerNormalization")
    code, out, err = amp("explain", source, norm.name, "--target", "cpu")
    assert (code, err) == (0, "")
    assert "is float32" in out and "ampgraph.toml:" in out and ": fp32" in out
    assert amp("explain", source, norm.output[0], "--target", "cpu")[1] == out  # by its output's name
    assert "left to the cut, as on cuda it computes in float32" in amp("explain", source, norm.name)[1]
    auto = json.loads(amp("explain", source, norm.name, "--level", "auto", "--json")[1])
    slot = auto["slots"][0]
    assert slot["rule"] == "cut" and slot["cost"]["low"]["bytes"] < slot["cost"]["float32"]["bytes"]
    assert norm.output[0] in slot["cost"]["float32"]["casts"]
    # explain names the pattern of the user
    _, out, _ = amp("explain", folder / "digits_cnn.onnx", "logits", "--fp32", "value:logits")
    assert "by user: --fp32 value:logits" in out
    # explain refuses what is no node
    source = folder / "digits_transformer.onnx"
    code, out, err = amp("explain", source, "node_layer_nrom")
    assert (code, out) == (2, "") and "did you mean 'node_layer_norm'?" in err
    assert len(amp("explain", source, "node_layer_norm*")[1].splitlines()) > 2  # several: a line each
    code, _, err = amp("explain", source, "embed.bias")
    assert code == 2 and "that is a stored tensor, read by" in err


def test_help_is_light():
    probe = "import sys, ampgraph.cli.app as c\ntry: c.app(['--help'], prog_name='ampgraph')\n"
    probe += "except SystemExit as e: assert not e.code\n"
    probe += "print([m for m in ('onnx', 'numpy', 'onnx_ir', 'rich', 'networkx') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0 and "convert" in done.stdout
    assert done.stderr.strip() == "[]"


def test_help_and_version(amp, folder):
    assert amp("--version")[1].startswith("ampgraph ")
    code, out, err = amp()
    assert "Usage: ampgraph" in out + err
    for command in ("convert", "inspect", "explain", "lists"):
        code, out, _ = amp(command, "--help")
        assert code == 0 and f"ampgraph {command}" in out
    # lists
    code, out, _ = amp("lists")
    assert code == 0 and out.splitlines()[0].split()[:2] == ["operator", "class"] and "com.microsoft::Gelu" in out
    _, out, _ = amp("lists", "softmax", "--level", "auto")
    assert "deny" in out and "ampgraph.toml:" in out
    mine = folder / "mine.toml"
    mine.write_text('[allow]\nSoftmax = "mine"\n')
    row = json.loads(amp("lists", "Softmax", "--lists", mine, "--json")[1])[0]
    assert (row["class"], row["at_level"], row["source"]) == ("allow", "low", "mine.toml:2")
    mine.write_text('[gray]\nSoftmax = "mine"\n')  # the old name of a class: one line on stderr
    old = process("lists", "Softmax", "--lists", mine, "--json")
    assert old.stderr == "warning: mine.toml: 'gray' is now 'infer'; the old names go with 0.4\n"
    assert old.returncode == 0 and json.loads(old.stdout)[0]["class"] == "infer"
    code, _, err = amp("lists", "Sofmax")
    assert code == 2 and "did you mean 'Softmax'?" in err


@pytest.mark.slow
def test_progress_on_a_terminal_only(folder):
    pty = pytest.importorskip("pty")
    source = folder / "digits_cnn.onnx"
    assert process("convert", source).stderr == ""
    main, side = pty.openpty()
    running = subprocess.Popen(
        [*COMMAND, "convert", source, "--json"],
        stdout=subprocess.PIPE,
        stderr=side,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(side)
    out = running.communicate(timeout=60)[0]
    shown = os.read(main, 100_000).decode(errors="ignore")  # a terminal holds 4,096 bytes
    os.close(main)
    assert running.returncode == 0 and json.loads(out)["changed"]
    assert "reading" in shown or "planning" in shown or "converting" in shown or "writing" in shown


# Completion in shells, --quiet and --verbose.

MODEL = MODELS / "digits_transformer.onnx"


@pytest.fixture
def complete(amp, monkeypatch, capsys):
    """What bash would show behind a line."""

    def run(*words):
        monkeypatch.setenv("_AMPGRAPH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(map(str, ("ampgraph", *words))))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return amp()[1].split()

    return run


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["exp"], ["explain", "export-mixlist", "export-weights"]),
        (["convert", "--store"], ["--store-weights"]),
        (["convert", MODEL, "--level", "O"], ["O0", "O1", "O2", "O3"]),
        (["convert", MODEL, "--dtype", "b"], ["bfloat16"]),
        (["convert", "--policy", "py"], ["pytorch"]),
        (["convert", "--target", "c"], ["cuda", "cann", "cpu", "cpu-arm64"]),
        (["run", MODEL, "--device", "ten"], ["tensorrt"]),
        (["convert", MODEL, "--check", "r"], ["require"]),
        (["convert", MODEL, "--fp32", "node_add_1"], ["node_add_167", "node_add_188"]),
        (["convert", MODEL, "--level", "O1", "--low", "op:So"], ["op:Softmax"]),
        (["explain", MODEL, "node_add_7"], ["node_add_77"]),
        (["explain", MODEL, "op:So"], ["op:Softmax"]),
        (["explain", MODELS / "digits_cnn.mindir", "Default/head-Dense/M"], ["Default/head-Dense/MatMul-op0"]),
        (["convert", "no_such.onnx", "--fp32", "n"], []),
    ],
)
def test_words_behind_a_line(complete, words, found):
    assert complete(*words) == found


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["--low", "op", ":", "So"], ["Softmax"]),
        (["--low", "op", ":"], ["Add", "Concat"]),
        (["--level", "=", "O"], ["O0", "O1", "O2", "O3"]),
        (["--low", "op:So"], ["op:Softmax"]),  # where ":" is no break
        (["--low", "op", ":", "Softmax", "--dty"], ["--dtype"]),
    ],
)
def test_bash_ends_words_at_colons_and_takes_what_stands_behind(monkeypatch, capsys, pieces, found):
    words = ["ampgraph", "convert", str(MODEL), *pieces]
    monkeypatch.setenv("_AMPGRAPH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out.split()
    assert said[: len(found)] == found and (said == found or pieces[-1] == ":")


def test_words_of_bash_are_joined_as_they_were_typed():
    assert join_pieces(["a", "op", ":", "x", "::", "y", "b"], 5) == (["a", "op:x::y", "b"], 1)
    assert join_pieces(["a", "--level", "="], 2) == (["a", "--level="], 1)
    assert join_pieces(["a", "b"], 2) == (["a", "b", ""], 2)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell):
    done = process("--show-completion", shell, env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.returncode == 0 and f"complete_{shell}" in done.stdout and "_AMPGRAPH_COMPLETE" in done.stdout
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=done.stdout, text=True).returncode == 0


def test_quiet_and_verbose(amp, tmp_path):
    source = shutil.copy(MODELS / "digits_cnn.onnx", tmp_path)
    assert amp("convert", source, "-q", "--check", "off") == (0, "", "")
    assert (tmp_path / "digits_cnn.O2.onnx").is_file()
    assert json.loads(amp("convert", source, "--quiet", "--json", "--dry-run")[1])["changed"]
    code, out, err = amp("convert", tmp_path / "missing.onnx", "--quiet")
    assert (code, out) == (2, "") and err.startswith("error[AMP101]")
    # verbose says the stages and where an error happened
    source = shutil.copy(MODELS / "digits_cnn.onnx", tmp_path)
    code, out, err = amp("convert", source, "-v", "--check", "off")
    assert code == 0 and "level O2" in out
    assert [line.partition("] ")[2] for line in err.splitlines()] == ["reading", "planning", "converting", "writing"]
    code, _, err = amp("convert", tmp_path / "missing.onnx", "--verbose")
    assert code == 2 and "Traceback" in err and "error[AMP101]" in err
    assert "exclude each other" in amp("lists", "Softmax", "-q", "-v")[2]


# `convert - -o -`: a model from stdin, a result to stdout.

SOURCE = MODELS / "digits_cnn.onnx"


@pytest.fixture
def streams(monkeypatch):
    """Runs a command with bytes on stdin: (exit code, bytes on stdout, text on stderr)."""

    def run(amp, given, *words, terminal=False):
        out = io.TextIOWrapper(io.BytesIO(), write_through=True)
        monkeypatch.setattr(out, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
        monkeypatch.setattr(sys, "stdout", out)
        code, _, err = amp("convert", *words, "--check", "off")
        return code, out.buffer.getvalue(), err

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    import ampgraph

    return ampgraph.convert(SOURCE, output=tmp_path_factory.mktemp("made") / "a.onnx", check="off").read_bytes()


@pytest.mark.parametrize("words", [("-",), ("-", "-o", "-"), (SOURCE, "-o", "-")])
def test_the_result_goes_to_stdout_and_the_report_to_stderr(amp, streams, made, words):
    code, out, err = streams(amp, SOURCE.read_bytes(), *words)
    assert code == 0 and out == made
    assert "result      -" in err and f"model       {words[0]}" in err


def test_from_stdin_to_a_file(amp, streams, made, tmp_path):
    code, out, err = streams(amp, SOURCE.read_bytes(), "-", "-o", tmp_path / "b.onnx")
    assert (code, err) == (0, "") and b"model       -" in out and contents(tmp_path) == {"b.onnx": made}


def test_json_of_a_dry_run(amp, streams):
    code, out, err = streams(amp, SOURCE.read_bytes(), "-", "--dry-run", "--json")
    report = json.loads(err)
    assert (code, out) == (0, b"") and report["model"] == "-" and report["output"] is None


def test_what_cannot_be_piped(amp, streams, tmp_path):
    code, out, err = streams(amp, b"no model", "-", "-o", "-")
    assert (code, out) == (2, b"") and err.startswith("error[AMP102]")
    data_model(tmp_path / "big.onnx")
    code, out, err = streams(amp, b"", tmp_path / "big.onnx", "-o", "-")
    assert (code, out) == (2, b"") and "stdout takes one file" in err
    # an error names no file that is gone
    code, out, err = streams(amp, b"no model" * 9, "-")
    assert (code, out) == (2, b"") and err.startswith("error[AMP102]: -: is not an ONNX model")
    # a terminal gets no model
    code, out, err = streams(amp, SOURCE.read_bytes(), "-", terminal=True)
    assert (code, out) == (2, b"") and "a model cannot be printed on a terminal" in err


# ``--dim NAME=N`` wherever inputs are generated: one option, and in Python the same as ``dims``.

ROWS = 97  # more than are tried where nobody says how many


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that runs with so many rows alone, and what is made from it."""
    folder = tmp_path_factory.mktemp("dim")
    text = "g (float[rows, 8] x) => (float[8, 8] y) { m = MatMul(x, w) y = MatMul(v, m) }"
    onnx.save(parse(text, w=(8, 8), v=(8, ROWS)), folder / "m.onnx")
    ampgraph.convert(folder / "m.onnx", output=folder / "low.onnx", check="off")
    return folder / "m.onnx", folder / "low.onnx"


def words(verb: str, pair: tuple[Path, Path]) -> list[str]:
    source, low = map(str, pair)
    out = str(pair[0].parent / "out.onnx")
    return {
        "verify": ["verify", source, low],
        "diff": ["diff", low, low, "--reference", source],
        "run": ["run", source],
        "check": ["check", low, "--against", source],
        "tune": ["tune", source, "--tolerance", "0.1", "-o", out],
        "convert": ["convert", source, "-o", out, "--check", "require"],
    }[verb]


@pytest.mark.parametrize(
    "verb", ["verify", "diff", "run", "check", "tune", pytest.param("convert", marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("check_here")
def test_it_sizes_generated_inputs(amp, verb, pair):
    status, _, error = amp(*words(verb, pair), "--dim", f"rows={ROWS}")
    assert status == 0 and "AMP" not in error
    status, out, error = amp(*words(verb, pair))
    assert status and "no generated input fits" in out + error


@pytest.mark.parametrize("verb", ["verify", "diff", "run", "check", "tune", "convert"])
def test_a_name_that_the_model_does_not_have_is_refused(amp, verb, pair):
    status, _, error = amp(*words(verb, pair), "--dim", f"row={ROWS}")
    assert status == 2 and "AMP310" in error and "rows" in error


# The command line: words that people bring from other tools.


@pytest.mark.parametrize(("word", "dtype"), [("--fp16", "float16"), ("--half", "float16"), ("--bf16", "bfloat16")])
def test_options_of_other_tools_name_the_type(monkeypatch, capsys, word, dtype):
    words = ["ampgraph", "convert", str(MODELS / "digits_cnn.onnx"), word, "--dry-run"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and f"level O2, {dtype}, policy" in capsys.readouterr().out


def test_keep_io_types_cannot_change_a_plan(amp):
    code, _, err = amp("convert", "x.onnx", "--plan-in", "plan.json", "--keep-io-types")
    assert code == 2 and "--keep-io-types cannot change the given plan" in err


@pytest.mark.parametrize("device", ["gpu", "GPU", "cuda", 3, None, np.float16, ["cpu"]])
def test_a_device_is_known_or_refused(device):
    """No machine of the tests has to have a GPU: it is found, or said to be missing."""
    try:
        assert choose(device)[0] == "cuda"
    except AmpError as error:
        assert error.code == ("AMP505" if isinstance(device, str) else "AMP321") and error.hint


# The command line on MindIR files: the same commands, and what only one of the formats has.

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
    assert report["casts_after"] == nodes["Cast"] and report["products"]["float32"] == 0
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
    assert code == 0 and report["reasons"]["float32"]["user"] == 2 and report["products"]["float32"] == 1
    assert kinds(made)[1]["float16"] == 8
    # weights can stay as they are stored
    made = source.with_name("keep.mindir")
    assert amp("convert", source, "--store-weights", "keep", "-o", made)[0] == 0
    assert kinds(made)[1] == kinds(source)[1] == {"float32": kinds(source)[1].total()}
    # policy mindspore is told as such
    code, out, _ = amp("convert", source, "--policy", "mindspore", "--verbose")
    assert code == 0 and "policy mindspore" in out and "float16: 17 by MindSpore's rules" in out
    assert "by rule " not in out and "none: the policy is its framework's" in out


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
    assert report["products"] == {"float16": 5} and not report["difference"]["gone"]
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
