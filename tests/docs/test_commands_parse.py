"""Every command that a page, the help or a hint names is one that there is, with options that there are.

Those behind a `$` are run as well: test_pages.py."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import main

from ampgraph.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = main.get_command(app).commands  # type: ignore[attr-defined]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").glob("*.md"),
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
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


def parse(line: str) -> None:
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


@pytest.mark.parametrize("page", [page for page in PAGES if any(named(page))], ids=lambda page: page.stem)
def test_pages_name_commands_that_are_there(page: Path) -> None:
    for line in named(page):
        parse(line)


def test_texts_of_the_package_name_commands_that_are_there() -> None:
    assert len(hints()) > 5
    for line in sorted(hints()):
        parse(line)


@pytest.mark.parametrize("line", ["convert m.onnx --no-such", "conver m.onnx"])
def test_what_is_not_there_is_found(line: str) -> None:
    with pytest.raises(Exception, match="no-such|conver"):
        parse(line)
