"""Plain data as JSON has it, as types say it; numpy is not loaded for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, as json.dumps takes it."""
