"""Optimizers as data, and what they do to one parameter in a graph. The arithmetic is float32 and PyTorch's.

Sources: torch.optim.SGD, Adam and AdamW (2.13), their documented algorithms; Kingma and Ba (2015), Loshchilov and
Hutter (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, is_number, nearest
from ..gradients.builder import Builder
from ..option_text import BadOption, read_options

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
        """What decay by the weight leaves of a parameter, and makes of its gradient."""
        ...

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        """What is subtracted from a parameter, and its new slots."""
        ...

    def update(
        self, b: Builder, parameter: Value, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]
    ) -> Moved:
        """A new parameter and its new slots."""
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

    SLOTS: ClassVar[tuple[str, ...]] = ("momentum",)

    def __post_init__(self) -> None:
        _check(self, "lr", "momentum", "weight_decay")
        if self.nesterov and not self.momentum:
            raise AmpError("AMP322", "nesterov needs momentum", hint="sgd:lr=0.1,momentum=0.9,nesterov=yes")

    @property
    def slots(self) -> tuple[str, ...]:
        return self.SLOTS if self.momentum else ()

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        return (lr,)

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        return parameter, _coupled(b, parameter, gradient, self.weight_decay)

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        [lr] = begun
        if not self.momentum:
            return b.op("Mul", gradient, lr), []
        velocity = b.op("Add", b.op("Mul", slots[0], b.number(self.momentum)), gradient)
        move = velocity
        if self.nesterov:
            move = b.op("Add", gradient, b.op("Mul", velocity, b.number(self.momentum)))
        return b.op("Mul", move, lr), [velocity]


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

    SLOTS: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __post_init__(self) -> None:
        _check(self, "lr", "eps", "weight_decay", "beta1", "beta2")
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise AmpError("AMP322", f"{name}={getattr(self, name)} is not in [0, 1)", hint="for example 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        return self.SLOTS

    def begin(self, b: Builder, lr: Value, count: Value) -> tuple[Value, ...]:
        """Scalars: lr root / correction1 and eps root, root = sqrt(correction2); what decoupled decay leaves."""
        rate = b.op("Cast", lr, to=int(ir.DataType.DOUBLE))
        root = b.op("Sqrt", _correction(b, self.beta2, count))
        step = b.op("Div", b.op("Mul", rate, root), _correction(b, self.beta1, count))
        eps = b.op("Mul", root, _wide(b, self.eps))
        kept = b.op("Sub", _wide(b, 1), b.op("Mul", rate, _wide(b, self.weight_decay)))
        return tuple(b.op("Cast", value, to=int(ir.DataType.FLOAT)) for value in (step, eps, kept))

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        """Adam adds the decay to the gradient."""
        return parameter, _coupled(b, parameter, gradient, self.weight_decay)

    def moved(self, b: Builder, gradient: Value, slots: Sequence[Value], begun: Sequence[Value]) -> Moved:
        step, eps, _ = begun
        mean = _running(b, slots[0], gradient, self.beta1)
        square = _running(b, slots[1], b.op("Mul", gradient, gradient), self.beta2)
        return b.op("Mul", b.op("Div", mean, b.op("Add", b.op("Sqrt", square), eps)), step), [mean, square]


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weights decay by themselves: p = p (1 - lr weight_decay) first."""

    weight_decay: float = 0.01

    def decayed(self, b: Builder, parameter: Value, gradient: Value, begun: Sequence[Value]) -> tuple[Value, Value]:
        return b.op("Mul", parameter, begun[2]) if self.weight_decay else parameter, gradient


OPTIMIZERS: dict[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def parse_optimizer(text: str) -> Optimizer:
    """``sgd:lr=0.1,momentum=0.9`` and the like. Raises AmpError AMP322."""
    kind, _, rest = text.strip().partition(":")
    if kind not in OPTIMIZERS:
        hint = nearest(kind, list(OPTIMIZERS)) or f"there are: {', '.join(OPTIMIZERS)}"
        raise AmpError("AMP322", f"unknown optimizer '{kind}'", hint=hint)
    known = {field.name: field.type for field in fields(OPTIMIZERS[kind])}
    try:
        words = read_options(rest, known)
    except BadOption as bad:
        message = str(bad) if bad.twice else f"unknown option '{bad.word}'"
        raise AmpError("AMP322", f"optimizer {kind}: {message}", hint=f"there are: {', '.join(known)}") from None
    given: dict[str, Any] = {
        key: _boolean(kind, key, value) if known[key] == "bool" else _number(kind, key, value)
        for key, value in words.items()
    }
    return OPTIMIZERS[kind](**given)


def spelled(optimizer: Optimizer) -> str:
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
        raise AmpError("AMP322", f"optimizer={kind} is no optimizer for a graph", hint=hint)
    return given


def _coupled(b: Builder, parameter: Value, gradient: Value, decay: float) -> Value:
    return b.op("Add", gradient, b.op("Mul", parameter, b.number(decay))) if decay else gradient


def _running(b: Builder, old: Value, new: Value, beta: float) -> Value:
    return b.op("Add", b.op("Mul", old, b.number(beta)), b.op("Mul", new, b.number(1 - beta)))


def _correction(b: Builder, beta: float, count: Value) -> Value:
    """1 - beta^count, in float64: near 1 a float32 power has lost the digits that matter."""
    wide = b.op("Cast", count, to=int(ir.DataType.DOUBLE))
    return b.op("Sub", _wide(b, 1), b.op("Pow", _wide(b, beta), wide))


def _wide(b: Builder, number: float) -> Value:
    return b.constant(np.array(number, np.float64))


def _check(optimizer: Optimizer, *names: str) -> None:
    """Numbers of any kind become Python's. Raises AmpError AMP322 for what float32 does not hold."""
    for name in names:
        value = getattr(optimizer, name)
        if not is_number(value) or not 0 <= value <= GREATEST:
            message = f"{name}={value} is not a number from 0 that float32 holds"
            raise AmpError("AMP322", message, hint="for example 0.01")
        object.__setattr__(optimizer, name, value if type(value) in (int, float) else float(value))


def _number(kind: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AmpError("AMP322", f"optimizer {kind}: {key}={text} is not a number", hint=f"{key}=0.01") from None


def _boolean(kind: str, key: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise AmpError("AMP322", f"optimizer {kind}: {key}={text} is neither yes nor no", hint=f"{key}=yes")
    return text == "yes"
