"""Builds the packages with setuptools, so that the same tree gives the same bytes, whenever and wherever it is built.

Times are SOURCE_DATE_EPOCH, or else the first that a wheel can hold; modes are those that git keeps. Left to itself,
setuptools packs times of files and of the build, the name of the user, and what the build left."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
Settings: TypeAlias = "Mapping[str, str | list[str] | None] | None"
LEFT = re.compile(r"^[^/]+/(setup\.cfg$|[^/]+\.egg-info(/|$))")
FIRST_OF_ZIP = 315_532_800  # 1980-01-01: the first time that a wheel can hold


def build_wheel(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    """As PEP 517 says."""
    _epoch()
    name = build_meta.build_wheel(folder, settings, metadata)
    _zip_again(Path(folder) / name)
    return name


def build_editable(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    """As PEP 660 says; no warning of folders named as the package: they find it (`__init__.py` at the top)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Editable installation")
        return build_meta.build_editable(folder, settings, metadata)


def build_sdist(folder: str, settings: Settings = None) -> str:
    """As PEP 517 says."""
    name = build_meta.build_sdist(folder, settings)
    _pack_again(Path(folder) / name, _epoch())
    return name


def _epoch() -> int:
    return int(os.environ.setdefault("SOURCE_DATE_EPOCH", str(FIRST_OF_ZIP)))


def _zip_again(wheel: Path) -> None:
    """The same files, readable for everybody."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for member in given.infolist():
            plain = zipfile.ZipInfo(member.filename, member.date_time)
            plain.compress_type = zipfile.ZIP_DEFLATED
            plain.external_attr = (stat.S_IFREG | _mode(member.external_attr >> 16)) << 16
            made.writestr(plain, given.read(member))
    wheel.write_bytes(packed.getvalue())


def _pack_again(sdist: Path, when: int) -> None:
    """Members by name, of one time and nobody's, without what setuptools writes for itself."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as given, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        for member in sorted(given, key=lambda member: member.name):
            if not LEFT.search(member.name):
                made.addfile(_plain(member, when), given.extractfile(member))
    with open(sdist, "wb") as file, gzip.GzipFile("", "wb", 9, file, when) as zipped:
        zipped.write(packed.getvalue())


def _plain(member: tarfile.TarInfo, when: int) -> tarfile.TarInfo:
    plain = tarfile.TarInfo(member.name)
    plain.type, plain.linkname, plain.size, plain.mtime = member.type, member.linkname, member.size, when
    plain.mode = 0o755 if member.isdir() else _mode(member.mode)
    return plain


def _mode(mode: int) -> int:
    return 0o755 if mode & stat.S_IXUSR else 0o644
