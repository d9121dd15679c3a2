"""How much faster a file may be than its float32 original: a roofline over what both compute and move.

A kernel takes the longer one of computing (two operations a multiplication, by the type of its operands) and moving
what it reads and writes, beside what any kernel takes. A GPU works while the host starts further kernels: the slower of
both says how long a run takes. Devices reach a part of the published peaks, and hosts take some microseconds for a
start, which op_lists/devices.toml has as ranges, and so is the answer one. Nothing is run. Source: Williams, Waterman,
Patterson: Roofline, https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice, product
from typing import NamedTuple

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op, Shape
from ..core.graph import LOW
from ..core.rewrites import Rewrite
from ..core.shown import Data
from ..core.typed import reader
from ..core.walk import sole_reader
from ..oplists.files import own_file
from ..oplists.options import Options
from ..rules.fusions import regions
from .lines import grouped

WIDTH = 1.9
"""The most that is left between the ends of a range, a factor of two once they are rounded; what reaches farther is cut
on both sides alike."""
SIZES = 6
"""Open dimensions that the line has room for."""
EVEN = 1.1
"""Product of the ends of a range that is hardly above 1: 1.0 to 1.1."""
UNKNOWN = (
    "no estimate: how much some products compute depends on the values of inputs; `ampgraph bench ORIGINAL RESULT` "
    "measures it"
)
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

Place = tuple[str, str]
"""A value by its scope and name, which keep in a conversion."""


FORMS = frozenset({"half", "quotient"})
"""Rewrites after which the target makes one kernel of what it made several of."""


class FusedValues(NamedTuple):
    """Values that stay inside of kernels which the target makes of several operators: in the file, and in its float32
    original, of which it may not know the form."""

    after: frozenset[Place] = frozenset()
    before: frozenset[Place] = frozenset()


NOTHING = FusedValues()


@dataclass(frozen=True)
class Device:
    """A table of op_lists/devices.toml, whose head says what each field is."""

    name: str
    products: Mapping[str, float]
    memory: float
    reached: tuple[float, float]
    share: tuple[float, float]
    launch: tuple[float, float]
    casts: Mapping[str, tuple[float, float]]
    source: str
    kernel: float | None = None
    measured: Mapping[str, str] = field(default_factory=dict)

    def seconds(
        self, kernels: Mapping[KernelWork, int], share: float, launch: float, casts: float, peaks: float
    ) -> float:  # fmt: skip
        """Estimate of speed: the time that kernels take. ``launch``: microseconds to start one; ``peaks``: the part of
        them that float32 kernels reach, ``share``: of that, low ones; ``casts``: the share of Casts that the runtime
        leaves."""
        busy = starts = 0.0
        for one, count in kernels.items():
            reached = peaks * (1.0 if one.dtype == FLOAT32 else share)
            computing = one.operations / (1e12 * self.products.get(one.dtype, self.products[FLOAT32]))
            moving = one.moved / (1e9 * self.memory)
            left = count * one.times * (casts if one.casts else 1.0)
            busy += left * max(computing, moving) / reached
            starts += 1e-6 * left * one.starts
        return busy + launch * starts if self.kernel is None else max(launch * starts, busy + self.kernel * starts)


@dataclass(frozen=True)
class DeviceSpeed(Data):
    """How many times as fast as float32 a file is estimated to be on a device, at least and at most."""

    device: str
    low: float
    high: float


def _range(low: float, high: float) -> str:
    """A range as reports print it."""
    return f"{low:.1f} to {high:.1f}" if high > low else f"{low:.1f}"


@dataclass(frozen=True)
class Speed(Data):
    """An estimate of speed by device of the target, for these ``sizes`` of open dimensions, or ``reason``: why there
    is none. ``measured``: what estimates for the target were held against, by device. ``unknown``: nothing is known,
    not even that there is nothing to gain."""

    devices: tuple[DeviceSpeed, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    unknown: bool = False

    @property
    def slower(self) -> bool:
        """Whether every device is estimated to be slower with the converted file than in float32."""
        return bool(self.devices) and all(one.high < 1.0 for one in self.devices)

    @property
    def idle(self) -> bool:
        """Whether the estimate is that hardly anything is gained: no device's range lies clearly above 1."""
        return all(one.low * one.high <= EVEN for one in self.devices) and not self.unknown

    @property
    def gain(self) -> str:
        """The estimated gain in words where that is hardly anything (`idle`), with the range over all ``devices``, of
        which there are none where ``reason`` says that nothing is to gain."""
        if not self.devices:
            return "no faster than float32"
        low, high = min(one.low for one in self.devices), max(one.high for one in self.devices)
        said = "SLOWER" if self.slower else "may be slower" if low < 1.0 else "hardly faster"
        return f"{said} than float32 ({_range(low, high)} times its speed)"

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        sizes = [f"{name}={size}" for name, size in self.sizes.items()][:SIZES]
        dim = "; --dim NAME=SIZE changes that" if any("[" not in name for name in self.sizes) else ""
        notes = [f"assumed {', '.join(sizes)}{dim}"] if sizes else []
        if len(self.measured) < len(self.devices):
            some = f"{' and '.join(self.measured)} only" if self.measured else "no GPU"
            notes.append(f"estimates checked on {some}")
        end = f" ({'; '.join(notes)})" if notes else ""
        alike = grouped(self.devices, lambda one: _range(one.low, one.high))
        said = [f"{size} on {', '.join(one.device for one in group)}" for size, group in alike]
        return f"estimate, times as fast as float32: {'; '.join(said)}{end}"


class KernelWork(NamedTuple):
    """What a device does for an operator. ``operations``: of floating point, in ``dtype``; ``moved``: bytes;
    ``starts``: 1, or 0 where it is part of another kernel; ``times``: how often it runs; ``casts``: a Cast."""

    operations: float
    moved: float
    dtype: str
    starts: int
    times: int
    casts: bool = False


def speed_of(flow: Dataflow, options: Options, inside: FusedValues = NOTHING) -> Speed | None:
    """The estimate of how much faster a file is than the same graph in float32; None where nothing of it is low.

    ``options``: its low type, and the target. ``inside``: what `fused_values` found in its float32 original."""
    idle = options.kernels.no_gain.get(options.dtype, "")
    known = [device for device in devices() if options.target in device.casts]
    found = GraphWork(flow, options, inside)
    after, before = found.kernels(), found.kernels(wide=True)
    if after == before:
        return None
    if not idle and not known:
        return no_device(options.target)
    if idle or found.products_unknown:
        return Speed(reason=f"none to gain {idle}") if idle else Speed(reason=UNKNOWN, unknown=True)
    target = options.target
    measured = {device.name: device.measured[target] for device in known if target in device.measured}
    return Speed(tuple(estimate(before, after, device, target) for device in known), found.open_sizes, measured)


def no_device(target: str) -> Speed:
    """The estimate for a target of which no device is known: none, with the reason."""
    return Speed(reason=f"no estimate: no data on devices of target {target}; time both files on yours", unknown=True)


def estimate(before: Sequence[KernelWork], after: Sequence[KernelWork], device: Device, target: str) -> DeviceSpeed:
    """The range of the ratio of the times that both take on a device as files for a target."""
    alike, alike_after = Counter(before), Counter(after)  # layers repeat
    ways = [
        device.seconds(alike, 1.0, launch, 1.0, peaks) / device.seconds(alike_after, share, launch, casts, peaks)
        for share, launch, casts, peaks in product(device.share, device.launch, device.casts[target], device.reached)
    ]
    low, high = min(ways), max(ways)
    excess = math.sqrt(max(high / low / WIDTH, 1.0))
    least = round(low * excess, 1)
    return DeviceSpeed(device.name, least, min(round(high / excess, 1), 2 * least))


@cache
def devices() -> tuple[Device, ...]:
    """The devices of which the report estimates speeds, from op_lists/devices.toml."""
    return tuple(reader(Device)(row) for row in own_file("devices.toml").data["devices"].values())


def fused_values(flow: Dataflow, options: Options, rewrites: Sequence[Rewrite] = ()) -> FusedValues:
    """Estimate of speed: values of a float32 model inside of what the target makes one kernel of: norms and GELUs in
    several operators, and pairs by its table; without a table, all that is done element by element to one operator's
    result. ``rewrites``: what was done to the model before; the target did not know what they brought into a form that
    it knows."""
    joined = frozenset(_joined_values(flow, options))
    brought = {(one.scope, name) for one in rewrites if one.name in FORMS for name in vars(one).values()}
    known, new = set[Place](), set[Place]()
    for region in regions(flow):
        read = {_place_in_plan(flow, v) for op in region.ops for v in op.inputs if v != NONE}
        inner = [v for op in region.ops if op is not region.result for v in op.outputs if v != NONE]
        (new if brought & read else known).update(_place_in_plan(flow, v) for v in inner)
    return FusedValues(joined | known | new, joined | known)


def _joined_values(flow: Dataflow, options: Options) -> Iterator[Place]:
    """Estimate of speed: values of the dataflow that never reach memory, as a runtime computes the pair of operators
    around them in one kernel."""
    for join, (first, then) in ((one, pair) for one in options.kernels.fused_pairs for pair in one.pairs):
        for op in flow.with_roles((first,)):
            reader = sole_reader(flow, op.outputs[0], op.scope)
            if reader is not None and reader.role == then:
                scales = op if join.where == "vector" or then in options.lists.products else reader
                if not join.where or any(v != NONE and flow.values[v].weight for v in scales.inputs):
                    yield _place_in_plan(flow, op.outputs[0])
    for op in flow.with_roles(options.lists.traits.operators("by_element")) if not options.kernels.fused_pairs else ():
        alone = (v for v in op.inputs if v != NONE and sole_reader(flow, v, op.scope) and flow.writer(v))
        yield from (_place_in_plan(flow, v) for v in islice(alone, 1))


def _place_in_plan(flow: Dataflow, value: int) -> Place:
    """Estimate of speed: the scope and name of a value, by which the plan knows it."""
    item = flow.values[value]
    return flow.scopes[item.scope].path, item.name


class GraphWork:
    """Estimate of speed: reads what the operators of a dataflow compute and move."""

    def __init__(self, flow: Dataflow, options: Options, inside: FusedValues) -> None:
        from ..planner.facts.sizes import OpenSizes  # a plan is applied where there is no planner

        self.flow, self.options, self.inside = flow, options, inside
        self.traits, self.products = options.lists.traits, options.lists.products
        self._guessed = OpenSizes(flow, options.dims, self.traits).dims
        self.unknown: set[int] = set()
        """Values whose sizes do not follow from those of the inputs."""
        self.products_unknown = False
        self._sizes: dict[int, list[int]] = {}

    def dims(self, value: int) -> list[int]:
        """Estimate of speed: sizes of a value, open ones as they follow from those of the inputs, else guessed."""
        found = self._sizes.get(value)
        if found is None:
            found = self._sizes[value] = self._follow(value)
        return found

    def _follow(self, value: int) -> list[int]:
        """The sizes of a value for the estimate: by the file, by shape inference from the inputs' sizes, else guessed
        and noted as unknown."""
        item, shape = self.flow.values[value], self.flow.shape(value)
        known = self._known(shape)
        if known is None and item.scope == 0:
            known = self._known(self._followed.get(item.name))
        if known is None and value not in self.flow.scopes[0].inputs:
            self.unknown.add(value)
        return self._guessed(value) if known is None else known

    def _known(self, shape: Shape | None) -> list[int] | None:
        """Estimate of speed: a shape as numbers, open dimensions by the inputs' names; None if unknown."""
        sizes = [dim if isinstance(dim, int) else self.open_sizes.get(str(dim), -1) for dim in shape or ()]
        return None if shape is None or -1 in sizes else sizes

    @cached_property
    def _followed(self) -> Mapping[str, Shape]:
        """Estimate of speed: the shapes of all values, inferred once from sizes of the inputs."""
        inputs = self.flow.scopes[0].inputs if self.flow.scopes else []
        return self.flow.sized({self.flow.values[v].name: self._guessed(v) for v in inputs if self.flow.shape(v)})

    @cached_property
    def open_sizes(self) -> dict[str, int]:
        """Estimate of speed: what was taken for open dimensions of inputs: by name, else by input and place."""
        found: dict[str, int] = {}
        for value in self.flow.scopes[0].inputs if self.flow.scopes else ():
            for place, dim in enumerate(self.flow.shape(value) or ()):
                if not isinstance(dim, int):
                    found[dim or f"{self.flow.values[value].name}[{place}]"] = self._guessed(value)[place]
        return found

    def kernels(self, wide: bool = False) -> list[KernelWork]:
        """Estimate of speed: the work of each operator (multiplications, bytes). ``wide``: in the float32 original.
        What follows from constants alone is left out."""
        computed = {v for scope in self.flow.scopes for v in scope.inputs}
        found: list[KernelWork] = []
        for op in self.flow.ops:
            if not computed.isdisjoint(op.inputs):
                computed.update(op.outputs)
                found += self._kernel(op, wide)
        return found

    def _kernel(self, op: Op, wide: bool) -> Iterator[KernelWork]:
        """Estimate of speed: the work of one operator; nothing for one without float results, for a view, or for a Cast
        that float32 does not need."""
        values, traits = self.flow.values, self.traits
        floats = [v for v in (*op.outputs, *op.inputs) if v != NONE and values[v].dtype in BYTES]
        views = traits.has(op.role, "keeps_order") and not traits.has(op.role, "casts")
        types = {values[v].dtype for v in (*op.inputs[:2], *op.outputs[:1]) if v != NONE}
        if views or traits.has(op.role, "control_flow") or values[op.outputs[0]].dtype not in BYTES:
            return
        if wide and traits.has(op.role, "casts") and types <= BYTES.keys():
            return
        sizes = {v: BYTES[FLOAT32 if wide and values[v].dtype in LOW else values[v].dtype] for v in floats}
        inside = self.inside.before if wide else self.inside.after
        hidden = {v for v in floats if _place_in_plan(self.flow, v) in inside}
        moved = sum(size * self._numbers(op, v) for v, size in sizes.items() if v not in hidden)
        low = next((dtype for dtype in LOW if dtype in types and FLOAT32 not in types and not wide), FLOAT32)
        count = self._multiplications(op) if op.role in self.products else 0
        self.products_unknown |= count is None or (op.role in self.products and not self.unknown.isdisjoint(floats))
        starts = 0 if hidden.intersection(op.outputs) else 1
        yield KernelWork(
            2.0 * (count or 0), moved, low, starts, self.flow.scopes[op.scope].times, traits.has(op.role, "casts")
        )

    def _numbers(self, op: Op, value: int) -> int:
        """Estimate of speed: how many numbers of a value an operator moves: of a table only the rows looked up."""
        count = math.prod(self.dims(value))
        if value == op.inputs[0] and self.traits.has(op.role, "moves"):
            return min(count, math.prod(self.dims(op.outputs[0])))
        return count

    def _multiplications(self, op: Op) -> int | None:
        """Estimate of speed: how many multiplications a product takes, None where shapes do not tell; recurrent and
        other products: each row of data times everything stored; attention: all keys, then all values."""
        first, *rest = shapes = [self.dims(v) for v in op.inputs if v != NONE]
        made = math.prod(self.dims(op.outputs[0]))
        if not rest:
            return made
        if equation := self.flow.attribute(op, "equation"):
            return contracted(str(equation), shapes)
        if self.traits.has(op.role, "biased"):
            return (made if self.traits.has(op.role, "channels_by_rows") else math.prod(first)) * math.prod(rest[0][1:])
        if self.traits.has(op.role, "scores"):
            return made * math.prod(first[-2:-1] if self.flow.attribute(op, "transA") else first[-1:])
        if stored := sum(math.prod(self.dims(v)) for v in op.inputs[1:] if v != NONE and self.flow.values[v].weight):
            return math.prod(first[:-1]) * stored
        keys = self.dims(op.inputs[1]) if op.inputs[1] != NONE else first  # or all three in one
        return 2 * made * keys[-2] if len(keys) > 1 else None


def contracted(equation: str, shapes: Sequence[Sequence[int]]) -> int | None:
    """Estimate of speed: the multiplications of an Einsum, one for each place of all indices; None with an ellipsis."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if [len(term) for term in terms] != [len(shape) for shape in shapes] or "." in equation:
        return None
    return math.prod(
        {
            i: size for term, shape in zip(terms, shapes, strict=True) for i, size in zip(term, shape, strict=True)
        }.values()
    )
