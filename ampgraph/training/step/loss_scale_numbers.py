"""The numbers of a loss scale as users give them, checked one by one."""

from __future__ import annotations

import math

import numpy as np

from ...core.errors import AmpError, nearest

INT32_MAX = 2**31 - 1


def read_number(name: str, text: str) -> float:
    """A number of the command line, `2^16` too. Raises AmpError AMP320."""
    base, caret, exponent = text.partition("^")
    try:
        number = float(base) ** int(exponent) if caret else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        number = math.nan
    if not math.isfinite(number):
        raise AmpError("AMP320", f"{name}={text} is not a number", hint="for example 65536, 2^16 or 0.5")
    return number


def spelled(value: object) -> str:
    """A number as `read_number` reads it; whole ones without a point."""
    if isinstance(value, float) and value.is_integer() and value < 1e16:
        return str(int(value))
    return "none" if value is None else str(value)


def check_word(name: str, word: str, words: list[str]) -> None:
    """Raises AmpError AMP320 for a word that is none of ``words``."""
    if word not in words:
        hint = (nearest(word, words) if isinstance(word, str) else "") or f"there are: {', '.join(words)}"
        raise AmpError("AMP320", f"unknown {name} '{word}'", hint=hint)


def positive(name: str, value: float | str | None, round_to: str = "float32") -> float:
    """``value`` as a number of that type, and of float32's range: scales and factors meet float32 gradients."""
    try:
        with np.errstate(over="ignore"):
            narrow, number = np.float32(value), float(np.dtype(round_to).type(value))
    except (TypeError, ValueError, OverflowError):
        narrow, number = np.float32("nan"), math.nan
    if isinstance(value, bool) or not np.isfinite(narrow) or narrow <= 0:
        raise AmpError("AMP320", f"{name}={value} is not a positive float32 number", hint="for example 65536 or 0.5")
    return number


def invertible(name: str, value: object, number: float) -> float:
    """The number of a scale: gradients are multiplied by its reciprocal in float32."""
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(1) / np.float32(number)):
            raise AmpError("AMP320", f"{name}={value} has no reciprocal in float32", hint="for example 65536 or 0.5")
    return number


def count(name: str, value: object) -> int:
    """A whole number from 1 on that fits int32. Raises AmpError AMP320."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= int(value) <= INT32_MAX:
        raise AmpError("AMP320", f"{name}={value} is not a whole number from 1 to {INT32_MAX}", hint="for example 2000")
    return int(value)
