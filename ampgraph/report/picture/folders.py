"""Nodes in folders that are opened by a click: the exporter's layers, none with more entries than can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH = 32  # entries that one folder shows; more are folded once again


@dataclass
class _Folder:
    name: str
    folders: dict[str, _Folder] = field(default_factory=dict)
    entries: list[_Folder | int] = field(default_factory=list)  # folders and nodes in the order of the file

    def child(self, name: str) -> _Folder:
        """The folder of that name, which comes where its first node does."""
        found = self.folders.get(name)
        if found is None:
            found = self.folders[name] = _Folder(name)
            self.entries.append(found)
        return found


@dataclass(frozen=True)
class Folders:
    """``names`` and ``parents`` by folder, the root first, which has itself as its parent; ``of``: by node."""

    names: list[str]
    parents: list[int]
    of: list[int]


def folded(paths: Sequence[tuple[str, ...]], labels: Sequence[str], width: int = WIDTH) -> Folders:
    """Folders of nodes by the path of each, in their order; no folder has more than ``width`` entries.

    A longer one is folded into runs of neighbours, named by the first and the last of them."""
    root = _Folder("")
    for node, path in enumerate(paths):
        folder = root
        for name in path:
            folder = folder.child(name)
        folder.entries.append(node)
    found = Folders([""], [0], [0] * len(paths))
    todo = [(0, root)]
    while todo:
        number, folder = todo.pop()
        for entry in _narrow(folder.entries, labels, width):
            if isinstance(entry, int):
                found.of[entry] = number
                continue
            found.names.append(entry.name)
            found.parents.append(number)
            todo.append((len(found.names) - 1, entry))
    return found


def _narrow(entries: list[_Folder | int], labels: Sequence[str], width: int) -> list[_Folder | int]:
    while len(entries) > width:
        runs = [entries[start : start + width] for start in range(0, len(entries), width)]
        entries = [run[0] if len(run) == 1 else _run(run, labels) for run in runs]
    return entries


def _run(entries: list[_Folder | int], labels: Sequence[str]) -> _Folder:
    first, last = (_label(entry, labels) for entry in (entries[0], entries[-1]))
    return _Folder(f"{first} … {last}", entries=entries)


def _label(entry: _Folder | int, labels: Sequence[str]) -> str:
    if isinstance(entry, int):
        return labels[entry]
    first, _, last = entry.name.partition(" … ")
    return last or first
