"""Whether a model reads text from pictures, as its outputs tell."""

from __future__ import annotations

from ...core.dataflow import Dataflow
from ..metrics.roles import LOGARITHMS, PROBABILITIES, roles_of

LETTERS = 20  # classes at least: those of an alphabet


def reads_text(flow: Dataflow) -> bool:
    """Whether all outputs are probabilities of letters, place by place along a line: ``[batch, places, letters]``."""
    outputs, roles = flow.scopes[0].outputs, roles_of(flow)
    return bool(outputs) and all(
        roles[flow.values[v].name] in (PROBABILITIES, LOGARITHMS) and _of_letters(flow.shape(v)) for v in outputs
    )


def _of_letters(shape: tuple[int | str | None, ...] | None) -> bool:
    letters = shape[-1] if shape is not None and len(shape) == 3 else 0
    return isinstance(letters, int) and letters >= LETTERS
