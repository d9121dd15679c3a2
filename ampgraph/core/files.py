"""Files that are written: what is refused before the work begins, and text that appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .errors import AmpError

NAME_LIMIT = 200  # bytes: names of temporary and data files are longer than the model's, and 255 is the usual end


def refuse_output(path: Path, sources: Iterable[Path] = (), option: str = "") -> None:
    """Raises AmpError AMP106 when ``path`` is one of ``sources``, under whatever name; AMP105 when it can be no file:
    a folder, a device or a pipe (the result would take its place), no folder around it, a name that is too long."""
    by = f" with {option}" if option else ""
    if any(same_file(path, source) for source in sources):
        hint = f"choose another name{by}"
        raise AmpError("AMP106", "the result would be written over the input", where=str(path), hint=hint)
    if len(os.fsencode(path.name)) > NAME_LIMIT:
        raise AmpError("AMP105", "the file name is too long", where=str(path), hint=f"choose a shorter one{by}")
    if path.is_dir():
        raise AmpError("AMP105", "is a directory", where=str(path), hint=f"name a file in it{by}")
    if path.exists() and not path.is_file():
        raise AmpError("AMP105", "is not a file", where=str(path), hint=f"choose another place{by}")
    if not path.parent.is_dir():
        raise AmpError("AMP105", "the folder does not exist", where=str(path.parent), hint="create it first")


def sources_of(*given: Any) -> list[Path]:
    """The files behind arguments: of a path itself, of a folder its samples, of a list each; objects have none."""
    found: list[Path] = []
    for item in given:
        if isinstance(item, (list, tuple)):
            found += sources_of(*item)
        elif isinstance(item, (str, os.PathLike)):
            path = Path(item)
            found += sorted(path.glob("*.npz")) if os.path.isdir(path) else [path]
    return found


def same_file(one: Path, other: Path) -> bool:
    """One file, through links too."""
    try:
        return os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    except (OSError, ValueError):  # there is no such file, or cannot be
        return False


def try_folder(path: Path, option: str = "") -> None:
    """Raises AmpError AMP105 where no file can be made beside ``path``: before long work, not after it."""
    temporary = _temporary(path)
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise unwritable(path, error, option) from error


@contextlib.contextmanager
def text_file(path: str | os.PathLike[str] | None, text: Callable[[], str], option: str = "") -> Iterator[None]:
    """Writes the text beside its place, and puts it there when what is done inside has succeeded; None: no file.

    Raises AmpError AMP105.
    """
    if path is None:
        yield
        return
    target = Path(path)
    refuse_output(target, option=option)
    temporary = _temporary(target)
    try:
        try:
            temporary.write_text(text(), encoding="utf-8")
        except OSError as error:
            raise unwritable(target, error, option) from error
        yield
        try:
            os.replace(temporary, target)
        except OSError as error:
            raise unwritable(target, error, option) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError, option: str = "") -> AmpError:
    """What the system says against writing, as AMP105."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    message = "the disk is full" if full else f"cannot be written: {error.strerror or error}"
    hint = f"choose another place with {option}" if option else "choose another place"
    return AmpError("AMP105", message, where=str(path), hint=f"free some space, or {hint}" if full else hint)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
