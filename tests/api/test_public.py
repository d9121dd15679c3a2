"""The public names and signatures: complete, quick to import, and checked by type checkers."""

from __future__ import annotations

import ast
import inspect
import rlcompleter
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer import main

import ampgraph
from ampgraph.cli.app import app
from ampgraph.core.recipe import OPTIONS

ROOT = Path(__file__).parents[2]
COMMANDS = {  # what the command line calls otherwise; `demo` is three verbs
    "build-step": "build_training_step", "demo": "convert",
}  # fmt: skip
VERBS = ("build_training_step", "convert", "explain", "explain_all", "inspect", "lists", "plan", "tune")


def test_all_names_load_and_show() -> None:
    for name in ampgraph.__all__:
        assert getattr(ampgraph, name).__name__ == name
    assert set(ampgraph.__all__) <= set(dir(ampgraph))
    assert rlcompleter.Completer({"ampgraph": ampgraph}).complete("ampgraph.conv", 0) == "ampgraph.convert("
    with pytest.raises(AttributeError, match="no attribute 'conver'"):
        ampgraph.conver  # type: ignore[attr-defined]  # noqa: B018


def test_every_command_has_a_call() -> None:
    commands = {name or "" for name in main.get_command(app).commands}  # type: ignore[attr-defined]
    assert {COMMANDS.get(name, name.replace("-", "_")) for name in commands} <= set(ampgraph.__all__)


def test_the_names_of_type_checkers_are_those_at_run_time() -> None:
    tree = ast.parse(Path(ampgraph.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(ampgraph.__all__) == set(ampgraph._HOME)  # type: ignore[attr-defined]


def test_importing_is_light() -> None:
    code = "import sys, ampgraph; dir(ampgraph); ampgraph.Recipe; print({'onnx', 'numpy', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", VERBS)
def test_help_shows_the_fields(name: str) -> None:
    verb = getattr(ampgraph, name)
    parameters = inspect.signature(verb).parameters
    assert set(OPTIONS) <= set(parameters) and not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert all(f" {field}: " in verb.__doc__ for field in OPTIONS)
    assert all(len(line) <= 120 for line in verb.__doc__.splitlines())


@pytest.mark.parametrize("name", VERBS)
def test_a_misspelt_keyword_has_a_hint(name: str) -> None:
    verb = getattr(ampgraph, name)
    required = {"optimizer": "sgd"} if name == "build_training_step" else {}
    given = ["m.onnx", "node"] if name.startswith("explain") else [] if name == "lists" else ["m.onnx"]
    with pytest.raises(TypeError) as raised:
        verb(*given, **required, store_weihgts="low")
    assert str(raised.value) == "error[AMP301]: unknown keyword 'store_weihgts'\nhint: did you mean 'store_weights'?"


def test_type_checkers_find_misspelt_names_and_keywords(tmp_path: Path) -> None:
    lines = {
        'ampgraph.convert("m.onnx", "O2", dtype="bfloat16", fp32=["op:Pow"], dims={"n": 8})': "",
        'ampgraph.convert("m.onnx", recipe="O2")': "",
        "ampgraph.Recipe.of(level='O1', lists='mine.toml')": "",
        'ampgraph.conver("m.onnx")': "attr-defined",
        'ampgraph.convert("m.onnx", dtyp="float16")': "call-overload",
        'ampgraph.plan("m.onnx", opset=[18])': "arg-type",
        'ampgraph.verify("a", "b").okay': "attr-defined",
        "ampgraph.Recipe.of(dtpye='float16')": "call-arg",
        "assert_type(ampgraph.convert(onnx.ModelProto(), 'O2'), onnx.ModelProto)": "",
        "assert_type(ampgraph.apply(ir.load('m'), ampgraph.Plan.read('p')), ir.Model)": "",
        "assert_type(ampgraph.convert('m.onnx', output=Path('o')), Path)": "",
        "assert_type(ampgraph.convert('m.onnx', recipe='O1'), onnx.ModelProto | ir.Model | Graph)": "",
        "ampgraph.convert(ir.load('m')).grahp": "attr-defined",
        "ampgraph.convert(3)": "call-overload",
    }
    snippet = tmp_path / "snippet.py"
    head = ["import ampgraph, onnx", "import onnx_ir as ir", "from pathlib import Path"]
    head += ["from typing_extensions import assert_type", "from ampgraph.core.graph import Graph"]
    snippet.write_text("\n".join([*head, *lines]))
    words = [sys.executable, "-m", "mypy", "--no-error-summary", str(snippet)]  # with the cache of the usual run
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    errors = [line.partition("snippet.py:")[2] for line in done.stdout.splitlines() if "snippet.py:" in line]
    found = {int(line.split(":")[0]) - len(head) - 1: line for line in errors if ": error:" in line}
    assert set(found) == {place for place, code in enumerate(lines.values()) if code}, done.stdout + done.stderr
    for place, code in enumerate(lines.values()):
        assert not code or f"[{code}]" in found[place], found[place]


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every function and call of ampgraph and its passes, with its place."""
    found: list[tuple[str, ast.AST]] = []
    for folder in (ROOT / "ampgraph", ROOT / "passes"):
        for file in sorted(folder.rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            kinds = (ast.FunctionDef, ast.Call)
            found += [(f"{file.name}:{n.lineno}", n) for n in ast.walk(tree) if isinstance(n, kinds)]
    return found


def test_nothing_takes_more_than_five_fields() -> None:
    many = []
    for place, node in nodes():
        if isinstance(node, ast.FunctionDef):
            names = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            many += [place] if len(names & {*OPTIONS, "dim"}) > 5 else []
    assert many == []


def test_nothing_hands_on_more_than_five_fields_nor_four_by_position() -> None:
    many = []
    for place, node in nodes():
        if isinstance(node, ast.Call):
            named = {word.arg for word in node.keywords if word.arg in OPTIONS}
            bare = [arg.attr if isinstance(arg, ast.Attribute) else getattr(arg, "id", "") for arg in node.args]
            placed = [name for name in bare if name in OPTIONS]
            many += [place] if len(named) > 5 or len(placed) > 3 else []
    assert many == []
