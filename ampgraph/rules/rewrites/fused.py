"""Norms and GELUs in another order, or as their operator, where the target makes one kernel of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import NodeEditor
from ...core.pass_ import plan_mismatch
from ...core.selection import matched_op_ids
from ...oplists.patterns import Region
from ..fusions import Inside, fused_regions, is_closed, is_split, whole
from ..known import Known
from ..rewrite import RewriteRule

ONE_KERNEL = ", which the target runs as one kernel"


@dataclass(frozen=True)
class Half(RewriteRule):
    """The inner and the outer product exchange an operand, ``of_inner`` and ``of_outer``: x * (y * half) becomes
    half * (y * x), and half * x behind or in front of y becomes (half * x) * y."""

    of_inner: str
    of_outer: str
    last: bool

    names = ("half",)
    counted = ("GELU", "rewritten to multiply by 0.5 last" + ONE_KERNEL)
    reading = ("of_inner", "of_outer")
    rewires = exchanges = True

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return f"x * y, halved {'last' if self.last else 'first'}"

    @classmethod
    def find(cls, known: Known) -> Iterator[Half]:
        """Regions whose half has to stand last, or first, for the target to fuse them."""
        options = known.options
        for region in fused_regions(known):
            fused = options.kernels.fuses[region.kind]
            if fused.quotient and "quotient" in options.rewrites:
                continue
            if fused.half_last and {op.role for op in region.ops if op.slots} <= fused.operators:
                yield from cls._found(known, region, last=True)
            elif region.variant in fused.half_first and options.dtype not in fused.float32_alone:
                yield from cls._found(known, region, last=False)

    @classmethod
    def _found(cls, known: Known, region: Region, last: bool) -> Iterator[Half]:
        """A GELU that multiplies half a sum, or the sum with half the data, as the two products that exchange an
        operand."""
        flow, inside, outer = known.flow, Inside(known, region), region.result
        for value, other in (outer.inputs, outer.inputs[::-1]) if inside.multiplies(outer) else ():
            inner = inside.only_for(value, outer)
            if inner is None or other == NONE or not inside.multiplies(inner):
                continue
            sums = [v for v in inner.inputs if inside.is_sum(v)]
            halves = [v for v in inner.inputs if v != NONE and flow.scalar(v) == 0.5]
            if last:
                first = next((v for v in inner.inputs if v not in halves), NONE)
                given = halves[0] if len(halves) == 1 and first in sums and flow.scalar(other) is None else NONE
            else:
                given = sums[0] if len(sums) == 1 else NONE
            if given != NONE:
                names = (flow.values[given].name, flow.values[other].name)
                yield cls("half", *cls.place(flow, inner, outer), *names, last)
                return

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Half:
        """The rewrite that a row of plan format 1 means, whose kind ended in the place of the half."""
        inner, outer = row["inputs"]
        return cls(name, scope, nodes, inner, outer, row["kind"].endswith("last"))

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """The inner product reads what the outer one read, and the other way round."""
        ops = self.edited(editor)
        self.operands(editor, flow)
        read = []
        for op, name in zip(ops, self.reads, strict=True):
            places = [(place, v) for place, v in enumerate(op.inputs) if v != NONE and flow.values[v].name == name]
            if not places:
                raise plan_mismatch(f"makes {self.writes} read '{name}'", "does not read there")
            read.append(places[0])
        for op, (place, _), (_, value) in zip(ops, read, reversed(read), strict=True):
            editor.rewire(flow.values[value], [(self.scope, op.index, place)])
        # whoever compares values by name compares what they hold
        editor.rename(flow.values[ops[0].outputs[0]], "doubled" if self.last else "halved")


@dataclass(frozen=True)
class Quotient(RewriteRule):
    """``data`` * (1 / ``divisor``) as ``data`` / ``divisor``: the nodes of the inverse and of the product."""

    data: str
    divisor: str

    names = ("quotient",)
    counted = ("group", RewriteRule.counted[1] + ONE_KERNEL)
    reading = ("data", "divisor")
    writes = "Div"

    @classmethod
    def find(cls, known: Known) -> Iterator[Quotient]:
        """Norms whose data are multiplied by an inverse, on targets that fuse only a division."""
        flow = known.flow
        for region in fused_regions(known):
            inside, normal = Inside(known, region), region.normal
            if normal is None or not known.options.kernels.fuses[region.kind].quotient or not inside.multiplies(normal):
                continue
            for value, data in (normal.inputs, normal.inputs[::-1]):
                inverse = inside.only_for(value, normal)
                divisor = _inverted(known, inverse) if inverse is not None else NONE
                if inverse is not None and divisor != NONE and data != NONE:
                    names = (flow.values[data].name, flow.values[divisor].name)
                    yield cls("quotient", *cls.place(flow, inverse, normal), *names)
                    break

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Div in the place of the product; the inverse is taken away."""
        self.operands(editor, flow)
        editor.replace(self.scope, self.nodes, self.writes, self.reads, {})


def _inverted(known: Known, op: Op) -> int:
    """Rewrite `quotient`: the value whose inverse an operator makes, if it divides one by it; else NONE."""
    places = known.traits.positions(op.role, "divides")
    ones = all(known.flow.scalar(v) == 1 for place, v in enumerate(op.inputs) if place not in places)
    return op.inputs[places[0]] if places and ones else NONE


APPROXIMATE = {"erf": "none", "tanh": "tanh", "tanh of squares": "tanh"}
"""By variants of the pattern, the operator's attribute."""


@dataclass(frozen=True)
class Gelu(RewriteRule):
    """Of ``source``, computed as ``approximate`` says."""

    source: str
    approximate: str

    names = ("gelu",)
    reading = ("source",)

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return "Gelu" if self.approximate == "none" else f"Gelu by {self.approximate}"

    @classmethod
    def find(cls, known: Known) -> Iterator[Gelu]:
        """Regions that compute a GELU by erf or tanh and may become its operator."""
        flow = known.flow
        for region in fused_regions(known):
            if region.variant in APPROXIMATE and _may_go(known, region):
                source = flow.values[region.source].name
                yield cls("gelu", *cls.place(flow, *whole(region)), source, APPROXIMATE[region.variant])

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Gelu:
        """The rewrite that a row of plan format 1 means, whose kind named the approximation."""
        return cls(name, scope, nodes, row["inputs"][0], "tanh" if row["kind"] == "Gelu by tanh" else "none")

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """The operator Gelu in the place of the region."""
        self.operands(editor, flow)
        editor.replace(self.scope, self.nodes, "Gelu", (self.source,), {"approximate": self.approximate})


def _may_go(known: Known, region: Region) -> bool:
    """Rewrite `gelu`: whether the target knows the operator in the low type, and the region not."""
    flow, options = known.flow, known.options
    if not region.fixed or not 0 < region.since <= flow.opset or region.source == NONE:
        return False
    admits = options.kernels.admits(region.kind, flow.opset, "T", options.dtype)
    return bool(admits) and is_split(flow, options, region) and len({op.scope for op in region.ops}) == 1


CUBED = {"tanh": "tanh of squares"}
"""Variants of a pattern that can be written as another one, which has the same numbers."""
CUBE = 3
NUMBERS = (0.044715, 0.7978845608, 1.0, 0.5)
"""Of a GELU by tanh: the cube's factor, the sum's, one and half."""


@dataclass(frozen=True)
class GeluOfSquares(RewriteRule):
    """source * half * (one + tanh(source * factor * (one + source * cubic * source))): ``cubic``, ``factor``, ``one``
    and ``half`` are stored numbers of the region."""

    source: str
    cubic: str
    factor: str
    one: str
    half: str

    names = ("squares",)
    counted = ("group", RewriteRule.counted[1] + ONE_KERNEL)
    reading = ("source", "cubic", "factor", "one", "half")
    writes = "Gelu by tanh, of squares"
    rewires = True

    @classmethod
    def find(cls, known: Known) -> Iterator[GeluOfSquares]:
        """GELUs by tanh that the target fuses only in this form: the cube as products, stored numbers at known
        places."""
        flow = known.flow
        for region in fused_regions(known):
            if region.source == NONE or not _is_better(known, region) or len({op.scope for op in region.ops}) > 1:
                continue
            numbers = [_stored_number(flow, region, number) for number in NUMBERS]
            if NONE not in numbers:
                source, cubic, factor, one, half = (flow.values[v].name for v in (region.source, *numbers))
                yield cls("squares", *cls.place(flow, *whole(region)), source, cubic, factor, one, half)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes the GELU by new operators but for the last one, which stays."""
        ops, (x, cubic, factor, one, half) = self.edited(editor), self.operands(editor, flow)

        def new(kind: str, *given: Value) -> Value:
            (result,) = editor.add(kind, given, [FLOAT32], scope=ops[-1].scope, name=f"{x.name}_{kind}")
            return result

        cube = new("Mul", new("Mul", x, factor), new("Add", new("Mul", new("Mul", x, cubic), x), one))
        for place, value in enumerate((new("Mul", x, half), new("Add", new("Tanh", cube), one))):
            editor.rewire(value, [(self.scope, self.nodes[-1], place)])
        for op in reversed(ops[:-1]):
            editor.remove(op)


def _is_better(known: Known, region: Region) -> bool:
    """Rewrite `gelu`: whether the target knows the operator in the other form: it stays float32, or reads or makes what
    does, or has no power of 3."""
    flow, options = known.flow, known.options
    fused, other = options.kernels.fuses[region.kind], CUBED.get(region.variant, "")
    if other not in fused.wide_variants or not is_closed(flow, region):
        return False
    ops = matched_op_ids(flow, (*options.fp32, *options.pinned))
    values = {*known.passing, *(v for op in ops for v in flow.ops[op].outputs)}
    listing = options.lists.of(region.kind)
    wide = listing is not None and options.level.of(listing.cls) == "float32"
    wide = wide or any(v in values for op in region.ops for v in (*op.inputs, *op.outputs))
    split = is_split(flow, options, region)
    by_power = split or any(flow.scalar(v) == CUBE for op in region.ops for v in op.inputs if v != NONE)
    return wide or not by_power or (split and options.level.fp32 != "low")


def _stored_number(flow: Dataflow, region: Region, number: float) -> int:
    """Rewrite into what the target fuses: a region's value that stores this number, to 1e-4; NONE if none does."""
    read = (v for op in region.ops for v in op.inputs if v != NONE)
    return next((v for v in read if isclose(flow.scalar(v) or 0.0, number, rel_tol=1e-4)), NONE)
