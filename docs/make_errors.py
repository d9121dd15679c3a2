"""Writes docs/errors.md from the code: `python docs/make_errors.py`. With --check: exit 1 where it is not current."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ampgraph.core.error_codes import CODES, FAMILIES  # noqa: E402

PAGE = ROOT / "docs" / "errors.md"
CODE = re.compile(r"AMP\d{3}")
INTRODUCTION = """# Error codes

Every mistake is one line, `error[CODE]: where: what`, with a hint where there is one, and exit status 2. In Python it
is an `ampgraph.AmpError` with `code`, `message`, `where` and `hint`. `…` stands for what the message names. This page
is made from the code by `python docs/make_errors.py`.
"""


def sources() -> Iterator[Path]:
    """The files that may raise an error."""
    for folder in ("ampgraph", "passes", "op_lists", "models"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents):
                yield path


def used(tree: ast.AST) -> set[str]:
    """The codes that a file names."""
    texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {text for text in texts if CODE.fullmatch(text)}


def messages(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(code, message) of every call that has both among its arguments."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names: dict[str, list[str]] = {}
            for name, value in _assigned(function):
                names[name] = [*names.get(name, ()), *template(value, names)]
            yield from _called(function, names)


def _assigned(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    """Each name of a function with each of its values; of several on one line each with its own."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=False) if several else [(target, value)]
            yield from ((name.id, what) for name, what in pairs if isinstance(name, ast.Name))


def _called(function: ast.FunctionDef, names: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            for code, message in zip(node.args, node.args[1:], strict=False):
                if isinstance(code, ast.Constant) and CODE.fullmatch(str(code.value)):
                    yield from ((str(code.value), text) for text in template(message, names))


def template(node: ast.AST, names: Mapping[str, list[str]]) -> list[str]:
    """The texts that an expression may be, with … for what is put in; none where it is not written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return template(node.body, names) + template(node.orelse, names)
    return list(names.get(node.id, ())) if isinstance(node, ast.Name) else []


def page() -> str:
    """The whole page."""
    found: dict[str, set[str]] = {code: set() for code in CODES}
    for path in sources():
        for code, message in messages(ast.parse(path.read_text(encoding="utf-8"))):
            if re.search(r"\w", message):
                found[code].add(message)
    lines = [INTRODUCTION]
    for digit, family in FAMILIES.items():
        lines += [f"## {family}", ""]
        for code in sorted(c for c in CODES if c[3] == digit):
            lines += [f"### {code}", "", CODES[code], "", *(f"- {text}" for text in sorted(found[code])), ""]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return text.rstrip() + "\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
