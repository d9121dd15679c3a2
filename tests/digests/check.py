"""Computes groups, and compares them with their files or writes these."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from digests.groups import GROUPS, Group
from digests.inputs import ABSENT, mismatch, versions
from digests.table import Row, Table, compare

FILES = Path(__file__).with_name("files")
SHOWN, FEW = 40, 6


@dataclass
class Verdict:
    """What a group came to. ``not_compared``: why some or all of it was not."""

    group: str
    equal: int = 0
    changed: list[str] = field(default_factory=list)
    not_compared: str = ""

    def __str__(self) -> str:
        lines = [f"  {line}" for line in self.changed[:SHOWN]]
        if len(self.changed) > SHOWN:
            lines.append(f"  and {len(self.changed) - SHOWN} more")
        words = [f"{self.group}: {self.equal} equal", f"{len(self.changed)} changed"]
        words += [f"not compared: {self.not_compared}"] if self.not_compared else []
        return "\n".join([*lines, "; ".join(words)])


def file_of(group: Group) -> Path:
    return FILES / f"{group.name}.txt"


def absent(group: Group) -> list[str]:
    """Packages that the group needs and that are not here."""
    return [name for name, found in versions(group.packages).items() if found == ABSENT]


def check(group: Group, pattern: str = "*", jobs: int = 1) -> Verdict:
    """The cases whose names match, beside the file."""
    names = [name for name in group.names() if fnmatch.fnmatchcase(name, pattern)]
    return check_names(group, names, pattern == "*", jobs)


def check_names(group: Group, names: Sequence[str], whole: bool = False, jobs: int = 1) -> Verdict:
    """Versions first: where they differ, what differs says nothing of ampgraph."""
    old = Table.read(file_of(group))
    if apart := mismatch(old.versions, versions(group.packages)):
        return Verdict(group.name, not_compared=apart)
    found = compare(old, rows(group, names, jobs), whole)
    some = ", ".join(found.other_input[:FEW]) + (" ..." if len(found.other_input) > FEW else "")
    other = f"another input: {len(found.other_input)} cases, {some}" if found.other_input else ""
    return Verdict(group.name, found.equal, found.changed, other)


def write(group: Group, jobs: int = 1) -> Verdict:
    """Writes the file; what changed in it, beside what it was."""
    made = list(rows(group, group.names(), jobs))
    if not group.steady:
        again = rows(group, group.names(), jobs)
        made = [one.steady(two) for one, two in zip(made, again, strict=True)]
    table = Table.of(versions(group.packages), group.columns, made)
    path = file_of(group)
    old = Table.read(path) if path.exists() else table
    path.parent.mkdir(exist_ok=True)
    path.write_text(table.text(), encoding="utf-8")
    found = compare(old, made)
    return Verdict(group.name, found.equal, found.changed + [f"{key}: another input" for key in found.other_input])


def rows(group: Group, names: Sequence[str], jobs: int = 1) -> Iterator[Row]:
    """In the order of the names."""
    if jobs == 1:
        for name in names:
            yield from _rows_of(group.name, name)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for found in pool.map(_rows_of, [group.name] * len(names), names, chunksize=_chunk(names, jobs)):
            yield from found


def _rows_of(group: str, name: str) -> list[Row]:
    """Raises RuntimeError that names the case, for an error that is not ampgraph's own."""
    try:
        return list(GROUPS[group].rows(name))
    except Exception as error:
        raise RuntimeError(f"{group}: {name}: {type(error).__name__}: {error}") from error


def _chunk(names: Iterable[str], jobs: int) -> int:
    return max(1, min(16, len(list(names)) // (4 * jobs)))
