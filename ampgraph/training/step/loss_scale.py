"""Loss scaling as data and state: a frozen policy, a small state, and a pure function from one state to the next.

A policy is numbers and the word of a rule, which names the arithmetic of one framework's implementation, so that our
scales are the framework's to the last bit; every rule is a row of `RULES`. `next_state` writes a policy as nodes of a
graph, or computes it at once. Style: google-deepmind/jmp (``DynamicLossScale.adjust``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, nearest
from ..gradients.builder import EagerTerm, Term
from ..option_text import BadOption, read_number, read_options, types_of

INTEGERS = ("interval", "hysteresis", "patience")
NULLABLE = ("floor", "cap", "patience")
INT32_MAX = 2**31 - 1
LONGEST = 1 << 12  # an interval up to here is written as a table: 8 or 12 bytes in the file for each step of it


@dataclass(frozen=True)
class ScaleRule:
    """The arithmetic of a framework's dynamic loss scale and the numbers that it comes with. A finite step counts; the
    ``interval``-th in a row multiplies the scale by ``growth`` and counts from 0 again. A step that overflows shrinks
    the scale and counts from 0."""

    number: str = "float32"  # or float64: the type of the scale, to which every result is rounded
    product: str = "float32"  # the type in which scale and factor are multiplied or divided
    divides: bool = False  # shrinks by a division by 1/backoff instead of a product with backoff
    finite_only: bool = False  # a growth whose result is not finite is left out
    one_factor: bool = True  # the framework has one factor for both: growth and 1/backoff
    late: bool = False  # each new scale takes effect one step late, and is `LossScaleState.pending` until then
    init: float = 65536.0
    interval: int = 2000
    floor: float | None = None
    cap: float | None = None
    patience: int | None = None

    def typed(self, state: LossScaleState) -> dict[str, np.generic]:
        """The fields of a loss scale's state by name, in the types that a graph has under this rule; ``pending`` only
        if it is `late`."""
        kinds = {f.name: np.dtype(self.number if f.name in SCALES else np.int32).type for f in fields(state)}
        return {name: kind(getattr(state, name)) for name, kind in kinds.items() if self.late or name != "pending"}


WIDE, FIRST = "float64", 2.0**24
RULES = {
    "pytorch": ScaleRule(product=WIDE, finite_only=True, one_factor=False),  # torch.amp.GradScaler
    "apex": ScaleRule(WIDE, WIDE, cap=FIRST),  # apex.amp's LossScaler
    "mxnet": ScaleRule(WIDE, WIDE, cap=FIRST, late=True),  # mxnet.contrib.amp's LossScaler
    "tensorflow": ScaleRule(divides=True, finite_only=True, init=32768.0, floor=1.0),  # Keras 2, tf_keras
    "keras": ScaleRule(init=32768.0),  # LossScaleOptimizer of Keras 3
    "mindspore": ScaleRule(divides=True, finite_only=True, init=FIRST, floor=1.0),  # amp.DynamicLossScaler
    "mindspore-cell": ScaleRule(init=FIRST, floor=1.0),  # nn.DynamicLossScaleUpdateCell
    "mindspore-manager": ScaleRule(WIDE, WIDE, init=FIRST, floor=1.0, patience=1000),  # amp.DynamicLossScaleManager
}
"""Read from the sources of PyTorch 2.13, Apex (e13873deb), tf_keras 2.21, Keras 3, MXNet 1.9.1 and MindSpore 2.10, and
compared with each of them by running. MindSpore's manager counts in Python's numbers: where a factor that is no
power of two passes 2**53, its integers are exact and ours are rounded."""


SCALES = ("scale", "pending")  # the fields of a `LossScaleState` that are scales


@dataclass(frozen=True)
class LossScaleState:
    """What a loss scale remembers between steps. ``scale`` and ``pending`` are Python floats that hold a value of the
    rule's number type exactly; the others are int32 numbers."""

    scale: float
    counter: int = 0  # finite steps since the scale last grew or a step overflowed
    credit: int = 1  # the overflow that finds 1 here shrinks the scale; a greater number is counted down
    overflows: int = 0  # in a row, up to now, under a policy that has patience; else 0
    pending: float = 0.0  # the scale that the next step makes current, under a rule that is late; else 0


@dataclass(frozen=True)
class StaticLossScale:
    """A loss scale that never changes; ``skip`` says whether a step with gradients that are not finite is skipped.
    Raises AmpError AMP320 for a scale that is not a positive float32 number, or has no reciprocal in float32."""

    scale: float = 1.0
    skip: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", invertible("scale", self.scale, positive("scale", self.scale)))

    def start(self) -> LossScaleState:
        """The state of the loss scale before the first step."""
        return LossScaleState(self.scale)

    def update(self, state: LossScaleState, finite: bool) -> LossScaleState:
        """The state of the loss scale after a step: the same, as a static one never changes."""
        return state

    def exhausted(self, state: LossScaleState) -> bool:
        """Whether so many steps overflowed in a row that training is lost: never by a static loss scale."""
        return False

    def __str__(self) -> str:
        return f"static:{spelled_number(self.scale)}" + ("" if self.skip else ",skip=no")


@dataclass(frozen=True)
class DynamicLossScale:
    """A loss scale that grows while gradients stay finite and shrinks when they do not; a step that overflows is
    skipped.

    Args:
        init: the first scale.
        growth, backoff: what the scale is multiplied by, growth >= 1 >= backoff > 0.
        interval: finite steps in a row before the scale grows.
        rule: the arithmetic, a word of `RULES`.
        floor, cap: no smaller when it shrinks, no greater when it grows; None for no bound.
        hysteresis: that many overflows before the scale shrinks; the others only skip the step (DeepSpeed's
            delayed_shift). ``refill`` says when the count starts anew: ``growth``, or every ``finite`` step
            (DeepSpeed's consecutive_hysteresis).
        patience: more overflows in a row than this and `exhausted` says so; None for never.

    Raises AmpError AMP320 for numbers that make no sense.
    """

    init: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    rule: str = "pytorch"
    floor: float | None = None
    cap: float | None = None
    hysteresis: int = 1
    refill: str = "growth"
    patience: int | None = None

    def __post_init__(self) -> None:
        check_word("rule", self.rule, list(RULES))
        check_word("refill", self.refill, ["growth", "finite"])
        for name in ("init", "growth", "backoff", "floor", "cap", "interval", "hysteresis", "patience"):
            value = getattr(self, name)
            if value is None and name in NULLABLE:
                continue
            if name in INTEGERS:
                checked: float = count(name, value)
            else:  # factors keep the digits they were given in: PyTorch multiplies by them in float64
                checked = positive(name, value, round_to=RULES[self.rule].number if name == "init" else "float64")
                checked = invertible(name, value, checked) if name == "init" else checked
            object.__setattr__(self, name, checked)
        with np.errstate(over="ignore"):
            shrinks = self.backoff <= 1 and np.float32(1 / self.backoff) < np.inf
        if self.growth < 1 or not shrinks:
            growth, backoff = spelled_number(self.growth), spelled_number(self.backoff)
            message = f"growth {growth} and backoff {backoff} do not grow and shrink a scale"
            raise AmpError("AMP320", message, hint="growth is at least 1, backoff above 0 and at most 1")
        if not (self.floor or 0) <= self.init <= (math.inf if self.cap is None else self.cap):
            message = f"init {spelled_number(self.init)} does not lie between floor and cap"
            raise AmpError("AMP320", message, hint=f"floor is {self.floor}, cap is {self.cap}")

    @classmethod
    def preset(cls, rule: str, **numbers: float | str | None) -> DynamicLossScale:
        """The loss scale of a framework, by the word of its rule, with the numbers that it comes with but for those
        given. Where the framework has a single factor, a given ``growth`` sets ``backoff`` too; where it has a cap and
        none is given, a greater ``init`` becomes the cap."""
        check_word("rule", rule, list(RULES))
        row = RULES[rule]
        if row.one_factor and "growth" in numbers and "backoff" not in numbers:
            numbers["backoff"] = 1 / positive("growth", numbers["growth"])
        defaults = {name: getattr(row, name) for name in ("init", "interval", "floor", "cap", "patience")}
        if row.cap is not None and "cap" not in numbers and positive("init", numbers.get("init", 1)) > row.cap:
            numbers["init"] = row.cap  # Apex: min(max_loss_scale, init)
        return cls(rule=rule, **{**defaults, **numbers})

    @classmethod
    def pytorch(
        cls, init: float = 65536.0, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
    ) -> DynamicLossScale:
        """The loss scale of torch.amp.GradScaler: no floor, and no growth beyond the float32 numbers."""
        return cls.preset("pytorch", init=init, growth=growth, backoff=backoff, interval=interval)

    @classmethod
    def apex(
        cls, init: float = 65536.0, interval: int = 2000, floor: float | None = None, cap: float = 2.0**24
    ) -> DynamicLossScale:
        """The loss scale of apex.amp's LossScaler: factor 2 always, up to ``max_loss_scale``."""
        return cls.preset("apex", init=min(init, cap), interval=interval, floor=floor, cap=cap)

    @classmethod
    def tensorflow(cls, init: float = 32768.0, factor: float = 2.0, interval: int = 2000) -> DynamicLossScale:
        """The loss scale of tf_keras's LossScaleOptimizer, the Keras 2 of TensorFlow up to 2.15: floor 1."""
        return cls.preset("tensorflow", init=init, growth=factor, interval=interval)

    @classmethod
    def keras(cls, init: float = 32768.0, interval: int = 2000) -> DynamicLossScale:
        """The loss scale of Keras 3's LossScaleOptimizer: factor 2 always, no floor, and growth to infinity."""
        return cls.preset("keras", init=init, interval=interval)

    @classmethod
    def mxnet(cls, init: float = 65536.0, interval: int = 2000) -> DynamicLossScale:
        """The loss scale of mxnet.contrib.amp's LossScaler: Apex's arithmetic, each new scale in force one step
        late."""
        return cls.preset("mxnet", init=init, interval=interval)

    @classmethod
    def mindspore(cls, init: float = 2.0**24, factor: float = 2, interval: int = 2000) -> DynamicLossScale:
        """The loss scale of mindspore.amp.DynamicLossScaler, with the defaults of its DynamicLossScaleManager."""
        return cls.preset("mindspore", init=init, growth=factor, interval=interval)

    def start(self) -> LossScaleState:
        """The state of the loss scale before the first step."""
        return LossScaleState(self.init, credit=self.hysteresis, pending=self.init if RULES[self.rule].late else 0.0)

    def update(self, state: LossScaleState, finite: bool) -> LossScaleState:
        """The state of the loss scale after a step whose gradients were all ``finite``, or were not."""
        given = {name: EagerTerm(np.asarray(value)) for name, value in RULES[self.rule].typed(state).items()}
        with np.errstate(over="ignore", under="ignore"):
            after = next_state(self, given, EagerTerm(np.asarray(finite)))
        return replace(state, **{name: one.array.item() for name, one in after.items() if isinstance(one, EagerTerm)})

    def exhausted(self, state: LossScaleState) -> bool:
        """Whether so many steps overflowed in a row that training is lost; MindSpore's manager raises then."""
        return self.patience is not None and state.overflows > self.patience

    def __str__(self) -> str:
        """The loss scale as the text that `parse_loss_scale` reads."""
        words = [f"{f.name}={spelled_number(getattr(self, f.name))}" for f in fields(self)]
        return "dynamic:" + ",".join(words)


LossScale = StaticLossScale | DynamicLossScale


# -- from one state to the next: as nodes of a graph (Term), or computed at once (EagerTerm) ---------------------------


def next_state(policy: DynamicLossScale, state: Mapping[str, Term], finite: Term) -> dict[str, Term]:
    """The state of a loss scale after a step whose gradients were all ``finite`` (a truth value), or were not;
    ``state`` and the result by the names of `LossScaleState`. Scales have the rule's number type, the others are int32;
    ``pending`` is there only under a rule that is late."""
    if not RULES[policy.rule].late:
        return _next_numbers(policy, state, finite)
    decided = _next_numbers(policy, {**state, "scale": state["pending"]}, finite)
    return {**decided, "scale": state["pending"].op("Identity"), "pending": decided["scale"]}


def _next_numbers(policy: DynamicLossScale, state: Mapping[str, Term], finite: Term) -> dict[str, Term]:
    """The next state of a loss scale, as `next_state`, under a rule that is not late."""
    scale, counter, credit, overflows = (state[name] for name in ("scale", "counter", "credit", "overflows"))
    if policy.patience is not None:
        overflows = finite.where(overflows.number(0), overflows + 1)
    if _is_one_product(policy) and policy.interval <= LONGEST:
        scale, counter = _next_by_table(policy, scale, counter, finite)
        return {"scale": scale, "counter": counter, "credit": credit, "overflows": overflows}
    counted = counter + 1
    stays = counted < policy.interval  # a finite step does not grow the scale yet
    grown, shrunk = stays.where(scale, _scaled(policy, scale, grows=True)), _scaled(policy, scale, grows=False)
    if policy.hysteresis != 1:
        has_credit, full = credit > 1, credit.number(policy.hysteresis)
        shrunk = has_credit.where(scale, shrunk)
        left = has_credit.where(credit - 1, credit)
        credit = finite.where(full if policy.refill == "finite" else stays.where(credit, full), left)
    counter = finite.op("And", stays).where(counted, counter.number(0))
    return {"scale": finite.where(grown, shrunk), "counter": counter, "credit": credit, "overflows": overflows}


def _next_by_table(policy: DynamicLossScale, scale: Term, counter: Term, finite: Term) -> tuple[Term, Term]:
    """The next scale and counter of a loss scale whose change is one product (`_is_one_product`), by tables of factors
    and counters: a row for each counter from 0, and a last one for an overflow."""
    length = policy.interval
    factors = np.ones(length + 1, RULES[policy.rule].number)
    factors[-2:] = policy.growth, policy.backoff
    counters = np.append(np.arange(1, length + 1, dtype=np.int32), np.int32(0))
    counters[length - 1] = 0
    row = finite.where(counter, counter.number(length))
    made = scale * scale.number(factors).op("Gather", row, axis=0)
    powers = policy.growth == 2 and all(math.frexp(number)[0] == 0.5 for number in (policy.init, policy.backoff))
    if RULES[policy.rule].finite_only and powers:  # of 2: they end at the greatest of them
        made = made.op("Min", 2.0 ** (np.finfo(RULES[policy.rule].number).maxexp - 1))
    elif RULES[policy.rule].finite_only:
        made = made.op("IsInf").where(scale, made)
    return made, counter.number(counters).op("Gather", row, axis=0)


def _is_one_product(policy: DynamicLossScale) -> bool:
    """Whether a loss scale's next scale is the scale times ``growth`` or ``backoff`` in the scale's own type, to the
    bit: no hysteresis, floor or cap, and no wider or divided product that rounds otherwise."""
    rule, factors = RULES[policy.rule], (policy.growth, policy.backoff)
    plain = policy.hysteresis == 1 and policy.floor is None and policy.cap is None
    exact = rule.product == rule.number or all(float(np.float32(factor)) == factor for factor in factors)
    return plain and exact and (not rule.divides or math.frexp(policy.backoff)[0] == 0.5)


def _scaled(policy: DynamicLossScale, scale: Term, grows: bool) -> Term:
    """The loss scale after enough finite steps (``grows``): times ``growth``, at most ``cap``; where the rule says so,
    unchanged if that is inf. Or after an overflow: times ``backoff``, at least ``floor``. It is computed in the type
    that the rule multiplies in, and rounded to the scale's. No cast is needed where float64 is that type and the factor
    is a float32 number: the product of two float32 numbers is exact in float64, so that it is rounded once in either
    type. Frameworks that divide round differently, so rules do."""
    rule = RULES[policy.rule]
    divides, factor = rule.divides and not grows, policy.growth if grows else policy.backoff
    same_bits = not divides and float(np.float32(factor)) == factor and rule.product == WIDE
    wide = scale if same_bits else scale.cast(ir.DataType.from_numpy(np.dtype(rule.product)))
    made = (wide / (1 / factor) if divides else wide * factor).cast(scale.dtype)
    if grows and rule.finite_only:
        made = made.op("IsInf").where(scale, made)
    bound = policy.cap if grows else policy.floor
    return made if bound is None else made.op("Min" if grows else "Max", bound)


# -- numbers as users give them, checked one by one -------------------------------------------------------------------


def spelled_number(value: object) -> str:
    """A number of a loss scale or the like as text that `option_text.read_number` reads, or "none"."""
    if isinstance(value, float) and value.is_integer() and value < 1e16:
        return str(int(value))
    return "none" if value is None else str(value)


def check_word(name: str, word: str, words: list[str]) -> None:
    """For a loss scale: raises AmpError AMP320 for a word that is none of ``words``."""
    if word not in words:
        hint = (nearest(word, words) if isinstance(word, str) else "") or f"there are: {', '.join(words)}"
        raise AmpError("AMP320", f"unknown {name} '{word}'", hint=hint)


def positive(name: str, value: float | str | None, round_to: str = "float32") -> float:
    """For a loss scale: ``value`` rounded to the type ``round_to``, as a Python float. Raises AmpError AMP320, which
    says ``name``, for one that is not positive and finite in float32: scales and factors meet float32 gradients."""
    try:
        with np.errstate(over="ignore"):
            narrow, number = np.float32(value), float(np.dtype(round_to).type(value))
    except (TypeError, ValueError, OverflowError):
        narrow, number = np.float32("nan"), math.nan
    if isinstance(value, bool) or not np.isfinite(narrow) or narrow <= 0:
        raise AmpError("AMP320", f"{name}={value} is not a positive float32 number", hint="for example 65536 or 0.5")
    return number


def invertible(name: str, value: object, number: float) -> float:
    """For a loss scale: returns ``number``; raises AmpError AMP320 where its reciprocal, which gradients are multiplied
    by, is infinite in float32. ``value`` is what the user gave as ``name``."""
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(1) / np.float32(number)):
            raise AmpError("AMP320", f"{name}={value} has no reciprocal in float32", hint="for example 65536 or 0.5")
    return number


def count(name: str, value: object) -> int:
    """For a loss scale: ``value`` as an int. Raises AmpError AMP320, which says ``name``, for one that is no whole
    number from 1 to int32's greatest."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= int(value) <= INT32_MAX:
        raise AmpError("AMP320", f"{name}={value} is not a whole number from 1 to {INT32_MAX}", hint="for example 2000")
    return int(value)


# -- the command-line form --------------------------------------------------------------------------------------------

_FORMS = "dynamic, dynamic:init=65536,growth=2,backoff=0.5,interval=2000,rule=pytorch, static:1024 or none"
_KINDS = ["dynamic", "static", "none"]


def parse_loss_scale(text: str) -> LossScale | None:
    """Reads a loss scale from text: ``dynamic[:KEY=VALUE,...]``, ``static:NUMBER[,skip=no]`` or ``none``. Keys are the
    fields of `DynamicLossScale`; what is left out is what the rule comes with. ``none`` gives None. Raises AmpError
    AMP320."""
    kind, colon, rest = text.strip().partition(":")
    if kind == "none" and not colon:
        return None
    try:
        if kind == "static" and rest:
            number, _, options = rest.partition(",")
            return StaticLossScale(read_number("scale", number), **read_options(options, {"skip": "bool"}))
        if kind == "dynamic" and (rest or not colon):
            given = read_options(rest, types_of(DynamicLossScale))
            return DynamicLossScale.preset(given.pop("rule", "pytorch"), **given)
    except BadOption as bad:
        raise AmpError("AMP320", f"--loss-scale {text}: {bad}", hint=bad.hint) from None
    hint = ("" if kind in _KINDS else nearest(kind, _KINDS)) or f"one of {_FORMS}"
    raise AmpError("AMP320", f"--loss-scale {text} is not a loss scale", hint=hint)
