"""What the child of a check is asked."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.recipe import Recipe


@dataclass(frozen=True)
class Request:
    """Two files, where samples are, how many, how right the result has to be, how long all may take.

    Attributes:
        data: an .npz file or a folder of them; None generates.
        seconds: when to stop taking samples.
        metric: as `verify` takes it by name; None for the check's own measure.
        more: how many generated samples where the first leave it open.
        whole: seconds that all of it may take, the search for a repair included.
        recipe: what the model was converted with; None where that is not all that made it, so that nothing is tried.
        target: for which the model was converted; empty where that is not known, and nothing is said of opening.
    """

    reference: str
    model: str
    data: str | None
    samples: int
    dims: dict[str, int]
    tolerance: float
    seconds: float
    metric: str | None = None
    more: int = 0
    whole: float = 60.0
    recipe: Recipe | None = None
    target: str = ""
