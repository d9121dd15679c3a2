"""List files: where they lie, how one is read with the lines of its entries, which operators it may name, and how a
mistake in it is reported."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import AmpError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_POSITION = re.compile(r"(in|out)\d+")
_KEY = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*(?:=|\.)""")


@cache
def data_folder() -> Path:
    """Where op_lists lies, in a checkout and in an installed package alike."""
    import ampgraph.op_lists

    return Path(next(iter(ampgraph.op_lists.__path__)))


@dataclass(frozen=True)
class ListFile:
    """A parsed list file; `lines` maps (table, key) to a line, and (table, "") to the line of the table's header."""

    name: str
    data: Mapping[str, Any]
    lines: Mapping[tuple[str, str], int]

    def where(self, table: str = "", key: str = "") -> str:
        """`mine.toml:3`: the entry's line, else its table's, else the first."""
        line = self.lines.get((table, key)) or self.lines.get((table, "")) or 1
        return f"{self.name}:{line}"


def canonical_name(kind: str) -> str:
    """An operator's name in the one spelling that the lists keep: without `ai.onnx::`, so `Conv`."""
    return kind.removeprefix("ai.onnx::")


def read_file(path: str | Path) -> ListFile:
    """Parses a list file; what it holds is not checked here. Raises AmpError AMP301 for one that cannot be read, is not
    UTF-8 text, is no TOML or is nested too deeply."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise AmpError(
            "AMP301", f"cannot read this list: {error.strerror}", where=str(path), hint="check the path"
        ) from None
    except UnicodeDecodeError:
        raise AmpError("AMP301", "this list is not UTF-8 text", where=path.name, hint="save it as UTF-8") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path.name, text, str(error)) from None
    except RecursionError:
        hint = "a list has tables of operators and their reasons, and nothing inside those"
        raise AmpError("AMP301", "this list is nested too deeply", where=path.name, hint=hint) from None
    return ListFile(path.name, data, _line_numbers(text))


@cache
def own_file(name: str) -> ListFile:
    """A file of op_lists, read once."""
    return read_file(data_folder() / name)


def mistake(file: ListFile, table: str, key: str, message: str, hint: str = "") -> AmpError:
    """The error AMP301 at the line of an entry of a list file, to be raised."""
    return AmpError("AMP301", message, where=file.where(table, key), hint=hint)


def check_known(
    file: ListFile, table: str, key: str, name: str, what: str, known: Collection[str], of: str = ""
) -> None:
    """Raises AmpError AMP301 at an entry of a list file for a name that is not among ``known``. ``what``: the sort of
    name, and ``of``: of what, in the message."""
    if name not in known:
        hint = nearest(name, list(known)) or f"{what}s are {', '.join(known)}"
        raise mistake(file, table, key, f"unknown {what} '{name}'{of}", hint)


def type_name(value: object) -> str:
    """What a value in a list file is, in words for a message."""
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "a table", str: "a string"}
    return names.get(type(value), "a date")


def _line_numbers(text: str) -> dict[tuple[str, str], int]:
    """Line numbers of a list file's tables and keys; the parser does not keep them."""
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            table = ".".join(part.strip().strip("\"'") for part in header[1].split("."))
            found.setdefault((table, ""), number)
            continue
        key = _KEY.match(line)
        if key:
            found.setdefault((table, key[1] or key[2] or key[3]), number)
    return found


def _syntax_error(name: str, text: str, message: str) -> AmpError:
    """The error for a list file that is no TOML; the parser writes `what (at line 3, column 5)`, or `(at end ...)`."""
    what, _, place = message.rpartition(" (at ")
    line = re.search(r"line (\d+)", place)
    number = int(line[1]) if line else len(text.splitlines()) or 1
    hint = 'an entry looks like this: Conv = "why", under a table such as [allow]; other domains are quoted'
    return AmpError("AMP301", f"not valid TOML: {what or message}", where=f"{name}:{number}", hint=hint)


# -- the names in them ------------------------------------------------------------------------------------------------


@cache
def known_operators() -> Mapping[str, tuple[str, ...]]:
    """Every operator that list files may name -> its type variables over all versions of its schema."""
    text = (data_folder() / "schemas" / "names.json").read_text(encoding="utf-8")
    return {kind: tuple(variables) for kind, variables in json.loads(text)["operators"].items()}


def check_operator(file: ListFile, table: str, key: str, line: str = "") -> None:
    """Raises AmpError AMP301 for a name that no operator has; ``line``: the key to point at, where it is not the name.
    A domain that no schema is known for is the user's own and passes."""
    known = known_operators()
    kind = canonical_name(key)
    domain = kind.rpartition("::")[0]
    if kind in known or (domain and not any(name.startswith(f"{domain}::") for name in known)):
        return
    bare = kind.rpartition("::")[2]
    same = [name for name in known if name.rpartition("::")[2] == bare]
    in_domain = [name for name in known if name.rpartition("::")[0] == domain]
    hint = f"did you mean '{same[0]}'?" if same else nearest(kind, in_domain)
    raise mistake(file, table, line or key, f"no operator is called '{key}'", hint or nearest(kind, list(known)))


def check_variable(file: ListFile, table: str, key: str, variable: str) -> None:
    """Raises AmpError AMP301 for a type variable that an operator does not have. One without a schema has a slot for
    each input and output: in0, in1 ... and out0 ..."""
    variables = known_operators().get(canonical_name(key))
    if variables is None and _POSITION.fullmatch(variable):
        return
    if variables is not None and (variable in variables or variable.startswith("input:")):
        return
    hint = f"its type variables are {', '.join(variables or ())}"
    if variables is None:
        hint = "no schema of it is known: its inputs are in0, in1 ..., its outputs out0 ..."
    raise mistake(file, table, key, f"'{key}' has no type variable '{variable}'", hint)
