"""The lists as data: which class an operator belongs to, what a level does with it, what a target's kernels admit.

lists = load_op_lists(extra=["mine.toml"])
lists.of("Conv")                                   # Listing(cls='white', reason='...', source='ampgraph.toml:14')
load_level("O2").kept                              # 'float32'
load_kernels("cuda").admits("Conv", 17, "T", "bfloat16")   # False: that kernel came with opset 22
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ampgraph.core.errors import AmpError, nearest
from ampgraph.oplists.validate import CLASSES, LEVELS, ListFile, check_file, data_folder, plain, read_file

__all__ = [
    "CLASSES",
    "Broken",
    "Kernels",
    "Level",
    "Listing",
    "OpLists",
    "load_kernels",
    "load_level",
    "load_levels",
    "load_op_lists",
]

POLICIES = ("ampgraph", "mindspore")
POLICIES_TO_COME = ("pytorch", "apex", "tensorflow", "mxnet")
TARGETS = MappingProxyType(
    {
        "ONNX": {
            "cuda": "onnxruntime-cuda.toml",
            "tensorrt": "tensorrt.toml",
            "cann": "cann.toml",
            "cpu": "onnxruntime-cpu.toml",
        },
        "MindIR": {"ascend": "ascend.toml", "cpu": "mindspore-cpu.toml"},
    }
)
"""By format: who runs such models, and the file that says what it can."""

TypeGroups = tuple[frozenset[str], ...]


@dataclass(frozen=True)
class Listing:
    """One operator's entry."""

    cls: str
    reason: str
    source: str
    """`ampgraph.toml:57`: the file and line that said so."""


@dataclass(frozen=True)
class OpLists:
    """A policy's lists, with the user's merged over them. Operators are named `Conv` or `com.microsoft::Gelu`."""

    listings: Mapping[str, Listing]
    tied: Mapping[str, TypeGroups]
    """Operator -> groups of type variables that must hold one type."""
    tied_reasons: Mapping[str, str]
    float32_slots: Mapping[str, Mapping[str, str]]
    """Operator -> type variable, or `input:<name>` -> why it is always float32."""
    regions: Mapping[str, str]
    """Decomposed forms that are recognised -> what they are made of."""

    def of(self, kind: str) -> Listing | None:
        """The entry of an operator, or None: it is in no list and stays float32."""
        return self.listings.get(kind)

    def items(self) -> Iterator[tuple[str, Listing]]:
        """Every entry, sorted by operator."""
        return iter(sorted(self.listings.items()))


@dataclass(frozen=True)
class Level:
    """What a level does with each class: `low`, `float32` or `cut` (whatever costs least)."""

    name: str
    white: str
    gray: str
    neutral: str
    black: str
    kept: str
    float32_inside: str
    """`cut`: black and kept operators whose kernel keeps float32 inside count as gray; `list`: their class decides."""
    accuracy_guards: str
    """`hold`, `warn` or `off`."""
    description: str

    def of(self, cls: str) -> str:
        """What this level does with a class."""
        return str(getattr(self, cls))


@dataclass(frozen=True)
class Broken:
    """Kernels that fail although they look present: a reason for each low type."""

    reasons: Mapping[str, str]
    attribute: str = ""
    """Only nodes that set this attribute to something other than "none"; empty: every node."""


@dataclass(frozen=True)
class Kernels:
    """What a target's kernels admit and keep in float32 inside."""

    target: str
    provider: str
    missing: str
    """A kernel missing in the low type: `float32` (the slot stays so), `wraps` (the runtime adds casts), `schema`."""
    float32_inside: Mapping[str, str]
    """Operator -> what its kernel does in float32 on low data."""
    tied: Mapping[str, TypeGroups]
    """Groups of type variables that this target's kernels take in one type only, beyond those of OpLists."""
    broken: Mapping[str, Broken]
    wraps: frozenset[str] = frozenset()
    wraps_since: int = 0
    fallback: Kernels | None = None
    """Who runs an operator that has no kernel here."""
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def admits(self, kind: str, opset: int, type_variable: str, low: str) -> bool | None:
        """Whether this slot may be low here; None: nothing here says no, so the schema decides.

        `opset` is the model's for the operator's domain, or the version of its schema.
        """
        broken = self.broken.get(kind)
        if broken and not broken.attribute and low in broken.reasons:
            return False
        types = self._types(kind, opset)
        if types is not None and (type_variable not in types or low in types[type_variable]):
            return True
        if self.missing == "schema" or (self.missing == "wraps" and low in self.wraps and opset >= self.wraps_since):
            return None
        if types is None and self.fallback is not None:
            return None if self.fallback.admits(kind, opset, type_variable, low) is not False else False
        return False

    def refuses(self, kind: str, opset: int, low: str, attributes: Mapping[str, Any]) -> str:
        """Why a node with these attributes would fail in the low type, or an empty string."""
        broken = self.broken.get(kind)
        if broken and low in broken.reasons:
            value = attributes.get(broken.attribute, "none") if broken.attribute else ""
            if value not in ("none", b"none"):
                return broken.reasons[low]
        if self.fallback is not None and self._types(kind, opset) is None:
            return self.fallback.refuses(kind, opset, low, attributes)
        return ""

    def _types(self, kind: str, opset: int) -> Mapping[str, frozenset[str]] | None:
        """Type variable -> float types of the kernel at this opset; None where there is no kernel."""
        for entry in self.entries.get(kind, ()):
            since, until, types = _parse_entry(entry)
            if since <= opset and (until is None or opset <= until):
                return types
        return None


@cache
def _parse_entry(text: str) -> tuple[int, int | None, Mapping[str, frozenset[str]]]:
    """`13-21 T=float,float16 T1=float` as (13, 21, {...}); `13-` has no end."""
    opsets, *variables = text.split()
    since, _, until = opsets.partition("-")
    pairs = (variable.partition("=") for variable in variables)
    return int(since), int(until) if until else None, {name: frozenset(types.split(",")) for name, _, types in pairs}


@cache
def _own_file(name: str) -> ListFile:
    return read_file(data_folder() / name)


def _user_files(extra: Sequence[str | Path]) -> list[ListFile]:
    files = [read_file(path) for path in ([extra] if isinstance(extra, (str, Path)) else extra)]
    for file in files:
        check_file(file)
    return files


def load_op_lists(policy: str = "ampgraph", extra: Sequence[str | Path] = ()) -> OpLists:
    """A policy's lists; files in `extra` are merged over them in order, and the later one wins.

    The policy mindspore has rules of its own (oplists_mindspore); here it counts heavy operators as ampgraph does.
    """
    if policy not in POLICIES:
        known = [*POLICIES, *POLICIES_TO_COME]
        if policy in POLICIES_TO_COME:
            hint = f"available: {', '.join(POLICIES)}"
            raise AmpError("AMP303", f"policy '{policy}' is not there yet", hint=hint)
        hint = nearest(policy, known) or f"available: {', '.join(POLICIES)}"
        raise AmpError("AMP303", f"unknown policy '{policy}'", hint=hint)
    listings: dict[str, Listing] = {}
    tied: dict[str, TypeGroups] = {}
    tied_reasons: dict[str, str] = {}
    slots: dict[str, dict[str, str]] = {}
    regions: dict[str, str] = {}
    for file in (_own_file("ampgraph.toml"), _own_file("tied_slots.toml"), *_user_files(extra)):
        for cls in CLASSES:
            for kind, reason in file.data.get(cls, {}).items():
                listings[plain(kind)] = Listing(cls, reason, file.where(cls, kind))
        for kind, entry in file.data.get("tied", {}).items():
            tied[plain(kind)] = _groups(entry["groups"])
            tied_reasons[plain(kind)] = entry["reason"]
        for kind, reasons in file.data.get("float32", {}).items():
            slots.setdefault(plain(kind), {}).update(reasons)
        regions.update(file.data.get("regions", {}))
    return OpLists(
        listings=MappingProxyType(listings),
        tied=MappingProxyType(tied),
        tied_reasons=MappingProxyType(tied_reasons),
        float32_slots=MappingProxyType({kind: MappingProxyType(reasons) for kind, reasons in slots.items()}),
        regions=MappingProxyType(regions),
    )


def _groups(groups: list[list[str]]) -> TypeGroups:
    return tuple(frozenset(group) for group in groups)


def load_levels(extra: Sequence[str | Path] = ()) -> dict[str, Level]:
    """Every level by name; a `[levels.O2]` table in an extra file changes the keys that it names."""
    merged: dict[str, dict[str, str]] = {name: {} for name in LEVELS}
    for file in (_own_file("levels.toml"), *_user_files(extra)):
        for name, values in file.data.get("levels", {}).items():
            merged[name].update(values)
    wanted = {f.name for f in fields(Level)} - {"name"}
    for name, values in merged.items():
        if set(values) != wanted:
            raise AmpError("AMP901", f"level '{name}' is incomplete", where="levels.toml")
    return {name: Level(name=name, **values) for name, values in merged.items()}


def load_level(name: str, extra: Sequence[str | Path] = ()) -> Level:
    """One level."""
    levels = load_levels(extra)
    if name not in levels:
        hint = nearest(name, list(levels)) or f"levels are {', '.join(levels)}"
        raise AmpError("AMP302", f"unknown level '{name}'", hint=hint)
    return levels[name]


@cache
def load_kernels(target: str, model_format: str = "ONNX") -> Kernels:
    """A target's kernels for models of a format. Raises AmpError AMP304 for a target that is not there."""
    targets = TARGETS[model_format]
    if target not in targets:
        available = f"targets of {model_format} models: {', '.join(targets)}"
        if any(target in others for others in TARGETS.values()):
            raise AmpError("AMP304", f"{model_format} models do not run on '{target}'", hint=available)
        raise AmpError("AMP304", f"unknown target '{target}'", hint=nearest(target, list(targets)) or available)
    data = _own_file(f"kernels/{targets[target]}").data
    broken = {kind: dict(entry) for kind, entry in data["broken"].items()}
    return Kernels(
        target=target,
        provider=data["provider"],
        missing=data["missing"],
        float32_inside=MappingProxyType(data["float32_inside"]),
        tied=MappingProxyType({kind: _groups(groups) for kind, groups in data["tied"].items()}),
        broken=MappingProxyType({k: Broken(attribute=e.pop("attribute", ""), reasons=e) for k, e in broken.items()}),
        wraps=frozenset(data.get("wraps", ())),
        wraps_since=data.get("wraps_since", 0),
        fallback=load_kernels(data["fallback"], model_format) if "fallback" in data else None,
        entries=MappingProxyType({kind: tuple(entries) for kind, entries in data.get("kernels", {}).items()}),
    )
