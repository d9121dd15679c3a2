"""How processes share an update, beside who they are."""

from __future__ import annotations

from dataclasses import dataclass

from ....core.errors import AmpError, nearest
from ...step.training_step import StepLayout

COMMUNICATED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class ParallelOptions:
    """``communicate``: the type in which gradients are sent. ``shard``: each process keeps the optimizer's state of its
    part of the parameters alone, updates these, and sends them to the others."""

    communicate: str = "float32"
    shard: bool = False

    def __post_init__(self) -> None:
        if self.communicate not in COMMUNICATED:
            message = f"communicate={self.communicate!r} is none of {', '.join(COMMUNICATED)}"
            raise AmpError("AMP325", message, hint=nearest(str(self.communicate), list(COMMUNICATED)))

    def check(self, layout: StepLayout) -> None:
        """Raises AmpError AMP325 where an overflow of what is sent would go into the weights."""
        if self.communicate == "float16" and not layout.finite:
            message = "gradients are sent as float16, and the step does not look for those that overflow"
            raise AmpError("AMP325", message, hint="build it with --loss-scale dynamic, or send bfloat16")
