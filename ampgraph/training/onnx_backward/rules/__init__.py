"""The rules, by kind of operator. Importing this package declares them all."""

from . import convolution, elementwise, functions, indexing, matrix, norms, pooling, reductions, resize, shapes  # noqa: F401  # noqa: F401
