"""What a user hears of an export: nothing of torch's own log, and of a failure what to change in the module."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from traceback import walk_tb
from types import FrameType

GENERAL = "does module(*args) run, without branches on numbers that it computes?"
FIXED = " dynamic_batch=False exports at the size of the examples"
ADVICE = (
    (r"data-dependent|GuardOnDataDependent", "a branch on a number that the module computes: choose by torch.where, or "
     "give the number as an argument (experts of transformers: _experts_implementation='batched_mm')"),
    (r"No ONNX function found for .*?op='([\w.]+)'", "{0} has no form in ONNX: write it with other operators"),
    (r"Constraints violated", "the module fixes the size of a first axis: give a batch that is no other size "
     "of the examples, or dynamic_batch=False"),
    (r"No decompositions registered for .*complex", "complex numbers have no form in ONNX: compute with real ones"),
)  # fmt: skip
PACKED = (
    "pass padded sequences and pick each row's last step by its length: what is packed has sizes that depend on numbers"
)
INNER = "a gradient inside of forward is written out by make_fx, but not of a module with buffers: BatchNorm's, masks"


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Without lines of torch's loggers and the graphs that it prints on stderr; both are put back afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def what_to_change(error: BaseException, dynamic_batch: bool) -> str:
    """The hint for an error of torch's exporter, by what it says itself."""
    if _stood_in(error, "torch/nn/utils/rnn.py") or _held(error, "PackedSequence"):
        return PACKED
    text = "\n".join(map(str, _chain(error)))
    if takes_gradients(error):
        return INNER
    for pattern, advice in ADVICE:
        if found := re.search(pattern, text):
            return advice.format(*found.groups())
    return GENERAL + (FIXED if dynamic_batch else "")


def takes_gradients(error: BaseException) -> bool:
    """Whether it was raised because forward takes gradients itself."""
    return _stood_in(error, "torch/autograd/__init__.py") or any("functorch" in str(part) for part in _chain(error))


def _frames(error: BaseException) -> Iterator[FrameType]:
    for part in _chain(error):
        yield from (frame for frame, _ in walk_tb(part.__traceback__))


def _stood_in(error: BaseException, file: str) -> bool:
    """Whether the error came through a file of torch."""
    return any(Path(frame.f_code.co_filename).as_posix().endswith(file) for frame in _frames(error))


def _held(error: BaseException, kind: str) -> bool:
    """Whether a function that it came through had a local value of this class."""
    return any(type(value).__name__ == kind for frame in _frames(error) for value in frame.f_locals.values())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
