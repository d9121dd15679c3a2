"""Arrays as types say them."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""Of any shape and element type, ml_dtypes' among them."""
