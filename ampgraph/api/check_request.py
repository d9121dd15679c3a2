"""What the child of a check is asked, as it is handed to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..core.json_types import JsonObject
from ..core.recipe import Recipe


@dataclass(frozen=True)
class Request:
    """What a child is asked: two files, where samples are, how many, how right the result has to be, the limits.

    Attributes:
        data: an .npz file or a folder of them; None generates.
        seconds: when to stop taking samples.
        memory: bytes that the process may hold.
        metric: as `verify` takes it by name; None for the check's own measure.
        more: how many generated samples where the first leave it open.
        whole: seconds that all of it may take, the search for a repair included.
        target: for which the model was converted; empty where that is not known, and nothing is said of opening.
        recipe: what the model was converted with; None where that is not all that made it, so that nothing is tried.
    """

    reference: str
    model: str
    data: str | None
    samples: int
    dims: dict[str, int]
    tolerance: float
    seconds: float
    memory: int
    metric: str | None = None
    more: int = 0
    whole: float = 60.0
    recipe: JsonObject | None = None
    target: str = ""

    @property
    def how(self) -> Recipe | None:
        """The recipe."""
        return None if self.recipe is None else Recipe.from_dict(self.recipe)

    def to_json(self) -> str:
        """For the child."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(path: str) -> Request:
        """What the parent wrote."""
        with open(path, encoding="utf-8") as file:
            return Request(**json.load(file))
