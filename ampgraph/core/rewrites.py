"""Rewrites as rows of a plan: typed, JSON both ways. What finds and writes them is in `ampgraph.rules.rewrites`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

from .dataflow import Dataflow
from .errors import AmpError
from .shown import plural
from .typed import reader

if TYPE_CHECKING:
    from typing_extensions import Self

    from .graph import NodeEditor


HOMES = ["ampgraph.rules.rewrites"]
"""Packages each of whose modules defines a rewrite: core speaks of them and imports none."""


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
    """The values of ``name`` that rewrites of a class have; none for a base class."""
    reading: ClassVar[tuple[str, ...]] = ()
    """The fields that hold names of values which the nodes read, and what is written reads too."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Those among the fields ``reading`` that may be empty."""
    rewires: ClassVar[bool] = False
    """Whether the last node stays and reads other values. Such rewrites are written first: operators in the place of
    others make values of their own."""
    counted: ClassVar[tuple[str, str]] = ("group", "of nodes written as one {} each")
    """How a summary counts: a noun in the singular, and the words behind it, in which ``writes`` stands for {}."""
    exchanges: ClassVar[bool] = False
    """Whether every node stays, and operands change their places."""
    annotates: ClassVar[bool] = False
    """Whether it only says something of a value, so that another rewrite may take the same nodes."""

    @property
    def writes(self) -> str:
        """What a plan's rewrite writes, in a few words: an operator, or what it does. Every class has its own."""
        raise NotImplementedError

    @property
    def reads(self) -> tuple[str, ...]:
        """What a plan's rewrite reads: the names of values in its fields ``reading``, without empty ones."""
        names = [getattr(self, field) for field in self.reading]
        return tuple(name for name in names if name)

    @property
    def removed_nodes(self) -> tuple[int, ...]:
        """The indices of nodes that a plan's rewrite takes away without another in their place: all but the last."""
        return () if self.exchanges else self.nodes[:-1]

    @property
    def result(self) -> str:
        """The name of the value read after a plan's rewrite for the last node's result; "" for the same name."""
        return ""

    @property
    def what(self) -> str:
        """What a plan's rewrite writes, with its name; reports count rewrites of equal words together."""
        return f"{self.writes} ({self.name})"

    def summary_text(self, count: int) -> str:
        """What a summary says of ``count`` rewrites of a plan that have the same ``what``."""
        return f"{plural(count, self.counted[0])} {self.counted[1].format(self.writes)}"

    @property
    def explanation(self) -> str:
        """What became of a node that this rewrite replaced, as `explain` says it."""
        return f"its region is written as {'' if self.exchanges else 'one '}{self.what}"

    @property
    def renamed(self) -> Mapping[str, tuple[str, int]]:
        """The values of the main graph that hold other numbers after a plan's rewrite: old name -> (new name, e), where
        they hold 2^-e of what they were."""
        return {}

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Carries a plan's rewrite out. ``flow``: before any rewrite. Raises AmpError AMP402 for another model."""
        raise NotImplementedError

    def finish(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Called once all rewrites of a plan are written: renames values that hold other numbers now, which others
        found by name until then. Most rewrites do nothing here."""

    def to_row(self) -> dict[str, Any]:
        """A plan's rewrite as plain data: name of a field -> value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Self:
        """A rewrite from a row of plan format 1, whose ``inputs`` are further fields, unless a class has its own."""
        return cls(name, scope, nodes, *row["inputs"])


def read_row(row: Mapping[str, Any], old: bool) -> Rewrite:
    """A plan's rewrite from plain data; ``old``: of plan format 1. Raises ValueError, TypeError, AttributeError or
    LookupError for a row that is none, AmpError AMP401 for a name that no rewrite of this version has."""
    name = row.get("name") if old else row["name"]
    if name is None:  # only norms were rewritten then
        name = "norm" if row["axis"] == -1 else "channels"
    kind = known_rewrites().get(name)
    if kind is None:
        hint = "make the plan again with this version"
        raise AmpError("AMP401", f"the plan has a rewrite '{name}', which this version does not know", hint=hint)
    if old:
        given = reader(_OldRow)(row)
        row = kind.from_old(name, given.scope, given.nodes, row).to_row()
    fields_of: Any = kind
    found: Rewrite = reader(fields_of)(row)
    if not found.nodes or not all(getattr(found, name) for name in {*found.reading} - {*found.optional}):
        raise ValueError("not a rewrite")
    return found


@dataclass(frozen=True)
class _OldRow:
    """A row of plan format 1, which had the same fields for all rewrites."""

    scope: str
    kind: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    axis: int
    epsilon: float
    name: str = ""


@cache
def known_rewrites() -> Mapping[str, type[Rewrite]]:
    """The classes of a plan's rewrites by the names that these may have, from the modules in `HOMES`."""
    found: dict[str, type[Rewrite]] = {}
    for home in HOMES:
        package = import_module(home)
        for module in sorted(module.name for module in iter_modules(package.__path__)):
            found |= {name: kind for kind in _rewrites_in(import_module(f"{home}.{module}")) for name in kind.names}
    return found


def _rewrites_in(module: object) -> Iterable[type[Rewrite]]:
    """The classes of rewrites that have names in a module. It may import base classes of them, which have none."""
    given = vars(module).values()
    return [kind for kind in given if isinstance(kind, type) and issubclass(kind, Rewrite) and kind.names]
