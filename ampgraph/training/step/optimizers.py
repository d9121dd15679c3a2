"""Optimizers as data, and what they do to one parameter in a graph. The arithmetic is float32 and PyTorch's.

Sources: torch.optim.SGD, Adam and AdamW (2.13), their documented algorithms; Kingma and Ba (2015), Loshchilov and
Hutter (2019).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, is_number, nearest
from ..gradients.builder import Builder, Term
from ..option_text import BadOption, read_options, split_pattern, types_of

Value = ir.Value
Moved: TypeAlias = "tuple[Value, list[Value]]"
GREATEST = float(np.finfo(np.float32).max)


@runtime_checkable
class Optimizer(Protocol):
    """``begin`` makes the scalars that all parameters share, ``update`` a new parameter and its new slots."""

    @property
    def lr(self) -> float:
        """The learning rate, until a schedule says another."""
        ...

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors that it keeps for each parameter, zero at first."""
        ...

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """``lr`` is a float32 scalar, ``count`` the int64 number of this update, from 1."""
        ...

    def update(
        self, b: Builder, parameter: Value, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]
    ) -> Moved: ...


@runtime_checkable
class Elementwise(Protocol):
    """An optimizer of which each number depends on its own gradient alone, so that tensors may be moved together."""

    weight_decay: float

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        """What decay by the weight leaves of a parameter, and makes of its gradient, to which it is added."""
        if not self.weight_decay:
            return parameter, gradient
        return parameter, b.op("Add", gradient, b.op("Mul", parameter, b.number(self.weight_decay)))

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """What an optimizer subtracts from a parameter, and its new slots."""
        ...

    def update(
        self, b: Builder, parameter: Value, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]
    ) -> Moved:
        """What an optimizer makes of a parameter: the new one, and its new slots."""
        parameter, gradient = self.decayed(b, parameter, gradient, begun)
        move, after = self.moved(b, gradient, slots, begun)
        return b.op("Sub", parameter, move), after


@dataclass(frozen=True)
class SGD(Elementwise):
    """v = momentum v + g; p = p - lr v. Nesterov: p = p - lr (g + momentum v)."""

    lr: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self, "lr", "momentum", "weight_decay")
        if self.nesterov and not self.momentum:
            raise AmpError("AMP322", "nesterov needs momentum", hint="sgd:lr=0.1,momentum=0.9,nesterov=yes")

    @property
    def slots(self) -> tuple[str, ...]:
        """One slot with momentum, none without."""
        return ("momentum",) if self.momentum else ()

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """The learning rate is all that parameters share."""
        return (lr,)

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """The step to subtract from the parameter, and the new momentum."""
        [lr] = begun
        if not self.momentum:
            return b.op("Mul", gradient, lr), []
        g, old = b.terms(gradient, slots[0])
        velocity = old * self.momentum + g
        move = g + velocity * self.momentum if self.nesterov else velocity
        return (move * lr).value, [velocity.value]


@dataclass(frozen=True)
class Adam(Elementwise):
    """m and v are running means of g and g^2, corrected for their start; p = p - lr m' / (sqrt(v') + eps).

    With m' = m / c1 and v' = v / c2 that is p - (lr sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)): one pass fewer.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self, "lr", "eps", "weight_decay", "beta1", "beta2")
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise AmpError("AMP322", f"{name}={getattr(self, name)} is not in [0, 1)", hint="for example 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        """Running means of the gradient and of its square, under torch's names."""
        return ("exp_avg", "exp_avg_sq")

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """Scalars: lr root / correction1 and eps root, root = sqrt(correction2); what decoupled decay leaves."""
        rate, number = (Term(b, value, value).cast(ir.DataType.DOUBLE) for value in (lr, count))
        # 1 - beta^count in float64: near 1 a float32 power has lost the digits that matter
        first, second = (1 - rate.number(beta).op("Pow", number) for beta in (self.beta1, self.beta2))
        root = second.op("Sqrt")
        kept = 1 - rate * self.weight_decay
        return tuple(one.cast(ir.DataType.FLOAT).value for one in (rate * root / first, root * self.eps, kept))

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """The step to subtract from the parameter, and the new running means."""
        g, step, eps, old_mean, old_square = b.terms(gradient, *begun[:2], *slots)
        mean = old_mean * self.beta1 + g * (1 - self.beta1)
        square = old_square * self.beta2 + g * g * (1 - self.beta2)
        return (mean / (square.op("Sqrt") + eps) * step).value, [mean.value, square.value]


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weights decay by themselves: p = p (1 - lr weight_decay) first."""

    weight_decay: float = 0.01

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        """The parameter after decoupled weight decay, before the step; the gradient as it is."""
        return b.op("Mul", parameter, begun[2]) if self.weight_decay else parameter, gradient


OPTIMIZERS: dict[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def parse_optimizer(text: str) -> Optimizer:
    """``sgd:lr=0.1,momentum=0.9`` and the like. Raises AmpError AMP322."""
    kind, _, rest = text.strip().partition(":")
    if kind not in OPTIMIZERS:
        hint = nearest(kind, list(OPTIMIZERS)) or f"there are: {', '.join(OPTIMIZERS)}"
        raise AmpError("AMP322", f"unknown optimizer '{kind}'", hint=hint)
    try:
        given = read_options(rest, types_of(OPTIMIZERS[kind]))
    except BadOption as bad:
        raise AmpError("AMP322", f"optimizer {kind}: {bad}", hint=bad.hint) from None
    return OPTIMIZERS[kind](**given)


def spelled_optimizer(optimizer: Optimizer) -> str:
    """The form that `parse_optimizer` reads; one of the user has the name of its class."""
    cls = type(optimizer)
    kind = next((name for name, known in OPTIMIZERS.items() if cls is known), cls.__name__)
    names: list[str] = [f.name for f in fields(cls)] if is_dataclass(cls) else []
    rows = [(name, getattr(optimizer, name)) for name in names]
    message = ",".join(f"{key}={('no', 'yes')[v] if isinstance(v, bool) else v}" for key, v in rows)
    return f"{kind}:{message}" if message else kind


def as_optimizer(given: object) -> Optimizer:
    """An optimizer, or the command-line form of one. Raises AmpError AMP322."""
    if isinstance(given, str):
        return parse_optimizer(given)
    if isinstance(given, type) or not isinstance(given, Optimizer):
        kind = given.__name__ if isinstance(given, type) else f"a {type(given).__name__}"
        hint = "ampgraph.SGD(lr=0.1), ampgraph.Adam(), ampgraph.AdamW(), or a text: adam:lr=0.001"
        raise AmpError("AMP322", f"optimizer={kind} is not an optimizer that a graph can hold", hint=hint)
    return given


def _check_numbers(optimizer: Optimizer, *names: str) -> None:
    """Numbers of any kind become Python's. Raises AmpError AMP322 for what float32 does not hold."""
    for name in names:
        value = getattr(optimizer, name)
        if not is_number(value) or not 0 <= value <= GREATEST:
            message = f"{name}={value} is not a number from 0 that float32 holds"
            raise AmpError("AMP322", message, hint="for example 0.01")
        object.__setattr__(optimizer, name, value if type(value) in (int, float) else float(value))


# -- which optimizer moves which parameter -----------------------------------------------------------------------------

ALL, FROZEN, SHARED = "*", "frozen", "shared"
FORM = "'*.bias=adamw:weight_decay=0' '*=adamw', the first that matches a name wins"


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters that ``pattern`` matches, and that no earlier one does, with an optimizer of their own: its kind,
    learning rate and decay, as the ``param_groups`` of torch.optim.

    ``optimizer``: None for parameters that are not trained. Those are constants of the step, or, ``shared``, state that
    it only reads: another step trains them.
    """

    pattern: str
    optimizer: Optimizer | None = None
    shared: bool = False

    def __str__(self) -> str:
        form = spelled_optimizer(self.optimizer) if self.optimizer is not None else SHARED if self.shared else FROZEN
        return f"{self.pattern}={form}"


@dataclass(frozen=True)
class Groups:
    """All groups, in the order in which their patterns are tried; one that was given alone takes everything."""

    rows: tuple[ParameterGroup, ...]

    @property
    def alone(self) -> bool:
        """Whether one optimizer was given, and no pattern."""
        return len(self.rows) == 1 and self.rows[0].pattern == ALL

    def __str__(self) -> str:
        """Parameters and their optimizers in the forms that `groups_of` reads."""
        only = self.rows[0].optimizer
        return spelled_optimizer(only) if self.alone and only is not None else "; ".join(map(str, self.rows))

    def assigned(self, names: Sequence[str]) -> list[ParameterGroup]:
        """Parameter name -> the group whose pattern matches it.

        Raises AmpError AMP305 for a parameter that no pattern matches, and for a pattern that matches none, or none
        that an earlier one leaves.
        """
        found = {name: self._first(name, names) for name in names}
        for row in self.rows:
            if row not in found.values():
                raise self._unused(row, names)
        return list(found.values())

    def _first(self, name: str, names: Sequence[str]) -> ParameterGroup:
        """The group whose pattern comes first that matches a parameter; AmpError AMP305 where none does."""
        row = next((row for row in self.rows if fnmatch.fnmatchcase(name, row.pattern)), None)
        if row is None:
            others = sum(not any(fnmatch.fnmatchcase(n, r.pattern) for r in self.rows) for n in names) - 1
            more = f", nor {others} more" if others else ""
            hint = "end with a group for all others: '*=adamw', or '*=frozen'"
            raise AmpError("AMP305", f"no optimizer's pattern matches parameter '{name}'{more}", hint=hint)
        return row

    def _unused(self, row: ParameterGroup, names: Sequence[str]) -> AmpError:
        """The error for a pattern that matches no parameter, or none that an earlier pattern leaves."""
        hits = fnmatch.filter(names, row.pattern)
        if hits:
            before = next(r for r in self.rows if fnmatch.fnmatchcase(hits[0], r.pattern))
            message = (
                f"optimizer pattern '{row.pattern}' matches nothing that '{before.pattern}' before it does not match"
            )
            return AmpError("AMP305", message, hint=f"put '{row.pattern}' in front of it, or omit it")
        hint = nearest(row.pattern, list(names)) or f"there are: {', '.join(names[:8])}"
        return AmpError("AMP305", f"optimizer pattern '{row.pattern}' matches no parameter that is trained", hint=hint)


def distinct(groups: Iterable[ParameterGroup]) -> list[ParameterGroup]:
    """Each group once, in the order of its first parameter; an optimizer of the user may have no hash."""
    return list({group.pattern: group for group in groups}.values())


def groups_of(given: object) -> Groups:
    """One optimizer or its form, or rows ``(pattern, optimizer)`` or ``PATTERN=FORM``; beside an optimizer, a row may
    say ``frozen`` (or None) and ``shared``.

    Raises AmpError AMP322 for what is neither.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        return Groups((_parse_group(given) if isinstance(given, str) else ParameterGroup(ALL, as_optimizer(given)),))
    rows = tuple(_group_of(row) for row in given)
    patterns = [row.pattern for row in rows]
    twice = next((pattern for pattern in patterns if patterns.count(pattern) > 1), None)
    if twice is not None:
        raise AmpError("AMP322", f"optimizer pattern '{twice}' is given twice", hint=FORM)
    if not any(row.optimizer is not None for row in rows):
        raise AmpError("AMP322", "no group has an optimizer", hint=FORM)
    return Groups(rows)


def group_words(words: Sequence[str]) -> str | list[str]:
    """The options of a command line: groups, or the last of several optimizers without a pattern."""
    whole = all(_parse_group(word).pattern == ALL for word in words)
    return words[-1] if whole else list(words)


def _group_of(row: object) -> ParameterGroup:
    """A group as the user gives it, (pattern, optimizer) or its text "pattern=optimizer"."""
    if isinstance(row, str):
        return _parse_group(row)
    if not isinstance(row, (tuple, list)) or len(row) != 2 or not isinstance(row[0], str):
        hint = 'optimizer=[("*.bias", ampgraph.AdamW(weight_decay=0)), ("*", ampgraph.AdamW())]'
        raise AmpError("AMP322", f"a group of parameters is (pattern, optimizer), not {row!r}", hint=hint)
    pattern, form = row
    if form in (FROZEN, None):
        return ParameterGroup(pattern)
    if isinstance(form, str) and form == SHARED:
        return ParameterGroup(pattern, shared=True)
    return ParameterGroup(pattern, as_optimizer(form))


def _parse_group(text: str) -> ParameterGroup:
    """The pattern and the optimizer's form of ``PATTERN=FORM``, or of a form alone."""
    pattern, form = split_pattern(text, (*OPTIMIZERS, FROZEN, SHARED))
    return _group_of((pattern, form)) if pattern else ParameterGroup(ALL, parse_optimizer(form))
