"""Repairs are tried: the model is converted again with more in float32, and judged on the same samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.recipe import Recipe
from ..numerics.metrics.agreement import Agreement
from .kinds import Feeds, Model, PathLike
from .pairs import OnnxPair
from .steps import Job, run


@dataclass(frozen=True)
class Outcome:
    """How a model was judged: the largest error of an output, whether that is right; what was run, and the outputs over
    the samples; ``kept`` as `FaultSearch` has it."""

    error: float
    ok: bool
    pair: OnnxPair
    outputs: list[Agreement]
    kept: tuple[int, Feeds, Feeds] | None = None


@dataclass(frozen=True)
class Trial:
    """What became of a conversion with more in float32."""

    patterns: tuple[str, ...]
    outcome: Outcome


@dataclass
class Trials:
    """``judge`` runs a model on the samples; ``until``: the time, as `time.monotonic` tells it, by which all ends;
    ``folder``: for files; ``seconds``: what a trial takes, as far as that is known."""

    source: Model
    recipe: Recipe
    judge: Callable[[Graph | PathLike], Outcome]
    until: float
    folder: Path
    seconds: float = 0.0
    done: list[Trial] = field(default_factory=list)
    refused: str = ""

    @property
    def in_time(self) -> bool:
        """Whether there is time for one more."""
        return time.monotonic() + self.seconds < self.until

    def attempt(self, patterns: Iterable[str]) -> Trial | None:
        """Tries patterns of `--fp32`; None where there is no time, or `convert` refuses them."""
        names = tuple(dict.fromkeys(patterns))
        known = next((trial for trial in self.done if trial.patterns == names), None)
        if known is not None or not self.in_time:
            return known
        start = time.monotonic()
        try:
            model = converted(self.source, self._with(names), self.folder / f"tried{len(self.done)}.onnx")
            trial = Trial(names, self.judge(model))
        except AmpError as error:
            self.refused = error.message
            return None
        self.seconds = max(self.seconds, time.monotonic() - start)
        self.done.append(trial)
        return trial

    def _with(self, names: tuple[str, ...]) -> Recipe:
        return replace(self.recipe, fp32=(*self.recipe.fp32, *names))


def converted(source: Model, recipe: Recipe, path: Path) -> Graph | PathLike:
    """What `convert` makes of a model: a graph, or the file ``path`` where weights lie beside the model's."""
    graph = run(Job(source, recipe)).graph
    if not graph.data_files():
        return graph
    graph.save(path)
    return path
