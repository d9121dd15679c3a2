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
"""What a class of the list comes to; every other operator takes the type of its first operand."""


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit as MXNet would type it."""
    begun = begin(flow, options)
    shared: dict[int, str] = {}
    while True:
        walk = _MxnetTypes(begun, shared)
        found = walk.disagreeing()
        if not found:
            return begun.finish("MXNet", Verdicts(walk.verdicts()), walk.refused, walk.notes())
        shared |= found


class _MxnetTypes:
    """Types as MXNet gives them in one walk through a model. ``shared``: representatives of units that are float32
    because one of them is."""

    def __init__(self, begun: Begun, shared: Mapping[int, str]) -> None:
        self.begun, self.shared = begun, shared
        self.flow, self.options = begun.flow, begun.options
        self.known: dict[int, set[str]] = {}  # value -> the types in which a copy of it is known to exist
        self.low: dict[int, bool] = {}  # by unit
        self.why: dict[int, str] = {}
        self.refused: dict[int, str] = {}  # units that would be low, and are held
        for op in self.flow.ops:
            self._visit(op)

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def disagreeing(self) -> dict[int, str]:
        """Representatives of units that must share a type and got two."""
        high = {self.flow.find(u): self.why.get(u, "") for u, low in self.low.items() if not low}
        return {
            self.flow.find(unit): f"shares its type with what is float32: {high[self.flow.find(unit)]}"
            for unit, low in self.low.items()
            if low and self.flow.find(unit) in high
        }

    def verdicts(self) -> Iterator[tuple[int, Verdict]]:
        """Every unit with its side and what decided it."""
        for unit in self.flow.units:
            why = Why("mxnet", self.why.get(unit.id, "is float32 outside of operators"))
            yield unit.id, Verdict(LOW if self.low.get(unit.id) else HIGH, LIST, why)

    def notes(self) -> Iterator[Note]:
        """Products of a parameter that are `dot` as the file has them, and kinds that MXNet has no name for."""
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
        """Types one operator as its list says: low, float32, the widest of its operands, or that of the first."""
        operands = [source for source in op.inputs if source != NONE and self._is_float(self.flow.values[source])]
        sort = "float32" if self._is_excluded(op) else self._sort_of(op)
        if sort == "low":
            self._type_operator(op, True, f"{op.kind} is cast to low")
        elif sort == "float32":
            self._type_operator(op, False, f"{op.kind} is cast to float32")
        elif sort == "widest":
            self._widest(op, operands)
        else:
            self._follow(op, operands)

    def _is_excluded(self, op: Op) -> bool:
        """Whether a pattern holds an operator: to MXNet a name in excluded_sym_names is a float32 operator's."""
        given = self.begun.given
        return any(given.ranks[given.find(unit)] == USER and given.is_high(unit) for unit in op.slots.values())

    def _sort_of(self, op: Op) -> str:
        """What MXNet does with an operator: low, float32, widest or follows, numbers beside a tensor considered."""
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

    def _widest(self, op: Op, operands: list[int]) -> None:
        """Float32 if any operand is there in float32, or is of a type that MXNet does not know; else low."""
        known = {source: self.known.get(source, set()) for source in operands}
        blind = next((source for source, types in known.items() if not types), None)
        wide = next((source for source, types in known.items() if FLOAT32 in types), None)
        if blind is not None:
            self._type_operator(op, False, f"takes the widest type, and '{self._name(blind)}' is float32", known=False)
        elif wide is not None:
            self._type_operator(op, False, f"takes the widest type, and '{self._name(wide)}' is there in float32")
        else:
            self._type_operator(op, True, "takes the widest type, and all operands are there in low")

    def _follow(self, op: Op, operands: list[int]) -> None:
        """The type of the first operand that is no number."""
        first = next((source for source in operands if not _is_number(self.flow, source)), None)
        if first is None:
            self._type_operator(op, False, "is made as float32", known=False)
            return
        low, known = self._is_low(self.flow.values[first]), bool(self.known.get(first))
        self._type_operator(op, low, f"takes the type of '{self._name(first)}'", known=known, copies=False)

    def _type_operator(self, op: Op, low: bool, why: str, known: bool = True, copies: bool = True) -> None:
        """Types an operator. ``known``: whether MXNet knows the types of its results from then on; ``copies``: whether
        it casts what it reads, so that the copy is there for later readers."""
        given, converts = self.begun.given, self.options.lists.traits.has(op.role, "casts")
        for slot, unit in op.slots.items():
            made = converts and slot == "T2"  # a conversion in the file
            if low and given.is_high(unit) and not made:
                self.refused[unit] = why
            held = given.is_high(unit) or self.flow.find(unit) in self.shared or made
            self.low[unit] = given.is_low(unit) or (low and not held)
            self.why[unit] = self.shared.get(self.flow.find(unit), "is a conversion in the file" if made else why)
        for source in op.inputs if known and copies else ():
            self._note_copy(op, source)
        for result in op.outputs:
            value = self.flow.values[result]
            if known and self._is_float(value):
                self.known[result] = {self.options.dtype if self._is_low(value) else FLOAT32}

    def _note_copy(self, op: Op, source: int) -> None:
        """Notes that a copy in the type that an operator reads exists for whatever follows."""
        units = [u.unit for u in self.flow.uses[source] if u.op == op.id and u.unit != NONE] if source != NONE else []
        if not units:
            return
        low, variable = self.low[units[0]], self.flow.values[source].producer == NONE
        if low or not variable or self.known.get(source):
            self.known.setdefault(source, set()).add(self.options.dtype if low else FLOAT32)

    def _share_a_slot(self, op: Op, one: int, other: int) -> bool:
        """Whether two operands of an operator, by their places, are of one slot, so that they can only have one
        type."""
        uses = [use for place in (one, other) for use in self.flow.uses[op.inputs[place]] if use.op == op.id]
        return len({self.flow.find(use.unit) for use in uses if use.unit != NONE and use.index in (one, other)}) == 1

    def _name(self, value: int) -> str:
        """What a reason calls a value: its name in the file."""
        return self.flow.values[value].name

    def _is_float(self, value: Value) -> bool:
        """Whether MXNet's lists speak of the value's type: float32 or the low one."""
        return value.dtype in (FLOAT32, self.options.dtype)

    def _is_low(self, value: Value) -> bool:
        """Whether the value itself, no copy of it, is low."""
        if value.dtype != FLOAT32:
            return value.dtype == self.options.dtype
        if value.unit == NONE:
            return False
        return self.low.get(value.unit, self.begun.given.is_low(value.unit))


def _is_number(flow: Dataflow, value: int) -> bool:
    """A stored tensor without dimensions is a number, which MXNet has as an attribute of the operator."""
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
