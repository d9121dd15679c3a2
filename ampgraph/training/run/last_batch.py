"""The last batch of an epoch, which may be smaller than the others: dropped, kept, or filled up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.arrays import Array
from ...core.errors import AmpError
from .dataset import Drawn
from .options import FitOptions
from .step_inputs import IGNORED, StepInputs


def last_batches(options: FitOptions, feeds: StepInputs, rest: int) -> bool:
    """Whether a last batch of ``rest`` samples is trained. Raises AmpError AMP325 where it cannot be as is said."""
    layout = feeds.layout
    if options.last_batch == "pad" and (layout.options.get("loss") != "cross_entropy" or layout.parts):
        message = "only with cross_entropy alone, where a label can count for nothing, is a last batch padded"
        raise AmpError("AMP325", message, hint="--last-batch keep, or drop")
    if options.last_batch == "keep" and rest:
        if any(port.shape and isinstance(port.shape[0], int) for port in feeds.ports.values()):
            message = f"a last batch of {rest} is kept, and the step takes {options.batch_size} samples at once"
            raise AmpError("AMP325", message, hint="--last-batch drop, or export with a dynamic batch")
        if rest < feeds.parts:
            message = f"a last batch of {rest} is too small for {feeds.parts} micro-batches"
            raise AmpError("AMP325", message, hint="--last-batch drop, or another --batch-size")
    return options.last_batch != "drop"


def padded(batch: Mapping[str, Array], size: int, labels: str) -> Mapping[str, Array]:
    """A batch of ``size``: its first rows again, with labels that count for nothing."""
    count = batch.samples if isinstance(batch, Drawn) else len(batch[labels])
    if count == size:
        return batch
    made = {name: np.resize(array, (size, *array.shape[1:])) for name, array in batch.items()}
    made[labels][count:] = IGNORED
    return made
