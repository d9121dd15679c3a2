"""Which binding a trainer runs its steps on: one graph, two with micro-batches, or two with other processes between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....runtime.devices import choose
from ...step.training_step import TrainingStep
from ..accumulation import AccumulatingBinding
from ..binding import Binding
from .alone import Group
from .torch_group import TorchGroup, join

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def open_binding(
    step: TrainingStep,
    device: str,
    strict: bool,
    threads: int,
    parts: int,
    distributed: str | ProcessGroup | None,
) -> tuple[Binding | AccumulatingBinding, Group]:
    """The binding, and the processes that share its steps. Raises what these raise, and AmpError AMP501, AMP325 and
    AMP509 for the processes."""
    chosen, _ = choose("cpu" if strict else device)
    group = join(distributed, "cuda" if chosen == "tensorrt" else chosen)
    if isinstance(group, TorchGroup):
        from .parallel_binding import ParallelBinding

        return ParallelBinding(step, device, strict, threads, parts, group), group
    if parts > 1:
        return AccumulatingBinding(step, device, strict, threads, parts), group
    return Binding(step, device, strict, threads), group
