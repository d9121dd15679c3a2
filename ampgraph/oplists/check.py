"""Checks a user's list file, and tells the first mistake by file, line and nearest right name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import nearest
from ..core.renamed import RENAMED, warn_renamed_words
from ..core.spellings import LEVELS
from .files import ListFile, canonical_name, check_known, check_operator, check_variable, mistake, read_file, type_name
from .pattern_files import region_kinds
from .traits import check_traits

CLASSES = ("allow", "infer", "neutral", "deny", "fp32")
OLD_CLASSES = {one.old: one.new for one in RENAMED if one.where == "list files"}
"""Name of a class until 0.2 -> its name now."""
LEVEL_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CLASSES, ("low", "float32", "cut")),
    "float32_inside": ("cut", "list"),
    "accuracy_guards": ("hold", "warn", "off"),
}
OURS = ("regions", "levels")
"""Tables of a user's list that count for our own policy, and for no framework's."""
TABLES = ("tied", "float32", "firm", "traits")


def user_files(extra: Sequence[str | Path], classes: Sequence[str] = CLASSES) -> list[ListFile]:
    """The lists that a user names, read and checked (AmpError AMP301). ``classes``: those of the policy's list."""
    files = [read_file(path) for path in ([extra] if isinstance(extra, (str, Path)) else extra)]
    if classes == CLASSES:
        files = [_with_new_names(file) for file in files]
    for file in files:
        check_file(file, classes)
    return files


def _with_new_names(file: ListFile) -> ListFile:
    """A user's list whose classes have names of before 0.3, under the names of now. Warns once for the file."""
    levels = file.data.get("levels")
    bodies = [values for values in levels.values() if isinstance(values, dict)] if isinstance(levels, dict) else []
    old = {name: new for name, new in OLD_CLASSES.items() if any(name in table for table in (file.data, *bodies))}
    if not old:
        return file
    warn_renamed_words(file.name, old)
    data = _rename_classes(file, file.data, "")
    if bodies:
        data["levels"] = {
            name: _rename_classes(file, values, f"levels.{name}") if isinstance(values, dict) else values
            for name, values in data["levels"].items()
        }
    lines = dict(file.lines)
    for (table, key), line in file.lines.items():
        lines.setdefault((OLD_CLASSES.get(table, table), OLD_CLASSES.get(key, key)), line)
    return ListFile(file.name, data, lines)


def _rename_classes(file: ListFile, values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """A table of a list file with its keys under their names of now. Raises AmpError AMP301 where an old name and the
    new one stand together. ``table``: its name, "" for the file itself."""
    for old, new in OLD_CLASSES.items():
        if old in values and new in values:
            place = (table, old) if table else (old, "")
            raise mistake(file, *place, f"'{old}' is the old name of '{new}', and both are here", f"keep '{new}' alone")
    return {OLD_CLASSES.get(key, key): value for key, value in values.items()}


def check_file(file: ListFile, classes: Sequence[str] = CLASSES) -> None:
    """Raises AmpError AMP301 for the first mistake in a user's list. ``classes``: those that it may have."""
    tables = (*classes, *(OURS if classes == CLASSES else ()), *TABLES)
    for table, value in file.data.items():
        if table not in tables:
            hint = nearest(table, list(tables)) or f"tables are {', '.join(f'[{name}]' for name in tables)}"
            what = "table" if isinstance(value, dict) else "key"
            raise mistake(file, table if (table, "") in file.lines else "", table, f"unknown {what} '{table}'", hint)
        if not isinstance(value, dict):
            raise mistake(file, "", table, f"'{table}' is a table", f'write [{table}], then Operator = "why" below it')
    _check_classes(file, classes)
    for region, reason in file.data.get("regions", {}).items():
        check_known(file, "regions", region, region, "region", region_kinds())
        _check_reason(file, "regions", region, reason)
    _check_tied(file)
    for table in ("float32", "firm"):
        _check_float32(file, table)
    for level, entries in file.data.get("levels", {}).items():
        _check_level(file, level, entries)
    check_traits(file)


def _check_classes(file: ListFile, classes: Sequence[str]) -> None:
    """Checks that each operator is known, has a reason, and stands in one class."""
    seen: dict[str, tuple[str, str]] = {}
    for cls in classes:
        for key, reason in file.data.get(cls, {}).items():
            check_operator(file, cls, key)
            _check_reason(file, cls, key, reason)
            kind = canonical_name(key)
            if kind in seen:
                message = f"'{kind}' is in [{cls}] and in [{seen[kind][0]}] ({file.where(*seen[kind])})"
                raise mistake(file, cls, key, message, "keep one of the two")
            seen[kind] = (cls, key)


def _check_reason(file: ListFile, table: str, key: str, reason: object) -> None:
    """Checks that a reason is text, and not empty."""
    if not isinstance(reason, str):
        message = f"the value of '{key}' is {type_name(reason)}, not a reason"
        raise mistake(file, table, key, message, f'write {key} = "why"' if "::" not in key else f'"{key}" = "why"')
    if not reason.strip():
        raise mistake(file, table, key, f"'{key}' has no reason", "say why in a few words: the report prints them")


def _check_tied(file: ListFile) -> None:
    """Checks tied slots: groups of type variables that the operator has, and a reason."""
    for key, entry in file.data.get("tied", {}).items():
        check_operator(file, "tied", key)
        hint = f'write {key} = {{ groups = [["T1", "T2"]], reason = "why" }}'
        if not isinstance(entry, dict) or set(entry) != {"groups", "reason"}:
            raise mistake(file, "tied", key, f"'{key}' needs groups and a reason, and nothing else", hint)
        _check_reason(file, "tied", key, entry["reason"])
        groups = entry["groups"]
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            raise mistake(file, "tied", key, f"the groups of '{key}' are {type_name(groups)}, not arrays", hint)
        for variable in chain(*groups):
            if not isinstance(variable, str):
                raise mistake(file, "tied", key, f"a group of '{key}' holds {type_name(variable)}", hint)
            check_variable(file, "tied", key, variable)


def _check_float32(file: ListFile, table: str) -> None:
    """Checks slots that stay float32: type variables that the operator has, each with a reason."""
    for key, slots in file.data.get(table, {}).items():
        check_operator(file, table, key)
        if not isinstance(slots, dict):
            hint = f'write {key} = {{ T1 = "why" }}'
            raise mistake(file, table, key, f"'{key}' needs its slots, each with a reason", hint)
        for variable, reason in slots.items():
            check_variable(file, table, key, variable)
            _check_reason(file, table, key, reason)


def _check_level(file: ListFile, level: str, entries: object) -> None:
    """Checks that a level's keys and their values are known ones."""
    table = f"levels.{level}"
    check_known(file, table, "", level, "level", LEVELS)
    if not isinstance(entries, dict):
        raise mistake(file, "levels", level, f"'{level}' is a table", f"write [levels.{level}]")
    for key, value in entries.items():
        if key == "description" and isinstance(value, str):
            continue
        check_known(file, table, key, key, "key", [*LEVEL_VALUES, "description"], " of a level")
        allowed = LEVEL_VALUES.get(key, ())
        if not isinstance(value, str) or value not in allowed:
            given = f"'{value}'" if isinstance(value, str) else type_name(value)
            form = f"one of {', '.join(allowed)}" if allowed else f'write {key} = "why"'
            hint = nearest(str(value), list(allowed)) or form
            raise mistake(file, table, key, f"'{key}' cannot be {given}", hint)
