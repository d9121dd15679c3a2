"""Ranks of a data-parallel training as threads of this process: gloo between them, each with a trainer of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from ampgraph.training.run.trainer import Trainer

T = TypeVar("T")
WAIT = timedelta(seconds=20)
OPENING = threading.Lock()  # a step in memory is made a session from by one thread at a time


def opened(step, group, **options) -> Trainer:
    with OPENING:
        return Trainer(step, "cpu", threads=1, distributed=group, **options)


def on_ranks(count: int, work: Callable[[int, dist.ProcessGroup], T], wait: timedelta = WAIT) -> list[T | Exception]:
    """What ``work(rank, group)`` returns or raises on every rank. A rank that ends closes its connections."""
    store = dist.HashStore()
    found: dict[int, T | Exception] = {}

    def run(rank: int) -> None:
        try:
            group: Any = dist.ProcessGroupGloo(store, rank, count, wait)
            found[rank] = work(rank, group)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [found[rank] for rank in range(count)]


def all_right(results: list[T | Exception]) -> list[T]:
    """Raises the first error; one that tells of another rank only where nothing else went wrong."""
    wrong = [result for result in results if isinstance(result, Exception)]
    for error in sorted(wrong, key=lambda error: "AMP509" in str(error)):
        raise error
    return [result for result in results if not isinstance(result, Exception)]
