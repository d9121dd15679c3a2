"""What is said of a loss scale that somebody asks `convert` for: it adds none, and where one comes from."""

from __future__ import annotations

from typing import NoReturn

from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..formats.mindir import io as mindir_io
from ..formats.mindir.step import LOSS_SCALE_CELL, has_loss_scale, is_step


def refuse_loss_scale(model: str, scale: str) -> NoReturn:
    """Raises AmpError AMP205 with what to do instead; AMP1xx for a file that cannot be read."""
    message, hint = "convert adds no loss scale", f"ampgraph build-step --loss-scale {scale} builds a step with one"
    if is_mindir(model):
        read = mindir_io.load(model).model
        hint = "ampgraph.training.mindspore.train_step scales the loss of a file of forward and loss"
        if is_step(read):
            message, hint = "holds a training step without a loss scale", f"export {LOSS_SCALE_CELL}"
            if has_loss_scale(read):
                message, hint = "holds its loss scale already", "leave --loss-scale out"
    raise AmpError("AMP205", message, where=model, hint=hint)
