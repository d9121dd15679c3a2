"""Plain data, as JSON and TOML have it, read as what annotations say: nothing of another type is taken for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]


@cache
def reader(hint: Any) -> Reader:
    """Plans and recipes: a function that reads plain data as a type: str, int, bool, finite floats, literals, None or
    another, tuples, lists, sets, mappings by name and dataclasses of these; what is annotated as object stays.

    It raises ValueError for data of any other type.
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
    """Plans and recipes: reads values of exactly this type."""

    def read(given: Any) -> Any:
        if type(given) is not kind:  # a bool is no int
            raise ValueError(f"{given!r} is not of type {kind.__name__}")
        return given

    return read


def _read_text(given: Any) -> str:
    """Plans and recipes: text that can be written as UTF-8; ValueError otherwise."""
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is not text")
    if not given.isascii():
        given.encode()  # half of a pair of surrogates is a UnicodeEncodeError, which is a ValueError
    return given


def _read_number(given: Any) -> float:
    """Plans and recipes: a finite number as float; a bool is none."""
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"{given!r} is not a finite number")
    return float(given)


def _reader_of_words(words: tuple[Any, ...]) -> Reader:
    """Plans and recipes: a function that reads one of some words (a Literal), and refuses any other."""

    def read(given: Any) -> Any:
        if given not in words:
            raise ValueError(f"{given!r} is not one of {words}")
        return given

    return read


def _reader_of_table(values: Reader) -> Reader:
    """Plans and recipes: reads a table whose values are read by ``values``, which nobody can change."""

    def read(given: Any) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            raise ValueError(f"{given!r} is not a table")
        return MappingProxyType({_read_text(name): values(value) for name, value in given.items()})

    return read


def _reader_of_list(hints: tuple[Any, ...]) -> Reader:
    """Plans and recipes: reads a list as a tuple: of one type with an ellipsis, else one type a place."""
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
    """Plans and recipes: reads a table as a dataclass; ValueError for unknown fields and for missing ones."""
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
