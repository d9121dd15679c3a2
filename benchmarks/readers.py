"""Draws functions for a reader with fresh eyes: is each in the room where one looks first, plain, and safe to change?

    python benchmarks/readers.py COMMIT 1            # what reader 1 is shown first: no paths
    python benchmarks/readers.py COMMIT 1 --places   # where the same functions are

The commit's hash is the seed, so that nobody chooses; `readers.md` has what readers answered.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EACH = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("reader", type=int)
    parser.add_argument("--places", action="store_true")
    args = parser.parse_args()
    found = sorted(functions())
    random.Random(args.commit).shuffle(found)
    start = EACH * (args.reader - 1)
    for number, (place, line, name, said) in enumerate(found[start : start + EACH], 1):
        print(f"{number:2} {name}: {place}:{line}" if args.places else f"{number:2} {name}\n     {said}")


def functions() -> Iterator[tuple[str, int, str, str]]:
    """Of every function: its file and line, its name with parameters, the first paragraph of its docstring; where a
    special method (__init__, __str__) or a stub of a protocol has none, that of its class. Overloads are left out."""
    for folder in ("ampgraph", "passes"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                yield from _inside(ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT)), "")


def _inside(tree: ast.Module | ast.ClassDef, place: str, owner: str) -> Iterator[tuple[str, int, str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _inside(node, place, f"{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            name = f"{owner}{node.name}({ast.unparse(node.args)}){returns}"
            if any(ast.unparse(one).endswith("overload") for one in node.decorator_list):
                continue
            shown = node.name.startswith("__") or ast.unparse(node.body[-1]) == "..."
            of_class = ast.get_docstring(tree) if shown and isinstance(tree, ast.ClassDef) else None
            text = ast.get_docstring(node) or of_class or "(no docstring)"
            said = " ".join(text.split("\n\n")[0].split())
            yield place, node.lineno, name, said


if __name__ == "__main__":
    main()
