"""Versions of what decides the bytes beside ampgraph."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

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
