"""How one training step went, whatever ran it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, SupportsFloat, TypeVar

from ...core.arrays import Array

Tensor = TypeVar("Tensor", covariant=True)


class StepResult(Generic[Tensor]):
    """Numbers of a step. Each is copied from the device, and waited for, when it is asked for."""

    __slots__ = ("_fetch", "_finite", "_loss", "_norm", "_parts", "_scale")

    def __init__(
        self,
        fetch: Callable[[Tensor], Array | SupportsFloat],
        loss: Tensor,
        finite: Tensor | None = None,
        scale: Tensor | None = None,
        norm: Tensor | None = None,
        parts: Mapping[str, Tensor] | None = None,
    ) -> None:
        """``fetch`` copies a tensor of one element to the host; None stands for what the step has not got."""
        self._fetch: Callable[..., Array | SupportsFloat] = fetch
        self._loss, self._finite, self._scale, self._norm = loss, finite, scale, norm
        self._parts: Mapping[str, Tensor] = parts or {}

    def _number(self, tensor: object) -> float:
        """A scalar, copied from the device; this waits for the step."""
        return float(self._fetch(tensor))

    @property
    def loss(self) -> float:
        """The loss, without the loss scale."""
        return self._number(self._loss)

    @property
    def parts(self) -> dict[str, float]:
        """The losses that the loss is the weighted sum of, without their weights, and a gradient penalty under
        ``penalty``; empty where it is one loss, or the batch was shared among micro-batches."""
        return {name: self._number(part) for name, part in self._parts.items()}

    @property
    def finite(self) -> bool:
        """Whether all gradients were finite; True where the step does not look. A step that skips changed nothing."""
        return True if self._finite is None else bool(self._number(self._finite))

    @property
    def grad_norm(self) -> float | None:
        """The L2 norm of all unscaled gradients before they were clipped; None where nothing is clipped."""
        return None if self._norm is None else self._number(self._norm)

    @property
    def scale(self) -> float:
        """The loss scale that the next step uses, as torch's GradScaler.get_scale() gives it; 1 for none."""
        return 1.0 if self._scale is None else self._number(self._scale)

    def __repr__(self) -> str:
        return f"StepResult(loss={self.loss}, finite={self.finite}, scale={self.scale}, grad_norm={self.grad_norm})"
