"""What a test knows to be there, for the type checker and for the reader of a failure."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from ampgraph.core.json_types import JsonObject

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None: a test that finds None fails here."""
    assert value is not None
    return value


def plain(data: JsonObject) -> Any:
    """The same after a way through JSON."""
    return json.loads(json.dumps(data))
