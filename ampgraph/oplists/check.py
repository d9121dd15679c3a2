"""Checks a user's list file, and tells the first mistake by file, line and nearest right name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import nearest
from .classes import CLASSES, LEVEL_VALUES, LEVELS
from .files import ListFile, mistake, plain, read_file, type_name
from .pattern_files import region_kinds
from .schemas import check_operator, check_variable
from .traits import check_traits

OURS = ("regions", "levels")
"""Tables that the rule of our own lists reads, and no framework's."""
TABLES = ("tied", "float32", "firm", "traits")


def user_files(extra: Sequence[str | Path], classes: Sequence[str] = CLASSES) -> list[ListFile]:
    """The lists that a user names, each read and checked. ``classes``: those of the policy's list."""
    files = [read_file(path) for path in ([extra] if isinstance(extra, (str, Path)) else extra)]
    for file in files:
        check_file(file, classes)
    return files


def check_file(file: ListFile, classes: Sequence[str] = CLASSES) -> None:
    """Raise AmpError for the first mistake in a user's list."""
    tables = (*classes, *(OURS if classes == CLASSES else ()), *TABLES)
    for table, value in file.data.items():
        if table not in tables:
            hint = nearest(table, list(tables)) or f"tables are {', '.join(f'[{t}]' for t in tables)}"
            what = "table" if isinstance(value, dict) else "key"
            raise mistake(file, table if (table, "") in file.lines else "", table, f"unknown {what} '{table}'", hint)
        if not isinstance(value, dict):
            raise mistake(file, "", table, f"'{table}' is a table", f'write [{table}], then Operator = "why" below it')
    _check_classes(file, classes)
    for region, reason in file.data.get("regions", {}).items():
        if region not in region_kinds():
            hint = nearest(region, list(region_kinds())) or f"regions are {', '.join(region_kinds())}"
            raise mistake(file, "regions", region, f"unknown region '{region}'", hint)
        _check_reason(file, "regions", region, reason)
    _check_tied(file)
    _check_float32(file)
    _check_levels(file)
    check_traits(file)


def _check_classes(file: ListFile, classes: Sequence[str]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for cls in classes:
        for key, reason in file.data.get(cls, {}).items():
            check_operator(file, cls, key)
            _check_reason(file, cls, key, reason)
            kind = plain(key)
            if kind in seen:
                first, first_key = seen[kind]
                message = f"'{kind}' is in [{cls}] and in [{first}] ({file.where(first, first_key)})"
                raise mistake(file, cls, key, message, "keep one of the two")
            seen[kind] = (cls, key)


def _check_reason(file: ListFile, table: str, key: str, reason: object) -> None:
    if not isinstance(reason, str):
        message = f"the value of '{key}' is {type_name(reason)}, not a reason"
        raise mistake(file, table, key, message, f'write {key} = "why"' if "::" not in key else f'"{key}" = "why"')
    if not reason.strip():
        raise mistake(file, table, key, f"'{key}' has no reason", "say why in a few words: the report prints them")


def _check_tied(file: ListFile) -> None:
    for key, entry in file.data.get("tied", {}).items():
        check_operator(file, "tied", key)
        hint = f'write {key} = {{ groups = [["T1", "T2"]], reason = "why" }}'
        if not isinstance(entry, dict) or set(entry) != {"groups", "reason"}:
            raise mistake(file, "tied", key, f"'{key}' needs groups and a reason, and nothing else", hint)
        _check_reason(file, "tied", key, entry["reason"])
        groups = entry["groups"]
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            raise mistake(file, "tied", key, f"the groups of '{key}' are {type_name(groups)}, not arrays", hint)
        for variable in (variable for group in groups for variable in group):
            if not isinstance(variable, str):
                raise mistake(file, "tied", key, f"a group of '{key}' holds {type_name(variable)}", hint)
            check_variable(file, "tied", key, variable)


def _check_float32(file: ListFile) -> None:
    rows = ((table, *row) for table in ("float32", "firm") for row in file.data.get(table, {}).items())
    for table, key, slots in rows:
        check_operator(file, table, key)
        if not isinstance(slots, dict):
            hint = f'write {key} = {{ T1 = "why" }}'
            raise mistake(file, table, key, f"'{key}' needs its slots, each with a reason", hint)
        for variable, reason in slots.items():
            check_variable(file, table, key, variable)
            _check_reason(file, table, key, reason)


def _check_levels(file: ListFile) -> None:
    for level, entries in file.data.get("levels", {}).items():
        table = f"levels.{level}"
        if level not in LEVELS:
            hint = nearest(level, list(LEVELS)) or f"levels are {', '.join(LEVELS)}"
            raise mistake(file, table, "", f"unknown level '{level}'", hint)
        if not isinstance(entries, dict):
            raise mistake(file, "levels", level, f"'{level}' is a table", f"write [levels.{level}]")
        for key, value in entries.items():
            if key == "description" and isinstance(value, str):
                continue
            if key not in LEVEL_VALUES:
                keys = [*LEVEL_VALUES, "description"]
                hint = nearest(key, keys) or f"keys are {', '.join(keys)}"
                raise mistake(file, table, key, f"unknown key '{key}' of a level", hint)
            allowed = LEVEL_VALUES[key]
            if not isinstance(value, str) or value not in allowed:
                shown = f"'{value}'" if isinstance(value, str) else type_name(value)
                hint = nearest(str(value), list(allowed)) or f"one of {', '.join(allowed)}"
                raise mistake(file, table, key, f"'{key}' cannot be {shown}", hint)
