"""The short text of a recipe: words and ``name=word``, parted by commas; double quotes hold what has a comma in it.

``O2, fp32="a,b"`` has the parts ``O2`` and ``fp32=a,b``; a quote within quotes is written twice.
"""

from __future__ import annotations

import re

from .errors import AmpError

_PART = re.compile(r'(?:[^",]|"(?:[^"]|"")*")*')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def split(text: str) -> list[str]:
    """The parts of a text, without quotes and the blanks around them. Raises AmpError AMP301 for a quote left open."""
    found, place = [], 0
    while text.strip():
        match = _PART.match(text, place)
        assert match is not None  # it matches nothing too
        place = match.end() + 1
        if match.end() < len(text) and text[match.end()] != ",":
            raise AmpError("AMP301", "a quote is not closed", where=text, hint='write fp32="a,b", and "" for a quote')
        found.append(_QUOTED.sub(lambda hit: hit[1].replace('""', '"'), match[0].strip()))
        if place > len(text):
            break
    return found


def quoted(word: str) -> str:
    """A word as `split` reads it back."""
    if word and word == word.strip() and not re.search(r'[",]', word):
        return word
    return '"' + word.replace('"', '""') + '"'


def words_of(value: object) -> list[str]:
    """A field's value as words."""
    if isinstance(value, tuple):
        return [f"{item[0]}={item[1]}" if isinstance(item, tuple) else str(item) for item in value]
    return [value if isinstance(value, str) else repr(value)]
