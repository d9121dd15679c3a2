"""The rules, by kind of operator. Importing this package declares them all."""

from . import (  # noqa: F401
    convolution,
    elementwise,
    functions,
    indexing,
    matrix,
    norms,
    pooling,
    reductions,
    resize,
    shapes,
)
