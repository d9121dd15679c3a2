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

EPSILON = -1  # the place of an edit of the attribute
SMALLEST = -126  # of float32's normal exponents
MOST = 60  # an exponent that no activation needs
DIGITS = 2.0**-11  # what rounding to float16 costs at most, but for what is subnormal

Exponents = Mapping[int, int]


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
        """What a summary says of such a group, which has a reason of its own."""
        return f"{plural(len(self.exponents), 'value')} scaled by powers of two, as {self.reason}"

    @property
    def explanation(self) -> str:
        """What became of a node of it, as `explain` says it: the reason first."""
        return f"{self.reason}: what it reads or writes is scaled by a power of two, and stored tensors with it"

    @property
    def renamed(self) -> Mapping[str, tuple[str, int]]:
        """Values by name: the name that they get, and the exponent by which what they hold differs."""
        return {name: (f"{name}_scaled", exponent) for name, exponent in self.exponents}

    @classmethod
    def find(cls, known: Known) -> Iterator[RewriteRule]:
        """The groups of values around each that passes the range, as far as they can be scaled; one row for all. With
        it norms in simple operators that are written as one, and read such a value: by another eps."""
        flow, limit = known.flow, known.options.largest / known.options.range_margin
        beyond = [v for v, reach in known.measured.reach.items() if reach > limit and v in known.passing]
        if not beyond or known.options.dtype != "float16":  # bfloat16 has float32's range
            return
        inside = {v for region in regions(flow) for op in region.ops if op is not region.result for v in op.outputs}
        taken: dict[int, int] = {}
        reasons: list[str] = []
        growth = _Growth(known)
        for seed in sorted(set(beyond) - inside, key=lambda v: (-known.measured.reach[v], v)):
            if seed in taken or seed in growth.failed:
                continue
            degrees = growth.around(seed, taken)
            found = _powers(known, degrees, limit)
            if found and growth.holds({**taken, **found}, found):
                taken |= found
                reasons.append(f"'{flow.values[seed].name}' reaches {known.measured.reach[seed]:.4g}")
            else:
                growth.failed |= {v for v, degree in degrees.items() if degree == 1}
        if taken:
            touched = {op.id: op for v in taken for op in _around(flow, v)}
            norms = list(_rescaled_norms(known, taken))
            for norm in norms:
                for op in norm.ops(flow):
                    touched.pop(op.id, None)
                    for v in op.outputs:
                        taken.pop(v, None)
            nodes = sorted(touched.values(), key=lambda op: op.index)
            exponents = tuple((flow.values[v].name, e) for v, e in sorted(taken.items()))
            yield cls("exponent", *cls.place(flow, *nodes), exponents, ", ".join(reasons))
            yield from norms

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Scales the stored tensors that its nodes read, and a norm's epsilon, by the powers that keep every product
        and sum right."""
        ops, by_name = self.edited(editor), dict(self.exponents)
        made = [v for op in ops for v in op.outputs if v != NONE and flow.values[v].name in by_name]
        found = {v: by_name[flow.values[v].name] for v in made}
        self.refuse(len(found) == len(by_name) and all(abs(e) <= 2 * MOST for e in found.values()))
        scaled: dict[tuple[int, int], Value] = {}
        for op in ops:
            changes = edits(flow, traits(), op, found)
            self.refuse(changes is not None)
            for place, exponent in (changes or {}).items():
                if place == EPSILON:
                    editor.set_number(op, "epsilon", _epsilon(flow, op) * 2.0**-exponent)
                    continue
                value = flow.values[op.inputs[place]]
                if (value.id, exponent) not in scaled:
                    scaled[value.id, exponent] = self._scaled(editor, flow, value, exponent)
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

    def _scaled(self, editor: NodeEditor, flow: Dataflow, value: Value, exponent: int) -> Value:
        """2^-exponent of a value: a stored tensor, or a product."""
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


def _rescaled_norms(known: Known, taken: Exponents) -> Iterator[RewriteRule]:
    """Norms that will be written as one operator and read a scaled value, with the epsilon that fits it."""
    kind = known_rewrites()["norm"]
    assert issubclass(kind, RewriteRule)  # not imported: no rewrite's module imports another's
    for norm in kind.find(known):
        now = norm.rescaled(known.flow, taken) if norm.name in known.options.rewrites else None
        if now is not None:
            yield now


def edits(flow: Dataflow, known: Traits, op: Op, exponents: Exponents) -> dict[int, int] | None:
    """Operand's place -> the e by which it is multiplied by 2^-e, so that an operator reads and writes values of some
    exponents; None where that cannot be."""
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
        found = _of_product(flow, known, op, given, out)
    elif (power := _power(flow, known, op)) is not None:
        return {} if out == given[0] * power else None
    elif not out:
        found = {p: -e for p, e in enumerate(given)}
    else:
        return None
    if any(exponents.get(v) for v in op.outputs[1:]) and not _is_homogeneous(flow, known, op):
        return None
    return {p: e for p, e in found.items() if e and (p == EPSILON or (p < len(op.inputs) and op.inputs[p] != NONE))}


def _of_product(flow: Dataflow, known: Traits, op: Op, given: list[int], out: int) -> dict[int, int]:
    """Rewrite `exponent`: the edit of a product: its stored operand (else the second) takes the difference of
    exponents; what is added takes the result's."""
    divides = known.has(op.role, "divides")
    left = out - given[0] - given[1] * (-1 if divides else 1)
    first = _is_scaling(known, op) and flow.values[op.inputs[0]].weight
    places = known.positions(op.role, "linear_in")[1:]
    return {p: out - given[p] for p in places if p < len(given)} | {
        int(not first): -left if divides and not first else left
    }


def _is_scaling(known: Traits, op: Op) -> bool:
    """Rewrite `exponent`: whether an operator multiplies or divides two operands."""
    return known.has(op.role, "scalings") and len(op.inputs) == 2


def _is_homogeneous(flow: Dataflow, known: Traits, op: Op) -> bool:
    """Rewrite `exponent`: whether the result is scaled as the data, f(a x) = a f(x); no Clip or Pad by own numbers."""
    old = known.has(op.role, "bounds") or known.has(op.role, "pads")
    own = any(flow.number(op, name) is not None for name in ("min", "max", "value"))
    reduces = known.has(op.role, "joins") and flow.attribute(op, "reduction") not in (None, "none", b"none", "add")
    return known.has(op.role, "homogeneous") and not (old and own) and not reduces


def _power(flow: Dataflow, known: Traits, op: Op) -> float | None:
    """Rewrite `exponent`: the p of an operator that computes x^p, from its exponent or its kind; None for any other."""
    if known.has(op.role, "roots"):
        return 0.5
    if known.has(op.role, "divides") and len(op.inputs) == 1:  # Reciprocal
        return -1.0
    places = known.positions(op.role, "powers")
    return flow.scalar(op.inputs[places[0]]) if places else None


def _epsilon(flow: Dataflow, op: Op) -> float:
    """Rewrite `exponent`: the epsilon of a norm, as float32 has it; ONNX's own where none is given."""
    given = flow.number(op, "epsilon")
    return 1e-5 if given is None else float(np.float32(given))


def _around(flow: Dataflow, value: int) -> list[Op]:
    """Rewrite `exponent`: the operators that make and read a value."""
    writer = flow.writer(value)
    return [*([] if writer is None else [writer]), *flow.readers(value)]


def _powers(known: Known, degrees: Exponents, limit: float) -> dict[int, int]:
    """Value of some degrees -> the exponent by which it is scaled: as small as measured ranges allow, none where there
    is none."""
    most = 0
    for v, degree in degrees.items():
        if degree == 1 and known.measured.reach.get(v, 0.0) > limit:
            most = max(most, math.ceil(math.log2(known.measured.reach[v] / limit)))
    return {v: most * degree for v, degree in degrees.items()} if most < MOST else {}


class _Ends(Exception):
    """A group reaches what cannot be scaled."""


class _Growth:
    """Rewrite `exponent`: grows a group of values that are scaled together from one value. A degree is an exponent in
    units of the group's: a square has two."""

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

    def around(self, seed: int, taken: Exponents) -> dict[int, int]:
        """The degrees of the values that have to be scaled with ``seed`` by the rewrite; none where they cannot be, and
        where one of them is ``taken``: scaled by another group.

        A visit of all operators may force more values, further up: visits are repeated until no more are forced.
        """
        self.forced, self.degrees, before = set(), {}, -1
        try:
            self._force(seed)
            while len(self.forced) > before:
                before, self.degrees = len(self.forced), {}
                for op in self.ops:
                    self._visit(op)
        except _Ends:
            self.failed.add(seed)
            return {}
        found = {v: degree for v, degree in self.degrees.items() if degree}
        return found if taken.keys().isdisjoint(found) and self.forced <= found.keys() else {}

    def holds(self, exponents: Exponents, new: Exponents) -> bool:
        """In the scaled group: whether every operator around new values can be written so, by low numbers as well."""
        spoken, wide = named_ops(self.known), self.known.options.level.fp32 == "low"
        one = min(e for e in new.values() if e > 0)
        if any(not self._is_inner(v) for v in new) or (wide and len({*new.values()}) > 1):
            return False
        for op in {op.id: op for v in new for op in _around(self.flow, v)}.values():
            changes = edits(self.flow, self.traits, op, exponents)
            if changes is None or op.id in spoken:
                return False
            inner = {exponents.get(v, 0) for v in (*op.inputs, *op.outputs)} - {0, one}
            if not all(self._keeps(op, place, e, bool(inner)) for place, e in changes.items()):
                return False
        return True

    def _is_inner(self, v: int) -> bool:
        """In the scaled group: whether a value is made and read in the main graph alone."""
        value, uses = self.flow.values[v], self.flow.uses[v]
        made = value.dtype == FLOAT32 and not value.container and self.flow.writer(v) is not None and value.scope == 0
        return made and all(use.op != NONE and use.scope == 0 for use in uses)

    def _keeps(self, op: Op, place: int, exponent: int, inner: bool) -> bool:
        """In the scaled group: whether an edit loses nothing. ``inner``: inside a norm, which is float32."""
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
        return exact and (inner or _lost(scaled) <= max(2 * _lost(array), DIGITS))

    # -- growing ------------------------------------------------------------------------------------------------------

    def _may_make(self, op: Op) -> bool:
        """In the scaled group: whether an operator's result can have any exponent, and all readers can take it."""
        handled = ("homogeneous", "rescales", "stored_statistics", "linear_in", "scalings", "shapes")
        if not all(self._is_inner(v) for v in op.outputs if v != NONE and self.flow.uses[v]):
            return False
        if any(r.role not in self.traits.operators(*handled) for r in self._readers(op)):
            return False
        if _is_homogeneous(self.flow, self.traits, op):
            return all(v in self.makeable or self.flow.values[v].weight for v in self._data(op))
        return self._absorbs(op)

    def _readers(self, op: Op) -> list[Op]:
        """In the scaled group: all who read what an operator makes."""
        return [reader for v in op.outputs if v != NONE for reader in self.flow.readers(v)]

    def _data(self, op: Op) -> list[int]:
        """In the scaled group: the operands in which an operator is homogeneous."""
        return [v for p, v in enumerate(op.inputs) if v != NONE and self.traits.at(op.role, "homogeneous", p)]

    def _absorbs(self, op: Op) -> bool:
        """In the scaled group: whether a stored operand takes any exponent of the result."""
        if op.role in self.traits.operators("rescales", "stored_statistics", "linear_in"):
            return len(op.inputs) > 1 and self.flow.values[op.inputs[1]].weight
        return _is_scaling(self.traits, op) and any(self.flow.values[v].weight for v in op.inputs)

    def _force(self, seed: int) -> None:
        """In the scaled group: gives a value degree one, and with it whatever makes it."""
        work = [seed]
        while work:
            v = work.pop()
            if v in self.forced:
                continue
            if not self._is_inner(v) or v in self.failed:
                raise _Ends
            self.forced.add(v)
            op = self.flow.writer(v)
            if op is not None and _is_homogeneous(self.flow, self.traits, op):
                work += [one for one in self._data(op) if one in self.makeable]

    def _visit(self, op: Op) -> None:
        """In the scaled group: gives degrees to what an operator makes."""
        given = [self.degrees.get(v, 0) for v in op.inputs]
        wanted = any(v in self.forced for v in op.outputs)
        if not op.outputs or not (wanted or any(given)):
            return
        degree = self._degree(op, given, wanted)
        if wanted and degree != 1:
            raise _Ends
        if degree:
            self.degrees.update({v: degree for v in op.outputs if v != NONE})

    def _degree(self, op: Op, given: list[int], wanted: bool) -> int:
        """In the scaled group: the degree of an operator's result: of operands of degrees ``given``, 1 where it is
        ``wanted`` and can be.

        Raises _Ends where an operand cannot have its degree, or the result none.
        """
        if self.traits.has(op.role, "shapes"):
            return 0
        if _is_homogeneous(self.flow, self.traits, op):
            return self._common_degree(op, wanted)
        if self._absorbs(op):
            return int(wanted)
        if _is_scaling(self.traits, op) or self.traits.positions(op.role, "linear_in"):
            degree = given[0] - given[1] if self.traits.has(op.role, "divides") else given[0] + given[1]
            if wanted and not degree:
                self._force_one(op)
                return 1
            return degree
        power = _power(self.flow, self.traits, op)
        if power is not None:
            if given[0] * power != int(given[0] * power):
                raise _Ends
            return int(given[0] * power)
        if any(degree and self._is_beyond(v) for v, degree in zip(op.inputs, given, strict=True)):
            raise _Ends
        return 0

    def _common_degree(self, op: Op, wanted: bool) -> int:
        """In the scaled group: the degree that a homogeneous operator's data and its result share, 0 if none has one.

        Operands without one yet need it: they are forced where what makes them can give it, else the edit multiplies
        them by a power of two where they are read. ``wanted``: the result is forced, so that its degree is 1. Raises
        _Ends where two differ.
        """
        data = self._data(op)
        degrees = {degree for v in data if (degree := self.degrees.get(v, 0))} | ({1} if wanted else set())
        if len(degrees) != 1:
            if degrees:
                raise _Ends
            return 0
        (degree,) = degrees
        for v in data:
            if not self.degrees.get(v, 0) and not self.flow.values[v].weight:
                self._need(v, degree)
        return degree

    def _need(self, v: int, degree: int) -> None:
        """Forces an operand that needs a degree where it can be. Raises _Ends for one that is beyond the range and
        cannot; any other is multiplied where it is read."""
        if degree == 1 and (v in self.makeable or self._is_beyond(v)):
            self._force(v)
        elif self._is_beyond(v):
            raise _Ends

    def _force_one(self, op: Op) -> None:
        """In the scaled group: has one of two computed operands take the degree of their product."""
        square = op.inputs[0] == op.inputs[1]
        choice = [v for v in op.inputs[1::-1] if v in self.makeable and not square]
        if choice:
            self._force(max(choice, key=lambda v: self.reach.get(v, 0.0)))
        elif self._is_beyond(op.inputs[1]):
            raise _Ends

    def _is_beyond(self, v: int) -> bool:
        """In the scaled group: whether a value passes the limit of the low type, so that it must be scaled."""
        return self.reach.get(v, 0.0) > self.limit


def _lost(array: Array) -> float:
    """Rewrite `exponent`: the error that rounding to float16 gives a tensor, relative, as a root mean square."""
    size = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0
    if not size:
        return 0.0
    with np.errstate(over="ignore"):
        error = array.astype(np.float16).astype(np.float64) - array
    return float(np.sqrt(np.mean(np.square(error)))) / size
