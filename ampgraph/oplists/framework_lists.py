"""Lists of frameworks: op_lists/NAME.toml, beside our own ampgraph.toml.

[framework]
name = "PyTorch 2.13, torch.autocast"   # whose rules, as reports say it
unlisted = "follows"                    # what becomes of operators in no class

[classes.low]
at = "low"                              # its operators: low, float32, follows, inside, or a word of the framework's
about = "cast to the low type"
source = "autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP"
O1 = "float32"                          # optional: what another level does with it

[low]
aten = ["conv2d", "linear"]             # an array: the framework's own names, here aten::conv2d
Conv = "conv1d, conv2d, conv3d"         # a text: an ONNX operator, with why
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..core.errors import AmpError
from ..core.spellings import LEVELS
from .check import CLASSES
from .files import ListFile, canonical_name, own_file

OWN = "ampgraph.toml"
"""Our own list: its classes are what levels.toml speaks of."""
SAID = ("at", "about", "source")  # keys that each class of a framework's list has
FOLLOWS = "follows"
"""What becomes of a class whose operators take the type of their first operand."""
INSIDE = "inside"
"""What becomes of a class whose operators compute in float32 and give their result the type of their first operand."""


@dataclass(frozen=True)
class Listing:
    """One operator's entry in a list: its class, and why."""

    cls: str
    reason: str
    source: str
    """`ampgraph.toml:57`: the file and line that said so."""


@dataclass(frozen=True)
class ListClass:
    """A class of a framework's list, as the head of `oplists.framework_lists` says. ``levels``: level -> what it does
    with the class, where that is not ``at``."""

    name: str
    at: str
    about: str
    source: str
    levels: Mapping[str, str]

    def at_level(self, level: str) -> str:
        """What a level does with the operators of a list's class: ``low``, ``float32``, `FOLLOWS`, `INSIDE`, or another
        word of the framework's own, which its policy knows."""
        return "float32" if level == "O0" else self.levels.get(level, self.at)


@dataclass(frozen=True)
class Framework:
    """Whose lists these are. ``classes`` is empty for our own, whose classes are levels.toml's."""

    name: str = ""
    unlisted: str = "float32"
    classes: Mapping[str, ListClass] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes of the framework's list."""
        return tuple(self.classes) or CLASSES

    def own(self, file: ListFile) -> list[str]:
        """``space::name`` of the framework's own operators in its list, as `aten::conv2d`."""
        tables = [file.data.get(cls, {}) for cls in self.classes]
        spaces = [(space, names) for table in tables for space, names in table.items() if isinstance(names, list)]
        return [f"{space}::{name}" for space, names in spaces for name in names]

    def meaning(self, cls: str) -> str:
        """What a class means to the framework, with its source: empty for our own lists."""
        found = self.classes.get(cls)
        return f"{self.name}: {found.about} ({found.source})" if found else ""


@cache
def framework(name: str | Path) -> Framework:
    """The framework of a list file, nameless for our own. Raises AmpError AMP901 for a file that does not say it."""
    file = own_file(str(name))
    if name == OWN:
        return Framework()
    head, classes = file.data.get("framework"), file.data.get("classes")
    if not head or not classes or "name" not in head:
        raise AmpError("AMP901", "a policy's list begins with [framework] and [classes.NAME]", where=file.name)
    return Framework(head["name"], head.get("unlisted", "follows"), {n: _list_class(file, n) for n in classes})


def _list_class(file: ListFile, name: str) -> ListClass:
    """A class of a framework's list, with what becomes of its operators at each level. Raises AmpError AMP901 for one
    without a key of `SAID`, or with an unknown one."""
    data = file.data["classes"][name]
    wrong = [key for key in SAID if key not in data] + [key for key in data if key not in (*SAID, *LEVELS)]
    if wrong:
        where = file.where(f"classes.{name}")
        raise AmpError("AMP901", f"class '{name}' needs {', '.join(SAID)}, and levels; wrong: {wrong[0]}", where=where)
    levels = {level: data[level] for level in LEVELS if level in data}
    return ListClass(name, data["at"], data["about"], data["source"], levels)


def entries(file: ListFile, whose: Framework) -> Iterator[tuple[str, Listing]]:
    """Yields what a list file says: operator by operator, its class and reason. ``whose``: the framework."""
    for cls in whose.names:
        for key, value in file.data.get(cls, {}).items():
            where = file.where(cls, key)
            if isinstance(value, str):
                yield canonical_name(key), Listing(cls, value, where)
            else:
                yield from ((f"{key}::{name}", Listing(cls, whose.classes[cls].about, where)) for name in value)
