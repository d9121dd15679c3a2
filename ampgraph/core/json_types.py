"""Plain data as JSON has it, as types say it; numpy is not loaded for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
else:  # no type holds itself when a program asks for it
    Json = Union[None, bool, int, float, str, Sequence[object], Mapping[str, object]]  # noqa: UP007  None comes first
JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, as json.dumps takes it."""


def json_line(value: object) -> str:
    """Plain data as JSON on one line, as reports, files and questions to child processes have it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
