"""Files that are written: what is refused before the work begins, and what appears whole or not at all.

A file is written beside its place under a name that nobody else has, and renamed when it is whole: the rename is the
commit. What is left of one that failed is removed; what a killed process left is removed by `sweep`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .errors import AmpError

LFS_POINTER = b"version https://git-lfs"
"""How a file starts of which Git has the pointer alone, and LFS the content."""
PULL = "run git lfs pull"

NAME_LIMIT = 200  # bytes: names of temporary and data files are longer than the model's, and 255 is the usual end


def refuse_output(path: Path, sources: Iterable[Path] = (), option: str = "") -> None:
    """Before any file is written: refuses a ``path`` that cannot become the result.

    Raises AmpError AMP106 when it is one of ``sources``, under whatever name; AMP105 when it is a folder, a device or a
    pipe (the result would take its place), when there is no folder around it, or its name is too long. ``option``: the
    flag by which the user names the file, for the hint; "" for none."""
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


def sources_of(*given: object) -> list[Path]:
    """The files that arguments name, which a whole file must not replace: a path itself, the samples (.npz) in a
    folder, and those of each item of a list or tuple; other objects name none."""
    found: list[Path] = []
    for item in given:
        if isinstance(item, (list, tuple)):
            found += sources_of(*item)
        elif isinstance(item, (str, os.PathLike)):
            path = Path(item)
            found += sorted(path.glob("*.npz")) if os.path.isdir(path) else [path]
    return found


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, through links too; False for a path that is no file's."""
    try:
        return os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    except (OSError, ValueError):  # there is no such file, or cannot be
        return False


def try_folder(path: Path, option: str = "") -> None:
    """Before long work: raises AmpError AMP105 if no file can be made beside ``path``; ``option``: as
    `refuse_output`'s."""
    with refusals_reported(path, option), temporaries(path) as temporary:
        temporary("").touch()


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a file in UTF-8, as JSON is. Raises AmpError AMP401, which says that it should hold ``what``."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AmpError("AMP401", f"cannot be read as {what}", where=str(path), hint="check the path") from error


@contextlib.contextmanager
def text_file(path: str | os.PathLike[str] | None, text: Callable[[], str], option: str = "") -> Iterator[None]:
    """Writes a text to a temporary file beside ``path`` first, and renames that when what is done inside has succeeded.

    ``path``: None for no file. ``text``: makes the text, before what is done inside. ``option``: as of `refuse_output`.
    Raises AmpError AMP105.
    """
    if path is None:
        yield
        return
    target = Path(path)
    refuse_output(target, option=option)
    with temporaries(target) as temporary:
        with refusals_reported(target, option):
            temporary("").write_text(text(), encoding="utf-8")
        yield  # an error in here is not of this file
        with refusals_reported(target, option):
            os.replace(temporary(""), target)


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str], option: str = "", *, suffix: str = "", durable: bool = False
) -> Iterator[Path]:
    """Gives a temporary file beside ``path`` to write to, which takes its place when what is done inside has succeeded.

    Args:
        option: the flag by which a user names the place, for the hint of an error.
        suffix: how the temporary name ends, for a writer that looks at it.
        durable: the file is forced to the disk before it is renamed, and the rename after it.

    Raises AmpError AMP105 for a place that can be no file, and for what the system refuses inside.
    """
    target = Path(path)
    with whole_files(target, option, suffix=suffix) as temporary:
        beside = temporary("")
        yield beside
        if durable:
            _flush_to_disk(beside, os.O_RDWR)
        os.replace(beside, target)
        if durable:
            with contextlib.suppress(OSError):  # where a folder cannot be opened for that
                _flush_to_disk(target.parent, os.O_RDONLY)


@contextlib.contextmanager
def whole_files(path: Path, option: str = "", *, suffix: str = "") -> Iterator[Callable[[str], Path]]:
    """Gives a function that makes temporary names beside ``path`` for a file in several parts, one for each word that
    it is called with. Whoever writes renames them; what is left is removed. ``suffix``: what the names end in.

    Raises AmpError AMP105 as `whole_file` does.
    """
    refuse_output(path, option=option)
    with refusals_reported(path, option), temporaries(path, suffix) as temporary:
        yield temporary


@contextlib.contextmanager
def temporaries(path: Path, suffix: str = "") -> Iterator[Callable[[str], Path]]:
    """Gives a function that makes names beside ``path`` that nobody else has, one for each word that it is called with
    ("" too), which end in ``suffix``; what is still there at the end is removed."""
    stem = f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}"
    made: dict[str, Path] = {}

    def temporary(part: str) -> Path:
        if part not in made:
            made[part] = path.with_name(f"{stem}.{part}.tmp{suffix}" if part else f"{stem}.tmp{suffix}")
            _being_written.add(made[part].name)
        return made[part]

    try:
        yield temporary
    finally:
        for leftover in made.values():
            with contextlib.suppress(OSError):  # most often it is not there any more
                leftover.chmod(0o600)  # Windows keeps what is read-only
                leftover.unlink()
            _being_written.discard(leftover.name)


_being_written: set[str] = set()  # names of temporary files of this process


def sweep(path: Path) -> None:
    """Whole files: removes the temporary files that killed processes have left beside ``path`` while they wrote it."""
    start = f".{path.name}."
    for found in sorted(path.parent.glob(f"{glob.escape(start)}*-*.tmp")):
        number = found.name.removeprefix(start).partition("-")[0]
        if found.name not in _being_written and number.isdecimal() and not _is_running(int(number)):
            with contextlib.suppress(OSError):
                found.unlink()


def _is_running(process: int) -> bool:
    """Whole files: whether another process of this number runs, so that a temporary file may be its own."""
    if process == os.getpid():
        return False  # not this one: a container gives the same number to every run
    if os.name == "nt":
        return True  # a signal, even none, would end it there
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # of another user
    return True


def _flush_to_disk(path: Path, mode: int) -> None:
    """Whole files: flushes a file or folder to the disk (fsync). ``mode``: os.O_RDWR or, for a folder, os.O_RDONLY."""
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def refusals_reported(path: Path, option: str = "") -> Iterator[None]:
    """Turns what the system says against writing ``path`` into AmpError AMP105, whose hint names ``option``."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error, option) from error


def write_error(path: Path, error: OSError, option: str = "") -> AmpError:
    """Whole files: the AmpError AMP105 for what the system says against writing ``path``."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    message = "the disk is full" if full else f"cannot be written: {error.strerror or error}"
    hint = f"choose another place with {option}" if option else "choose another place"
    return AmpError("AMP105", message, where=str(path), hint=f"free some space, or {hint}" if full else hint)
