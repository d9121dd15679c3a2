"""Inputs that torch exports: made once, and kept under the temporary folder.

They are kept by the sources and versions that make them, ampgraph's own code not among them; ``forget`` has them made
again."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from conformance.cases import locked

ABSENT = "absent"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """By name, `ABSENT` where it is not installed; ``zlib`` is the library that Python runs with."""
    return {name: _version(name) for name in packages}


def _version(name: str) -> str:
    if name == "zlib":
        return zlib.ZLIB_RUNTIME_VERSION
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT


def mismatch(made_with: dict[str, str], here: dict[str, str]) -> str:
    """In words, empty where there is none."""
    apart = [
        f"{name} {made_with.get(name, ABSENT)} made the file, here is {found}"
        for name, found in here.items()
        if made_with.get(name, ABSENT) != found
    ]
    return "; ".join(apart)


TESTS = Path(__file__).resolve().parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"


def _root() -> Path:
    return Path(tempfile.gettempdir()) / "ampgraph-digests"


def forget() -> None:
    shutil.rmtree(_root(), ignore_errors=True)


def made_by(name: str, module: str, words: Sequence[str], sources: Sequence[Path], packages: Sequence[str]) -> Path:
    """The folder that ``python -m MODULE WORDS`` filled, where ``{folder}`` among the words stands for it."""
    _root().mkdir(parents=True, exist_ok=True)
    kept = _root() / f"{name}-{_key(words, sources, packages)}"
    with locked(_root() / f"{name}.lock"):
        if not kept.exists():
            temporary = Path(tempfile.mkdtemp(dir=_root()))
            _run(module, [word.format(folder=temporary) for word in words], temporary)
            temporary.rename(kept)
    return kept


def _key(words: Sequence[str], sources: Sequence[Path], packages: Sequence[str]) -> str:
    known = repr((words, sorted(versions(packages).items()))).encode()
    return hashlib.sha256(known + b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _run(module: str, words: Sequence[str], folder: Path) -> None:
    search = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=folder, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr[-3000:]}")
