"""The rules, by kind of operator. Importing this package declares them all."""

from . import (  # noqa: F401
    convolution,
    elementwise,
    functions,
    gru,
    indexing,
    lstm,
    matrix,
    norms,
    pooling,
    recurrent,
    reductions,
    resize,
    shapes,
)
