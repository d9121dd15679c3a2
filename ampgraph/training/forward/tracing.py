"""What torch is told while it traces a module: of a branch that decides nothing, and of what has no gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...core.errors import AmpError

if TYPE_CHECKING:
    import torch


@contextmanager
def traced_ways(torch: ModuleType) -> Iterator[None]:
    """Inside, nn.Transformer does not look whether a mask is causal, which only chooses a kernel; the power iterations
    of spectral_norm see a weight that is detached, as under their torch.no_grad(); and cdist and ctc_loss, whose own
    kernels ask for sizes, are written in other operators."""
    from .decompositions.losses import aligned
    from .decompositions.table import distances

    norm = torch.nn.utils.parametrizations._SpectralNorm
    ways = [
        (torch.nn.modules.transformer, "_detect_is_causal_mask", _told),
        (norm, "_power_method", _detached(norm._power_method)),
        (torch, "cdist", distances),
        (torch, "ctc_loss", aligned),
    ]
    before = [getattr(holder, name) for holder, name, _ in ways]
    for holder, name, way in ways:
        setattr(holder, name, way)
    try:
        yield
    finally:
        for (holder, name, _), own in zip(ways, before, strict=True):
            setattr(holder, name, own)


def refuse_old_forms(module: torch.nn.Module) -> None:
    """Raises AmpError AMP214 for torch.nn.utils.spectral_norm, which works by hooks; its successor is exported."""
    for name, part in module.named_modules():
        if any(type(hook).__name__ == "SpectralNorm" for hook in part._forward_pre_hooks.values()):
            message = f"'{name}' has torch.nn.utils.spectral_norm, whose hooks are no part of a graph"
            raise AmpError("AMP214", message, hint="torch.nn.utils.parametrizations.spectral_norm is exported")


def _told(mask: object, is_causal: bool | None = None, size: int | None = None) -> bool:
    return bool(is_causal)


def _detached(iterate: Callable[..., None]) -> Callable[..., None]:
    def run(self: object, weight: Any, iterations: int) -> None:
        iterate(self, weight.detach(), iterations)

    return run
