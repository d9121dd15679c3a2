"""Gradient penalties: terms of a loss that are made of gradients, so that the step differentiates twice.

Sources: "Gradient penalty" in PyTorch's automatic mixed precision examples; Gulrajani et al., Improved Training of
Wasserstein GANs (2017), equation 3; Drucker and LeCun, Improving generalization performance using double
backpropagation (1992).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ...core.errors import AmpError, is_number, nearest
from ..option_text import BadOption, read_options

PARAMETERS, INPUTS = "parameters", "inputs"
FORM = "weight=10,of=inputs,output=score,target=1"
GREATEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GradientPenalty:
    """``weight * |norm(gradient) - target| ** power``, which is added to the loss.

    Args:
        weight: of the penalty in the loss.
        of: what the gradient is with respect to. ``parameters``: all that are trained, in one norm. ``inputs``: the
            float input, or names, ``x+z``: a norm for each sample over all of them, and the mean of the penalties.
        output: an output of the forward graph whose elements are summed up and differentiated, as a critic's score;
            without it, the loss.
        norm: 2 or 1.
        target: what the norm should be; Wasserstein GANs take 1. It needs an ``output`` where ``of`` is an input: the
            gradient of a mean loss shrinks with the batch.
        power: 2 or 1. PyTorch's example adds the norm itself: ``GradientPenalty(of="parameters", power=1)``.

    Raises AmpError AMP213 for what makes no sense.
    """

    weight: float = 1.0
    of: str = PARAMETERS
    output: str | None = None
    norm: int = 2
    target: float = 0.0
    power: int = 2

    def __post_init__(self) -> None:
        for name in ("weight", "target"):
            value = getattr(self, name)
            least = 0 if name == "target" else float(np.finfo(np.float32).tiny)
            if not is_number(value) or not least <= value <= GREATEST:
                raise _wrong(f"{name}={value!r} is not a {'' if name == 'target' else 'positive '}number")
            object.__setattr__(self, name, float(value))
        for name in ("norm", "power"):
            if type(getattr(self, name)) is not int or getattr(self, name) not in (1, 2):
                raise _wrong(f"{name}={getattr(self, name)!r} is neither 1 nor 2")
        for name in ("of", "output"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (name == "output" and value is None):
                raise _wrong(f"{name}={value!r} is no name")
        if self.target and self.of != PARAMETERS and self.output is None:
            message = (
                f"target={self.target:g} for the gradients of a mean loss, which shrink with the size of the batch"
            )
            raise AmpError("AMP213", f"penalty: {message}", hint="name what is to have such gradients: output=score")

    @property
    def of_samples(self) -> bool:
        """Whether it is a mean over the samples, as a loss is."""
        return self.of != PARAMETERS and self.output is not None

    def __str__(self) -> str:
        """The form that `parse_penalty` reads."""
        return ",".join(f"{f.name}={v}" for f in fields(self) if (v := getattr(self, f.name)) is not None)


def parse_penalty(text: str) -> GradientPenalty:
    """``weight=10,of=inputs,output=score,target=1``, each with its default. Raises AmpError AMP213."""
    known = [field.name for field in fields(GradientPenalty)]
    try:
        words = read_options(text.strip(), known)
    except BadOption as bad:
        hint = nearest(bad.key, known) or f"there are: {', '.join(known)}"
        raise AmpError("AMP213", f"--penalty {text}: {bad}", hint=hint) from None
    numbers = {key: _number(key, value) for key, value in words.items() if key not in ("of", "output")}
    names = {key: value for key, value in words.items() if key in ("of", "output")}
    return GradientPenalty(**numbers, **names)  # type: ignore[arg-type]


def as_penalty(given: object) -> GradientPenalty | None:
    """A penalty, its command-line form, or None. Raises AmpError AMP213."""
    if given is None or isinstance(given, GradientPenalty):
        return given
    if not isinstance(given, str):
        raise _wrong(f"{given!r} is no penalty")
    return parse_penalty(given)


def _number(key: str, text: str) -> float | int:
    try:
        return int(text) if key in ("norm", "power") else float(text)
    except ValueError:
        raise _wrong(f"{key}={text} is not a number") from None


def _wrong(message: str) -> AmpError:
    return AmpError("AMP213", f"penalty: {message}", hint=f"for example {FORM}, or of=parameters,power=1")
