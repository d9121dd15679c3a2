"""The documents: every command in them runs, links lead somewhere, what is made from the code is current."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from typer import main

import ampgraph
from ampgraph.cli.app import app
from onnx_text import parse

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^\$ ampgraph (.*)$", re.M)
LISTED = re.compile(r"^ampgraph (.*?)  +\S.*$", re.M)  # a command and, behind it, what it is for
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
QUANTIZED = """g (float[2, 8] x) => (float[2, 8] y) <float s = {0.05}, uint8 z = {128}> {
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    h = MatMul (d, w)
    y = Relu (h)
}"""
NOT_HERE = {
    "--webgpu-page": "a page for a browser, with a package of npm: tests/report/test_webgpu_page.py",
    "--runtime": "an environment with onnxruntime-gpu: tests/placement",
    "build/t5": "the T5 of tests/hard_models, which its own tests run",
    "chain.onnx": "a model that overflows on its samples: tests/cli/test_data.py",
    "c.onnx": "a model that the check finds wrong: tests/api/test_check.py",
    "small.mindir": "a model whose output vanishes: tests/api/test_check.py",
    "bert.onnx": "an export of benchmarks/export_models.py: tests/report/test_estimate.py",
    "near.onnx": "a model that is in doubt: tests/api/test_check.py",
    "spectrum": "a model whose causes are found: tests/numerics/test_causes.py",
    "digits_step.mindir": "a step that MindSpore exports: tests/training/test_mindspore_train.py",
    "digits_step.O2": "a step that MindSpore exports: tests/training/test_mindspore_train.py",
    "rnn.onnx": "a model of tests/training",
    "node_softmax": "a model that torch exported: tests/planner/policies",
    "--sensitivity": "eighteen runs more: tests/api/test_tune.py",
    "--tolerance 3e-4": "twenty runs: tests/api/test_tune.py",
    "verify decoder.onnx decoder.O2.onnx --steps 64": "the same over eight steps is run",
}
"""What stands in a command -> why it is not run here, and what runs it."""


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """(command, what the page shows below it)."""
    for language, block in FENCED.findall(page.read_text(encoding="utf-8")):
        if language:
            continue
        found = list((LISTED if page.name == "README.md" and block.startswith("ampgraph") else COMMAND).finditer(block))
        ends = [*(one.start() for one in found[1:]), len(block)]
        for one, end in zip(found, ends, strict=False):
            yield one[1], block[one.end() : end]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of."""
    shutil.copytree(ROOT / "models", tmp_path / "models", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(ROOT / "models" / "digits_transformer.onnx", tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "model_int8.onnx")
    few = MatMulNBitsQuantizer(onnx.load(tmp_path / "model.onnx"), bits=4, block_size=32, is_symmetric=True)
    few.process()
    onnx.save(few.model.model, tmp_path / "model_q4.onnx")
    (tmp_path / "build").mkdir()
    (tmp_path / "samples").mkdir()
    (tmp_path / "pipeline").mkdir()
    shutil.copy(ROOT / "models" / "digits_cnn.onnx", tmp_path / "pipeline")
    with np.load(ROOT / "models" / "digits_heldout.npz") as held:
        for number in range(2):
            np.savez(tmp_path / "samples" / f"{number}.npz", image=held["image"][number * 4 : number * 4 + 4])
    decoder = runpy.run_path(str(ROOT / "examples" / "decoder_with_cache.py"))["decoder"]
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    onnx.save(parse(QUANTIZED, w=(8, 8), opset=19), tmp_path / "quantized.onnx")
    classifier = runpy.run_path(str(ROOT / "examples" / "classifier.py"))["classifier"]
    onnx.save(classifier(), tmp_path / "classifier.onnx")
    ampgraph.convert(tmp_path / "model.onnx", output=tmp_path / "model.O2.onnx")
    for name in ("digits_transformer.onnx", "digits_cnn.mindir"):
        stem, _, suffix = name.partition(".")
        ampgraph.convert(ROOT / "models" / name, output=tmp_path / "build" / f"{stem}.O2.{suffix}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(shown: str) -> int:
    """The exit status that belongs to what a page shows."""
    if "error[AMP" in shown:
        return 2
    return 1 if "MISSED" in shown or "verdict     missed" in shown else 0


@pytest.mark.slow
@pytest.mark.mindspore
@pytest.mark.parametrize("page", [p for p in PAGES if any(commands(p))], ids=lambda page: page.stem)
def test_commands_run(page: Path, folder: Path, amp: Any) -> None:
    ran = 0
    for command, shown in commands(page):
        text = command.split(" | ")[0]
        if any(part in text for part in NOT_HERE):
            continue
        code, _, err = amp(*shlex.split(text))
        assert code == expected(shown), f"{page.name}: ampgraph {text}\n{err}"
        ran += 1
    assert ran or page.stem in ("metrics", "policies", "ascend", "design", "training")


def calls(page: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls of ampgraph in the Python of a page: (dotted name behind `ampgraph.`, the call)."""
    for language, block in FENCED.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and re.fullmatch(r"ampgraph[.\w]+", name):
                yield name.partition(".")[2], node


@pytest.mark.parametrize("page", [page for page in PAGES if any(calls(page))], ids=lambda page: page.stem)
def test_python_calls_what_there_is(page: Path) -> None:
    """Names and keywords of the code in the pages."""
    for name, call in calls(page):
        if name.startswith("training.mindspore"):
            continue  # tests/training/test_mindspore_train.py: it imports MindSpore
        words = {word.arg: None for word in call.keywords if word.arg}
        inspect.signature(attrgetter(name)(ampgraph)).bind(*call.args, **words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    lost = [t for t in targets if t and not t.startswith("http") and not (page.parent / t).exists()]
    assert lost == []
    assert page.name == "README.md" or [t for t in targets if t.startswith("../../") or (
        t.startswith("../") and page.parent.name == "docs")] == [], "the site has nothing outside of docs"  # fmt: skip


def test_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    pages -= {page for page in pages if page.startswith("upstream/")}  # reports for other projects
    assert set(re.findall(r": (\S+\.md)$", nav, re.M)) == pages
    # the readme is short
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
    # the drawing of the house has its rooms
    drawing = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## The house")[2].split("```")[1]
    drawn = dict(re.findall(r"^  (\w+)/ +(.*)$", drawing, re.M))
    rooms = {path.name for path in (ROOT / "ampgraph").iterdir() if path.is_dir() and not path.is_symlink()}
    assert set(drawn) == rooms - {"__pycache__"}
    for room, words in drawn.items():
        named = set(re.findall(r"(\w+)/", words))
        assert all((ROOT / "ampgraph" / room / folder).is_dir() for folder in named), room


@pytest.mark.slow
def test_what_is_made_from_the_code_is_current() -> None:
    """`python docs/make_reference.py` writes it; how help is set depends on the version of typer."""
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    assert (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8") == made["python"]()
    assert (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8") == made["PAGES"]["../glossary.md"]()
    assert (ROOT / "docs" / "reference" / "renamed.md").read_text(encoding="utf-8") == made["renamed"]()
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    now = made["commands"]()
    assert re.findall(r"^## .*", page, re.M) == re.findall(r"^## .*", now, re.M)
    assert set(re.findall(r"--[a-z][\w-]*", page)) == set(re.findall(r"--[a-z][\w-]*", now))
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "make_errors.py"), "--check"], check=False)
    assert done.returncode == 0


# Every command that a page, the help or a hint names is one that there is, with options that there are.
# Those behind a `$` are run as well: test_pages.py.

COMMANDS = main.get_command(app).commands  # type: ignore[attr-defined]
PARSE_PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").glob("*.md"),
]
LINE = re.compile(r"^ *(?:\$ )?(?:\S+ )*?(?:-m )?ampgraph ([a-z][-a-z]* .*)$", re.M)
INLINE = re.compile(r"`ampgraph ([a-z][^`]*)`")
ENDS = re.compile(r" \| | > |  +\S| && | # ")  # of a command, in a line that goes on


def named(page: Path) -> Iterator[str]:
    """Commands as a page writes them, without the program's name."""
    text = page.read_text(encoding="utf-8")
    for language, block in FENCED.findall(text):
        if language in ("", "console", "bash"):
            yield from (ENDS.split(line)[0] for line in LINE.findall(block))
    yield from (line.replace("\n", " ") for line in INLINE.findall(FENCED.sub("", text)))


def parsed(line: str) -> None:
    """Raises for a command or an option that there is not; places and numbers of arguments are not looked at."""
    name, *words = shlex.split(line.replace("...", ""))
    command = COMMANDS[name]
    command.make_parser(command.context_class(command, info_name=name)).parse_args(words)


def hints() -> set[str]:
    """Commands in the texts of the package: hints, help, docstrings; what holds a place to fill is left out."""
    found: set[str] = set()
    for file in (ROOT / "ampgraph").rglob("*.py"):
        found.update(INLINE.findall(file.read_text(encoding="utf-8")))
    return {line for line in found if "{" not in line and "\n" not in line}


@pytest.mark.parametrize("page", [page for page in PARSE_PAGES if any(named(page))], ids=lambda page: page.stem)
def test_pages_name_commands_that_are_there(page: Path) -> None:
    for line in named(page):
        parsed(line)


def test_texts_of_the_package_name_commands_that_are_there() -> None:
    assert len(hints()) > 5
    for line in sorted(hints()):
        parsed(line)


@pytest.mark.parametrize("line", ["convert m.onnx --no-such", "conver m.onnx"])
def test_what_is_not_there_is_found(line: str) -> None:
    with pytest.raises(Exception, match="no-such|conver"):
        parsed(line)


OTHERS = {  # options of other tools and of the project's own scripts, by the words beside them
    "trtexec", "tensorboard", "precision_mode", "python -m", "strongly-typed", "onnxrt", "--write", "--table", "--fp16",
}  # fmt: skip


def inline(page: Path) -> list[str]:
    """What a page says in inline code, not in blocks."""
    return re.findall(r"`([^`]+)`", FENCED.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "page", [p for p in PARSE_PAGES if p.stem != "tensorrt"], ids=lambda page: page.stem
)  # trtexec's
def test_options_and_places_in_sentences_are_there(page: Path) -> None:
    known = {word for command in COMMANDS.values() for one in command.params for word in one.opts + one.secondary_opts}
    known |= {"--help", "--version", "--install-completion"}
    for code in inline(page):
        if not any(word in code for word in OTHERS):
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) <= known, code
        place = re.fullmatch(r"(?:tests|benchmarks|op_lists|examples|passes|ampgraph|models|docs)/[\w./-]+", code)
        assert not place or "NAME" in code or (ROOT / code).exists(), code
