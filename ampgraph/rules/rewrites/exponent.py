"""What was measured to leave the low type's range, by a power of two: folded into the weights that write and read it.

A value v is held as v * 2^-e. Powers of two are exact, so that the float32 result is the same to the bit: products take
the exponent in their weights, additions have operands of one exponent, a norm that reads it is exact by its eps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import NodeEditor
from ...core.rewrites import known_rewrites
from ...core.shown import plural
from ...oplists.traits import Traits, traits
from ..fusions import regions
from ..known import Known, named_ops
from ..rewrite import RewriteRule

EPSILON = -1  # in edits, in the place of an operand: the attribute `epsilon`
SMALLEST = -126  # of float32's normal exponents
MOST = 60  # an exponent that no activation needs
DIGITS = 2.0**-11  # what rounding to float16 costs at most, but for what is subnormal

Exponents = Mapping[int, int]
"""Value -> e: it is held as 2^-e of what it was."""


@dataclass(frozen=True)
class Exponent(RewriteRule):
    """Nodes: all that write or read a scaled value. ``exponents``: of values of this scope, by name: one that has e is
    held as 2^-e of what it was. ``reason``: what was measured."""

    exponents: tuple[tuple[str, int], ...]
    reason: str

    names = ("exponent",)
    writes = "group of values scaled by a power of two"
    rewires = exchanges = True

    @property
    def what(self) -> str:
        """What this rewrite writes, in words that reports count by."""
        return f"{self.summary_text(1)} ({self.name})"

    def summary_text(self, count: int) -> str:
        """What a summary says of one rewrite by exponents; its reason is its own, so ``count`` is always 1."""
        return f"{plural(len(self.exponents), 'value')} scaled by powers of two, as {self.reason}"

    @property
    def explanation(self) -> str:
        """What became of a node beside a scaled value, as `explain` says it: the reason first."""
        return f"{self.reason}: what it reads or writes is scaled by a power of two, and stored tensors with it"

    @property
    def renamed(self) -> Mapping[str, tuple[str, int]]:
        """Scaled values by name: the name that they get, and their exponent."""
        return {name: (f"{name}_scaled", exponent) for name, exponent in self.exponents}

    @classmethod
    def find(cls, known: Known) -> Iterator[RewriteRule]:
        """Grows a group of values to scale around each value beyond the range, the largest first, and yields one
        rewrite for all groups that can be written. Norms in simple operators that read a scaled value and are written
        as one follow as rewrites of their own, by another epsilon. Only for float16: bfloat16 has float32's range."""
        flow, limit = known.flow, known.options.largest / known.options.range_margin
        beyond = [v for v, reach in known.measured.reach.items() if reach > limit and v in known.passing]
        if not beyond or known.options.dtype != "float16":
            return
        inside = {v for region in regions(flow) for op in region.ops if op is not region.result for v in op.outputs}
        exponents: dict[int, int] = {}
        reasons: list[str] = []
        growth = _Growth(known)
        for seed in sorted(set(beyond) - inside, key=lambda v: (-known.measured.reach[v], v)):
            if seed in exponents or seed in growth.failed:
                continue
            degrees = growth.degrees_around(seed, exponents)
            found = _exponents_of_group(known, degrees, limit)
            if found and growth.can_be_written({**exponents, **found}, found):
                exponents |= found
                reasons.append(f"'{flow.values[seed].name}' reaches {known.measured.reach[seed]:.4g}")
            else:
                growth.failed |= {v for v, degree in degrees.items() if degree == 1}
        if exponents:
            touched = {op.id: op for v in exponents for op in _makers_and_readers(flow, v)}
            norms = list(_rescaled_norms(known, exponents))
            for norm in norms:
                for op in norm.ops(flow):
                    touched.pop(op.id, None)
                    for v in op.outputs:
                        exponents.pop(v, None)
            nodes = sorted(touched.values(), key=lambda op: op.index)
            named = tuple((flow.values[v].name, e) for v, e in sorted(exponents.items()))
            yield cls("exponent", *cls.place(flow, *nodes), named, ", ".join(reasons))
            yield from norms

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Scales operands and epsilons by the powers of two that give every scaled value its exponent: stored tensors
        anew, once a power, others by a Mul. What nobody reads any more is dropped; `finish` renames the values."""
        ops, by_name = self.edited(editor), dict(self.exponents)
        made = [v for op in ops for v in op.outputs if v != NONE and flow.values[v].name in by_name]
        found = {v: by_name[flow.values[v].name] for v in made}
        self.refuse(len(found) == len(by_name) and all(abs(e) <= 2 * MOST for e in found.values()))
        scaled: dict[tuple[int, int], Value] = {}
        for op in ops:
            changes = scaling_edits(flow, traits(), op, found)
            self.refuse(changes is not None)
            for place, exponent in (changes or {}).items():
                if place == EPSILON:
                    editor.set_number(op, "epsilon", _epsilon(flow, op) * 2.0**-exponent)
                    continue
                value = flow.values[op.inputs[place]]
                if (value.id, exponent) not in scaled:
                    scaled[value.id, exponent] = self._write_scaled(editor, flow, value, exponent)
                editor.rewire(scaled[value.id, exponent], [(self.scope, op.index, place)])
        for value in dict.fromkeys(flow.values[v] for v, _ in scaled if flow.values[v].weight):
            editor.drop_unread(value)

    def finish(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Renames the scaled values, so that nothing that compares values by name takes them for the original ones."""
        by_name = dict(self.exponents)
        for op in self.edited(editor):
            for v in op.outputs:
                if flow.values[v].name in by_name:
                    editor.rename(flow.values[v], "scaled")

    def _write_scaled(self, editor: NodeEditor, flow: Dataflow, value: Value, exponent: int) -> Value:
        """Writes 2^-exponent of a value and returns it; AmpError AMP402 where a stored tensor cannot be read."""
        factor = np.float32(2.0**-exponent)
        name = f"{value.name}_by_2_{-exponent}"
        if value.weight:
            array = flow.weights.array(value, 1 << 62)
            self.refuse(array is not None)
            assert array is not None
            return editor.store(array * factor, name, value.scope)
        power = editor.store(np.array(factor), f"{name}_power", value.scope)
        (made,) = editor.add("Mul", [value, power], [value], name=name, node=f"{name}_Mul", shaped=True)
        return made


def _rescaled_norms(known: Known, exponents: Exponents) -> Iterator[RewriteRule]:
    """Yields the rewrites of norms as one operator that read a scaled value, each with the epsilon that fits it."""
    kind = known_rewrites()["norm"]
    assert issubclass(kind, RewriteRule)  # not imported: no rewrite's module imports another's
    for norm in kind.find(known):
        rescaled = norm.rescaled(known.flow, exponents) if norm.name in known.options.rewrites else None
        if rescaled is not None:
            yield rescaled


def scaling_edits(flow: Dataflow, known: Traits, op: Op, exponents: Exponents) -> dict[int, int] | None:
    """Rewrite `exponent`: which operands have to be multiplied by 2^-e on top, so that an operator reads and writes
    values of some exponents: place (or `EPSILON`) -> e. Empty where none has to; None where that cannot be."""
    given = [exponents.get(v, 0) for v in op.inputs]
    out = exponents.get(op.outputs[0], 0)
    if known.has(op.role, "shapes"):
        return {}
    found = dict[int, int]()
    if _is_homogeneous(flow, known, op):
        found = {p: out - e for p, e in enumerate(given) if known.at(op.role, "homogeneous", p)}
    elif known.has(op.role, "rescales"):
        found = dict.fromkeys(known.positions(op.role, "rescales"), out) | {EPSILON: 2 * given[0]}
        if any(given[1:]):
            return None
    elif known.has(op.role, "stored_statistics"):
        found = {1: out - given[0], 2: out, 3: given[0]}
    elif known.positions(op.role, "linear_in") or _is_scaling(known, op):
        found = _product_edits(flow, known, op, given, out)
    elif (power := _power(flow, known, op)) is not None:
        return {} if out == given[0] * power else None
    elif not out:
        found = {p: -e for p, e in enumerate(given)}
    else:
        return None
    if any(exponents.get(v) for v in op.outputs[1:]) and not _is_homogeneous(flow, known, op):
        return None
    present = {EPSILON, *(place for place, v in enumerate(op.inputs) if v != NONE)}
    return {place: e for place, e in found.items() if e and place in present}


def _product_edits(flow: Dataflow, known: Traits, op: Op, given: list[int], out: int) -> dict[int, int]:
    """Rewrite `exponent`: the edits (place -> e) of a product of operands with exponents ``given`` that makes one with
    ``out``. A bias takes ``out``; one factor, the first of a Mul or Div if it is stored, else the second, the rest."""
    biases = known.positions(op.role, "linear_in")[1:]
    found = {place: out - given[place] for place in biases if place < len(given)}
    divides = known.has(op.role, "divides")
    missing = out - (given[0] - given[1] if divides else given[0] + given[1])
    if _is_scaling(known, op) and flow.values[op.inputs[0]].weight:
        found[0] = missing
    else:
        found[1] = -missing if divides else missing
    return found


def _is_scaling(known: Traits, op: Op) -> bool:
    """Rewrite `exponent`: whether an operator multiplies or divides two operands."""
    return known.has(op.role, "scalings") and len(op.inputs) == 2


def _is_homogeneous(flow: Dataflow, known: Traits, op: Op) -> bool:
    """Rewrite `exponent`: whether the result is scaled as the data, f(a x) = a f(x). No Clip or Pad whose numbers are
    attributes (in early opsets), and no Scatter that multiplies or compares."""
    if not known.has(op.role, "homogeneous"):
        return False
    if known.has(op.role, "bounds") or known.has(op.role, "pads"):
        return all(flow.number(op, name) is None for name in ("min", "max", "value"))
    return not known.has(op.role, "joins") or flow.attribute(op, "reduction") in (None, "none", b"none", "add")


def _power(flow: Dataflow, known: Traits, op: Op) -> float | None:
    """Rewrite `exponent`: the p of an operator that computes x^p: 0.5 for a Sqrt, -1 for a Reciprocal (a division of
    one operand), the stored exponent of a Pow. None for any other operator, and for a Pow by a computed exponent."""
    if known.has(op.role, "roots"):
        return 0.5
    if known.has(op.role, "divides") and len(op.inputs) == 1:
        return -1.0
    places = known.positions(op.role, "powers")
    return flow.scalar(op.inputs[places[0]]) if places else None


def _epsilon(flow: Dataflow, op: Op) -> float:
    """Rewrite `exponent`: the epsilon of a norm, as float32 has it; ONNX's own where none is given."""
    given = flow.number(op, "epsilon")
    return 1e-5 if given is None else float(np.float32(given))


def _makers_and_readers(flow: Dataflow, value: int) -> list[Op]:
    """Rewrite `exponent`: the operators that make and read a value; graph inputs have no maker."""
    writer = flow.writer(value)
    return [*([] if writer is None else [writer]), *flow.readers(value)]


def _exponents_of_group(known: Known, degrees: Exponents, limit: float) -> dict[int, int]:
    """Rewrite `exponent`: the exponent of each value of a group, by its degree: as small as brings what was measured of
    values of degree 1 below ``limit``. Empty where that is `MOST` or more."""
    most = 0
    for v, degree in degrees.items():
        if degree == 1 and known.measured.reach.get(v, 0.0) > limit:
            most = max(most, math.ceil(math.log2(known.measured.reach[v] / limit)))
    return {v: most * degree for v, degree in degrees.items()} if most < MOST else {}


class _CannotScale(Exception):
    """Raised where a group of values that grows reaches one that cannot be scaled."""


class _Growth:
    """Rewrite `exponent`: grows a group of values that are scaled together from one. A value's degree is its exponent
    in multiples of the group's: a square has two. ``failed``: values that no group can scale; ``forced``: those that
    must have degree 1 in the current group; ``makeable``: those whose maker can give them any exponent."""

    def __init__(self, known: Known) -> None:
        self.known, self.flow, self.traits = known, known.flow, known.traits
        self.reach = known.measured.reach
        self.limit = known.options.largest / known.options.range_margin
        self.ops = [op for op in self.flow.ops if op.scope == 0]
        self.failed: set[int] = set()
        self.forced: set[int] = set()
        self.degrees: dict[int, int] = {}
        self.makeable: set[int] = set()
        for op in self.ops:
            if op.outputs and op.slots and self._may_make(op):
                self.makeable.update({*op.outputs} - {NONE})

    def degrees_around(self, seed: int, taken: Exponents) -> dict[int, int]:
        """The degrees of the values that have to be scaled with ``seed``; empty where that cannot be, or one is in
        ``taken``. A visit of all operators may force values further up, and is repeated then."""
        self.forced, self.degrees, before = set(), {}, -1
        try:
            self._force(seed)
            while len(self.forced) > before:
                before, self.degrees = len(self.forced), {}
                for op in self.ops:
                    self._visit(op)
        except _CannotScale:
            self.failed.add(seed)
            return {}
        found = {v: degree for v, degree in self.degrees.items() if degree}
        return found if taken.keys().isdisjoint(found) and self.forced <= found.keys() else {}

    def can_be_written(self, exponents: Exponents, new: Exponents) -> bool:
        """In the scaled group: whether every operator around the ``new`` values can be written with all ``exponents``,
        loses nothing in low numbers, and is named by no pattern of the user's. Where norms are low (O3) the new
        exponents have to be one: another one is of a square inside a norm, which is low there."""
        named, low_norms = named_ops(self.known), self.known.options.level.lowers_everything
        smallest = min(e for e in new.values() if e > 0)
        if any(not self._is_inner(v) for v in new) or (low_norms and len({*new.values()}) > 1):
            return False
        for op in {op.id: op for v in new for op in _makers_and_readers(self.flow, v)}.values():
            changes = scaling_edits(self.flow, self.traits, op, exponents)
            if changes is None or op.id in named:
                return False
            in_norm = bool({exponents.get(v, 0) for v in (*op.inputs, *op.outputs)} - {0, smallest})
            if not all(self._loses_nothing(op, place, e, in_norm) for place, e in changes.items()):
                return False
        return True

    def _is_inner(self, v: int) -> bool:
        """In the scaled group: whether a float32 value is made and read by operators of the main graph alone."""
        value, uses = self.flow.values[v], self.flow.uses[v]
        made = value.dtype == FLOAT32 and not value.container and self.flow.writer(v) is not None and value.scope == 0
        return made and all(use.op != NONE and use.scope == 0 for use in uses)

    def _loses_nothing(self, op: Op, place: int, exponent: int, in_norm: bool) -> bool:
        """In the scaled group: whether to scale an operand by 2^-exponent loses nothing: a stored tensor is exact, and
        rounds to float16 as well unless ``in_norm``; a computed value stays in range, an epsilon a normal number."""
        if place == EPSILON:
            return math.log2(_epsilon(self.flow, op)) - exponent > SMALLEST
        value = self.flow.values[op.inputs[place]]
        if not value.weight:
            return value.dtype == FLOAT32 and self.reach.get(value.id, 0.0) <= self.limit
        array = self.flow.weights.array(value, 1 << 62)
        if array is None or array.dtype != np.float32 or value.scope != 0:
            return False
        scaled = array * np.float32(2.0**-exponent)
        exact = bool((scaled * np.float32(2.0**exponent) == array).all())
        return exact and (in_norm or _rounding_error(scaled) <= max(2 * _rounding_error(array), DIGITS))

    # -- growing ------------------------------------------------------------------------------------------------------

    def _may_make(self, op: Op) -> bool:
        """In the scaled group: whether an operator's result can have any exponent, by what is ``makeable`` so far."""
        handled = ("homogeneous", "rescales", "stored_statistics", "linear_in", "scalings", "shapes")
        if not all(self._is_inner(v) for v in op.outputs if v != NONE and self.flow.uses[v]):
            return False
        readers = [reader for v in op.outputs if v != NONE for reader in self.flow.readers(v)]
        if any(reader.role not in self.traits.operators(*handled) for reader in readers):
            return False
        if _is_homogeneous(self.flow, self.traits, op):
            return all(v in self.makeable or self.flow.values[v].weight for v in self._homogeneous_operands(op))
        return self._takes_any_exponent(op)

    def _homogeneous_operands(self, op: Op) -> list[int]:
        """In the scaled group: the operands in which an operator is homogeneous."""
        return [v for p, v in enumerate(op.inputs) if v != NONE and self.traits.at(op.role, "homogeneous", p)]

    def _takes_any_exponent(self, op: Op) -> bool:
        """In the scaled group: whether an operator has a stored operand that can be scaled to give its result any
        exponent: the second of a norm, convolution or product, either one of a Mul or Div."""
        if op.role in self.traits.operators("rescales", "stored_statistics", "linear_in"):
            return len(op.inputs) > 1 and self.flow.values[op.inputs[1]].weight
        return _is_scaling(self.traits, op) and any(self.flow.values[v].weight for v in op.inputs)

    def _force(self, seed: int) -> None:
        """In the scaled group: forces a value to degree 1, and what it is made of as far as operators are homogeneous.
        Raises _CannotScale for a value that cannot be scaled."""
        work = [seed]
        while work:
            v = work.pop()
            if v in self.forced:
                continue
            if not self._is_inner(v) or v in self.failed:
                raise _CannotScale
            self.forced.add(v)
            op = self.flow.writer(v)
            if op is not None and _is_homogeneous(self.flow, self.traits, op):
                work += [read for read in self._homogeneous_operands(op) if read in self.makeable]

    def _visit(self, op: Op) -> None:
        """In the scaled group: gives degrees to what an operator makes, where an operand has one or a result is forced.
        Raises _CannotScale where a forced result cannot have degree 1."""
        given = [self.degrees.get(v, 0) for v in op.inputs]
        wanted = any(v in self.forced for v in op.outputs)
        if not op.outputs or not (wanted or any(given)):
            return
        degree = self._degree(op, given, wanted)
        if wanted and degree != 1:
            raise _CannotScale
        if degree:
            self.degrees.update({v: degree for v in op.outputs if v != NONE})

    def _degree(self, op: Op, given: list[int], wanted: bool) -> int:
        """In the scaled group: the degree of an operator's result: of operands of degrees ``given``, 1 where it is
        ``wanted`` and can be. Raises _CannotScale where an operand cannot have its degree, or the result none."""
        if self.traits.has(op.role, "shapes"):
            return 0
        if _is_homogeneous(self.flow, self.traits, op):
            return self._common_degree(op, wanted)
        if self._takes_any_exponent(op):
            return int(wanted)
        if _is_scaling(self.traits, op) or self.traits.positions(op.role, "linear_in"):
            degree = given[0] - given[1] if self.traits.has(op.role, "divides") else given[0] + given[1]
            if wanted and not degree:
                self._force_factor(op)
                return 1
            return degree
        power = _power(self.flow, self.traits, op)
        if power is not None:
            if given[0] * power != int(given[0] * power):
                raise _CannotScale
            return int(given[0] * power)
        if any(degree and self._is_beyond(v) for v, degree in zip(op.inputs, given, strict=True)):
            raise _CannotScale
        return 0

    def _common_degree(self, op: Op, wanted: bool) -> int:
        """In the scaled group: the degree that a homogeneous operator's data and its result share, 0 if none has one.
        Operands without one yet need it: they are forced where what makes them can give it, else the edit multiplies
        them by a power of two where they are read. ``wanted``: the result is forced, so that its degree is 1. Raises
        _CannotScale where two differ."""
        data = self._homogeneous_operands(op)
        degrees = {degree for v in data if (degree := self.degrees.get(v, 0))} | ({1} if wanted else set())
        if len(degrees) != 1:
            if degrees:
                raise _CannotScale
            return 0
        (degree,) = degrees
        for v in data:
            if not self.degrees.get(v, 0) and not self.flow.values[v].weight:
                self._force_operand(v, degree)
        return degree

    def _force_operand(self, v: int, degree: int) -> None:
        """In the scaled group: forces a value that needs a degree, where it can be given. Raises _CannotScale for one
        beyond the range that cannot; any other is multiplied where it is read."""
        if degree == 1 and (v in self.makeable or self._is_beyond(v)):
            self._force(v)
        elif self._is_beyond(v):
            raise _CannotScale

    def _force_factor(self, op: Op) -> None:
        """In the scaled group: forces the operand of a forced product that reaches furthest, if one is makeable; else
        the second is multiplied where it is read. Raises _CannotScale if that is beyond the range."""
        square = op.inputs[0] == op.inputs[1]
        makeable = [v for v in op.inputs[1::-1] if v in self.makeable and not square]
        if makeable:
            self._force(max(makeable, key=lambda v: self.reach.get(v, 0.0)))
        elif self._is_beyond(op.inputs[1]):
            raise _CannotScale

    def _is_beyond(self, v: int) -> bool:
        """In the scaled group: whether a value passes the limit of the low type, so that it must be scaled."""
        return self.reach.get(v, 0.0) > self.limit


def _rounding_error(array: Array) -> float:
    """Rewrite `exponent`: the error of a tensor rounded to float16, its root mean square over the tensor's own; 0 for a
    tensor of zeros, infinite where a number overflows."""
    size = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0
    if not size:
        return 0.0
    with np.errstate(over="ignore"):
        error = array.astype(np.float16).astype(np.float64) - array
    return float(np.sqrt(np.mean(np.square(error)))) / size
