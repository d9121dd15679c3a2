"""The public names and signatures: complete, quick to import, and checked by type checkers."""

from __future__ import annotations

import ast
import inspect
import json
import rlcompleter
import subprocess
import sys
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer import main

import ampgraph
from ampgraph import AmpError, Recipe
from ampgraph.api.steps import Job, run_job
from ampgraph.cli.app import app
from ampgraph.core.graph import Graph
from ampgraph.core.pass_ import Change
from ampgraph.core.recipe import OPTIONS
from onnx_text import parse

ROOT = Path(__file__).parents[2]
CALLS = {"build-step": "build_training_step", "demo": "convert"}  # of another name; `demo` is three verbs
FOR_READERS = {"help"}  # what it prints is a page
COMMANDS = {
    name: command
    for name, command in main.get_command(app).commands.items()  # type: ignore[attr-defined]
    if name not in FOR_READERS
}
VERBS = ("build_training_step", "convert", "explain", "explain_all", "inspect", "lists", "plan", "tune")


def test_names_and_commands() -> None:
    for name in ampgraph.__all__:
        assert getattr(ampgraph, name).__name__ == name
    assert set(ampgraph.__all__) <= set(dir(ampgraph))
    assert rlcompleter.Completer({"ampgraph": ampgraph}).complete("ampgraph.conv", 0) == "ampgraph.convert("
    with pytest.raises(AttributeError, match="no attribute 'conver'"):
        ampgraph.conver  # type: ignore[attr-defined]  # noqa: B018
    # every command has a call
    assert {CALLS.get(name, name.replace("-", "_")) for name in COMMANDS} <= set(ampgraph.__all__)
    # the names of type checkers are those at run time
    tree = ast.parse(Path(ampgraph.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(ampgraph.__all__) == set(ampgraph._HOME)  # type: ignore[attr-defined]
    # importing is light
    code = "import sys, ampgraph; dir(ampgraph); ampgraph.Recipe; print({'onnx', 'numpy', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", VERBS)
def test_keywords_show_and_hint(name: str) -> None:
    verb = getattr(ampgraph, name)
    parameters = inspect.signature(verb).parameters
    assert set(OPTIONS) <= set(parameters) and not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert all(f" {field}: " in verb.__doc__ for field in OPTIONS)
    assert all(len(line) <= 120 for line in verb.__doc__.splitlines())
    # a misspelt keyword has a hint
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


def test_the_house_of_arguments() -> None:
    many = []
    for place, node in nodes():
        if isinstance(node, ast.FunctionDef):
            names = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            many += [place] if len(names & {*OPTIONS, "dim"}) > 5 else []
    assert many == []
    # nothing hands on more than five fields nor four by position
    many = []
    for place, node in nodes():
        if isinstance(node, ast.Call):
            named = {word.arg for word in node.keywords if word.arg in OPTIONS}
            bare = [arg.attr if isinstance(arg, ast.Attribute) else getattr(arg, "id", "") for arg in node.args]
            placed = [name for name in bare if name in OPTIONS]
            many += [place] if len(named) > 5 or len(placed) > 3 else []
    assert many == []


# What the command line does, Python does in the same words: each option is a keyword of the call of that name.

PRINTING = {"as_json": "to_dict() of what is returned", "quiet": "nothing is printed", "verbose": "progress="}
TAKEN = {
    "keep_io_types": "a word of other tools for io, which recipes take by either name",
    "dim": "dims, a mapping",
    "models": "one model for each call",
}
"""Options -> how the call of their command says them."""
ELSEWHERE = {
    ("convert", "plan_in"): ("convert", "its keyword plan, or apply"),
    ("convert", "plan_out"): ("Plan.write", "of what plan returns"),
    ("convert", "dry_run"): ("plan", "which writes nothing"),
    ("convert", "samples"): ("calibrate", "its keyword count; the result is convert's ranges"),
    ("convert", "ranges_out"): ("Ranges.write", "of what calibrate returns"),
    ("convert", "runtime"): ("convert", "optimize, which takes that Python"),
    ("convert", "loss_scale"): ("build_training_step", "convert refuses it, and says so"),
    ("convert", "jobs"): ("convert", "one model for each call"),
    ("convert", "transformers_js"): ("convert", "output, which is any name"),
    ("inspect", "model_explorer"): ("overlay", "which returns the data"),
    ("lists", "rules"): ("explain", "whose decisions name their rule; the table is a page of levels.md"),
    ("check", "form"): ("Checked.to_dict", "text, JUnit and SARIF are for machines that call the command"),
    ("run", "output"): ("run", "returns the arrays"),
    ("demo", "folder"): ("convert", "demo is what a newcomer types; its parts are verbs"),
    ("build-step", "gradient"): ("build_training_step", "gradients, a mapping"),
    ("build-step", "seed_input"): ("build_training_step", "seed, which belongs to gradients"),
}
"""(command, option) -> (what of ampgraph does it, how)."""


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_a_keyword_of_the_call(name: str) -> None:
    call = getattr(ampgraph, CALLS.get(name, name.replace("-", "_")))
    keywords = inspect.signature(call).parameters
    options = {option.name for option in COMMANDS[name].params} - {*PRINTING, *TAKEN}
    lacking = {option for option in options if option not in keywords and (name, option) not in ELSEWHERE}
    assert lacking == set()


def test_what_is_said_elsewhere_is_there_and_needed() -> None:
    for (name, option), (place, how) in ELSEWHERE.items():
        assert option in {found.name for found in COMMANDS[name].params}, (name, option)
        assert callable(reduce(getattr, place.split("."), ampgraph)) and how
    every = {option.name for command in COMMANDS.values() for option in command.params}
    assert {*PRINTING, *TAKEN} <= every


# Every verb takes a recipe, its text, or its fields, and does the same with each; so does the command line.

MODELS = Path(ampgraph.__file__).parent / "models"
CNN = MODELS / "digits_cnn.onnx"


def model() -> onnx.ModelProto:
    text = "g (float[n, 4] x) => (float[n, 4] y) { [product] m = MatMul (x, w) [activation] y = Relu (m) }"
    return parse(text, w=np.eye(4, dtype=np.float32))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(AmpError) as raised:
        call()
    return raised.value.code


def test_each_form_of_a_recipe() -> None:
    recipe = Recipe.of(level="O1", dtype="bfloat16", fp32=["product"], io="low")
    made = [
        ampgraph.convert(model(), recipe=recipe),
        ampgraph.convert(model(), recipe=str(recipe)),
        ampgraph.convert(model(), "O1", dtype="bfloat16", fp32="product", io=["low"]),
        ampgraph.convert(model(), "O1", recipe=Recipe.of(recipe, level="O2")),
    ]
    first, *others = (one.SerializeToString(deterministic=True) for one in made)
    assert [one == first for one in others] == [True] * 3
    # a keyword replaces the field of the recipe
    recipe = Recipe.of(level="O3", fp32=["product"])
    held = {d.kind: d.dtype for d in ampgraph.plan(model(), recipe=recipe).decisions}
    freed = {d.kind: d.dtype for d in ampgraph.plan(model(), recipe=recipe, fp32=()).decisions}
    assert held["MatMul"] == "float32" and freed["MatMul"] == "float16"


def test_the_command_line_writes_what_python_writes(amp: Any, tmp_path: Path) -> None:
    recipe = Recipe.of(level="auto", fp32=["op:Gemm"], store_weights="keep", target="cpu")
    words = ["--level", "auto", "--fp32", "op:Gemm", "--store-weights", "keep", "--target", "cpu"]
    assert amp("convert", CNN, "-o", tmp_path / "cli.onnx", *words)[0] == 0
    ampgraph.convert(CNN, recipe=recipe, output=tmp_path / "api.onnx")
    assert (tmp_path / "cli.onnx").read_bytes() == (tmp_path / "api.onnx").read_bytes()


def test_explain_is_the_command(amp: Any) -> None:
    assert ampgraph.explain(model(), "op:Relu").node == "activation"
    found = ampgraph.explain_all(CNN, "op:Conv", "O1")
    assert len(found) > 1 and {one.kind for one in found} == {"Conv"}
    code, out, _ = amp("explain", CNN, "op:Conv", "--level", "O1")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()] == [["Conv", f"'{one.node}'"] for one in found]
    assert all("float16  by " in line for line in out.splitlines())
    assert json.loads(amp("explain", CNN, "op:Conv", "--level", "O1", "--json")[1])[1]["node"] == found[1].node
    for node, word in (("op:Conv", "explain_all has all"), ("op:Covn", "did you mean 'Conv'"), ("value:no", "no")):
        with pytest.raises(AmpError) as raised:
            ampgraph.explain(CNN, node)
        assert raised.value.code == "AMP308" and word in str(raised.value)
    # explain says what the command says
    told = ampgraph.explain(CNN, "node_conv2d", "O1", fp32=["node_conv2d"])
    assert told.slots[0].reason == "--fp32 node_conv2d" and told.level == "O1"
    words = ("explain", CNN, "node_conv2d", "--level", "O1", "--fp32", "node_conv2d", "--json")
    assert json.loads(amp(*words)[1]) == json.loads(json.dumps(told.to_dict()))
    # explain says how far it is
    said: list[str] = []
    ampgraph.explain(CNN, "node_conv2d", opset=21, progress=lambda what, *rest: said.append(what))
    assert said == ["reading", "moving to opset 21", "planning"]


def test_lists_says_what_the_command_says(amp: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[allow]\nSoftmax = "mine"\n')
    (row,) = ampgraph.lists("Softmax", level="auto", lists=mine)
    assert (row.cls, row.at_level, row.source) == ("allow", "low", "mine.toml:2")
    printed = json.loads(amp("lists", "Softmax", "--level", "auto", "--lists", mine, "--json")[1])
    assert printed == json.loads(json.dumps([row.to_dict()]))
    assert ampgraph.lists(recipe="O1") == ampgraph.lists(level="O1") != ampgraph.lists(level="O3")


def test_verbs_start_from_the_recipe(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[allow]\nRelu = "mine"\n')
    assert ampgraph.inspect(model()).products == {"float32": 1}
    assert ampgraph.inspect(model(), lists=[mine]).products == {"float32": 2}
    # tune starts from the recipe
    data = [{"x": np.ones((2, 4), np.float32)}]
    found = ampgraph.tune(model(), recipe="O1,bfloat16,opset=21", data=data)
    assert (found.level, found.dtype, found.met) == ("O1", "bfloat16", True)
    assert found.plan is not None and found.plan.digest == ampgraph.plan(model(), opset=21).digest
    # dimensions that the model does not have
    ampgraph.plan(model(), dims={"n": 8})
    assert code_of(lambda: ampgraph.plan(model(), dims={"m": 8})) == "AMP310"
    assert code_of(lambda: ampgraph.convert(model(), dims={"m": 8})) == "AMP310"


def test_a_training_step_takes_what_has_a_meaning_for_it(tmp_path: Path) -> None:
    forward = MODELS / "digits_cnn_forward.onnx"
    for name, value in (("io", "low"), ("ranges", "r.json"), ("range_margin", 2)):
        fields: dict[str, Any] = {name: value}
        recipe = Recipe.of(**fields)
        call = lambda recipe=recipe: ampgraph.build_training_step(forward, optimizer="sgd", recipe=recipe)  # noqa: E731
        assert code_of(call) == "AMP301"
    built = [
        ampgraph.build_training_step(forward, loss="cross_entropy", optimizer="sgd", **steering)
        for steering in ({"recipe": "O1,fp32=op:Gemm"}, {"level": "O1", "fp32": ["op:Gemm"]})
    ]
    for step, name in zip(built, "ab", strict=True):
        step.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_plans_and_passes_of_ones_own() -> None:
    plan = ampgraph.plan(model())
    assert code_of(lambda: ampgraph.convert(model(), plan=plan, fp32=["product"])) == "AMP404"
    assert code_of(lambda: ampgraph.convert(model(), plan=plan, recipe="io=low")) == "AMP404"
    beside = {"level": "O1", "dtype": "bfloat16", "target": "cpu", "store_weights": "keep", "dims": {"n": 2}}
    for name, value in {**beside, "recipe": "O2", "range_margin": 3, "lists": "mine.toml"}.items():
        word: dict[str, Any] = {name: value}
        with pytest.raises(
            AmpError, match=f"AMP404.*{'level' if name == 'recipe' else name}= cannot change the given plan"
        ):
            ampgraph.convert(model(), plan=plan, **word)
    bare = ampgraph.convert(model(), plan=plan, level=None, fp32=[], target=None)
    assert bare.SerializeToString() == ampgraph.convert(model(), plan=plan).SerializeToString()
    moved = ampgraph.plan(model(), opset=21)
    assert ampgraph.convert(model(), plan=moved, opset=21).opset_import[0].version == 21
    # a pass of ones own runs behind the casts
    seen: list[int] = []

    def count(graph: Graph) -> Change:
        seen.append(graph.census().casts)
        return Change(0)

    ampgraph.convert(CNN, passes=[count], check_passes=True)
    assert seen == [2]  # of the input and the output


def test_a_job_has_a_summary_where_one_is_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    job = Job(CNN, Recipe(), output=tmp_path / "o.onnx", report=True)
    done = run_job(job, lambda what, count, total: said.append(what))
    assert list(dict.fromkeys(said))[:4] == ["reading", "planning", "converting", "writing"]
    assert done.changed and done.summary is not None and done.summary.output == str(tmp_path / "o.onnx")
    assert run_job(Job(CNN, Recipe())).summary is None
