"""What a user hears of an export: nothing of torch's own log, and of a failure what to change in the module."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

GENERAL = "does module(*args) run, without branches on numbers that it computes?"
FIXED = " dynamic_batch=False exports at the size of the examples"
ADVICE = (
    (r"data-dependent|GuardOnDataDependent", "a branch on a number that the module computes: choose by torch.where, or "
     "give the number as an argument (nn.Transformer: tgt_is_causal=True)"),
    (r"No ONNX function found for .*?op='([\w.]+)'", "{0} has no form in ONNX: write it with other operators"),
    (r"No decompositions registered for .*complex", "complex numbers have no form in ONNX: compute with real ones"),
    (r"pack_padded_sequence", "pass padded sequences and a mask: what is packed has sizes that depend on numbers"),
)  # fmt: skip


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
    text = "\n".join(map(str, _chain(error)))
    for pattern, advice in ADVICE:
        if found := re.search(pattern, text):
            return advice.format(*found.groups())
    return GENERAL + (FIXED if dynamic_batch else "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
