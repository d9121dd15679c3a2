"""How a node is named to `--fp32` and `--low`: by its name, or by a value that it writes."""

from __future__ import annotations

import fnmatch

SORTS = ("op", "scope", "value")


def pattern_for(name: str, value: str) -> str:
    """A pattern for one node: its name, or the value that it writes where it has none."""
    return literal(name) if name and name.partition(":")[0] not in SORTS else f"value:{literal(value)}"


def literal(name: str) -> str:
    """A glob that means a name: one with brackets would mean others too."""
    if fnmatch.translate(name) == fnmatch.translate(name.replace("[", "").replace("*", "").replace("?", "")):
        return name
    return "".join(f"[{c}]" if c in "[*?" else c for c in name)
