"""How much faster a file may be than its float32 original: a roofline over what both compute and move.

A kernel takes the longer one of two times: to compute (two operations a multiplication, by the type of its operands)
and to move what it reads and writes; and a fixed time beside that. A GPU works while the host starts further kernels:
the slower of both says how long a run takes. Devices reach a part of the published peaks, and hosts take some
microseconds for a start: op_lists/devices.toml has ranges of these, so that the answer is a range too. Nothing is run.
Source: Williams, Waterman, Patterson: Roofline, https://doi.org/10.1145/1498765.1498785.
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
from ..planner.costs import multiplications
from ..rules.fusions import regions
from .lines import grouped

WIDTH = 1.9
"""The largest factor between the ends of a range, two once they are rounded; a wider range is cut at both ends
alike."""
SIZES = 6
"""Open dimensions that the line has room for."""
EVEN = 1.1
"""A range is hardly above 1 if the product of its ends is at most this: 1.0 to 1.1, or 0.9 to 1.2."""
UNKNOWN = (
    "no estimate: how much some products compute depends on the values of inputs; `ampgraph bench ORIGINAL RESULT` "
    "measures it"
)
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

Place = tuple[str, str]
"""A value by the path of its scope and its name, which stay the same in a conversion."""

FORMS = frozenset({"half", "quotient"})
"""Rewrites into a form of which the target makes one kernel, where it made several of the form before."""


class FusedValues(NamedTuple):
    """Values that the target never writes to memory, as one kernel computes the operators around them: ``after`` in the
    file, ``before`` in its float32 original, where a form may stand that the target does not fuse."""

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
        """Estimate of speed: the time that kernels take, each as often as ``kernels`` counts it. ``launch``:
        microseconds in which the host starts one; ``peaks``: the part of the published peaks that float32 kernels
        reach; ``share``: the part of that which low ones do; ``casts``: the part of the Casts that stay kernels of
        their own."""
        busy = starts = 0.0
        for one, count in kernels.items():
            reached = peaks * (1.0 if one.dtype == FLOAT32 else share)
            computing = one.operations / (1e12 * self.products.get(one.dtype, self.products[FLOAT32]))
            moving = one.moved / (1e9 * self.memory)
            runs = count * one.times * (casts if one.is_cast else 1.0)
            busy += runs * max(computing, moving) / reached
            starts += 1e-6 * runs * one.starts
        if self.kernel is None:  # a CPU starts kernels and computes them itself
            return busy + launch * starts
        return max(launch * starts, busy + self.kernel * starts)


@dataclass(frozen=True)
class DeviceSpeed(Data):
    """How many times as fast as float32 a file is estimated to be on a device, at least and at most."""

    device: str
    low: float
    high: float


def _range(low: float, high: float) -> str:
    """A range of an estimate as reports print it: one number where its ends are the same."""
    return f"{low:.1f} to {high:.1f}" if high > low else f"{low:.1f}"


@dataclass(frozen=True)
class Speed(Data):
    """An estimate of how fast a file is beside float32, by device of the target; without one ``devices`` is empty, and
    ``reason`` says why. ``sizes``: what was taken for each open dimension of the inputs; ``measured``: the measurements
    that estimates for the target were compared with, by device; ``unknown``: not even that there is nothing to gain is
    known."""

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
        """Whether it is known that hardly anything is gained: no device's range lies clearly above 1, or the target is
        known not to be faster in the low type."""
        return all(one.low * one.high <= EVEN for one in self.devices) and not self.unknown

    @property
    def gain(self) -> str:
        """The estimated gain in words, with the range over all devices; only for an estimate that is `idle`."""
        if not self.devices:
            return "no faster than float32"
        low, high = min(one.low for one in self.devices), max(one.high for one in self.devices)
        words = "hardly faster"
        if low < 1.0:
            words = "SLOWER" if self.slower else "may be slower"
        return f"{words} than float32 ({_range(low, high)} times its speed)"

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
    """What a device does for an operator. ``operations``: of floating point, in ``dtype``; ``moved``: bytes that it
    reads and writes; ``starts``: 1, or 0 where it is part of another's kernel; ``times``: how often it runs, as in a
    loop."""

    operations: float
    moved: float
    dtype: str
    starts: int
    times: int
    is_cast: bool = False


def estimate_speed(flow: Dataflow, options: Options, inside: FusedValues = NOTHING) -> Speed | None:
    """The estimate of how much faster a file is than the same graph in float32; None where both do the same work.

    ``options``: its low type, and the target. ``inside``: what `fused_values` found in its float32 original."""
    target = options.target
    work = GraphWork(flow, options, inside)
    after, before = work.kernels(), work.kernels(in_float32=True)
    if after == before:
        return None
    why_no_gain = options.kernels.no_gain.get(options.dtype, "")
    if why_no_gain:
        return Speed(reason=f"none to gain {why_no_gain}")
    known = [device for device in devices() if target in device.casts]
    if not known:
        return speed_without_device(target)
    if work.products_unknown:
        return Speed(reason=UNKNOWN, unknown=True)
    measured = {device.name: device.measured[target] for device in known if target in device.measured}
    return Speed(tuple(device_speed(before, after, device, target) for device in known), work.open_sizes, measured)


def speed_without_device(target: str) -> Speed:
    """The estimate of speed for a target of whose devices nothing is known: none, with the reason."""
    return Speed(reason=f"no estimate: no data on devices of target {target}; time both files on yours", unknown=True)


def device_speed(before: Sequence[KernelWork], after: Sequence[KernelWork], device: Device, target: str) -> DeviceSpeed:
    """The estimate of speed on a device as a file for a target: the range of the time of the float32 original, whose
    kernels are ``before``, through the file's (``after``), over the ends of all ranges that the device has."""
    counts_before, counts_after = Counter(before), Counter(after)  # layers repeat
    ratios = [
        device.seconds(counts_before, 1.0, launch, 1.0, peaks)
        / device.seconds(counts_after, share, launch, casts, peaks)
        for share, launch, casts, peaks in product(device.share, device.launch, device.casts[target], device.reached)
    ]
    low, high = min(ratios), max(ratios)
    excess = math.sqrt(max(high / low / WIDTH, 1.0))
    least = round(low * excess, 1)
    return DeviceSpeed(device.name, least, min(round(high / excess, 1), 2 * least))


@cache
def devices() -> tuple[Device, ...]:
    """The devices of which the report estimates speeds, from op_lists/devices.toml."""
    return tuple(reader(Device)(row) for row in own_file("devices.toml").data["devices"].values())


def fused_values(flow: Dataflow, options: Options, rewrites: Sequence[Rewrite] = ()) -> FusedValues:
    """Estimate of speed: the values of a model, not yet low, that stay inside of kernels of the target: those in
    regions (norms and GELUs of several operators), and those between two operators that it fuses.

    ``rewrites``: what was done to ``flow`` already. A region that one of `FORMS` made is fused in the file alone, not
    in its original."""
    fused = set(_values_between_fused(flow, options))
    names_in_forms = {(one.scope, name) for one in rewrites if one.name in FORMS for name in vars(one).values()}
    by_rewrites = set[Place]()
    for region in regions(flow):
        read = {_place_in_plan(flow, v) for op in region.ops for v in op.inputs if v != NONE}
        between = [v for op in region.ops if op is not region.result for v in op.outputs if v != NONE]
        values = by_rewrites if names_in_forms & read else fused
        values.update(_place_in_plan(flow, v) for v in between)
    return FusedValues(after=frozenset(fused | by_rewrites), before=frozenset(fused))


def _values_between_fused(flow: Dataflow, options: Options) -> Iterator[Place]:
    """Estimate of speed: values that never reach memory, as a kernel computes both the operator that makes one and the
    one that reads it: the pairs in the target's table. Without a table each elementwise operator is fused with one that
    makes an operand for it alone."""
    if not options.kernels.fused_pairs:
        for op in flow.with_roles(options.lists.traits.operators("by_element")):
            alone = (v for v in op.inputs if v != NONE and sole_reader(flow, v, op.scope) and flow.writer(v))
            yield from (_place_in_plan(flow, v) for v in islice(alone, 1))
    for fusion in options.kernels.fused_pairs:
        for first, second in fusion.pairs:
            for op in flow.with_roles((first,)):
                reader = sole_reader(flow, op.outputs[0], op.scope)
                if reader is None or reader.role != second:
                    continue
                # a fusion that is limited (`where`) needs a stored operand of the operator that scales or adds
                scaling = op if fusion.where == "vector" or second in options.lists.products else reader
                if not fusion.where or any(v != NONE and flow.values[v].weight for v in scaling.inputs):
                    yield _place_in_plan(flow, op.outputs[0])


def _place_in_plan(flow: Dataflow, value: int) -> Place:
    """Estimate of speed: the scope and name of a value, by which the plan knows it."""
    item = flow.values[value]
    return flow.scopes[item.scope].path, item.name


class GraphWork:
    """Estimate of speed: reads what the operators of a dataflow compute and move, as it is and as if all were
    float32."""

    def __init__(self, flow: Dataflow, options: Options, inside: FusedValues) -> None:
        from ..planner.facts.sizes import OpenSizes  # a plan is applied where there is no planner

        self.flow, self.options, self.inside = flow, options, inside
        self.traits, self.products = options.lists.traits, options.lists.products
        self._guessed = OpenSizes(flow, options.dims, self.traits).dims
        self.unknown: set[int] = set()
        """Values whose sizes were guessed, as they do not follow from those of the inputs."""
        self.products_unknown = False
        """Whether `kernels` has met a product with such a value, so that there is no estimate."""
        self._sizes: dict[int, list[int]] = {}

    def dims(self, value: int) -> list[int]:
        """Estimate of speed: the sizes of a value's dimensions, open ones as they follow from the inputs' or
        guessed."""
        found = self._sizes.get(value)
        if found is None:
            found = self._sizes[value] = self._follow(value)
        return found

    def _follow(self, value: int) -> list[int]:
        """Estimate of speed: works out the sizes of a value: by the file, by shape inference from the inputs' sizes, or
        guessed and noted as unknown."""
        item, shape = self.flow.values[value], self.flow.shape(value)
        known = self._known(shape)
        if known is None and item.scope == 0:
            known = self._known(self._inferred_shapes.get(item.name))
        if known is None and value not in self.flow.scopes[0].inputs:
            self.unknown.add(value)
        return self._guessed(value) if known is None else known

    def _known(self, shape: Shape | None) -> list[int] | None:
        """Estimate of speed: a shape as numbers, an open dimension by the size of the input's of that name; None for an
        unknown shape, or one with another open dimension."""
        if shape is None:
            return None
        sizes = [dim if isinstance(dim, int) else self.open_sizes.get(str(dim), -1) for dim in shape]
        return None if -1 in sizes else sizes

    @cached_property
    def _inferred_shapes(self) -> Mapping[str, Shape]:
        """Estimate of speed: the shapes of the main graph's values by name, inferred once from the inputs' sizes; open
        ones are guessed."""
        inputs = self.flow.scopes[0].inputs if self.flow.scopes else []
        return self.flow.sized({self.flow.values[v].name: self._guessed(v) for v in inputs if self.flow.shape(v)})

    @cached_property
    def open_sizes(self) -> dict[str, int]:
        """Estimate of speed: the sizes that were taken for open dimensions of inputs, by the name of the dimension, or
        as ``INPUT[PLACE]`` for one without."""
        found: dict[str, int] = {}
        for value in self.flow.scopes[0].inputs if self.flow.scopes else ():
            for place, dim in enumerate(self.flow.shape(value) or ()):
                if not isinstance(dim, int):
                    found[dim or f"{self.flow.values[value].name}[{place}]"] = self._guessed(value)[place]
        return found

    def kernels(self, in_float32: bool = False) -> list[KernelWork]:
        """Estimate of speed: the work of the operators (multiplications, bytes) in the file, or in its float32
        original. Operators that read constants alone are left out: their results are computed once."""
        computed = {v for scope in self.flow.scopes for v in scope.inputs}
        found: list[KernelWork] = []
        for op in self.flow.ops:
            if not computed.isdisjoint(op.inputs):
                computed.update(op.outputs)
                found += self._kernel(op, in_float32)
        return found

    def _kernel(self, op: Op, in_float32: bool) -> Iterator[KernelWork]:
        """Estimate of speed: the work of one operator; nothing for one without float results, for a view, or for a Cast
        that float32 does not need. ``in_float32``: as in `kernels`."""
        values, traits = self.flow.values, self.traits
        is_cast = traits.has(op.role, "casts")
        is_view = traits.has(op.role, "keeps_order") and not is_cast
        floats = [v for v in (*op.outputs, *op.inputs) if v != NONE and values[v].dtype in BYTES]
        types = {values[v].dtype for v in (*op.inputs[:2], *op.outputs[:1]) if v != NONE}
        if is_view or traits.has(op.role, "control_flow") or values[op.outputs[0]].dtype not in BYTES:
            return
        if in_float32 and is_cast and types <= BYTES.keys():
            return
        sizes = {v: BYTES[FLOAT32 if in_float32 and values[v].dtype in LOW else values[v].dtype] for v in floats}
        inside = self.inside.before if in_float32 else self.inside.after
        hidden = {v for v in floats if _place_in_plan(self.flow, v) in inside}
        moved = sum(size * self._numbers(op, v) for v, size in sizes.items() if v not in hidden)
        low_types = [dtype for dtype in LOW if dtype in types]
        dtype = low_types[0] if low_types and FLOAT32 not in types and not in_float32 else FLOAT32
        count = multiplications(self.flow, op, self.dims, self.traits) if op.role in self.products else 0
        if count is None or (op.role in self.products and not self.unknown.isdisjoint(floats)):
            self.products_unknown = True
        starts = 0 if hidden.intersection(op.outputs) else 1
        yield KernelWork(2.0 * (count or 0), moved, dtype, starts, self.flow.scopes[op.scope].times, is_cast)

    def _numbers(self, op: Op, value: int) -> int:
        """Estimate of speed: how many numbers of a value an operator moves: all of them, but of the table of a Gather
        or another that moves data only as many as it gives."""
        count = math.prod(self.dims(value))
        if value == op.inputs[0] and self.traits.has(op.role, "moves"):
            return min(count, math.prod(self.dims(op.outputs[0])))
        return count
