"""Digests as text: one line a case, so that a difference between two commits shows which cases changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DIGITS = 8
SAME = "="  # what came out is what went in
UNSTEADY = "-"  # differs from run to run, and is not compared
_VERSIONS, _COLUMNS = "# versions:", "# columns:"
_HEAD = (
    "# Digests of what ampgraph writes or computes; in `tests`: python -m digests --check, or --write to make them.",
    f"# sha256, {DIGITS} digits; {SAME} what went in came out; {UNSTEADY} differs from run to run; AMPnnn refused.",
)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Row:
    """One case in one variant: the digest of what goes in, and of what comes out by column."""

    key: str
    given: str
    cells: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.key, self.given, *self.cells])

    def steady(self, again: Row) -> Row:
        """With `UNSTEADY` where a second run gave something else."""
        cells = tuple(a if a == b else UNSTEADY for a, b in zip(self.cells, again.cells, strict=True))
        return Row(self.key, self.given, cells)


@dataclass
class Table:
    """A file of rows: what made it, the names of its columns, and the rows by key."""

    versions: dict[str, str]
    columns: tuple[str, ...]
    rows: dict[str, Row]

    @staticmethod
    def of(versions: Mapping[str, str], columns: tuple[str, ...], rows: Iterable[Row]) -> Table:
        return Table(dict(versions), columns, {row.key: row for row in rows})

    def text(self) -> str:
        versions = " ".join(f"{name}={version}" for name, version in self.versions.items())
        lines = [*_HEAD, f"{_VERSIONS} {versions}", f"{_COLUMNS} {' '.join(self.columns)}"]
        return "\n".join([*lines, *(str(self.rows[key]) for key in sorted(self.rows))]) + "\n"

    @staticmethod
    def read(path: Path) -> Table:
        """Raises FileNotFoundError where the group was never written, ValueError for a line that is none."""
        versions: dict[str, str] = {}
        columns: tuple[str, ...] = ()
        rows: dict[str, Row] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(_VERSIONS):
                versions = dict(word.split("=", 1) for word in line.removeprefix(_VERSIONS).split())
            elif line.startswith(_COLUMNS):
                columns = tuple(line.removeprefix(_COLUMNS).split())
            elif not line.startswith("#"):
                row = _row(line, len(columns))
                rows[row.key] = row
        return Table(versions, columns, rows)


def _row(line: str, count: int) -> Row:
    words = line.split(" ")
    if not count or len(words) < count + 2:
        raise ValueError(f"not a line of digests: {line!r}")
    return Row(" ".join(words[: -count - 1]), words[-count - 1], tuple(words[-count:]))


@dataclass
class Comparison:
    """``changed``: another result for the same input; ``other_input``: keys whose input is another, not compared."""

    changed: list[str] = field(default_factory=list)
    other_input: list[str] = field(default_factory=list)
    equal: int = 0


def compare(old: Table, found: Iterable[Row], whole: bool = True) -> Comparison:
    """What was found beside the file; where it is the whole group, what the file has more is a change too."""
    result, seen = Comparison(), set()
    for row in found:
        seen.add(row.key)
        before = old.rows.get(row.key)
        if before is None:
            result.changed.append(f"{row.key}: not in the file")
        elif before.given != row.given:
            result.other_input.append(row.key)
        elif differences := _differences(old.columns, before, row):
            result.changed.append(f"{row.key}: {', '.join(differences)}")
        else:
            result.equal += 1
    if whole:
        result.changed += [f"{key}: only in the file" for key in sorted(set(old.rows) - seen)]
    return result


def _differences(columns: tuple[str, ...], before: Row, row: Row) -> list[str]:
    cells = zip(columns, before.cells, row.cells, strict=True)
    return [f"{column} {a} -> {b}" for column, a, b in cells if UNSTEADY not in (a, b) and a != b]
