"""Optimizers: their options as data, and the nodes by which they update a parameter in a graph, in float32 as PyTorch
computes; and groups of parameters that have optimizers of their own.

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
"""A new parameter, or what is subtracted from it; and its new slots, in the order of `Optimizer.slots`."""
GREATEST = float(np.finfo(np.float32).max)


@runtime_checkable
class Optimizer(Protocol):
    """What an optimizer is to a training step: `begin` adds the scalars that all its parameters share, once, and
    `update` adds the update of one parameter."""

    @property
    def lr(self) -> float:
        """The learning rate, until a schedule says another."""
        ...

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the tensors that the optimizer keeps for each parameter, of the parameter's shape, zero at
        first."""
        ...

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """The optimizer's scalars of one update, which `update` gets as ``begun``. ``lr`` is the learning rate, a
        float32 scalar, ``count`` the int64 number of this update, from 1."""
        ...

    def update(
        self, b: Builder, parameter: Value, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]
    ) -> Moved:
        """The optimizer's new parameter and its new slots, from the old ones and the unscaled gradient, all float32."""
        ...


@runtime_checkable
class Elementwise(Protocol):
    """An optimizer that moves each element of a parameter by its own gradient and slots alone, so that parameters may
    be moved together as one vector: weight decay first, then a step that is subtracted."""

    weight_decay: float  # times the parameter, added to the gradient; AdamW has another

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        """An optimizer's weight decay before the step: the parameter and the gradient, to which it is added here."""
        if not self.weight_decay:
            return parameter, gradient
        return parameter, b.op("Add", gradient, b.op("Mul", parameter, b.number(self.weight_decay)))

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """The optimizer's step: what is subtracted from a parameter, and its new slots; ``gradient`` is `decayed`."""
        ...

    def update(
        self, b: Builder, parameter: Value, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]
    ) -> Moved:
        """The optimizer's new parameter and its new slots."""
        parameter, gradient = self.decayed(b, parameter, gradient, begun)
        move, after = self.moved(b, gradient, slots, begun)
        return b.op("Sub", parameter, move), after


@dataclass(frozen=True)
class SGD(Elementwise):
    """The optimizer torch.optim.SGD: v = momentum v + g; p = p - lr v. Nesterov: p = p - lr (g + momentum v). Raises
    AmpError AMP322 for numbers that make no sense."""

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
        """SGD's slots: the running gradient v with momentum, none without."""
        return ("momentum",) if self.momentum else ()

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """SGD's scalars: the learning rate alone."""
        return (lr,)

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """SGD's step, which is subtracted from the parameter, and the new v, if there is momentum."""
        [lr] = begun
        if not self.momentum:
            return b.op("Mul", gradient, lr), []
        g, old = b.terms(gradient, slots[0])
        velocity = old * self.momentum + g
        move = g + velocity * self.momentum if self.nesterov else velocity
        return (move * lr).value, [velocity.value]


@dataclass(frozen=True)
class Adam(Elementwise):
    """The optimizer torch.optim.Adam: with m and v the running means of g and g^2, m' and v' corrected for their start
    at 0: p = p - lr m' / (sqrt(v') + eps). Raises AmpError AMP322 for numbers that make no sense. With m' = m / c1 and
    v' = v / c2 that is p - (lr sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)), which reads all elements once less."""

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
        """Adam's slots: running means of the gradient and of its square, under torch's names."""
        return ("exp_avg", "exp_avg_sq")

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """Adam's scalars: lr sqrt(c2) / c1 and eps sqrt(c2), with c1 = 1 - beta1^count and c2 = 1 - beta2^count; and 1
        - lr weight_decay, which AdamW multiplies a parameter by."""
        rate, number = (Term(b, value, value).cast(ir.DataType.DOUBLE) for value in (lr, count))
        # 1 - beta^count in float64: near 1 a float32 power has lost the digits that matter
        first, second = (1 - rate.number(beta).op("Pow", number) for beta in (self.beta1, self.beta2))
        root = second.op("Sqrt")
        kept = 1 - rate * self.weight_decay
        return tuple(one.cast(ir.DataType.FLOAT).value for one in (rate * root / first, root * self.eps, kept))

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """Adam's step, which is subtracted from the parameter, and the new running means."""
        g, step, eps, old_mean, old_square = b.terms(gradient, *begun[:2], *slots)
        mean = old_mean * self.beta1 + g * (1 - self.beta1)
        square = old_square * self.beta2 + g * g * (1 - self.beta2)
        return (mean / (square.op("Sqrt") + eps) * step).value, [mean.value, square.value]


@dataclass(frozen=True)
class AdamW(Adam):
    """The optimizer torch.optim.AdamW: Adam whose weight decay is decoupled: p = p (1 - lr weight_decay) first."""

    weight_decay: float = 0.01

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        """AdamW's weight decay before the step: the parameter times 1 - lr weight_decay; the gradient as it is."""
        return b.op("Mul", parameter, begun[2]) if self.weight_decay else parameter, gradient


OPTIMIZERS: dict[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def parse_optimizer(text: str) -> Optimizer:
    """Reads an optimizer from text: ``KIND``, or ``KIND:KEY=VALUE,...`` as in ``sgd:lr=0.1,momentum=0.9``. Raises
    AmpError AMP322 for another text, and for numbers that make no sense."""
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
    """An optimizer as the text that `parse_optimizer` reads; one of the user with its class's name."""
    cls = type(optimizer)
    kind = next((name for name, known in OPTIMIZERS.items() if cls is known), cls.__name__)
    names: list[str] = [f.name for f in fields(cls)] if is_dataclass(cls) else []
    rows = [(name, getattr(optimizer, name)) for name in names]
    options = ",".join(f"{key}={('no', 'yes')[v] if isinstance(v, bool) else v}" for key, v in rows)
    return f"{kind}:{options}" if options else kind


def as_optimizer(given: object) -> Optimizer:
    """What a user gave as an optimizer: an object, or its text. Raises AmpError AMP322 for anything else."""
    if isinstance(given, str):
        return parse_optimizer(given)
    if isinstance(given, type) or not isinstance(given, Optimizer):
        kind = given.__name__ if isinstance(given, type) else f"a {type(given).__name__}"
        hint = "ampgraph.SGD(lr=0.1), ampgraph.Adam(), ampgraph.AdamW(), or a text: adam:lr=0.001"
        raise AmpError("AMP322", f"optimizer={kind} is not an optimizer that a graph can hold", hint=hint)
    return given


def _check_numbers(optimizer: Optimizer, *names: str) -> None:
    """Checks the named numbers of an optimizer, and makes Python's of numpy's. Raises AmpError AMP322 for one that is
    no number from 0 to float32's greatest."""
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
    """The parameters whose names ``pattern`` matches, and no earlier group's, and their optimizer: its kind, learning
    rate and decay, as the ``param_groups`` of torch.optim. ``optimizer`` is None for parameters that are not trained
    here. These are constants of the step; or, if ``shared``, state that it only reads, since another step trains
    them."""

    pattern: str
    optimizer: Optimizer | None = None
    shared: bool = False

    def __str__(self) -> str:
        if self.optimizer is not None:
            return f"{self.pattern}={spelled_optimizer(self.optimizer)}"
        return f"{self.pattern}={SHARED if self.shared else FROZEN}"


@dataclass(frozen=True)
class Groups:
    """The groups of parameters of a step, in the order in which their patterns are tried; a single one has the pattern
    ``*``."""

    rows: tuple[ParameterGroup, ...]

    @property
    def alone(self) -> bool:
        """Whether the groups of parameters are a single one of all, as where no pattern was given."""
        return len(self.rows) == 1 and self.rows[0].pattern == ALL

    def __str__(self) -> str:
        """The groups of parameters as text: a single optimizer's, or PATTERN=OPTIMIZER of each with "; " between."""
        only = self.rows[0].optimizer
        return spelled_optimizer(only) if self.alone and only is not None else "; ".join(map(str, self.rows))

    def assigned(self, names: Sequence[str]) -> list[ParameterGroup]:
        """The group of each of these parameters, in their order: the first whose pattern matches its name. Raises
        AmpError AMP305 for a parameter that no pattern matches, and for a pattern that matches none, or none that an
        earlier one leaves."""
        found = {name: self._first(name, names) for name in names}
        for row in self.rows:
            if row not in found.values():
                raise self._unused(row, names)
        return list(found.values())

    def _first(self, name: str, names: Sequence[str]) -> ParameterGroup:
        """The first group of parameters whose pattern matches ``name``. Raises AmpError AMP305 where none does;
        ``names`` are those of all parameters, for the message."""
        row = next((row for row in self.rows if fnmatch.fnmatchcase(name, row.pattern)), None)
        if row is None:
            others = sum(not any(fnmatch.fnmatchcase(n, r.pattern) for r in self.rows) for n in names) - 1
            more = f", nor {others} more" if others else ""
            hint = "end with a group for all others: '*=adamw', or '*=frozen'"
            raise AmpError("AMP305", f"no optimizer's pattern matches parameter '{name}'{more}", hint=hint)
        return row

    def _unused(self, row: ParameterGroup, names: Sequence[str]) -> AmpError:
        """The AmpError AMP305 for a group that no parameter belongs to, as its pattern or an earlier one says."""
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
    """Each group of parameters once, in the order of its first parameter."""
    return list({group.pattern: group for group in groups}.values())  # an optimizer of the user may have no hash


def groups_of(given: object) -> Groups:
    """The groups of parameters that a user gives: one optimizer, an object or text, or rows ``(pattern, optimizer)`` or
    texts ``PATTERN=OPTIMIZER``; in a row the optimizer may also be ``frozen`` (or None) or ``shared``. Raises AmpError
    AMP322 for anything else, for a pattern that is given twice, and where no group has an optimizer."""
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
    """The optimizers that a command line names by ``words``: all of them if one has a pattern (PATTERN=OPTIMIZER), else
    the last. Raises AmpError AMP322 for a word that is none."""
    whole = all(_parse_group(word).pattern == ALL for word in words)
    return words[-1] if whole else list(words)


def _group_of(row: object) -> ParameterGroup:
    """The group of parameters that a user gives as (pattern, optimizer), or as the text "pattern=optimizer". Raises
    AmpError AMP322 for anything else."""
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
    """The group of parameters in a text ``PATTERN=OPTIMIZER``; of ``OPTIMIZER`` alone, that of all parameters. Raises
    AmpError AMP322 for a text of another form."""
    pattern, form = split_pattern(text, (*OPTIMIZERS, FROZEN, SHARED))
    return _group_of((pattern, form)) if pattern else ParameterGroup(ALL, parse_optimizer(form))
