"""A command that a launcher such as torchrun starts several times: one rank reports, and each takes its own device."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ..core.errors import AmpError
from .volume import hush

VISIBLE = "CUDA_VISIBLE_DEVICES"


def of_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """The command as one of several processes runs it: all but the first are quiet but for errors of their own."""

    @functools.wraps(command)
    def run(*args: Any, **values: Any) -> None:
        from ..training.run.parallel.alone import SaidByFirst, launched

        rank, world = launched()
        if world == 1:
            return command(*args, **values)
        _take_device()
        if rank:
            hush()
        try:
            command(*args, **values)
        except SaidByFirst:
            sys.exit(2)
        except AmpError as error:
            message = f"rank {rank}: {error.message}" if rank else error.message
            raise AmpError(error.code, message, where=error.where, hint=error.hint) from error
        finally:
            # torchrun ends the others when one has ended: no handler may run while the interpreter is taken apart
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return run


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
