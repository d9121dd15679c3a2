"""The policy ``mxnet``: what `mxnet.contrib.amp.convert_symbol` does with a symbol.

Source of the rule: MXNet 1.9.1, src/nnvm/low_precision_pass.cc. The operators are walked once, in order; of every value
it is known in which types a copy of it exists by then. Data and parameters are float32, of which MXNet knows nothing
until somebody casts them. One difference: where MXNet takes a float32 value for low because somebody had cast it, and
writes a symbol that does not bind, the real type counts here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.plan import Note, Why
from ...oplists.options import Options
from ..assemble import DecidedModel
from ..decisions import HIGH, LIST, LOW, USER, Verdict, Verdicts, describe
from .forward import PARITY, Begun, begin, unlisted_notes
from .registry import Policy, register

FOLLOWS = "either"
SORTS: Mapping[str, str] = {"low": "low", "float32": "float32", "conditional": "float32", "widest": "widest"}
"""Class of MXNet's list -> what it comes to; every other operator takes the type of its first operand (`FOLLOWS`)."""


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Decides every unit as MXNet would type it. Where units that must share a type got two, all of them are float32
    and the walk is repeated; the loop ends, as ``shared`` only grows."""
    begun = begin(flow, options)
    shared: dict[int, str] = {}
    while True:
        walk = _MxnetTypes(begun, shared)
        found = walk.units_of_two_types()
        if not found:
            return begun.finish("MXNet", Verdicts(walk.verdicts()), walk.refused, walk.notes())
        shared |= found


class _MxnetTypes:
    """Types as MXNet gives them in one walk through a model. ``shared``: units that are float32 because one that they
    are tied to is, by representative, with why."""

    def __init__(self, begun: Begun, shared: Mapping[int, str]) -> None:
        self.begun, self.shared = begun, shared
        self.flow, self.options = begun.flow, begun.options
        self.copies: dict[int, set[str]] = {}  # value -> the types in which a copy of it is known to exist
        self.low: dict[int, bool] = {}  # unit of an operator -> whether it is low
        self.why: dict[int, str] = {}  # unit -> why it has its type
        self.refused: dict[int, str] = {}  # units that would be low, and are given as float32, with why they would
        for op in self.flow.ops:
            self._visit(op)

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def units_of_two_types(self) -> dict[int, str]:
        """Units that must share a type and got two from MXNet's walk, by representative, with why all are float32."""
        high = {self.flow.find(unit): self.why.get(unit, "") for unit, low in self.low.items() if not low}
        low_roots = [self.flow.find(unit) for unit, low in self.low.items() if low]
        return {root: f"shares its type with what is float32: {high[root]}" for root in low_roots if root in high}

    def verdicts(self) -> Iterator[tuple[int, Verdict]]:
        """Yields every unit with its verdict by MXNet's walk; one outside of operators is float32."""
        for unit in self.flow.units:
            why = Why("mxnet", self.why.get(unit.id, "is float32 outside of operators"))
            yield unit.id, Verdict(LOW if self.low.get(unit.id) else HIGH, LIST, why)

    def notes(self) -> Iterator[Note]:
        """Notes on products of a parameter, which MXNet has as `dot` here, and on operators that it has no name for."""
        flow, traits = self.flow, self.options.lists.traits
        products = [op for op in flow.ops if self._sort_of(op) == "widest" and traits.has(op.role, "products")]
        found = [op for op in products if any(source != NONE and flow.values[source].parameter for source in op.inputs)]
        if found:
            rule = "float32 if an operand is; FullyConnected is Gemm"
            text = f"{len(found)} {found[0].kind} of a parameter go by dot: {rule}"
            yield Note(PARITY, describe(flow, found[0]), text)
        unlisted = (op for op in flow.ops if op.slots and self.options.lists.listing(flow, op) is None)
        yield from unlisted_notes(flow, "MXNet", unlisted, "the type of the first operand")

    # -- the walk -----------------------------------------------------------------------------------------------------

    def _visit(self, op: Op) -> None:
        """Types one operator as MXNet's list says: low, float32, the widest type of its operands, or the first's."""
        operands = [source for source in op.inputs if source != NONE and self._is_float(self.flow.values[source])]
        sort = "float32" if self._is_excluded(op) else self._sort_of(op)
        if sort == "low":
            self._type_operator(op, True, f"{op.kind} is cast to low")
        elif sort == "float32":
            self._type_operator(op, False, f"{op.kind} is cast to float32")
        elif sort == "widest":
            self._type_by_widest(op, operands)
        else:
            self._type_by_first(op, operands)

    def _is_excluded(self, op: Op) -> bool:
        """Whether the user's pattern holds an operator in float32, as MXNet does with names in excluded_sym_names."""
        given = self.begun.given
        return any(given.ranks[given.find(unit)] == USER and given.is_high(unit) for unit in op.slots.values())

    def _sort_of(self, op: Op) -> str:
        """What MXNet does with an operator: ``low``, ``float32``, ``widest`` or `FOLLOWS`. With a number beside a
        tensor it has another operator (`_plus_scalar`), which follows the tensor."""
        listing = self.options.lists.listing(self.flow, op)
        sort = SORTS.get(listing.cls, FOLLOWS) if listing is not None else FOLLOWS
        if self.options.lists.traits.has(op.role, "stored_statistics") and self._share_a_slot(op, 0, 1):
            return "float32"  # before opset 15 its scale has no type of its own
        if sort != "widest" or len(op.inputs) != 2:
            return sort
        weak = [_is_number(self.flow, source) for source in op.inputs]
        if weak == [True, False] and self.options.lists.traits.has(op.role, "divides"):
            return "float32"  # _rdiv_scalar
        return FOLLOWS if any(weak) and not all(weak) else sort

    def _type_by_widest(self, op: Op, operands: list[int]) -> None:
        """Types an operator that takes the widest type in MXNet: float32 if any of ``operands`` (its values of a float
        type) is there in float32, or in no type that MXNet knows; else low."""
        known = {source: self.copies.get(source, set()) for source in operands}
        unknown = next((source for source, types in known.items() if not types), None)
        wide = next((source for source, types in known.items() if FLOAT32 in types), None)
        if unknown is not None:
            why = f"takes the widest type, and '{self.flow.values[unknown].name}' is float32"
            self._type_operator(op, False, why, knows_results=False)
        elif wide is not None:
            why = f"takes the widest type, and '{self.flow.values[wide].name}' is there in float32"
            self._type_operator(op, False, why)
        else:
            self._type_operator(op, True, "takes the widest type, and all operands are there in low")

    def _type_by_first(self, op: Op, operands: list[int]) -> None:
        """Types an operator as the first of ``operands`` that is no number to MXNet; float32 where there is none."""
        first = next((source for source in operands if not _is_number(self.flow, source)), None)
        if first is None:
            self._type_operator(op, False, "is made as float32", knows_results=False)
            return
        low, known = self._is_low(self.flow.values[first]), bool(self.copies.get(first))
        why = f"takes the type of '{self.flow.values[first].name}'"
        self._type_operator(op, low, why, knows_results=known, casts_operands=False)

    def _type_operator(
        self, op: Op, low: bool, why: str, knows_results: bool = True, casts_operands: bool = True
    ) -> None:
        """Types an operator's slots low or float32 as MXNet would, but for what is given, shared or a conversion's.
        ``knows_results``: whether MXNet knows the types of its results from then on; ``casts_operands``: whether it
        casts what it reads, so that the copy is there for later readers."""
        given, converts = self.begun.given, self.options.lists.traits.has(op.role, "casts")
        for slot, unit in op.slots.items():
            result_of_cast = converts and slot == "T2"
            if low and given.is_high(unit) and not result_of_cast:
                self.refused[unit] = why
            held = given.is_high(unit) or self.flow.find(unit) in self.shared or result_of_cast
            self.low[unit] = given.is_low(unit) or (low and not held)
            own_why = "is a conversion in the file" if result_of_cast else why
            self.why[unit] = self.shared.get(self.flow.find(unit), own_why)
        for source in op.inputs if knows_results and casts_operands else ():
            self._note_copy(op, source)
        for result in op.outputs:
            value = self.flow.values[result]
            if knows_results and self._is_float(value):
                self.copies[result] = {self.options.dtype if self._is_low(value) else FLOAT32}

    def _note_copy(self, op: Op, source: int) -> None:
        """Notes that from now on MXNet has a copy of a value (`NONE`: no operand) in the type that an operator reads.
        An input or stored tensor that is read in float32 needs no copy: it is noted only if another copy is."""
        units = [u.unit for u in self.flow.uses[source] if u.op == op.id and u.unit != NONE] if source != NONE else []
        if not units:
            return
        low, variable = self.low[units[0]], self.flow.values[source].producer == NONE
        if low or not variable or self.copies.get(source):
            self.copies.setdefault(source, set()).add(self.options.dtype if low else FLOAT32)

    def _share_a_slot(self, op: Op, one: int, other: int) -> bool:
        """Whether the operands at two places of an operator can only have one type: their slots are one or are tied."""
        uses = [use for place in (one, other) for use in self.flow.uses[op.inputs[place]] if use.op == op.id]
        return len({self.flow.find(use.unit) for use in uses if use.unit != NONE and use.index in (one, other)}) == 1

    def _is_float(self, value: Value) -> bool:
        """Whether MXNet's lists speak of the value's type: float32 or the low one."""
        return value.dtype in (FLOAT32, self.options.dtype)

    def _is_low(self, value: Value) -> bool:
        """Whether a value itself, no copy that MXNet made of it, is low."""
        if value.dtype != FLOAT32:
            return value.dtype == self.options.dtype
        if value.unit == NONE:
            return False
        return self.low.get(value.unit, self.begun.given.is_low(value.unit))


def _is_number(flow: Dataflow, value: int) -> bool:
    """Whether a value is a number to MXNet, an attribute of the operator: a stored tensor without dimensions."""
    return value != NONE and flow.values[value].weight and flow.shape(value) == ()


register(
    Policy(
        name="mxnet",
        framework="MXNet",
        rule=decide,
        levels={"O0": "off", "auto": "amp.convert_symbol"},
        default_level="auto",
        dtypes=("float16",),
    )
)
