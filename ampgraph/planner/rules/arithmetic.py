"""Arithmetic that leaves the low type's range, or the numbers that it can tell apart: an eps, sums, powers, and
probabilities before a logarithm, of which small ones count as much as large ones.

float16 ends at 6e-8, where log is -17: log(softmax(x)), log(sigmoid(x) + 1e-7), log(1 - clip(p, 1e-7, 1 - 1e-7)) are
float32 from what makes the probability on, so that the policy network of a torch Categorical gives no -inf.
"""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ...core.walk import sole_readers, upstream
from ..facts.facts import Facts
from .rule import Sight, Spoilt, looks, reaches

DIVISION_EPS = 1e-3  # x / (y + eps): below it, y + eps loses eps and the quotient leaves the range


@looks(
    "eps",
    "adds_epsilon",
    trigger="`y + eps` or `max(y, eps)` with an eps that vanishes, before a division, root or logarithm",
    action="float32 from the sum to what it keeps away from zero",
)
def small_epsilon(sight: Sight, op: Op) -> Spoilt:
    """Holds `y + eps`, or `max(y, eps)`, and all up to the division, root or logarithm that it keeps away from zero:
    flushed to zero eps keeps nothing, below the smallest normal number it loses digits."""
    traits, options = sight.facts.traits, sight.facts.options
    eps = _epsilon(sight, op)
    if not eps:
        return None
    chain = reaches(sight, op, traits.operators("needs_epsilon"), traits.operators("carries_epsilon"))
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
    further = reaches(sight, end, traits.operators("divides"), frozenset()) if rooted else []
    normal = f"smallest normal {sight.facts.low.smallest_normal:.3g}"
    text = f"eps {eps:g} is lost in {options.dtype} ({normal}) before {end.kind}"
    return text, [op, *chain, *further]


def _epsilon(sight: Sight, op: Op) -> float:
    """Rule `eps`: the small number by which an operator keeps its result away from zero; 0 for none."""
    flow = sight.facts.flow
    read = [flow.scalar(v) for v in op.inputs[:2] if v != NONE]
    if len(op.inputs) == 1:
        read.append(flow.number(op, "min"))  # of a Clip, whose later versions have an operand for it
    numbers = [abs(number) for number in read if number is not None]
    return numbers[0] if len(numbers) == 1 and 0 < numbers[0] < DIVISION_EPS else 0.0


@looks("exp-sum", "exponentials", trigger="exp into a sum, in float16", action="float32 from the exp to its quotient")
def sum_of_exponentials(sight: Sight, op: Op) -> Spoilt:
    """Holds exp, the sum and the quotient behind, in float16: e^x leaves it above x = 11.09."""
    traits = sight.facts.traits
    if sight.facts.options.dtype != "float16":
        return None
    through = traits.operators("carries_epsilon")
    chain = reaches(sight, op, traits.operators("adds_exponentials"), through)
    if not chain:
        return None
    chain += reaches(sight, chain[-1], traits.operators("ends_exponentials"), through)
    return "Exp overflows float16 above 11.09 and its sum has no upper bound", [op, *chain]


@looks(
    "long-sum",
    "sums",
    trigger="a sum of more elements than the type counts to; where the target adds up in the type, also one of an "
    "unknown number of elements, and a mean whose sum was measured to overflow",
    action="float32 for the sum",
)
def long_sum(sight: Sight, op: Op) -> Spoilt:
    """Holds a sum of so many elements that a running sum in the low type no longer changes by adding one. Where the
    target adds up in the low type: one of an unknown number too, and a mean whose sum was measured to overflow."""
    facts = sight.facts
    dtype, kernels = facts.options.dtype, facts.options.kernels
    inside = dtype == "float16" and op.kind in kernels.low_inside
    count, limit = facts.sizes.guessed(op), facts.low.exact_up_to
    if kernels.accumulates == dtype or inside:
        if facts.sizes.is_open(op, any_axes=inside):
            return f"{op.kind} adds up in {dtype}, and of how many elements is not known: their sum may overflow", [op]
        mean = facts.measured.reach.get(op.outputs[0], 0.0) if facts.traits.has(op.role, "selects") else 0.0
        if mean * count * facts.options.range_margin > facts.low.largest:
            return f"{op.kind} adds up in {dtype}, and its sum reaches {mean * count:.4g}", [op]
    return (f"{op.kind} adds {count:,} elements; {dtype} counts to {limit:,}", [op]) if count > limit else None


@looks("cumsum", "prefix_sums", trigger="a prefix sum", action="float32 for the sum")
def prefix_sum(sight: Sight, op: Op) -> Spoilt:
    """Holds a running sum, each element of which has the rounding errors of all before."""
    low = sight.facts.low
    text = f"{op.kind} is exact up to {low.exact_up_to:,} in {low.name}, and every later element inherits the error"
    return text, [op]


@looks(
    "pow",
    "powers",
    "squares",
    "sums_squares",
    "multiplies_up",
    "multiplies",
    trigger="powers but between 0 and 1, squares and sums of squares, products of all elements, of what is not known "
    "to be small; in float16",
    action="float32 for the power; for a sum of squares under a root, up to the root",
)
def power(sight: Sight, op: Op) -> Spoilt:
    """Holds powers: x**2 leaves float16 above 255.9, x**3 above 40.3, a sum of squares before; below 0 near zero."""
    facts, traits = sight.facts, sight.facts.traits
    if facts.options.dtype != "float16":
        return None
    if traits.has(op.role, "multiplies_up"):
        small = facts.values.interval(op.inputs[0]).size <= 1
        return None if small else (f"{op.kind} multiplies many elements: the result leaves float16 early", [op])
    if op.id in facts.squares:
        return _square(facts, op, facts.squares[op.id])
    if not traits.has(op.role, "powers"):
        return None
    exponent = facts.flow.scalar(op.inputs[traits.positions(op.role, "powers")[0]])
    if exponent is not None and 0 <= exponent <= 1:
        return None
    text = "an unknown exponent" if exponent is None else f"exponent {exponent:g}"
    return f"{op.kind} with {text} leaves float16 early (x**2 above 255.9)", [op]


def _square(facts: Facts, op: Op, value: int) -> Spoilt:
    """Rule `pow`: why a square of ``value``, or sum of its squares, may leave float16's range, and this operator with
    what leads to a root behind; None where it fits."""
    count = facts.sizes.guessed(op) if facts.traits.has(op.role, "sums_squares") else 1
    fits = count * facts.values.interval(value).size ** 2 <= facts.low.largest
    if fits and not facts.measured.vanishes(op.outputs[0]):
        return None
    text = f"{op.kind} adds up squares: they leave" if count > 1 else f"{op.kind} squares: the result leaves"
    return f"{text} float16 early (x**2 above 255.9)", [op, *_weighed_under_root(facts, op)]


def _weighed_under_root(facts: Facts, square: Op) -> list[Op]:
    """Rule `pow`: the products of a square with stored weights whose result goes into a root, with all up to that: what
    a divisive normalisation divides by, x / sqrt(b + g x^2), is large however small the quotient is."""
    flow, traits = facts.flow, facts.traits
    found: list[Op] = []
    for product in (r for v in square.outputs for r in flow.readers(v)):
        stored = any(v != NONE and flow.values[v].weight for v in product.inputs)
        if stored and traits.has(product.role, "products"):
            found += _up_to_root(facts, product)
    return found


def _up_to_root(facts: Facts, product: Op) -> list[Op]:
    """Rule `pow`: the operators from a product over sums, and other arithmetic with constants, to a root; empty where
    none follows."""
    flow, traits, chain = facts.flow, facts.traits, [product]
    for value, reader in sole_readers(flow, product):
        chain.append(reader)
        if traits.has(reader.role, "roots") or _is_root(facts, reader):
            return chain
        shifts = traits.has(reader.role, "affine") and facts.stored.issuperset({*reader.inputs} - {NONE, value})
        if not (shifts or traits.has(reader.role, "adds_epsilon")):
            break
    return []


def _is_root(facts: Facts, op: Op) -> bool:
    """Rule `pow`: whether an operator raises to a half, or to minus a half."""
    exponents = [facts.flow.scalar(op.inputs[place]) for place in facts.traits.positions(op.role, "powers")]
    return any(n is not None and abs(n) == 0.5 for n in exponents)


LEAST = 6.2e-5  # a floor above the smallest normal number of float16 leaves every digit there; bfloat16 has more room


@looks(
    "probability",
    "logarithms",
    trigger="the logarithm of a probability, or of what it leaves to one, without a floor that is high enough",
    action="float32 from what makes the probability to the logarithm",
)
def small_probability(sight: Sight, op: Op) -> Spoilt:
    """Holds all from what makes a probability to its logarithm: the low type has no digits for small ones, of which log
    makes large numbers."""
    facts, dtype, of_op = sight.facts, sight.facts.options.dtype, sight.regions.of_op

    def is_made_by(writer: Op) -> bool:
        return bool(writer.slots) and facts.traits.has(of_op.get(writer.id, writer.role), "probabilities")

    def further(writer: Op) -> list[int]:
        passes = writer.slots and not is_made_by(writer) and _passes_on(facts, writer)
        return [v for v in writer.inputs if v not in facts.stored] if passes else []

    before = list(upstream(facts.flow, op.inputs[:1], further, facts.crossings.origins))
    makers, between = list(filter(is_made_by, before)), list(filter(further, before))
    if not makers or (dtype != "float16" and not any(_turns(facts, other) for other in between)):
        return None
    text = f"{op.kind} magnifies small probabilities: {dtype} has few digits for them, or none"
    return text, [op, *between, *makers]


def _passes_on(facts: Facts, op: Op) -> bool:
    """Rule `probability`: whether an operator hands a probability on, and sets no floor of `LEAST` or more."""
    flow, traits = facts.flow, facts.traits
    if op.role in traits.operators("moves", "joins", "conversions", "nothing_in_inference"):
        return True
    if op.role not in traits.operators("bounds", "extremes", "cancels"):
        return False
    stored = [v for v in op.inputs[:2] if v != NONE and flow.values[v].weight]
    floor = flow.scalar(stored[0]) if stored else flow.number(op, "min")
    raises = traits.has(op.role, "adds_epsilon") and not _turns(facts, op)
    alone = len([v for v in op.inputs[:2] if v != NONE]) - len(stored) == 1
    return alone and not (raises and isinstance(floor, (int, float)) and floor >= LEAST)


def _turns(facts: Facts, op: Op) -> bool:
    """Rule `probability`: whether an operator subtracts, as 1 - p does."""
    return facts.traits.has(op.role, "cancels") and not facts.traits.has(op.role, "additions")
