"""Which binding a trainer runs its steps on: one graph, two with micro-batches, or two with other processes between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.errors import AmpError
from ....runtime.devices import choose
from ...step.training_step import TrainingStep
from ..accumulation import AccumulatingBinding
from ..binding import Binding
from ..captured import CapturedBinding
from .alone import Ranks
from .options import ParallelOptions
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
    options: ParallelOptions,
    cuda_graph: bool = False,
) -> tuple[Binding | AccumulatingBinding, Ranks]:
    """The binding, and the processes that share its steps. Raises what these raise, and AmpError AMP501, AMP325 and
    AMP509 for the processes."""
    chosen, _ = choose("cpu" if strict else device)
    group = join(distributed, "cuda" if chosen == "tensorrt" else chosen)
    if group.world * parts > 1 and step.layout.whole_batch:
        shared = f"accumulate={parts}" if group.world == 1 else f"{group.world} processes"
        hint = "leave accumulate away" if group.world == 1 else "train in one process"
        raise AmpError("AMP325", f"{shared}: {step.layout.whole_batch}", hint=hint)
    if cuda_graph and (strict or parts > 1 or isinstance(group, TorchGroup)):
        hint = "leave cuda_graph away, or train in one process, without strict and accumulate"
        raise AmpError("AMP325", "a CUDA graph is of a whole step on one device", hint=hint)
    if cuda_graph:
        return CapturedBinding(step, device, threads), group
    if isinstance(group, TorchGroup):
        from .parallel_binding import ParallelBinding
        from .sharded_binding import ShardedBinding

        kind = ShardedBinding if options.shard else ParallelBinding
        return kind(step, device, strict, threads, parts, group, options), group
    if parts > 1:
        return AccumulatingBinding(step, device, strict, threads, parts), group
    return Binding(step, device, strict, threads), group
