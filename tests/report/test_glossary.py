"""Every word that a report prints is explained, and each in one place."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from ampgraph.core import verdict
from ampgraph.core.errors import AmpError
from ampgraph.core.spellings import DTYPES, LEVELS
from ampgraph.oplists.check import CLASSES
from ampgraph.planner.order import RULES
from ampgraph.report import glossary
from ampgraph.report.summary import ORDINARY
from conformance import test_kinds
from onnx_text import parse
from report.test_summary import KINDS

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "digits_transformer.onnx"
ROW = re.compile(r"^([a-zA-Z][a-zA-Z0-9 -]*?) {2,}\S", re.M)


def titles() -> Iterator[str]:
    """The names of rows that reports are made of, as they stand in the code."""
    for path in sorted((ROOT / "ampgraph" / "report").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "titled":
                yield from _words(node.args[:1])
            elif isinstance(node, ast.List) and path.name != "glossary.py":  # of pairs: a name and its text
                pairs = [one for one in node.elts if isinstance(one, ast.Tuple) and len(one.elts) == 2]
                yield from _words([pair.elts[0] for pair in pairs])


def topics() -> set[str]:
    """What notes of plans and steps are about, as they stand in the code."""
    found = set[str]()
    for path in sorted((ROOT / "ampgraph").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                found.update(_words(node.args[:1]))
    return found


def _words(found: list[ast.expr]) -> Iterator[str]:
    texts = (one.value for one in found if isinstance(one, ast.Constant))
    yield from (text for text in texts if isinstance(text, str) and text.strip() not in ("", "(all)"))


def test_names_of_rows_are_explained() -> None:
    found = set(titles())
    assert {"model", "casts", "clip norm", "promoted"} <= found
    assert _unexplained(found) == set()


def test_topics_of_notes_are_explained() -> None:
    assert {"level", "stream", "export", "mask"} <= topics() and _unexplained(topics()) == set()


def test_reasons_verdicts_and_classes_are_explained() -> None:
    verdicts = {verdict.OK, verdict.DOUBTFUL, verdict.MISSED, verdict.UNCHECKED}
    rules = {rule.name for rule in RULES}
    words = {*ORDINARY, *rules, *LEVELS, *DTYPES, *verdicts, *CLASSES, "float32"}
    assert _unexplained(words) == set()


def test_what_commands_print_is_explained(amp: Any, tmp_path: Path) -> None:
    made = tmp_path / "made.onnx"
    for words in (
        ("convert", MODEL, "-o", made, "-v", "--level", "O1", "--target", "cpu"),
        ("convert", MODEL, "-o", made),
        ("explain", MODEL, "node_add_77"),
        ("verify", MODEL, made),
        ("diff", MODEL, made),
        ("lists", "Softmax"),
    ):
        rows = set(ROW.findall(amp(*words)[1])) - {"image", "logits"}
        assert rows and _unexplained({re.sub(r"^(at|on|slot) \w+$", "level", row) for row in rows}) == set(), words


NAMED = re.compile(r"\(([a-z][a-z0-9_-]+)\)(?:;|$)", re.M)


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("name", [*KINDS, *test_kinds.KINDS])
def test_what_is_said_of_models_of_many_kinds_is_explained(name: str, level: str, amp: Any, tmp_path: Path) -> None:
    model = parse(*KINDS[name]) if name in KINDS else test_kinds.KINDS[name]()[0]
    onnx.save(model, tmp_path / "m.onnx")
    for more in ([], ["--verbose"]):
        out = amp("convert", tmp_path / "m.onnx", "--dry-run", "--level", level, *more)[1]
        words = {*ROW.findall(out), *NAMED.findall(out)}
        assert {"model", "nodes", "casts"} <= words and _unexplained(words) == set(), out


def _unexplained(words: set[str]) -> set[str]:
    def known(word: str) -> bool:
        try:
            return bool(glossary.meanings(word).found)
        except AmpError:
            return False

    return {word for word in words if not known(word)}


def test_help(amp: Any) -> None:
    code, out, _ = amp("help", "by", "the", "cut")
    assert code == 0 and out.startswith("cut  the minimum cut: ")
    assert amp("help", "exp_sum")[1].startswith("rule exp-sum  ")
    assert set(ROW.findall(amp("help", "RANGE")[1])) == {"range", "ranges", "rule range"}
    assert "made for" in amp("help", "plan")[1]
    assert set(ROW.findall(amp("help", "guard", "long_sum")[1])) == {"guard", "rule long-sum"}
    assert set(ROW.findall(amp("help", "DOUBTFUL:")[1])) == {"doubtful"}
    assert set(ROW.findall(amp("help", "cast")[1])) == {"casts", "rewrite cast"}
    assert amp("help", "fp16")[1].startswith("float16  ")
    assert set(ROW.findall(amp("help", "half")[1])) == {"float16", "rewrite half"}
    assert amp("help", "build-step")[1].startswith("command build-step  Build a mixed-precision training step")
    assert set(ROW.findall(amp("help", "residual")[1])) == {"residual stream"}
    assert set(ROW.findall(amp("help", "simulated")[1])) == {"simulated"}
    assert set(ROW.findall(amp("help", "kernel", "starts")[1])) == {"kernel start"}
    out = amp("help")[1]
    assert [line.split()[0] for line in out.splitlines()] == ["words", "rules", "rewrites", "metrics", "errors"]
    code, out, err = amp("help", "rgion")
    assert code == 2 and not out and "did you mean 'region'?" in err


def test_help_as_json(amp: Any) -> None:
    code, out, _ = amp("help", "cast", "--json")
    found = glossary.meanings("cast").found
    assert code == 0 and list(found) == ["casts", "rewrite cast"] and json.loads(out) == found


def test_page_holds_every_term() -> None:
    page = glossary.page()
    for kind, entries in glossary.sections():
        for name in entries if kind != "error" else ():
            assert f"\n| {name} | " in page, name
