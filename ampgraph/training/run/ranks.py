"""The processes that share a training (ranks): what torchrun says of them, and what they exchange by
torch.distributed."""

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
START_LIMIT = timedelta(minutes=5)
"""How long a process waits for all to begin. Afterwards the limits are torch's: 30 minutes with gloo, 10 with NCCL."""
LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


class SaidByFirst(AmpError):
    """On another rank of a training, the AmpError that was raised on rank 0, which reports it."""


class Ranks:
    """The processes of a training. This base class is a training of one process; `TorchGroup` has several."""

    rank = 0
    world = 1

    @property
    def first(self) -> bool:
        """Whether this process of a training is the one that prints, writes and saves."""
        return self.rank == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """Returns on every rank of a training what ``make`` gives on rank 0, or raises the AmpError that it raises
        there; the other ranks do not call it."""
        return make()

    def refuse_difference(self, text: str, what: str, hint: str) -> None:
        """Raises AmpError AMP509 on all ranks of a training where they give texts that differ. ``what`` completes "rank
        N has ... than rank 0": "another batch". One process alone differs from nobody."""


ALONE = Ranks()


def rank_and_world() -> tuple[int, int]:
    """The rank of this process of a training and the number of processes, as torchrun and other launchers say it in the
    environment; (0, 1) without a launcher."""
    try:
        return int(os.environ.get("RANK", "0")), max(int(os.environ.get("WORLD_SIZE", "1")), 1)
    except ValueError:
        return 0, 1


def threads_of_rank(threads: int) -> int:
    """How many threads a rank of a training takes on the CPU: ``threads``; where that is 0, its share of the machine's
    cores among the ranks on it, or 0 (ONNX Runtime's choice) for a rank alone there."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if threads or not local.isdigit() or int(local) < 2:
        return threads
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(here // int(local), 1)


class TorchGroup(Ranks):
    """The processes of a training that torch.distributed connects. All ranks must call every method but ``first``, in
    the same order, or they wait for each other."""

    def __init__(self, group: ProcessGroup, memory: str) -> None:
        """``memory``: where the tensors lie that are summed, cpu or cuda."""
        self.group, self.memory = group, memory
        self.rank, self.world = group.rank(), group.size()

    def sum(self, *tensors: torch.Tensor) -> None:
        """Sums each tensor over all ranks of a training, in place. Raises AmpError AMP509 for a rank that is gone."""
        distributed = _torch_distributed().distributed
        with _torch_errors_reported():
            work = [distributed.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]
            for one in work:
                one.wait()
        self._synchronize()

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Returns each number summed over all ranks of a training. Raises AmpError AMP509 for a rank that is gone."""
        tensor = _torch_distributed().tensor(
            [float(number) for number in numbers], dtype=_torch_distributed().float64, device=self.memory
        )
        self.sum(tensor)
        found: list[float] = tensor.tolist()
        return found

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Overwrites a tensor, on all ranks of a training, with that of rank ``source``. Raises AmpError AMP509 for a
        rank that is gone."""
        with _torch_errors_reported():
            _torch_distributed().distributed.broadcast(tensor, group=self.group, group_src=source)
        self._synchronize()

    def from_first(self, make: Callable[[], T]) -> T:
        """Returns on every rank of a training what ``make`` gives on rank 0, or raises the AmpError that it raises
        there: as `SaidByFirst` on the others, which do not call it."""
        result: T | None = None
        failure: tuple[str, str, str, str] | None = None  # code, message, where, hint
        if self.first:
            try:
                result = make()
            except AmpError as error:
                failure = error.code, error.message, error.where, error.hint
        result, failure = self._broadcast_object((result, failure))
        if failure is not None:
            code, message, where, hint = failure
            raise (AmpError if self.first else SaidByFirst)(code, message, where=where, hint=hint)
        return result  # type: ignore[return-value]

    def refuse_difference(self, text: str, what: str, hint: str) -> None:
        """Raises AmpError AMP509 on all ranks of a training if ``text`` is another one on some rank; compared by 128
        bits of its hash. ``what`` as in `Ranks.refuse_difference`."""
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        mine = [int.from_bytes(digest[start : start + 4], "little") for start in range(0, 16, 4)]
        gathered = _torch_distributed().zeros(
            self.world, len(mine), dtype=_torch_distributed().int64, device=self.memory
        )  # each rank fills its own row, so the sum has them all
        gathered[self.rank] = _torch_distributed().tensor(mine)
        self.sum(gathered)
        rows = gathered.tolist()
        other = next((rank for rank, row in enumerate(rows) if row != rows[0]), None)
        if other is not None:
            raise AmpError("AMP509", f"rank {other} has {what} than rank 0", hint=hint)

    def _broadcast_object(self, value: T) -> T:
        """Returns on every rank of a training the object that rank 0 gives, pickled in between."""
        torch = _torch_distributed()
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8) if self.first else None
        size = torch.tensor([0 if data is None else len(data)], device=self.memory)
        self.broadcast(size)
        data = torch.empty(int(size), dtype=torch.uint8) if data is None else data
        data = data.to(self.memory)
        self.broadcast(data)
        sent: T = value if self.first else pickle.loads(data.cpu().numpy().tobytes())
        return sent

    def _synchronize(self) -> None:
        """Waits until what torch does on the device is done: ONNX Runtime reads the buffer on another stream."""
        if self.memory != "cpu":
            _torch_distributed().cuda.synchronize()


def join_group(distributed: str | ProcessGroup | None, memory: str) -> Ranks:
    """The ranks of a training: those of the launcher ("auto"), of a process group, or this process alone (None, or
    "auto" without a launcher). ``memory``: where tensors lie that are summed. Raises AmpError AMP501 without torch,
    AMP325 for what is no group of processes, AMP509 where the others cannot be reached."""
    auto = isinstance(distributed, str) and distributed == AUTO  # == of an array would give an array
    if distributed is None or (auto and rank_and_world()[1] == 1):
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
    """For training by several ranks: the process group of all processes that the launcher started, made at the first
    call. Raises AmpError AMP509 where they do not meet within `START_LIMIT`."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        kind = "cpu:gloo" if memory == "cpu" else "cpu:gloo,cuda:nccl"
        with _torch_errors_reported():
            store, rank, world = next(distributed.rendezvous("env://", timeout=START_LIMIT))
            # torchrun may keep its store when it restarts ranks: it would hold addresses of those that ended
            store = distributed.PrefixStore(f"ampgraph/{os.environ.get(RESTARTS, '0')}", store)
            distributed.init_process_group(kind, store=store, rank=rank, world_size=world)
        atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())
    group: ProcessGroup = distributed.group.WORLD
    return group


@contextlib.contextmanager
def _torch_errors_reported() -> Iterator[None]:
    """Training by several ranks: within it, what torch.distributed raises becomes an AmpError AMP509."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        message = f"another process of this training is gone, or cannot be reached: {first_line(error)}"
        hint = "see what it says; torchrun --max-restarts 3 with --checkpoint DIR --resume goes on by itself"
        raise AmpError("AMP509", message, hint=hint) from error


def _torch_distributed() -> ModuleType:
    """For training by several ranks: torch with torch.distributed, imported. Raises AmpError AMP501 without one."""
    os.environ.setdefault(LOG_LEVEL, "ERROR")  # its warnings of a lost process are stacks of C++; ours is one line
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise AmpError("AMP501", f"{error.name} is not installed", hint=pip_install("distributed")) from error
    if not torch.distributed.is_available():
        raise AmpError("AMP501", "this build of torch has no torch.distributed", hint=pip_install("distributed"))
    return torch
