"""Accuracy guards: numbers that anyone can see without data, and that the low type would spoil."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Note, Why
from ...oplists.traits import Trait
from ..decisions import ACCURACY, Hold, describe
from ..facts.facts import Facts
from ..facts.whole import from_integers
from ..findings import Findings, Ruling, Source
from ..regions import Regions
from ..stages import Listed
from .cancelling import Cancelling
from .divisors import weighed_under_root
from .factors import shrinks
from .offsets import scores_with_positions
from .probabilities import Probabilities
from .raw import Raw, raw
from .spectra import Spectra

DIVISION_EPS = 1e-3  # x / (y + eps): below it, y + eps loses eps and the quotient leaves the range
Spoilt = tuple[Why, list[Op]] | None
"""Why operators must be float32, or that nothing is wrong."""
Guard = Callable[["Sight", Op], Spoilt]


@dataclass(frozen=True)
class Fragile(Findings):
    """Arithmetic that the low type would spoil."""


@dataclass
class Sight:
    """What the guards look at, and what one has looked at already."""

    facts: Facts
    regions: Regions
    angles: set[int] = field(default_factory=set)  # operators that were found to compute angles

    @cached_property
    def spectra(self) -> Spectra:
        """Where powers are made."""
        return Spectra(self.facts, self.regions, self.facts.squares)

    @cached_property
    def cancelling(self) -> Cancelling:
        """Sums of products that cancel."""
        return Cancelling(self.facts, self.regions, self.facts.squares)

    @cached_property
    def raw(self) -> Raw:
        """What sees the model's inputs as they come."""
        return raw(self.facts, self.regions)

    @cached_property
    def activations(self) -> Collection[int]:
        """Operators that see what a product or a norm made of data: no positions, and rounded already. The product of
        an input as it comes is none, scaled and shifted by constants: Fourier features."""
        flow, found, seen, angles = self.facts.flow, set[int](), set[int](), set[int]()
        for op in flow.ops:
            cls = self.regions.classes[op.id]
            raw = op.id in self.raw.products or (any(v in angles for v in op.inputs) and self._keeps_angles(op))
            product = cls == "white" and not raw and not from_integers(self.facts.flow, self.facts.borders, op)
            bent = not raw and any(v in angles for v in op.inputs)
            known = angles if raw else seen
            if raw or product or bent or cls == "kept" or any(v in seen for v in op.inputs):
                found |= set[int]() if raw else {op.id}
                for value in op.outputs:
                    known |= self.facts.borders.copies(value)
        return found

    def _keeps_angles(self, op: Op) -> bool:
        """Whether an operator moves an angle, or multiplies or shifts it by constants."""
        flow, traits = self.facts.flow, self.facts.traits
        weights = [v for v in op.inputs if v != NONE and flow.values[v].weight]
        return any(traits.has(op.role, t) for t in ("moves", "conversions", "joins")) or (
            traits.has(op.role, "affine") and len(weights) == len(op.inputs) - 1
        )


def guard_accuracy(facts: Facts, regions: Regions, listed: Listed) -> Fragile:
    """Runs every guard over every operator. At O3 a guard that fires is reported and holds nothing."""
    flow = facts.flow
    found: list[Ruling] = []
    sources: list[Source] = []
    warnings: list[Note] = []
    sight, guards, safe = Sight(facts, regions), _guards(facts), _safe_inside(facts, regions)
    for op in flow.with_roles(guards) if facts.options.level.accuracy_guards != "off" else ():
        if not op.slots or op.id in safe:
            continue
        for guard in guards[op.role]:
            spoilt = guard(sight, op)
            if spoilt is None:
                continue
            why, ops = spoilt
            if facts.guards_hold:
                holds = [Hold(tuple(other.slots.values()), ACCURACY, why) for other in ops]
                holds += [Hold((unit,), ACCURACY, why) for unit in _crossed(facts, ops)]
                found.append(Ruling(holds, Note(why.rule, describe(flow, op), why.text)))
                sources += [Source(other.id, why, False) for other in ops]
            elif any(listed.is_low(u) for other in ops for u in other.slots.values()):
                warnings.append(Note(f"{why.rule} (not held)", describe(flow, op), why.text))
    return Fragile(found, sources, warnings)


def _crossed(facts: Facts, ops: Collection[Op]) -> list[int]:
    """What hands values over a border of a body or a function, from one of some operators to another."""
    flow, borders, ids = facts.flow, facts.borders, {op.id for op in ops}
    found: dict[int, None] = {}
    for formal in (v for op in ops for v in op.inputs if v in borders.before):
        passed = sorted(borders.origins(formal))
        if any(flow.values[v].producer in ids for v in passed):
            found.update((unit, None) for v in passed if (unit := flow.values[v].unit) != NONE)
    return list(found)


def _safe_inside(facts: Facts, regions: Regions) -> set[int]:
    """Operators whose region decides for them: norms are float32 where guards hold, and others need no guard."""
    return {op for op in regions.inside if facts.guards_hold or regions.classes[op] != "kept"}


def _guards(facts: Facts) -> dict[str, list[Guard]]:
    """By operator, the guards that look at it."""
    flow, traits = facts.flow, facts.traits
    looks: list[tuple[Trait, Guard]] = [
        ("exponentials", _exp_sum),
        ("sums", _long_sum),
        ("powers", _pow),
        ("powers", _square),
        ("squares", _square),
        ("sums_squares", _square),
        ("multiplies_up", _long_product),
        ("multiplies", _square),
        ("scalings", _shrunk),
        ("logarithms", _spectrum),
        ("logarithms", _probability),
        ("divides", _spectrum),
        ("powers", _spectrum),
        ("cancels", _difference),
        ("softmaxes", _offset),
        ("prefix_sums", _prefix_sum),
        ("periodic", _positions),
    ]
    if flow.with_roles(traits.operators("needs_epsilon")):
        looks.insert(0, ("adds_epsilon", _eps))
    guards: dict[str, list[Guard]] = {}
    for trait, guard in looks:
        for role in traits.operators(trait):
            guards.setdefault(role, []).append(guard)
    return guards


def _reaches(sight: Sight, op: Op, kinds: frozenset[str], through: frozenset[str]) -> list[Op]:
    """The chain from an operator to the first of ``kinds`` behind exact moves; empty when there is none."""
    for reader in (r for v in op.outputs for r in sight.facts.flow.readers(v)):
        if reader.role in kinds:
            return [reader]
        if reader.role in through and reader.slots:
            chain = _reaches(sight, reader, kinds, through - {reader.role})
            if chain:
                return [reader, *chain]
    return []


def _eps(sight: Sight, op: Op) -> Spoilt:
    """y + eps or max(y, eps) with an eps that vanishes, before a division, root or logarithm."""
    traits, options = sight.facts.traits, sight.facts.options
    eps = _epsilon(sight, op)
    if not eps:
        return None
    chain = _reaches(sight, op, traits.operators("needs_epsilon"), traits.operators("carries_epsilon"))
    if not chain:
        return None
    end = chain[-1]
    before = chain[-2].outputs if len(chain) > 1 else op.outputs
    divisors = traits.positions(end.role, "divides")
    divides = any(end.inputs[place] in before for place in divisors)
    if divisors and not divides:
        return None
    if eps >= sight.facts.low.smallest_normal and not (divides and options.dtype == "float16"):
        return None
    rooted = traits.has(end.role, "roots")
    further = _reaches(sight, end, traits.operators("divides"), frozenset()) if rooted else []
    normal = f"smallest normal {sight.facts.low.smallest_normal:.3g}"
    text = f"eps {eps:g} is lost in {options.dtype} ({normal}) before {end.kind}"
    return Why("eps", text), [op, *chain, *further]


def _epsilon(sight: Sight, op: Op) -> float:
    """The small number that an operator keeps its result away from zero with; 0 for none."""
    flow = sight.facts.flow
    numbers = [n for v in op.inputs[:2] if v != NONE and (n := flow.scalar(v)) is not None]
    if len(op.inputs) == 1 and (lowest := flow.number(op, "min")) is not None:  # an operand in later versions
        numbers.append(lowest)
    return abs(numbers[0]) if len(numbers) == 1 and 0 < abs(numbers[0]) < DIVISION_EPS else 0.0


def _exp_sum(sight: Sight, op: Op) -> Spoilt:
    """exp(x) that is summed: exp leaves float16 at 11.09."""
    traits = sight.facts.traits
    if sight.facts.options.dtype != "float16":
        return None
    through = traits.operators("carries_epsilon")
    chain = _reaches(sight, op, traits.operators("adds_exponentials"), through)
    if not chain:
        return None
    chain += _reaches(sight, chain[-1], traits.operators("ends_exponentials"), through)
    return Why("exp-sum", "Exp overflows float16 above 11.09 and its sum has no upper bound"), [op, *chain]


def _long_sum(sight: Sight, op: Op) -> Spoilt:
    dtype = sight.facts.options.dtype
    if (count := sight.facts.sizes.guessed(op)) <= (limit := sight.facts.low.counts):
        return None
    return Why("long-sum", f"{op.kind} adds {count:,} elements; {dtype} counts to {limit:,}"), [op]


def _long_product(sight: Sight, op: Op) -> Spoilt:
    """A product of all elements: held unless these are small."""
    if sight.facts.options.dtype != "float16" or sight.facts.bounds.of(op.inputs[0]) <= 1:
        return None
    return Why("pow", f"{op.kind} multiplies many elements: the result leaves float16 early"), [op]


def _pow(sight: Sight, op: Op) -> Spoilt:
    """A power above 1 leaves float16 early: x**2 at 256, x**3 at 40.3; below 0 near zero."""
    traits = sight.facts.traits
    if sight.facts.options.dtype != "float16":
        return None
    exponent = sight.facts.flow.scalar(op.inputs[traits.positions(op.role, "powers")[0]])
    if exponent is not None and 0 <= exponent <= 1 or op.id in sight.facts.squares:
        return None
    text = "an unknown exponent" if exponent is None else f"exponent {exponent:g}"
    return Why("pow", f"{op.kind} with {text} leaves float16 early (x**2 above 255.9)"), [op]


def _square(sight: Sight, op: Op) -> Spoilt:
    """x * x leaves float16 above 255.9, and a sum of squares before; held unless x is known to be small."""
    value, options = sight.facts.squares.get(op.id), sight.facts.options
    if value is None or options.dtype != "float16":
        return None
    count = sight.facts.sizes.guessed(op) if sight.facts.traits.has(op.role, "sums_squares") else 1
    bounds = sight.facts.bounds
    if count * bounds.of(value) ** 2 <= sight.facts.low.largest and not bounds.vanishes(op.outputs[0]):
        return None
    text = f"{op.kind} adds up squares: they leave" if count > 1 else f"{op.kind} squares: the result leaves"
    return Why("pow", f"{text} float16 early (x**2 above 255.9)"), [op, *weighed_under_root(sight.facts, op)]


def _shrunk(sight: Sight, op: Op) -> Spoilt:
    """Constants that leave nothing of a value in float16, undone later: what was measured tells better."""
    if sight.facts.stored.isdisjoint(op.inputs):
        return None
    if sight.facts.options.dtype != "float16" or sight.facts.bounds.is_measured(op.outputs[0]):
        return None
    if (factor := shrinks(sight.facts, op)) is None:
        return None
    return Why("tiny", f"constants multiply by {factor:.1g} up to here: float16 keeps few digits of what is left"), [op]


def _spectrum(sight: Sight, op: Op) -> Spoilt:
    """The logarithm of a power, or what is divided by one: small powers count as much as large ones."""
    traits, dtype = sight.facts.traits, sight.facts.options.dtype
    exponents = [sight.facts.flow.scalar(op.inputs[place]) for place in traits.positions(op.role, "powers")]
    if any(n is None or n >= 0 for n in exponents):
        return None
    divides = traits.has(op.role, "divides")
    value = op.inputs[traits.positions(op.role, "divides")[0]] if divides else op.inputs[0]
    divides |= bool(exponents)
    found = sight.spectra.behind(op, value, narrow=divides)
    if found is None:
        return None
    ops, floor = found
    under = f"a floor of {floor:g} under them" if floor else "no floor under them"
    verb = "divides by powers" if divides else "magnifies small powers"
    return Why("spectrum", f"{op.kind} {verb}, with {under}: {dtype} rounds large ones by more"), ops


def _difference(sight: Sight, op: Op) -> Spoilt:
    """A variance, a covariance or a squared distance as a difference of large sums of products."""
    if not (ops := sight.cancelling.behind(op)):
        return None
    dtype = sight.facts.options.dtype
    return Why(
        "cancelling", f"{op.kind} takes a small result of large sums of products, which {dtype} would round"
    ), ops


def _probability(sight: Sight, op: Op) -> Spoilt:
    """The logarithm of a probability, or of what it leaves to one."""
    ops = Probabilities(sight.facts, sight.regions).behind(op)
    text = f"{op.kind} magnifies small probabilities: {sight.facts.options.dtype} has few digits for them, or none"
    return (Why("probability", text), ops) if ops else None


def _prefix_sum(sight: Sight, op: Op) -> Spoilt:
    dtype = sight.facts.options.dtype
    text = f"{op.kind} is exact up to {sight.facts.low.counts:,} in {dtype}, and every later element inherits the error"
    return Why("cumsum", text), [op]


def _positions(sight: Sight, op: Op) -> Spoilt:
    """Angles from positions: a step of float16 above 2048 is 2 rad. Holds what computes them, products included."""
    facts, seen = sight.facts, sight.angles
    flow, held, work = facts.flow, [op], list(op.inputs)
    seen.add(op.id)
    while work:
        for value in facts.borders.origins(work.pop()):
            writer = flow.writer(value)
            if writer is None or writer.id in seen or not writer.slots or writer.id in sight.activations:
                continue
            seen.add(writer.id)
            held.append(writer)
            conversion = facts.traits.has(writer.role, "conversions")
            if not (conversion and flow.values[writer.inputs[0]].dtype != FLOAT32):
                work += [v for v in writer.inputs if v != NONE]
    return Why("positions", f"angles of {op.kind} lose their period in {facts.options.dtype}"), held


def _offset(sight: Sight, op: Op) -> Spoilt:
    """Scores with positions added, as ALiBi does."""
    if not (ops := scores_with_positions(sight.facts, op)):
        return None
    dtype = sight.facts.options.dtype
    return Why(
        "positions", f"{op.kind} reads scores with positions added: {dtype} loses the differences of large ones"
    ), ops
