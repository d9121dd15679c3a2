"""The rules, by kind of operator. Importing this package declares them all."""

from . import elementwise, indexing, matrix, norms, recurrent, reductions, resize, shapes, windows  # noqa: F401
