"""Plain data, as JSON and TOML have it, read as the types that annotations say; data of any other type is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]
"""Makes a value of its type of plain data, or raises ValueError."""


@cache
def reader(hint: Any) -> Reader:
    """Plans and recipes: a function that reads plain data as the type ``hint``. It raises ValueError for other data.

    Types are str, int, bool, float (finite), Literal, ``X | None``, tuple, list, frozenset, Mapping[str, X] and
    dataclasses, of one another; for ``object`` the data stays as it is.
    """
    origin, inside = get_origin(hint), get_args(hint)
    if hint is str:
        return _read_text
    if hint is float:
        return _read_number
    if origin is tuple:
        return _reader_of_list(inside)
    if origin in (frozenset, list):
        several = _reader_of_list((inside[0], ...))
        return lambda given: origin(several(given))
    if origin is Mapping:
        return _reader_of_table(reader(inside[1]))
    if origin is Literal:
        return _reader_of_words(inside)
    if type(None) in inside:
        (other,) = (reader(one) for one in inside if one is not type(None))
        return lambda given: None if given is None else other(given)
    if hint is object:
        return lambda given: given
    return _reader_of_dataclass(hint) if is_dataclass(hint) else _reader_of_type(hint)


def _reader_of_type(kind: type) -> Reader:
    """Plans and recipes: a function that reads values of exactly this type, and of no subclass."""

    def read(given: Any) -> Any:
        if type(given) is not kind:  # a bool is no int
            raise ValueError(f"{given!r} is not of type {kind.__name__}")
        return given

    return read


def _read_text(given: Any) -> str:
    """Plans and recipes: reads text that can be written as UTF-8. Raises ValueError for anything else."""
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is not text")
    if not given.isascii():
        given.encode()  # half of a pair of surrogates is a UnicodeEncodeError, which is a ValueError
    return given


def _read_number(given: Any) -> float:
    """Plans and recipes: reads a finite number as float. Raises ValueError for anything else, a bool too."""
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"{given!r} is not a finite number")
    return float(given)


def _reader_of_words(words: tuple[Any, ...]) -> Reader:
    """Plans and recipes: a function that reads one of some words (a Literal), and raises ValueError for any other."""

    def read(given: Any) -> Any:
        if given not in words:
            raise ValueError(f"{given!r} is not one of {words}")
        return given

    return read


def _reader_of_table(values: Reader) -> Reader:
    """Plans and recipes: a function that reads a table (text -> what ``values`` reads) as a read-only mapping."""

    def read(given: Any) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            raise ValueError(f"{given!r} is not a table")
        return MappingProxyType({_read_text(name): values(value) for name, value in given.items()})

    return read


def _reader_of_list(hints: tuple[Any, ...]) -> Reader:
    """Plans and recipes: a function that reads a list as a tuple; ``hints``: what is in the brackets of tuple[...]."""
    many = len(hints) == 2 and hints[1] is Ellipsis
    readers = [reader(hint) for hint in hints if hint is not Ellipsis]

    def read(given: Any) -> tuple[Any, ...]:
        if not isinstance(given, (list, tuple)):
            raise ValueError(f"{given!r} is not a list")
        if many:
            return tuple(map(readers[0], given))
        return tuple(one(item) for one, item in zip(readers, given, strict=True))

    return read


def _reader_of_dataclass(kind: Any) -> Reader:
    """Plans and recipes: a function that reads a table as a dataclass, which it leaves as it is if it is one already.
    Raises ValueError for unknown fields, and for missing ones that have no default."""
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    readers: dict[str, Reader] = {}

    def read(given: Any) -> Any:
        if isinstance(given, kind):
            return given
        if not readers:  # a field may hold another of its kind
            hints = get_type_hints(kind)
            readers.update({field.name: reader(hints[field.name]) for field in fields(kind)})
        if not isinstance(given, Mapping) or not needed <= given.keys() <= readers.keys():
            raise ValueError(f"{given!r} is not of type {kind.__name__}")
        return kind(**{name: readers[name](value) for name, value in given.items()})

    return read
