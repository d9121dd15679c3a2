"""Arrays, and what models take and give, as types say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""Of any shape and element type, ml_dtypes' among them."""

DType: TypeAlias = np.dtype[Any]
"""An element type of numpy or ml_dtypes."""

Result: TypeAlias = Any
"""What a model gives: an array, but for the few models whose outputs are sequences, maps or nothing; only the model
says which, and a union would make every caller ask."""

Feeds: TypeAlias = Mapping[str, object]
"""What a model is to take by the names of its inputs: what numpy makes arrays of, sequences of such, or a runtime's own
tensors. It is checked against the model."""
