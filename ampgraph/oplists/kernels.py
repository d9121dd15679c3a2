"""What a target's kernels admit, keep in float32 inside, and get wrong: read from op_lists/kernels.

load_kernels("cuda").admits("Conv", 17, "T", "bfloat16")   # False: that kernel came with opset 22
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Literal

from ..core.errors import AmpError, nearest
from ..core.typed import reader
from .files import own_file
from .traits import Trait

TypeGroups = tuple[frozenset[str], ...]
"""Groups of type variables that hold one type each."""

TARGETS = MappingProxyType(
    {
        "ONNX": {
            "cuda": "onnxruntime-cuda.toml",
            "tensorrt": "tensorrt.toml",
            "cann": "cann.toml",
            "cpu": "onnxruntime-cpu.toml",
            "cpu-arm64": "onnxruntime-cpu-arm64.toml",
            "webgpu": "onnxruntime-webgpu.toml",
            "openvino": "openvino.toml",
        },
        "MindIR": {"ascend": "ascend.toml", "cpu": "mindspore-cpu.toml"},
    }
)
"""By format: who runs such models, and the file that says what it can."""


@dataclass(frozen=True)
class Broken:
    """Kernels that fail although they look present: the reason for each low type."""

    float16: str = ""
    bfloat16: str = ""
    attribute: str = ""
    """Only nodes whose attribute has another value than `fine`; empty: every node."""
    fine: object = None
    default: object = None
    """The attribute's value where a node does not set it."""

    before: Trait | None = None
    """Only nodes whose result an operator of this trait reads beside a constant; None: every node."""

    mask_below: float = 0.0
    """Only nodes that make a mask for a Softmax by a stored number below it; 0: every node."""

    sums: Trait | None = None
    """Only nodes that add up what operators of this trait make; None: every node."""

    beside: Trait | None = None
    """Only in models with an operator of this trait; None: in every model. With `sums`."""

    reads: str = ""
    """Only nodes with an operand of this type; empty: every node."""

    runs: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Only nodes that set such an attribute to another value than these; of a list, to others than these in turn."""

    mirrored: str = ""
    """Only nodes whose attribute has other numbers in its second half than in its first. With `runs`."""

    without: int = 0
    """Only nodes that have this operand; 0: whatever they have."""

    computed: int = 0
    """Only nodes of which this operand is not stored; 0: whatever is."""

    gives: int = 0
    """Only nodes that have this output; 0: whatever they have."""

    unlike: tuple[int, ...] = ()
    """Only nodes of which two operands, these, are known to differ in their last size; empty: whatever they have."""

    odd: bool = False
    """Only nodes that make an odd number of elements, as far as sizes are known. Beside `runs`, if that is given."""

    at_boundary: bool = False
    """Only nodes whose first operand or result is an input or output of the model that stays float32: no Cast fits."""

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """Of a target's table: why the kernel fails, by low type."""
        given = {"float16": self.float16, "bfloat16": self.bfloat16}
        return {low: why for low, why in given.items() if why}

    @property
    def always(self) -> bool:
        """Of a target's table: whether every node of the kind fails."""
        operands = (self.without, self.computed, self.gives, self.unlike, self.odd, self.at_boundary)
        conditions = (self.attribute, self.before, self.mask_below, self.sums, self.reads, self.runs, *operands)
        return not any(conditions)

    def fails(self, attributes: Mapping[str, object]) -> bool:
        """Of a target's table: whether a node with these attributes is one of those that fail by ``attribute``: it has
        another value there than `fine`. False where the table names no attribute."""
        value = attributes.get(self.attribute)
        if value is None:
            value = self.default
        if isinstance(value, bytes):
            value = value.decode()
        return bool(self.attribute) and value != self.fine

    def failing_attribute(self, attributes: Mapping[str, object]) -> str:
        """Of a target's table: the name of the attribute whose value makes a node one of those that fail: one that
        `runs` does not list, or `mirrored` and not symmetric; "" where the node runs."""
        given = attributes.get(self.mirrored)
        if isinstance(given, (list, tuple)) and given[: len(given) // 2] != given[len(given) // 2 :]:
            return self.mirrored
        return next((name for name, fine in self.runs.items() if not _is_among(attributes.get(name), fine)), "")


def _is_among(value: object, fine: Sequence[object]) -> bool:
    """Of a target's table: whether an attribute's value is one that runs: not set, or in ``fine``. Of a list each word,
    in whatever case, has to be the one of ``fine`` in turn, from its start again at its end."""
    if isinstance(value, (list, tuple)):
        if not fine:
            return not value
        return all(word.lower() == fine[place % len(fine)] for place, word in enumerate(value))
    return value is None or value in fine


@dataclass(frozen=True)
class Fusion:
    """A form of a region that a runtime writes as one operator, wrongly where a cast stands in front."""

    operators: frozenset[str]
    since: Mapping[str, int]
    """By low type, the first opset at which the result does not load."""
    reason: str

    def breaks(self, opset: int, low: str) -> bool:
        """Of a target's table: whether the form, with a Cast to a low type in front, does not load at an opset."""
        return low in self.since and opset >= self.since[low]


@dataclass(frozen=True)
class Fused:
    """How a target's runtime knows a region that it makes one kernel of, and how we have to write it for that."""

    why: str
    operators: frozenset[str]
    """What the region may consist of; Casts around it and a stored scale behind it are taken in."""
    half_last: bool = False
    """We write a factor of a half last."""
    half_first: frozenset[str] = frozenset()
    """Of its pattern: the forms in which we write the factor of a half first, on the data."""
    quotient: bool = False
    """We write a product with an inverse as a quotient; Casts then cost nothing where the kernel has float32 inside."""
    float32_alone: frozenset[str] = frozenset()
    """Low types in which it is not known, so that it costs less in float32 between Casts."""
    float32_inside: bool = False
    """Its kernel takes all of it low, and keeps float32 inside."""
    wide_variants: frozenset[str] = frozenset()
    """Of its pattern: the forms in which it is known there."""
    low_epsilon: Mapping[str, float] = field(default_factory=dict)
    """By low type: what the kernel adds instead of an epsilon that is stored in that type."""


Place = Literal["", "stored", "number", "vector"]
"""What is stored beside two operators of one kernel: nothing that matters, all, a number, or a vector."""


@dataclass(frozen=True)
class PairFusion:
    """A fusion of (first, second) operators, of which the second alone reads the first; ``makes``: what it is then."""

    name: str
    makes: str
    pairs: frozenset[tuple[str, str]]
    where: Place = ""


@dataclass(frozen=True)
class Attention:
    """How a runtime knows an attention: by its Softmax; a Where (``selects``) replaces NaN (``tests``) by zero."""

    tests: str
    selects: str
    low: frozenset[str]
    """Low types in which it is one kernel only where all of that is low."""
    refused: str
    """What its builder says of all of that in float32 before a low product."""
    stored: frozenset[str] = frozenset()
    """Low types in which what is added to the scores has to be stored as it is added, not moved on the way."""
    early: frozenset[str] = frozenset()
    """Low types in which what scales an operand of the scores takes no kernel in front of what moves that operand."""
    across: frozenset[str] = frozenset()
    """Low types in which scores of an operand that another product reads are fused only where that one is scaled."""
    groups: frozenset[str] = frozenset()
    """Low types in which what is no one kernel takes fewer where a product broadcasts the values that heads share."""


@dataclass(frozen=True)
class Kernels:
    """What a target's kernels admit and keep in float32 inside."""

    target: str
    provider: str
    missing: str
    """An operator without a kernel in the low type: `float32` (the slot stays so), `wraps` (the runtime adds casts),
    `schema` (where no type is known of it at all, the schema decides), `unasked` (the schema decides always)."""
    float32_inside: Mapping[str, str]
    """Operator -> what its kernel does in float32 on low data."""
    tied: Mapping[str, TypeGroups]
    """Groups of type variables that this target's kernels take in one type only, beyond those of OpLists."""
    broken: Mapping[str, Broken]
    builder: str = ""
    """Who builds an engine of a file for it: an extra of the package; empty where ONNX Runtime itself is asked."""
    executes: str = ""
    """Who executes files for it in low precision: an extra of the package."""
    machines: frozenset[str] = frozenset()
    """The machines (`platform.machine()`) on which that computes low types; empty: it says itself what it computes."""
    no_gain: Mapping[str, str] = field(default_factory=dict)
    """Low types that make nothing faster there, with the reason."""
    level: str = ""
    """The level of our policy that is best there, where nobody says one; the policy's own if empty."""
    fuses: Mapping[str, Fused] = field(default_factory=dict)
    """What a region stands for -> the form in which the runtime makes one kernel of it."""
    fused_pairs: tuple[PairFusion, ...] = ()
    """Two operators that the runtime makes one kernel of, where both have one type."""
    wraps: frozenset[str] = frozenset()
    wraps_since: int = 0
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Operator -> low type without a kernel -> in the runtime's words."""
    behind_cast: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Operator -> why it fails in float32 where a Cast makes its first operand, in the runtime's words."""
    attention: Mapping[str, Attention] = field(default_factory=dict, repr=False)
    """By its Softmax."""
    accumulates: str = "float32"
    """The type in which its kernels add up products of low values."""
    low_inside: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Operator -> what its kernel computes in float16 inside, though the products of this target do not."""
    fused_sums: bool = False
    """Each step of such a sum is a fused multiply-add: the product is not rounded by itself."""
    stepwise: frozenset[str] = frozenset()
    """Operators whose kernel rounds each step of a formula or of a sum to that type."""
    folds: frozenset[str] = frozenset()
    """Norms that are taken into the stored numbers of a Conv in front, in that type, where no one else reads it."""
    wrong: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Operator -> when every type of it is computed wrongly: conditions of `planner.rules.faults`."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Low types of which it has no kernel at all, with the reason."""
    raises_opset: frozenset[str] = frozenset()
    """Low types for which a model is moved to the opset whose schemas admit them, unasked, where nothing is lost."""
    newest_opset: int = 0
    """The newest opset to which a model is moved for it; 0: any."""
    raises_inside: bool = False
    """Every kernel takes the Casts to float32 in front of it, so that they cost nothing."""
    fallback: Kernels | None = None
    """Who runs an operator that has no kernel here."""
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    fusions: Mapping[str, Fusion] = field(default_factory=dict, repr=False)
    """By the operator that a region stands for."""

    @cached_property
    def folded_into(self) -> Mapping[str, Mapping[str, str]]:
        """Of a target's table: first -> second -> fusion that takes the second's constants into the first's weights."""
        found: dict[str, dict[str, str]] = {}
        for pair in self.fused_pairs:
            for first, second in pair.pairs if pair.where == "stored" else ():
                found.setdefault(first, {})[second] = pair.name
        return MappingProxyType(found)

    @cached_property
    def scaled_products(self) -> Mapping[str, str]:
        """Of a target's table: product -> name of the fusion that takes a number which scales an operand or the result.
        The product is the operator that stands in all pairs of such a fusion."""
        found: dict[str, str] = {}
        for fusion in self.fused_pairs:
            if fusion.where == "number":
                in_all_pairs = frozenset.intersection(*map(frozenset, fusion.pairs))
                found |= dict.fromkeys(in_all_pairs, fusion.name)
        return MappingProxyType(found)

    def admits(self, kind: str, opset: int, type_variable: str, low: str) -> bool | None:
        """By a target's table: whether a slot (a type variable of an operator's schema) may be low; None: nothing in
        the table says no, so the schema decides. `opset` is the model's for the operator's domain, or the version of
        its schema."""
        broken = self.broken.get(kind)
        if broken and broken.always and low in broken.reasons:
            return False
        if self.computes(kind, opset, type_variable, low):
            return True
        without_kernel = not self.runs(kind, opset)
        wrapped = self.missing == "wraps" and low in self.wraps and opset >= self.wraps_since
        if wrapped or self.missing == "unasked" or (self.missing == "schema" and without_kernel):
            return None
        if without_kernel and self.fallback is not None:
            return False if self.fallback.admits(kind, opset, type_variable, low) is False else None
        return False

    def is_cast_elsewhere(self, kind: str, opset: int, type_variable: str, low: str) -> bool:
        """By a target's table: whether only its fallback runs an operator, in float32: low would only move Casts."""
        other = self.fallback
        if other is None or self.runs(kind, opset) or not other.runs(kind, opset):
            return False
        return not other.computes(kind, opset, type_variable, low)

    def computes(self, kind: str, opset: int, type_variable: str, low: str) -> bool:
        """By a target's table: whether there is a kernel that takes a slot (``type_variable``) low itself, without
        casts of the runtime's. A kernel that does not speak of the slot takes it in any type."""
        types = self._kernel_types(kind, opset)
        return types is not None and (type_variable not in types or low in types[type_variable])

    def runs(self, kind: str, opset: int) -> bool:
        """By a target's table: whether there is a kernel for an operator at this opset, in whatever type."""
        return self._kernel_types(kind, opset) is not None

    def refuses(self, kind: str, opset: int, low: str, attributes: Mapping[str, object]) -> str:
        """By a target's table: why a node with these attributes would fail in the low type; "" where it does not. For
        an operator without a kernel the fallback's table says it."""
        broken = self.broken.get(kind)
        if broken and low in broken.reasons and (broken.always or broken.fails(attributes)):
            return broken.reasons[low]
        if self.fallback is not None and self._kernel_types(kind, opset) is None:
            return self.fallback.refuses(kind, opset, low, attributes)
        return ""

    def _kernel_types(self, kind: str, opset: int) -> Mapping[str, frozenset[str]] | None:
        """By a target's table: type variable -> float types of the kernel at this opset; None without a kernel."""
        for entry in self.entries.get(kind, ()):
            since, until, types = _parse_entry(entry)
            if since <= opset and (until is None or opset <= until):
                return types
        return None


@cache
def _parse_entry(text: str) -> tuple[int, int | None, Mapping[str, frozenset[str]]]:
    """An entry of a target's table: `13-21 T=float,float16 T1=float` as (13, 21, {"T": ...}): the first and the last
    opset, None for `13-` without end, and the types of each type variable."""
    opsets, *variables = text.split()
    since, _, until = opsets.partition("-")
    pairs = (variable.partition("=") for variable in variables)
    return int(since), int(until) if until else None, {name: frozenset(types.split(",")) for name, _, types in pairs}


@cache
def load_kernels(target: str, model_format: str = "ONNX") -> Kernels:
    """A target's table of kernels, from op_lists, for models of a format. AmpError AMP304 for an unknown target."""
    targets = TARGETS[model_format]
    if target not in targets:
        available = f"targets of {model_format} models: {', '.join(targets)}"
        if any(target in others for others in TARGETS.values()):
            raise AmpError("AMP304", f"{model_format} models do not run on '{target}'", hint=available)
        raise AmpError("AMP304", f"unknown target '{target}'", hint=nearest(target, list(targets)) or available)
    data = {**own_file(f"kernels/{targets[target]}").data, "target": target}
    data |= {
        "entries": data.pop("kernels", {}),
        "fused_pairs": [{"name": n, **row} for n, row in data.pop("fused_pairs", {}).items()],
    }
    if "fallback" in data:
        data["fallback"] = load_kernels(data["fallback"], model_format)
    if model_format == "ONNX":
        shared, own = own_file("kernels/onnxruntime-fusions.toml").data, data.pop("fusions", {})
        data["fusions"] = {kind: {**row, **own.get(kind, {})} for kind, row in shared.items()}
    found: Kernels = reader(Kernels)(data)
    return found
