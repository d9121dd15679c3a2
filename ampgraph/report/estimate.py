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
from itertools import product
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
"""The largest quotient of the ends of an estimate's range, a factor of two once they are rounded; a wider range is cut
on both sides alike."""
SIZES = 6
"""Open dimensions that the line of a report has room for."""
EVEN = 1.1
"""The largest product of the ends of a range that is hardly above 1: 1.0 to 1.1."""
UNKNOWN = (
    "no estimate: how much some products compute depends on the values of inputs; `ampgraph bench ORIGINAL RESULT` "
    "measures it"
)
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

Place = tuple[str, str]
"""A value as (path of its scope, name), which a conversion keeps."""


FORMS = frozenset({"half", "quotient"})
"""Rewrites that bring operators into a form of which the target makes one kernel, instead of several."""


class FusedValues(NamedTuple):
    """Values that stay inside of kernels which the target makes of several operators: ``after`` in the converted file,
    ``before`` in its float32 original, whose form the target may not know."""

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
        """Estimate of speed: the seconds that kernels (work of a kernel -> how many do it) take on the device.

        ``launch``: microseconds to start one; ``peaks``: the part of the device's peaks that float32 kernels reach,
        ``share``: the part of that which low ones reach; ``casts``: the share of Casts that the runtime leaves."""
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


def _range_text(low: float, high: float) -> str:
    """The range of an estimate as reports print it."""
    return f"{low:.1f} to {high:.1f}" if high > low else f"{low:.1f}"


@dataclass(frozen=True)
class Speed(Data):
    """An estimate of speed for devices of the target, with ``sizes`` of open dimensions, or no devices and the
    ``reason`` for that. ``measured``: device -> what estimates for the target were compared with there. ``unknown``:
    there is no estimate, not even that there is nothing to gain."""

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
        """Whether the estimate is that hardly anything is gained: no device's range lies clearly above 1, or there are
        no devices as nothing is to gain."""
        return all(one.low * one.high <= EVEN for one in self.devices) and not self.unknown

    @property
    def gain(self) -> str:
        """The estimated gain in words where that is hardly anything (`idle`), with the range over all ``devices``, of
        which there are none where ``reason`` says that nothing is to gain."""
        if not self.devices:
            return "no faster than float32"
        low, high = min(one.low for one in self.devices), max(one.high for one in self.devices)
        said = "SLOWER" if self.slower else "may be slower" if low < 1.0 else "hardly faster"
        return f"{said} than float32 ({_range_text(low, high)} times its speed)"

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
        alike = grouped(self.devices, lambda one: _range_text(one.low, one.high))
        said = [f"{size} on {', '.join(one.device for one in group)}" for size, group in alike]
        return f"estimate, times as fast as float32: {'; '.join(said)}{end}"


class KernelWork(NamedTuple):
    """What a device does for an operator. ``operations``: of floating point, in ``dtype``; ``moved``: bytes that are
    read and written; ``starts``: 1, or 0 where it is part of another kernel; ``times``: how often it runs; ``casts``:
    whether it is a Cast."""

    operations: float
    moved: float
    dtype: str
    starts: int
    times: int
    casts: bool = False


def estimate_speed(flow: Dataflow, options: Options, inside: FusedValues = NOTHING) -> Speed | None:
    """The estimate of how much faster a file is than the same graph in float32; None where both do the same work, as
    nothing of it is low.

    ``options``: its low type, and the target. ``inside``: what `fused_values` found in its float32 original."""
    idle = options.kernels.no_gain.get(options.dtype, "")
    known = [device for device in devices() if options.target in device.casts]
    found = GraphWork(flow, options, inside)
    after, before = found.kernels(), found.kernels(wide=True)
    if after == before:
        return None
    if not idle and not known:
        return speed_without_device(options.target)
    if idle or found.products_unknown:
        return Speed(reason=f"none to gain {idle}") if idle else Speed(reason=UNKNOWN, unknown=True)
    target = options.target
    measured = {device.name: device.measured[target] for device in known if target in device.measured}
    return Speed(tuple(device_speed(before, after, device, target) for device in known), found.open_sizes, measured)


def speed_without_device(target: str) -> Speed:
    """The `Speed` for a target of which no device is known: no estimate, and the reason."""
    return Speed(reason=f"no estimate: no data on devices of target {target}; time both files on yours", unknown=True)


def device_speed(before: Sequence[KernelWork], after: Sequence[KernelWork], device: Device, target: str) -> DeviceSpeed:
    """How many times as fast as the float32 kernels (``before``) those of the file (``after``) are estimated to be on a
    device: the least and the largest quotient of times over the ends of the device's ranges, cut to `WIDTH`."""
    counts, counts_after = Counter(before), Counter(after)  # layers repeat
    quotients = [
        device.seconds(counts, 1.0, launch, 1.0, peaks) / device.seconds(counts_after, share, launch, casts, peaks)
        for share, launch, casts, peaks in product(device.share, device.launch, device.casts[target], device.reached)
    ]
    low, high = min(quotients), max(quotients)
    excess = math.sqrt(max(high / low / WIDTH, 1.0))
    least = round(low * excess, 1)
    return DeviceSpeed(device.name, least, min(round(high / excess, 1), 2 * least))


@cache
def devices() -> tuple[Device, ...]:
    """The devices of which the report estimates speeds, from op_lists/devices.toml."""
    return tuple(reader(Device)(row) for row in own_file("devices.toml").data["devices"].values())


def fused_values(flow: Dataflow, options: Options, rewrites: Sequence[Rewrite] = ()) -> FusedValues:
    """Estimate of speed: values of a float32 model that stay inside of kernels which the target makes of several
    operators: of regions (norms, GELUs), and between the pairs of operators in its table.

    ``flow``: after ``rewrites``. A region that one of `FORMS` brought into the form that the target knows was several
    kernels in the original, so that its values are in ``after`` alone."""
    joined = frozenset(_joined_values(flow, options))
    brought = {(one.scope, name) for one in rewrites if one.name in FORMS for name in vars(one).values()}
    known, new = set[Place](), set[Place]()
    for region in regions(flow):
        read = {_place_of(flow, v) for op in region.ops for v in op.inputs if v != NONE}
        inside = [v for op in region.ops if op is not region.result for v in op.outputs if v != NONE]
        values = new if brought & read else known
        values.update(_place_of(flow, v) for v in inside)
    return FusedValues(joined | known | new, joined | known)


def _joined_values(flow: Dataflow, options: Options) -> Iterator[Place]:
    """Estimate of speed: values of the dataflow that never reach memory, as the target computes the two operators
    around them in one kernel: pairs of its table, or without a table each operator by element with the first operator
    whose result only it reads."""
    for join, (first, then) in ((one, pair) for one in options.kernels.fused_pairs for pair in one.pairs):
        for op in flow.with_roles((first,)):
            reader = sole_reader(flow, op.outputs[0], op.scope)
            if reader is not None and reader.role == then:
                scales = op if join.where == "vector" or then in options.lists.products else reader
                if not join.where or any(v != NONE and flow.values[v].weight for v in scales.inputs):
                    yield _place_of(flow, op.outputs[0])
    if options.kernels.fused_pairs:
        return
    for op in flow.with_roles(options.lists.traits.operators("by_element")):
        for value in op.inputs:
            if value != NONE and sole_reader(flow, value, op.scope) and flow.writer(value):
                yield _place_of(flow, value)
                break


def _place_of(flow: Dataflow, value: int) -> Place:
    """Estimate of speed: the path of a value's scope and its name."""
    item = flow.values[value]
    return flow.scopes[item.scope].path, item.name


class GraphWork:
    """Estimate of speed: what the operators of a dataflow compute and move, read from it. ``inside``: the values that
    never reach memory."""

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
            found = self._sizes[value] = self._compute_dims(value)
        return found

    def _compute_dims(self, value: int) -> list[int]:
        """The sizes of a value for the estimate: by the file, by shape inference from the inputs' sizes, else guessed,
        and the value is added to ``unknown`` unless it is an input."""
        item, shape = self.flow.values[value], self.flow.shape(value)
        known = self._as_numbers(shape)
        if known is None and item.scope == 0:
            known = self._as_numbers(self._inferred_shapes.get(item.name))
        if known is None and value not in self.flow.scopes[0].inputs:
            self.unknown.add(value)
        return self._guessed(value) if known is None else known

    def _as_numbers(self, shape: Shape | None) -> list[int] | None:
        """Estimate of speed: a shape as numbers, open dimensions by `open_sizes`; None if one of them is not there, or
        the shape is None."""
        if shape is None:
            return None
        sizes = [dim if isinstance(dim, int) else self.open_sizes.get(str(dim), -1) for dim in shape]
        return None if -1 in sizes else sizes

    @cached_property
    def _inferred_shapes(self) -> Mapping[str, Shape]:
        """Estimate of speed: name -> shape of the main graph's values, inferred once from sizes of the inputs."""
        inputs = self.flow.scopes[0].inputs if self.flow.scopes else []
        return self.flow.sized({self.flow.values[v].name: self._guessed(v) for v in inputs if self.flow.shape(v)})

    @cached_property
    def open_sizes(self) -> dict[str, int]:
        """Estimate of speed: the sizes that were taken for open dimensions of inputs: by the dimension's name, or for
        one without a name by ``INPUT[place]``."""
        found: dict[str, int] = {}
        for value in self.flow.scopes[0].inputs if self.flow.scopes else ():
            for place, dim in enumerate(self.flow.shape(value) or ()):
                if not isinstance(dim, int):
                    found[dim or f"{self.flow.values[value].name}[{place}]"] = self._guessed(value)[place]
        return found

    def kernels(self, wide: bool = False) -> list[KernelWork]:
        """Estimate of speed: the work of each operator. ``wide``: as in the float32 original. Operators that follow
        from constants alone are left out. Sets ``products_unknown`` where the work of a product does not follow from
        sizes."""
        computed = {v for scope in self.flow.scopes for v in scope.inputs}
        found: list[KernelWork] = []
        for op in self.flow.ops:
            if not computed.isdisjoint(op.inputs):
                computed.update(op.outputs)
                found += self._kernel(op, wide)
        return found

    def _kernel(self, op: Op, wide: bool) -> Iterator[KernelWork]:
        """Estimate of speed: the work of one operator, as in the float32 original if ``wide``; none for one without
        float results, for a view, for control flow, whose bodies count, or for a Cast that float32 does not need."""
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
        hidden = {v for v in floats if _place_of(self.flow, v) in inside}
        moved = sum(size * self._numbers(op, v) for v, size in sizes.items() if v not in hidden)
        low = next((dtype for dtype in LOW if dtype in types and FLOAT32 not in types and not wide), FLOAT32)
        count = self._multiplications(op) if op.role in self.products else 0
        self.products_unknown |= count is None or (op.role in self.products and not self.unknown.isdisjoint(floats))
        starts = 0 if hidden.intersection(op.outputs) else 1
        yield KernelWork(
            2.0 * (count or 0), moved, low, starts, self.flow.scopes[op.scope].times, traits.has(op.role, "casts")
        )

    def _numbers(self, op: Op, value: int) -> int:
        """Estimate of speed: how many numbers of a value an operator moves: all, but of its first operand no more than
        it makes where it only moves data (of a table the rows looked up)."""
        count = math.prod(self.dims(value))
        if value == op.inputs[0] and self.traits.has(op.role, "moves"):
            return min(count, math.prod(self.dims(op.outputs[0])))
        return count

    def _multiplications(self, op: Op) -> int | None:
        """Estimate of speed: how many multiplications a product takes, by its shapes; None where they do not tell.

        Einsum: as `einsum_multiplications`; Conv: each number made (of a transposed one, read) times a filter; MatMul
        and Gemm: each number made times the common dimension; recurrent layers and others with stored operands: each
        row of data times all that is stored; attention: all keys, then all values."""
        shapes = [self.dims(v) for v in op.inputs if v != NONE]
        first, made = shapes[0], math.prod(self.dims(op.outputs[0]))
        if len(shapes) == 1:
            return made
        equation = self.flow.attribute(op, "equation")
        if equation:
            return einsum_multiplications(str(equation), shapes)
        if self.traits.has(op.role, "biased"):
            places = made if self.traits.has(op.role, "channels_by_rows") else math.prod(first)
            return places * math.prod(shapes[1][1:])
        if self.traits.has(op.role, "scores"):
            return made * math.prod(first[-2:-1] if self.flow.attribute(op, "transA") else first[-1:])
        stored = sum(math.prod(self.dims(v)) for v in op.inputs[1:] if v != NONE and self.flow.values[v].weight)
        if stored:
            return math.prod(first[:-1]) * stored
        keys = self.dims(op.inputs[1]) if op.inputs[1] != NONE else first  # or all three in one
        return 2 * made * keys[-2] if len(keys) > 1 else None


def einsum_multiplications(equation: str, shapes: Sequence[Sequence[int]]) -> int | None:
    """Estimate of speed: the multiplications of an Einsum, one for each combination of all its indices; None for an
    equation with an ellipsis, or that does not fit the operands' ``shapes``."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if [len(term) for term in terms] != [len(shape) for shape in shapes] or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return math.prod(sizes.values())
