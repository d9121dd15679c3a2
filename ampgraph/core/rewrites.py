"""Rewrites as rows of a plan: typed, JSON both ways. What finds and writes them is in `ampgraph.rules.rewrites`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from . import homes
from .dataflow import Dataflow
from .errors import AmpError

if TYPE_CHECKING:
    from typing_extensions import Self

    from .graph import NodeEditor

OLD_FIELDS = {"scope", "kind", "nodes", "inputs", "axis", "epsilon", "name"}
"""Of a row of plan format 1, which was one for all rewrites."""


@dataclass(frozen=True)
class Rewrite:
    """Nodes of one scope that are written in another way before precision is decided.

    Attributes:
        name: which rewrite it is, as op_lists/rewrites.toml and ``--rewrite`` call it.
        scope: the path of the scope.
        nodes: their indices in the file, at least one; the last one makes the result.
    """

    name: str
    scope: str
    nodes: tuple[int, ...]

    names: ClassVar[tuple[str, ...]] = ()
    """The rewrites that a class is."""
    reading: ClassVar[tuple[str, ...]] = ()
    """The fields that name values which the nodes read, and what is written reads too."""
    rewires: ClassVar[bool] = False
    """Whether the last node stays and reads other values. Such rewrites are written first: operators in the place of
    others make values of their own."""
    exchanges: ClassVar[bool] = False
    """Whether every node stays, and operands change their places."""

    @property
    def writes(self) -> str:
        """What is written, in a few words."""
        raise NotImplementedError

    @property
    def reads(self) -> tuple[str, ...]:
        """The names in those of the fields ``reading`` that are given."""
        return tuple(name for field in self.reading if (name := getattr(self, field)))

    @property
    def gone(self) -> tuple[int, ...]:
        """The nodes that leave no other in their place."""
        return () if self.exchanges else self.nodes[:-1]

    @property
    def result(self) -> str:
        """The value that is read in the place of the last node's result; an empty string for one of the same name."""
        return ""

    @property
    def what(self) -> str:
        """What is written, to count by."""
        return f"{self.writes} ({self.name})"

    @property
    def said(self) -> str:
        """What became of a node, for those who ask for it."""
        return f"its region is written as {'' if self.exchanges else 'one '}{self.what}"

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Carries it out. ``flow``: of the model before any rewrite. Raises AmpError AMP402 for another model's."""
        raise NotImplementedError

    def to_row(self) -> dict[str, Any]:
        """Plain data, by the names of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Self:
        """The same of a row of plan format 1, whose ``inputs`` are the texts among the fields, in their order."""
        return cls(name, scope, nodes, *row["inputs"])


def read_row(row: Mapping[str, Any], old: bool) -> Rewrite:
    """A rewrite from plain data; ``old``: of plan format 1. Raises ValueError, TypeError or LookupError for a row that
    is none, AmpError AMP401 for a rewrite of another name."""
    name = row["name"] if not old else row.get("name") or _old_name(row)
    kind = known_rewrites().get(name)
    if kind is None:
        hint = "make the plan again with this version"
        raise AmpError("AMP401", f"the plan has a rewrite '{name}', which this version does not know", hint=hint)
    if old:
        if row.keys() - OLD_FIELDS:
            raise ValueError("not a rewrite")
        found = kind.from_old(name, row["scope"], tuple(row["nodes"]), row)
    else:
        plain: dict[str, Any] = {key: tuple(given) if isinstance(given, list) else given for key, given in row.items()}
        found = kind(**plain)
    hints = get_type_hints(kind)
    good = bool(found.nodes) and all(_fits(getattr(found, f.name), hints[f.name]) for f in fields(found))
    if not good:
        raise ValueError("not a rewrite")
    return found


def _old_name(row: Mapping[str, Any]) -> str:
    """Of a row from before rewrites had names: norms were the only ones."""
    return "norm" if row["axis"] == -1 else "channels"


def _fits(given: object, hint: object) -> bool:
    if hint == tuple[int, ...] or hint == tuple[str, ...]:
        kind = int if hint == tuple[int, ...] else str
        return isinstance(given, tuple) and all(type(item) is kind for item in given)
    return type(given) is hint or (hint is float and type(given) is int)


@cache
def known_rewrites() -> Mapping[str, type[Rewrite]]:
    """By name the classes of all rewrites: those of the modules in the packages that `homes` names."""
    found: dict[str, type[Rewrite]] = {}
    for home in homes.REWRITES:
        package = import_module(home)
        for module in sorted(module.name for module in iter_modules(package.__path__)):
            found |= {name: kind for kind in _defined(import_module(f"{home}.{module}")) for name in kind.names}
    return found


def _defined(module: object) -> Iterable[type[Rewrite]]:
    given = vars(module).values()
    return [kind for kind in given if isinstance(kind, type) and issubclass(kind, Rewrite) and kind.names]
