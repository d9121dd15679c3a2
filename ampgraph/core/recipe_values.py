"""How the fields of a recipe are read: whatever a user may give -> the one form that is kept, which reads as itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .errors import AmpError, is_number, is_whole, nearest
from .renamed import OLD_RULES, warn_renamed_words
from .spellings import DTYPES, LEVELS, dtype_word, level_word, place_word

if TYPE_CHECKING:
    from .ranges import Ranges

STORES = ("low", "keep")
SWITCHED = {"true": True, "false": False}
PATTERNS = "A PATTERN is a node name glob, op:Kind, scope:layers.3.* or value:NAME."


def level(value: object) -> str | None:
    """A recipe's level by its name, or None for the policy's own. Raises AmpError AMP302."""
    if value is None:
        return None
    found = level_word(value)
    if found is None:
        hint = nearest(str(value), list(LEVELS)) or f"levels are {', '.join(LEVELS)}"
        raise AmpError("AMP302", f"unknown level '{value}'", hint=hint)
    return found


def dtype(value: object) -> str:
    """A recipe's low type by its name, float16 or bfloat16. Raises AmpError AMP301, for None too."""
    found = dtype_word(value)
    if found is None:
        hint = nearest(str(value), list(DTYPES)) or "float16 or bfloat16"
        raise AmpError("AMP301", f"unknown dtype '{value}'", hint=hint)
    return found


def store_weights(value: object) -> str | None:
    """How a recipe has weights stored, one of `STORES`, or None for the policy's habit. Raises AmpError AMP301."""
    if value is None or (isinstance(value, str) and value in STORES):
        return value
    raise AmpError("AMP301", f"invalid value for --store-weights: {value!r}", hint="low or keep")


def switch(name: str) -> Callable[[object], bool]:
    """A function that reads a recipe's field: a bool, or "true" or "false" in any case. It raises AmpError AMP301."""

    def read(value: object) -> bool:
        found = SWITCHED.get(value.lower()) if isinstance(value, str) else value
        if isinstance(found, bool):
            return found
        raise AmpError("AMP301", f"{name}={value!r} is neither true nor false", hint=f"for example {name}=true")

    return read


def word(name: str) -> Callable[[object], str]:
    """A function that reads a recipe's field of one text. It raises AmpError AMP301."""

    def read(value: object) -> str:
        if isinstance(value, str):
            return value
        raise AmpError("AMP301", f"{name}= must be text, not {value!r}", hint="see `ampgraph convert --help`")

    return read


def target(value: object) -> str | None:
    """The name of a recipe's target, or None for the format's own. Raises AmpError AMP301."""
    return None if value is None else place_word(word("target")(value))


def words(name: str) -> Callable[[object], tuple[str, ...]]:
    """A function that reads a recipe's field of one pattern, several, or None for none. It raises AmpError AMP305."""

    def read(value: object) -> tuple[str, ...]:
        found = _as_list(value)
        for item in found:
            if not isinstance(item, str):
                raise AmpError("AMP305", f"{name}: {item!r} is not a pattern", hint=PATTERNS)
        return tuple(map(str, found))

    return read


def rule(value: object) -> tuple[str, ...]:
    """The words of a recipe's ``rule`` by the names that rules have now; warns of old ones. Raises AmpError AMP305."""
    found = words("rule")(value)
    renamed = {old: OLD_RULES[old] for old in found if old in OLD_RULES}
    if renamed:
        warn_renamed_words("rule", renamed)
    return tuple(renamed.get(name, name) for name in found)


def io(value: object) -> tuple[str, ...]:
    """The words of a recipe's ``io`` but ``keep``, which is the default. Raises AmpError AMP305."""
    return tuple(one for one in words("io")(value) if one != "keep")


def rewrite(value: object) -> tuple[str, ...]:
    """The words of a recipe's ``rewrite``; none for ``exact`` alone, which is the default. Raises AmpError AMP301."""
    found = _as_list(value)
    for item in found:
        if not isinstance(item, str):
            raise AmpError("AMP301", f"rewrite: {item!r} is not text", hint="none, exact, or a name")
    return () if found == ["exact"] else tuple(map(str, found))


def paths(value: object) -> tuple[str, ...]:
    """The file names in a recipe's ``lists``: of one path or of several. Raises AmpError AMP301."""
    found = []
    for item in [value] if isinstance(value, os.PathLike) else _as_list(value):
        if not isinstance(item, (str, os.PathLike)):
            raise AmpError("AMP301", f"lists: {item!r} is not a file", hint="give the path of a TOML file")
        found.append(os.fsdecode(item))
    return tuple(found)


def _as_list(value: object) -> list[object]:
    """What a user gave for a repeatable field of a recipe as a list: an iterable's items, or one thing; [] for None."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else [value]


class Size(int):
    """The size that a dimension mostly has, with the least and the largest one, for which an engine is built too."""

    least: int
    largest: int

    @classmethod
    def from_text(cls, text: str) -> Size | None:
        """A size in a recipe's --dim: ``8``, or ``1:4:8`` for the least, the usual and the largest one. None for any
        other text, and for sizes that are not in this order or below 1."""
        parts = [int(part) if part.isascii() and part.isdigit() else 0 for part in text.split(":")]
        if len(parts) not in (1, 3):
            return None
        least, usual, largest = parts if len(parts) == 3 else parts * 3
        if not 1 <= least <= usual <= largest:
            return None
        size = cls(usual)
        size.least, size.largest = least, largest
        return size


def extremes(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """The sizes of a recipe's --dim, NAME=LEAST:BEST:LARGEST, as up to three mappings: every dimension at its least,
    every one at its largest (these only where they differ from ``sizes``), and last the sizes themselves."""
    some = [{name: getattr(size, which, size) for name, size in sizes.items()} for which in ("least", "largest")]
    return [*(one for one in some if one != sizes), dict(sizes)]


def dims(value: object) -> tuple[tuple[str, int], ...]:
    """A recipe's ``dims`` as pairs (name, size), sorted, of ``{"batch": 8}``, ``["batch=8"]``, ``["batch=1:4:8"]`` or
    pairs; the last of one name counts. Raises AmpError AMP310."""
    found: dict[str, int] = {}
    for item in value.items() if isinstance(value, Mapping) else _as_list(value):
        name: Any = ""
        size: Any = 0
        text = repr(item)
        if isinstance(item, str):
            text = item
            name, _, size = item.rpartition("=")
        elif isinstance(item, tuple) and len(item) == 2:
            name, size = item
            text = f"{name}={size}"
        if isinstance(size, str):
            size = Size.from_text(size) or 0
        if not isinstance(name, str) or not name or not is_whole(size) or size < 1:
            raise AmpError("AMP310", f"--dim {text} is not NAME=N", hint="for example --dim batch=8, or batch=1:4:8")
        found[name] = size if isinstance(size, Size) else int(size)
    return tuple(sorted(found.items()))


def opset(value: object) -> int | Literal["auto"] | None:
    """A recipe's opset: a number, "auto", or None for the model's own. Raises AmpError AMP307."""
    if value is None:
        return None
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if not is_whole(value):
        raise AmpError("AMP307", f"the opset must be a whole number, not {value!r}", hint="for example 18, or auto")
    return int(value)  # type: ignore[call-overload, no-any-return]


def ranges(value: object) -> Ranges | str | None:
    """A recipe's measured ranges, the name of a file of them, or None for none. Raises AmpError AMP311."""
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)):
        return os.fsdecode(value)
    from .ranges import Ranges

    if isinstance(value, Ranges):
        return value
    hint = "give what ampgraph.calibrate returned, or a file of it"
    raise AmpError("AMP311", f"ranges= is a {type(value).__name__}, not ranges", hint=hint)


def range_margin(value: object) -> float | None:
    """A recipe's ``range_margin``: a positive number, or None for 2. Raises AmpError AMP311."""
    if value is None:
        return None
    if not is_number(value):
        raise AmpError("AMP311", f"range_margin= must be a number, not {value!r}", hint="for example 2.0")
    margin = float(value)  # type: ignore[arg-type]
    if not (math.isfinite(margin) and margin > 0):
        hint = "2 holds what comes within half of the largest number; 1 only what overflows"
        raise AmpError("AMP311", f"--range-margin must be a positive number, not {margin:g}", hint=hint)
    return margin
