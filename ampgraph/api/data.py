"""What the verbs take as data to run a model on; see `load_samples`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, TypeAlias

Data: TypeAlias = str | PathLike[str] | Iterable[Mapping[str, Any]] | None
