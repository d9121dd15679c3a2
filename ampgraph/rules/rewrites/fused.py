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
from ..fusions import Inside, fused_regions, in_file_order, is_closed, is_split
from ..known import Known
from ..rewrite import RewriteRule

ONE_KERNEL = ", which the target runs as one kernel"


@dataclass(frozen=True)
class Half(RewriteRule):
    """Two products of a GELU exchange operands, by name ``of_inner`` and ``of_outer``, so that the half is multiplied
    ``last``: x * (y * half) becomes half * (y * x); or first: (half * y) * x becomes (half * x) * y."""

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
        """Yields the GELUs whose half has to stand last, or first, for the target to fuse them."""
        options = known.options
        for region in fused_regions(known):
            fused = options.kernels.fuses[region.kind]
            if fused.quotient and "quotient" in options.rewrites:
                continue
            if fused.half_last and {op.role for op in region.ops if op.slots} <= fused.operators:
                yield from cls._find_in(known, region, last=True)
            elif region.variant in fused.half_first and options.dtype not in fused.float32_alone:
                yield from cls._find_in(known, region, last=False)

    @classmethod
    def _find_in(cls, known: Known, region: Region, last: bool) -> Iterator[Half]:
        """The rewrite of a GELU whose outer product reads an inner one that nobody else reads; nothing for another one.
        ``last``: the inner product is half a sum and gives its half away; else it reads a sum and gives that."""
        flow, inside, outer = known.flow, Inside(known, region), region.result
        for value, other in (outer.inputs, outer.inputs[::-1]) if inside.multiplies(outer) else ():
            inner = inside.only_for(value, outer)
            if inner is None or other == NONE or not inside.multiplies(inner):
                continue
            sums = [v for v in inner.inputs if inside.is_sum(v)]
            halves = [v for v in inner.inputs if v != NONE and flow.scalar(v) == 0.5]
            given = NONE
            if not last:
                given = sums[0] if len(sums) == 1 else NONE
            elif len(halves) == 1 and flow.scalar(other) is None:
                halved = next((v for v in inner.inputs if v not in halves), NONE)
                given = halves[0] if halved in sums else NONE
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
        """Has the inner product read what the outer one read, and the other way round; what the inner one makes, which
        holds other numbers then, gets another name."""
        ops = self.edited(editor)
        self.operands(editor, flow)  # refuses a plan of another model
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
    """Writes ``data`` * (1 / ``divisor``), both by name, as ``data`` / ``divisor``. Nodes: the inverse, the product."""

    data: str
    divisor: str

    names = ("quotient",)
    counted = ("group", RewriteRule.counted[1] + ONE_KERNEL)
    reading = ("data", "divisor")
    writes = "Div"

    @classmethod
    def find(cls, known: Known) -> Iterator[Quotient]:
        """Yields the norms whose data are multiplied by an inverse, on targets that fuse only a division."""
        flow = known.flow
        for region in fused_regions(known):
            inside, normal = Inside(known, region), region.normal
            if normal is None or not known.options.kernels.fuses[region.kind].quotient or not inside.multiplies(normal):
                continue
            for value, data in (normal.inputs, normal.inputs[::-1]):
                inverse = inside.only_for(value, normal)
                divisor = _divisor_of_inverse(known, inverse) if inverse is not None else NONE
                if inverse is not None and divisor != NONE and data != NONE:
                    names = (flow.values[data].name, flow.values[divisor].name)
                    yield cls("quotient", *cls.place(flow, inverse, normal), *names)
                    break

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes a Div in the place of the product; the inverse is taken away."""
        self.operands(editor, flow)
        editor.replace(self.scope, self.nodes, self.writes, self.reads, {})


def _divisor_of_inverse(known: Known, op: Op) -> int:
    """Rewrite `quotient`: the value whose inverse an operator makes, if it divides one by it; else NONE."""
    places = known.traits.positions(op.role, "divides")
    ones = all(known.flow.scalar(v) == 1 for place, v in enumerate(op.inputs) if place not in places)
    return op.inputs[places[0]] if places and ones else NONE


APPROXIMATE = {"erf": "none", "tanh": "tanh", "tanh of squares": "tanh"}
"""Variant of the pattern -> the operator's attribute."""


@dataclass(frozen=True)
class Gelu(RewriteRule):
    """Writes a GELU in simple operators as Gelu of the value ``source``; ``approximate`` is its attribute."""

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
        """Yields the regions that compute a GELU by erf or tanh and had better be its operator."""
        flow = known.flow
        for region in fused_regions(known):
            if region.variant in APPROXIMATE and _is_operator_better(known, region):
                source = flow.values[region.source].name
                yield cls("gelu", *cls.place(flow, *in_file_order(region)), source, APPROXIMATE[region.variant])

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Gelu:
        """The rewrite that a row of plan format 1 means, whose kind named the approximation."""
        return cls(name, scope, nodes, row["inputs"][0], "tanh" if row["kind"] == "Gelu by tanh" else "none")

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes the operator Gelu in the place of the region."""
        self.operands(editor, flow)
        editor.replace(self.scope, self.nodes, "Gelu", (self.source,), {"approximate": self.approximate})


def _is_operator_better(known: Known, region: Region) -> bool:
    """Rewrite `gelu`: whether a region may become its operator, which the target knows in low, but not the region."""
    flow, options = known.flow, known.options
    if not region.fixed or not 0 < region.since <= flow.opset or region.source == NONE:
        return False
    admits = options.kernels.admits(region.kind, flow.opset, "T", options.dtype)
    return bool(admits) and is_split(flow, options, region) and len({op.scope for op in region.ops}) == 1


CUBED = {"tanh": "tanh of squares"}
"""Variant of a pattern -> another one that has the same numbers, as which it can be written."""
CUBE = 3
NUMBERS = (0.044715, 0.7978845608, 1.0, 0.5)
"""Of a GELU by tanh: the cube's factor, the sum's, one and half."""


@dataclass(frozen=True)
class GeluOfSquares(RewriteRule):
    """Writes a GELU by tanh as source * half * (one + tanh(source * factor * (one + source * cubic * source))), whose
    stored numbers ``cubic``, ``factor``, ``one`` and ``half`` are the region's; all five are names of values."""

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
        """Yields the GELUs by tanh that the target fuses only as products, with stored numbers at known places."""
        flow = known.flow
        for region in fused_regions(known):
            if (
                region.source == NONE
                or not _is_other_form_better(known, region)
                or len({op.scope for op in region.ops}) > 1
            ):
                continue
            numbers = [_stored_number(flow, region, number) for number in NUMBERS]
            if NONE not in numbers:
                source, cubic, factor, one, half = (flow.values[v].name for v in (region.source, *numbers))
                yield cls("squares", *cls.place(flow, *in_file_order(region)), source, cubic, factor, one, half)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes the GELU by new operators but for the last one, which stays."""
        ops, (x, cubic, factor, one, half) = self.edited(editor), self.operands(editor, flow)

        def new(kind: str, *given: Value) -> Value:
            """Adds an operator that reads some values, and returns its result."""
            (result,) = editor.add(kind, given, [FLOAT32], scope=ops[-1].scope, name=f"{x.name}_{kind}")
            return result

        cube = new("Mul", new("Mul", x, factor), new("Add", new("Mul", new("Mul", x, cubic), x), one))
        for place, value in enumerate((new("Mul", x, half), new("Add", new("Tanh", cube), one))):
            editor.rewire(value, [(self.scope, self.nodes[-1], place)])
        for op in reversed(ops[:-1]):
            editor.remove(op)


def _is_other_form_better(known: Known, region: Region) -> bool:
    """Rewrite `squares`: whether the target makes one kernel of a GELU in the other form, and not as it is: it stays
    float32, or reads or makes what does; or it has no power of 3; or a Cast would split it, where norms are float32."""
    flow, options = known.flow, known.options
    fused, other = options.kernels.fuses[region.kind], CUBED.get(region.variant, "")
    if other not in fused.wide_variants or not is_closed(flow, region):
        return False
    listing = options.lists.entry(region.kind)
    if listing is not None and options.level.of_class(listing.cls) == "float32":
        return True
    held = matched_op_ids(flow, (*options.fp32, *options.pinned))
    float32 = {*known.passing, *(v for op in held for v in flow.ops[op].outputs)}
    if any(v in float32 for op in region.ops for v in (*op.inputs, *op.outputs)):
        return True
    if is_split(flow, options, region):
        return not options.level.lowers_everything
    return all(flow.scalar(v) != CUBE for op in region.ops for v in op.inputs if v != NONE)


def _stored_number(flow: Dataflow, region: Region, number: float) -> int:
    """Rewrite `squares`: the first value of a region that stores a number, to 1e-4 relative; NONE if none does."""
    read = (v for op in region.ops for v in op.inputs if v != NONE)
    return next((v for v in read if isclose(flow.scalar(v) or 0.0, number, rel_tol=1e-4)), NONE)
