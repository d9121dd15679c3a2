"""A command that a launcher such as torchrun starts several times: one rank reports, and each takes its own device."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from ..core.errors import AmpError
from .terminal import fail
from .volume import hush

VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def one_reports() -> Iterator[bool]:
    """Whether this process is the one that prints. The others are quiet but for errors of their own."""
    from ..training.run.parallel.alone import SaidByFirst, launched

    rank, world = launched()
    if world > 1:
        _take_device()
    if rank == 0:
        yield True
        return
    hush()
    try:
        yield False
    except SaidByFirst:
        sys.exit(2)
    except AmpError as error:
        raise AmpError(error.code, f"rank {rank}: {error.message}", where=error.where, hint=error.hint) from error
    except KeyboardInterrupt:
        fail(130)


def _take_device() -> None:
    """Shows the libraries, before they are loaded, the one CUDA device that is this rank's."""
    local, count = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not local.isdigit() or count == "1":
        return
    shown = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if VISIBLE not in os.environ:
        os.environ[VISIBLE] = local
    elif int(local) < len(shown):
        os.environ[VISIBLE] = shown[int(local)]
