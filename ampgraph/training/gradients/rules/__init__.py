"""The rules, by kind of operator. Importing this package declares them all; one of the user then replaces one."""

from ..registry import gradient
from . import elementwise, indexing, matrix, norms, recurrent, reductions, resize, shapes, windows  # noqa: F401

__all__ = ["gradient"]
