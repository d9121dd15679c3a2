"""Writes docs/reference/*.md and docs/glossary.md from the code: `python docs/make_reference.py`.
With --check: exit 1 where it has changed.

Commands are what --help says; Python is each public name with its signature and its docstring."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import typer.main  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.cli.app import app  # noqa: E402
from ampgraph.core.renamed import DROPPED, RENAMED  # noqa: E402
from ampgraph.report import glossary  # noqa: E402

OLD_NAMES = """An old name works, with a warning, until the version that drops it; JSON has both names until then."""
FOLDER = ROOT / "docs" / "reference"
WIDTH = 100
SOURCE = "Made from the code by `python docs/make_reference.py`."


def commands() -> str:
    """Every command with its help."""
    group = typer.main.get_command(app)
    lines = ["# Commands", "", SOURCE, ""]
    with group.make_context("ampgraph", [], resilient_parsing=True) as context:
        for name in group.list_commands(context):  # type: ignore[attr-defined]
            command = group.get_command(context, name)  # type: ignore[attr-defined]
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            inner.max_content_width = inner.terminal_width = WIDTH
            lines += [f"## ampgraph {name}", "", "```text", command.get_help(inner).strip(), "```", ""]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def renamed() -> str:
    """The page of old names."""
    rows = [f"| {one.where} | `{one.old}` | `{one.new}` | {one.since} | {one.gone} |" for one in (*RENAMED, *DROPPED)]
    lines = ["# Old names, and when they go", "", SOURCE, "", OLD_NAMES, ""]
    head = ["| where | old name | new name | since | dropped in |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *head, *rows, ""])


def python() -> str:
    """Every public name with its signature and docstring; of classes the public methods too."""
    lines = ["# Python", "", SOURCE, ""]
    for name in sorted(ampgraph.__all__, key=lambda name: (name[0].isupper(), name.lower())):
        found = getattr(ampgraph, name)
        lines += [f"## ampgraph.{name}", "", *_described(name, found)]
        if inspect.isclass(found):
            for inner in sorted(vars(found)):
                member = inspect.getattr_static(found, inner)
                plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                if not inner.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
                    lines += [f"### {name}.{inner}", "", *_described(inner, plain)]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()).rstrip() + "\n"


def _described(name: str, found: object) -> list[str]:
    text = inspect.getdoc(found) or ""
    return ["```text", *([_signature(name, found)] if callable(found) else []), "", text, "```", ""]


def _signature(name: str, found: object) -> str:
    """The parameters by name, with their defaults; types are in the docstring's words."""
    try:
        parameters = inspect.signature(found).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    shown = [_parameter(p) for p in parameters if p.name not in ("self", "cls")]
    lines, line = [], f"{name}("
    for number, text in enumerate(shown):
        piece = text + (", " if number + 1 < len(shown) else "")
        if len(line) + len(piece) > WIDTH:
            lines.append(line.rstrip())
            line = " " * 4
        line += piece
    return "\n".join([*lines, f"{line})"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = parameter.default
    plain = isinstance(default, (bool, int, float, str, type(None), tuple))
    shown = "" if default is parameter.empty else f"={default!r}" if plain else "=..."
    return f"{stars}{parameter.name}{shown}"


PAGES = {"commands.md": commands, "python.md": python, "renamed.md": renamed, "../glossary.md": glossary.page}


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return int(any((FOLDER / name).read_text(encoding="utf-8") != page() for name, page in PAGES.items()))
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
