"""Operator properties are data, not sets in code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ampgraph.oplists.files import data_folder, known_operators, tomllib

ROOT = Path(__file__).resolve().parents[1]
FREE = (
    "ampgraph/formats/",  # what a format's reader must know of its own operators
    *(f"ampgraph/training/forward/{name}.py" for name in ("losses", "random_numbers", "read")),  # of an operator
    "ampgraph/training/gradients/rules/",  # a gradient is of its operator
)
OPTIMIZERS = {"Adam", "AdamW", "SGD"}  # classes of ours, and operators of MindSpore's
COMPARED = ("ampgraph/oplists/", "ampgraph/passes/", "ampgraph/planner/", "ampgraph/report/")
"""Rooms that compare an operator with a trait, never with a name."""


def sources() -> list[str]:
    """Every module of ampgraph as it is imported, through the links that stand for the folders at the top."""
    found = (path.relative_to(ROOT) for top in ("ampgraph", "passes") for path in (ROOT / top).rglob("*.py"))
    names = {str(path) if path.parts[0] == "ampgraph" else f"ampgraph/{path}" for path in found}
    return sorted(name for name in names if not name.startswith(("ampgraph/op_lists/", "ampgraph/models/")))


@cache
def operators() -> frozenset[str]:
    """Names of operators, with their domain and without it."""
    mindspore = tomllib.loads((data_folder() / "schemas" / "mindspore.toml").read_text(encoding="utf-8"))
    known = {*known_operators(), *mindspore, *(f"mindspore::{name}" for name in mindspore)}
    return frozenset(known | {name.rpartition("::")[2] for name in known}) - OPTIMIZERS


@cache
def tree(name: str) -> ast.Module:
    path = ROOT / name
    return ast.parse((path if path.exists() else ROOT / name.removeprefix("ampgraph/")).read_text(encoding="utf-8"))


def names_in(node: ast.expr) -> list[str]:
    """The operators that a collection, or a literal, names."""
    items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [node])
    texts = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [text for text in texts if text in operators()]


def tables(module: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Sets, tuples, lists and dicts that name two operators or more."""
    for node in ast.walk(module):
        if isinstance(node, (ast.Set, ast.Tuple, ast.List, ast.Dict)) and len(found := names_in(node)) > 1:
            yield node.lineno, found


def comparisons(module: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Comparisons with the name of an operator, as ``op.role == "Pow"``."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            found = [name for side in (node.left, *node.comparators) for name in names_in(side)]
            if found:
                yield node.lineno, found


@pytest.mark.parametrize("name", [name for name in sources() if not name.startswith(FREE)])
def test_no_table_of_operators_is_left_in_python(name: str) -> None:
    assert list(tables(tree(name))) == []


@pytest.mark.parametrize("name", [name for name in sources() if name.startswith(COMPARED)])
def test_no_operator_is_compared_with_a_name(name: str) -> None:
    assert list(comparisons(tree(name))) == []


def test_a_table_and_a_comparison_are_found() -> None:
    module = ast.parse('KINDS = {"Cast", "MatMul"}\nif op.role in ("Pow", "no operator") or kind == "Add": pass')
    assert [names for _, names in tables(module)] == [["Cast", "MatMul"]]
    assert sorted(name for _, names in comparisons(module) for name in names) == ["Add", "Pow"]
