"""The operators that a schema is known for, and names in list files beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from ..core.errors import nearest
from .files import ListFile, data_folder, mistake, plain


@cache
def known_operators() -> Mapping[str, tuple[str, ...]]:
    """Every operator that a schema is known for -> its type variables over all versions."""
    text = (data_folder() / "schemas" / "names.json").read_text(encoding="utf-8")
    return {kind: tuple(variables) for kind, variables in json.loads(text)["operators"].items()}


def check_operator(file: ListFile, table: str, key: str, line: str = "") -> None:
    """Raises AmpError AMP301 for a name that no operator has; ``line``: the key to point at, where it is not the name.

    A domain that no schema is known for is the user's own and passes.
    """
    known = known_operators()
    kind = plain(key)
    domain = kind.rpartition("::")[0]
    if kind in known or (domain and not any(name.startswith(f"{domain}::") for name in known)):
        return
    bare = kind.rpartition("::")[2]
    same = [name for name in known if name.rpartition("::")[2] == bare]
    hint = f"did you mean '{same[0]}'?" if same else ""
    hint = hint or nearest(kind, [name for name in known if name.rpartition("::")[0] == domain])
    raise mistake(file, table, line or key, f"no operator is called '{key}'", hint or nearest(kind, list(known)))


def check_variable(file: ListFile, table: str, key: str, variable: str) -> None:
    """Raises AmpError AMP301 for a type variable that a known operator does not have."""
    variables = known_operators().get(plain(key))
    if variables is None or variable in variables or variable.startswith("input:"):
        return
    hint = f"its type variables are {', '.join(variables)}"
    raise mistake(file, table, key, f"'{key}' has no type variable '{variable}'", hint)
