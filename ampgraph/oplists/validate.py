"""Read one list file with the lines of its entries, and tell a mistake in it by file, line and nearest right name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ampgraph.core.errors import AmpError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLASSES = ("white", "gray", "neutral", "black", "kept")
LEVELS = ("O0", "O1", "O2", "O3", "auto")
LEVEL_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CLASSES, ("low", "float32", "cut")),
    "float32_inside": ("cut", "list"),
    "accuracy_guards": ("hold", "warn", "off"),
}
REGIONS = ("Bias", "Gelu", "LayerNormalization", "RMSNormalization", "Softmax")
TABLES = (*CLASSES, "regions", "tied", "float32", "levels")

_HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*(?:=|\.)""")


@cache
def data_folder() -> Path:
    """Where the lists lie, in a checkout and in an installed package alike."""
    import ampgraph.op_lists

    return Path(next(iter(ampgraph.op_lists.__path__)))


@cache
def known_operators() -> Mapping[str, tuple[str, ...]]:
    """Every operator that a schema is known for -> its type variables over all versions."""
    text = (data_folder() / "schemas" / "names.json").read_text(encoding="utf-8")
    return {kind: tuple(variables) for kind, variables in json.loads(text)["operators"].items()}


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


def _lines(text: str) -> dict[tuple[str, str], int]:
    """Line numbers of tables and keys; the parser does not keep them."""
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


def read_file(path: str | Path) -> ListFile:
    """Parse a list file; what it holds is not checked here."""
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
    return ListFile(path.name, data, _lines(text))


def _syntax_error(name: str, text: str, message: str) -> AmpError:
    """The parser writes `what (at line 3, column 5)`, or `(at end of document)`."""
    what, _, place = message.rpartition(" (at ")
    line = re.search(r"line (\d+)", place)
    number = int(line[1]) if line else len(text.splitlines()) or 1
    hint = 'an entry looks like this: Conv = "why", under a table such as [white]; other domains are quoted'
    return AmpError("AMP301", f"not valid TOML: {what or message}", where=f"{name}:{number}", hint=hint)


def _mistake(file: ListFile, table: str, key: str, message: str, hint: str = "") -> AmpError:
    return AmpError("AMP301", message, where=file.where(table, key), hint=hint)


def check_file(file: ListFile) -> None:
    """Raise AmpError for the first mistake in a user's list."""
    for table, value in file.data.items():
        if table not in TABLES:
            hint = nearest(table, list(TABLES)) or f"tables are {', '.join(f'[{t}]' for t in TABLES)}"
            what = "table" if isinstance(value, dict) else "key"
            raise _mistake(file, table if (table, "") in file.lines else "", table, f"unknown {what} '{table}'", hint)
        if not isinstance(value, dict):
            raise _mistake(file, "", table, f"'{table}' is a table", f'write [{table}], then Operator = "why" below it')
    _check_classes(file)
    for region, reason in file.data.get("regions", {}).items():
        if region not in REGIONS:
            hint = nearest(region, list(REGIONS)) or f"regions are {', '.join(REGIONS)}"
            raise _mistake(file, "regions", region, f"unknown region '{region}'", hint)
        _check_reason(file, "regions", region, reason)
    _check_tied(file)
    _check_float32(file)
    _check_levels(file)


def _check_classes(file: ListFile) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for cls in CLASSES:
        for key, reason in file.data.get(cls, {}).items():
            _check_operator(file, cls, key)
            _check_reason(file, cls, key, reason)
            kind = plain(key)
            if kind in seen:
                first, first_key = seen[kind]
                message = f"'{kind}' is in [{cls}] and in [{first}] ({file.where(first, first_key)})"
                raise _mistake(file, cls, key, message, "keep one of the two")
            seen[kind] = (cls, key)


def plain(kind: str) -> str:
    """`ai.onnx::Conv` and `Conv` are one operator."""
    return kind.removeprefix("ai.onnx::")


def _check_operator(file: ListFile, table: str, key: str) -> None:
    """A domain that no schema is known for is the user's own and passes."""
    known = known_operators()
    kind = plain(key)
    domain = kind.rpartition("::")[0]
    if kind in known or (domain and not any(name.startswith(f"{domain}::") for name in known)):
        return
    bare = kind.rpartition("::")[2]
    same = [name for name in known if name.rpartition("::")[2] == bare]
    hint = f"did you mean '{same[0]}'?" if same else ""
    hint = hint or nearest(kind, [name for name in known if name.rpartition("::")[0] == domain])
    raise _mistake(file, table, key, f"no operator is called '{key}'", hint or nearest(kind, list(known)))


def _check_reason(file: ListFile, table: str, key: str, reason: object) -> None:
    if not isinstance(reason, str):
        message = f"the value of '{key}' is {_type_name(reason)}, not a reason"
        raise _mistake(file, table, key, message, f'write {key} = "why"' if "::" not in key else f'"{key}" = "why"')
    if not reason.strip():
        raise _mistake(file, table, key, f"'{key}' has no reason", "say why in a few words: the report prints them")


def _type_name(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "a table", str: "a string"}
    return names.get(type(value), "a date")


def _check_variable(file: ListFile, table: str, key: str, variable: str) -> None:
    variables = known_operators().get(plain(key))
    if variables is None or variable in variables or variable.startswith("input:"):
        return
    hint = f"its type variables are {', '.join(variables)}"
    raise _mistake(file, table, key, f"'{key}' has no type variable '{variable}'", hint)


def _check_tied(file: ListFile) -> None:
    for key, entry in file.data.get("tied", {}).items():
        _check_operator(file, "tied", key)
        hint = f'write {key} = {{ groups = [["T1", "T2"]], reason = "why" }}'
        if not isinstance(entry, dict) or set(entry) != {"groups", "reason"}:
            raise _mistake(file, "tied", key, f"'{key}' needs groups and a reason, and nothing else", hint)
        _check_reason(file, "tied", key, entry["reason"])
        groups = entry["groups"]
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            raise _mistake(file, "tied", key, f"the groups of '{key}' are {_type_name(groups)}, not arrays", hint)
        for variable in (variable for group in groups for variable in group):
            if not isinstance(variable, str):
                raise _mistake(file, "tied", key, f"a group of '{key}' holds {_type_name(variable)}", hint)
            _check_variable(file, "tied", key, variable)


def _check_float32(file: ListFile) -> None:
    for key, slots in file.data.get("float32", {}).items():
        _check_operator(file, "float32", key)
        if not isinstance(slots, dict):
            hint = f'write {key} = {{ T1 = "why" }}'
            raise _mistake(file, "float32", key, f"'{key}' needs its slots, each with a reason", hint)
        for variable, reason in slots.items():
            _check_variable(file, "float32", key, variable)
            _check_reason(file, "float32", key, reason)


def _check_levels(file: ListFile) -> None:
    for level, entries in file.data.get("levels", {}).items():
        table = f"levels.{level}"
        if level not in LEVELS:
            hint = nearest(level, list(LEVELS)) or f"levels are {', '.join(LEVELS)}"
            raise _mistake(file, table, "", f"unknown level '{level}'", hint)
        if not isinstance(entries, dict):
            raise _mistake(file, "levels", level, f"'{level}' is a table", f"write [levels.{level}]")
        for key, value in entries.items():
            if key == "description" and isinstance(value, str):
                continue
            if key not in LEVEL_VALUES:
                keys = [*LEVEL_VALUES, "description"]
                hint = nearest(key, keys) or f"keys are {', '.join(keys)}"
                raise _mistake(file, table, key, f"unknown key '{key}' of a level", hint)
            allowed = LEVEL_VALUES[key]
            if not isinstance(value, str) or value not in allowed:
                shown = f"'{value}'" if isinstance(value, str) else _type_name(value)
                hint = nearest(str(value), list(allowed)) or f"one of {', '.join(allowed)}"
                raise _mistake(file, table, key, f"'{key}' cannot be {shown}", hint)
