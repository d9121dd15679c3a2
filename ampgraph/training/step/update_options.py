"""What a user says of the update beside the optimizers: clipping, the average of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import AmpError, is_number


@dataclass(frozen=True)
class UpdateOptions:
    """What becomes of unscaled gradients and of new parameters.

    Args:
        clip_norm: the largest L2 norm of all unscaled gradients together.
        clip_value: the largest absolute value of one number of an unscaled gradient.
        ema: the decay of the running average of the parameters, which is kept beside them.

    Raises AmpError AMP322 for numbers that make no sense, and for both ways to clip at once.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    ema: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            _positive(self, name)
        if self.clip_norm is not None and self.clip_value is not None:
            message = "clip_norm and clip_value cannot be had together: the result depends on which comes first"
            raise AmpError("AMP322", message, hint="leave one of them away")
        if self.ema is not None:
            if not is_number(self.ema) or not 0 < self.ema < 1:
                raise AmpError("AMP322", f"ema={self.ema!r} is not a number between 0 and 1", hint="for example 0.999")
            object.__setattr__(self, "ema", float(self.ema))


def _positive(options: UpdateOptions, name: str) -> None:
    given = getattr(options, name)
    if given is None:
        return
    with np.errstate(over="ignore"):
        if not is_number(given) or not np.float32(given) > 0:
            raise AmpError("AMP322", f"{name}={given!r} is not a positive number", hint="for example 1.0")
    object.__setattr__(options, name, float(given))
