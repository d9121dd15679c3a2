"""The processes that share a training: what torchrun says of them, and what they do together, on torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from ...core.errors import AmpError, first_line
from ...core.installing import pip_install

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

T = TypeVar("T")
AUTO = "auto"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
REACHED = timedelta(minutes=5)
"""How long processes wait for all to begin. Afterwards the limits are torch's: 30 minutes with gloo, 10 with NCCL."""
FEWER_WORDS = "TORCH_CPP_LOG_LEVEL"


class SaidByFirst(AmpError):
    """What went wrong on rank 0, which says it, on another rank."""


class Ranks:
    """All processes of a training. This one is its only one; `TorchGroup` has others."""

    rank = 0
    world = 1

    @property
    def first(self) -> bool:
        """Whether this process of a training is the one that prints, writes and saves."""
        return self.rank == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, or the AmpError that it raises, on every rank; the others do not call ``make``."""
        return make()

    def refuse_difference(self, text: str, what: str, hint: str) -> None:
        """Raises AmpError AMP509 where ranks give texts that differ."""


ALONE = Ranks()


def launched() -> tuple[int, int]:
    """The rank of this process and how many there are, as torchrun and other launchers say it in the environment."""
    try:
        return int(os.environ.get("RANK", "0")), max(int(os.environ.get("WORLD_SIZE", "1")), 1)
    except ValueError:
        return 0, 1


def threads_of_rank(threads: int) -> int:
    """How many threads a rank of a training takes on the CPU where nothing is said (0): its part of the machine's."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if threads or not local.isdigit() or int(local) < 2:
        return threads
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(here // int(local), 1)


class TorchGroup(Ranks):
    """The ranks of a process group; every method but ``first`` is called by all of them, in the same order."""

    def __init__(self, group: ProcessGroup, memory: str) -> None:
        """``memory``: where the tensors lie that are summed, cpu or cuda."""
        self.group, self.memory = group, memory
        self.rank, self.world = group.rank(), group.size()

    def sum(self, *tensors: torch.Tensor) -> None:
        """Sums tensors over all ranks where they lie. Raises AmpError AMP509 for a rank that is gone."""
        distributed = _torch_distributed().distributed
        with _torch_errors_reported():
            work = [distributed.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]
            for one in work:
                one.wait()
        self._finish()

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Numbers, each summed over all ranks of a training. AmpError AMP509."""
        tensor = _torch_distributed().tensor(
            [float(number) for number in numbers], dtype=_torch_distributed().float64, device=self.memory
        )
        self.sum(tensor)
        found: list[float] = tensor.tolist()
        return found

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Sends a tensor of rank ``source`` into the given one on every rank. Raises AmpError AMP509."""
        with _torch_errors_reported():
            _torch_distributed().distributed.broadcast(tensor, group=self.group, group_src=source)
        self._finish()

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives on rank 0, sent to all ranks; an AmpError that it raises there is raised on all."""
        made: tuple[T | None, tuple[str, str, str, str] | None] = None, None
        if self.first:
            try:
                made = make(), None
            except AmpError as error:
                made = None, (error.code, error.message, error.where, error.hint)
        found, wrong = self._sent(made)
        if wrong is not None:
            raise (AmpError if self.first else SaidByFirst)(wrong[0], wrong[1], where=wrong[2], hint=wrong[3])
        return found  # type: ignore[return-value]

    def refuse_difference(self, text: str, what: str, hint: str) -> None:
        """Raises AMP509 on all ranks if ``text`` is another one on some rank; compared by 128 bits of its hash."""
        made = hashlib.blake2b(text.encode(), digest_size=16).digest()
        mine = [int.from_bytes(made[start : start + 4], "little") for start in range(0, 16, 4)]
        gathered = _torch_distributed().zeros(
            self.world, len(mine), dtype=_torch_distributed().int64, device=self.memory
        )
        gathered[self.rank] = _torch_distributed().tensor(mine)
        self.sum(gathered)
        rows = gathered.tolist()
        other = next((rank for rank, row in enumerate(rows) if row != rows[0]), None)
        if other is not None:
            raise AmpError("AMP509", f"rank {other} has {what} than rank 0", hint=hint)

    def _sent(self, value: T) -> T:
        """Sends any object of rank 0 to all ranks."""
        torch = _torch_distributed()
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8) if self.first else None
        size = torch.tensor([0 if data is None else len(data)], device=self.memory)
        self.broadcast(size)
        data = torch.empty(int(size), dtype=torch.uint8) if data is None else data
        data = data.to(self.memory)
        self.broadcast(data)
        sent: T = value if self.first else pickle.loads(data.cpu().numpy().tobytes())
        return sent

    def _finish(self) -> None:
        """Waits until sums on torch's stream are done: ONNX Runtime reads the buffer on a stream of its own."""
        if self.memory != "cpu":
            _torch_distributed().cuda.synchronize()


def join_group(distributed: str | ProcessGroup | None, memory: str) -> Ranks:
    """The processes to train with. Raises AmpError AMP501 without torch, AMP325 for what is no group of processes,
    AMP509 where the others cannot be reached."""
    auto = isinstance(distributed, str) and distributed == AUTO  # what an array is equal to is an array
    if distributed is None or (auto and launched()[1] == 1):
        return ALONE
    torch = _torch_distributed()
    if auto:
        distributed = _start_group(torch, memory)
    elif not all(callable(getattr(distributed, name, None)) for name in ("rank", "size", "allreduce")):
        given = repr(distributed) if isinstance(distributed, (str, int)) else f"a {type(distributed).__name__}"
        message = f"distributed={given} is not a process group"
        raise AmpError("AMP325", message, hint="'auto', None, or a process group of torch.distributed")
    assert not isinstance(distributed, str)
    return TorchGroup(distributed, memory)


def _start_group(torch: ModuleType, memory: str) -> ProcessGroup:
    """For training by several ranks: the group of all processes that the launcher has started."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        kind = "cpu:gloo" if memory == "cpu" else "cpu:gloo,cuda:nccl"
        with _torch_errors_reported():
            store, rank, world = next(distributed.rendezvous("env://", timeout=REACHED))
            # torchrun may keep its store when it starts ranks again: addresses of those that ended would be found there
            store = distributed.PrefixStore(f"ampgraph/{os.environ.get(RESTARTS, '0')}", store)
            distributed.init_process_group(kind, store=store, rank=rank, world_size=world)
        atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())
    group: ProcessGroup = distributed.group.WORLD
    return group


@contextlib.contextmanager
def _torch_errors_reported() -> Iterator[None]:
    """Training by several ranks: turns what torch.distributed raises into AmpError AMP509."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        message = f"another process of this training is gone, or cannot be reached: {first_line(error)}"
        hint = "see what it says; torchrun --max-restarts 3 with --checkpoint DIR --resume goes on by itself"
        raise AmpError("AMP509", message, hint=hint) from error


def _torch_distributed() -> ModuleType:
    """For training by several ranks: torch with torch.distributed; AmpError AMP501 where it is missing."""
    os.environ.setdefault(FEWER_WORDS, "ERROR")  # its warnings of a lost process are stacks of C++; ours is one line
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise AmpError("AMP501", f"{error.name} is not installed", hint=pip_install("distributed")) from error
    if not torch.distributed.is_available():
        raise AmpError("AMP501", "this build of torch has no torch.distributed", hint=pip_install("distributed"))
    return torch
