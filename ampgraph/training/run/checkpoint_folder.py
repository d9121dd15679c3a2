"""A folder of checkpoints belongs to one training at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import AmpError
from ...core.files import sweep


def claim(file: Path, until: contextlib.ExitStack) -> None:
    """`claimed`, to the end of an exit stack."""
    until.enter_context(claimed(file))


@contextlib.contextmanager
def claimed(file: Path) -> Iterator[None]:
    """Makes the folder of a checkpoint, clears it of what killed trainings have left, and keeps others out of it.

    Raises AmpError AMP105 where the folder cannot be, AMP325 where another training writes its checkpoints there.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"no folder for checkpoints can be made: {error.strerror or error}"
        hint = "choose another place with --checkpoint"
        raise AmpError("AMP105", message, where=str(file.parent), hint=hint) from error
    with _locked(file.parent):
        sweep(file)
        yield


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A lock that ends with its process, whatever ends it; none where the system or the file system has no such.

    The folder itself is locked: a lock file, as the package filelock has one, would lie in the user's folder for good.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = "another training that is running writes its checkpoints there"
            raise AmpError(
                "AMP325", message, where=str(folder), hint="wait for its end, or name another folder"
            ) from error
        except OSError:
            pass  # a file system without locks, or a folder that may only be written
        yield
