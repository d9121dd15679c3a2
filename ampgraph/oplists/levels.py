"""What each level does with each class of operators, read from levels.toml.

load_level("O2").fp32                              # 'float32'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..core.errors import AmpError, nearest
from ..core.spellings import LEVELS
from .check import CLASSES, user_files
from .files import own_file


@dataclass(frozen=True)
class Level:
    """What a level does with each class: `low`, `float32` or `cut` (whatever costs least)."""

    name: str
    allow: str
    infer: str
    neutral: str
    deny: str
    fp32: str
    float32_inside: str
    """`cut`: what is float32 by its class, but has a kernel that keeps float32 inside, is left to the cut; `list`: its
    class decides."""
    accuracy_guards: str
    """`hold`, `warn` or `off`."""
    description: str

    def of_class(self, cls: str) -> str:
        """What this level of the lists does with a class: ``low``, ``float32`` or ``cut``."""
        return str(getattr(self, cls))

    @property
    def lowers_everything(self) -> bool:
        """Whether this level of the lists lowers even what others keep in float32 (class `fp32`), as O3 does; then
        nothing is float32 for the sake of a faster kernel either."""
        return self.fp32 == "low"

    def trusts_kernels(self, cls: str) -> bool:
        """Of a level in the lists: whether a float32 class leaves kernels that keep float32 inside to the cut."""
        return self.float32_inside == "cut" and cls in ("deny", "fp32") and self.of_class(cls) == "float32"


def load_levels(extra: Sequence[str | Path] = (), classes: Sequence[str] = CLASSES) -> dict[str, Level]:
    """Every level by name; a `[levels.O2]` table in an ``extra`` file, a user's list whose classes are ``classes``,
    changes the keys that it names. Raises AmpError AMP901 for a level that lacks a key or has one too many."""
    merged: dict[str, dict[str, str]] = {name: {} for name in LEVELS}
    for file in (own_file("levels.toml"), *user_files(extra, classes)):
        for name, values in file.data.get("levels", {}).items():
            merged[name].update(values)
    wanted = {f.name for f in fields(Level)} - {"name"}
    for name, values in merged.items():
        if set(values) != wanted:
            raise AmpError("AMP901", f"level '{name}' is incomplete", where="levels.toml")
    return {name: Level(name=name, **values) for name, values in merged.items()}


def load_level(name: str, extra: Sequence[str | Path] = (), classes: Sequence[str] = CLASSES) -> Level:
    """The level of a name, with what ``extra`` files change. Raises AmpError AMP302 for a name that none has."""
    levels = load_levels(extra, classes)
    if name not in levels:
        hint = nearest(name, list(levels)) or f"levels are {', '.join(levels)}"
        raise AmpError("AMP302", f"unknown level '{name}'", hint=hint)
    return levels[name]
