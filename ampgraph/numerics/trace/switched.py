"""Which nodes' roundings make the error of a model: found by runs in which only some nodes are low."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Result
from ...core.collector import quiet_collector
from ...core.errors import AmpError
from ...core.graph import LOW, Graph
from ...core.sites import SWITCHES
from ...formats.kinds import Model
from ...runtime.onnxruntime_session import refused, stopped
from ..graphs import flat_graph
from ..sessions import cpu_options, opened
from ..strict.rewrite import rewrite

RUNS = 64  # of one search at most
EARLIEST = 9  # the opset in which a switch can be written
Outputs = Mapping[str, Result]


class SwitchedSession:
    """A strict run of a model in which each low node can compute in float32 instead, chosen run by run.

    Attributes:
        units: the nodes that can be switched, in the order of the file.
        types: of its inputs, by name, as the low model declares them.
    """

    def __init__(self, reference: Model | Graph, low: Model | Graph) -> None:
        """``reference``, ``low``: what `convert` takes, or Graphs, the second made from the first.

        Raises AmpError AMP1xx for files, AMP208 for an opset before 9, AMP502 where the runtime refuses.
        """
        with quiet_collector():
            graph, given = flat_graph(low), flat_graph(reference)
            flow = graph.dataflow()
            if flow.opset < EARLIEST:
                raise AmpError("AMP208", f"opset {flow.opset} has no Where", hint="convert with a newer --opset")
            self.types = {flow.values[v].name: flow.values[v].dtype for v in flow.scopes[0].inputs}
            self.units = graph.switched(given, functools.partial(rewrite, keep_border=False))
            self._names = [value.name for value in graph.declared()[1]]
            content, options = graph.content(), cpu_options(graph.folder())
        try:
            self._session = opened(content, options)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            raise refused(error, "model") from error

    def run(self, feeds: Outputs, low: Collection[int]) -> dict[str, Result]:
        """The outputs where only some units are low. Raises AmpError AMP504."""
        switches = np.zeros(len(self.units), bool)
        switches[list(low)] = True
        fed = {n: np.asarray(v).astype(np.float32) if self.types.get(n) in LOW else v for n, v in feeds.items()}
        fed = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in fed.items()}
        try:
            found = self._session.run(self._names, {**fed, SWITCHES: switches})
        except Exception as error:
            raise stopped(error, "cpu") from error
        return dict(zip(self._names, found, strict=True))


@dataclass(frozen=True)
class Cause:
    """Units that are to blame together, one as a rule, and the error with these low alone."""

    units: tuple[int, ...]
    error: float


@dataclass(frozen=True)
class Attribution:
    """What a search found: the error of the whole, that with every unit in float32, and that with the causes so;
    ``order``: all units, those first of which one makes most, ``shares``: of each in the squared error of its block."""

    causes: tuple[Cause, ...]
    whole: float
    none: float
    without: float
    order: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


def attribute(
    error: Callable[[Collection[int]], float], count: int, wanted: int, least: float, runs: int = RUNS,
    late: Callable[[], bool] = lambda: False,
) -> Attribution:  # fmt: skip
    """The units with the largest errors, by halving: the block is divided that has most for the root of its size.

    By the whole error alone all blocks of a model in which errors are spread would be divided before any node is found.

    Args:
        error: that of a run in which only these units are low.
        count: how many units there are.
        wanted: how many causes at most.
        least: an error that is not worth naming.
        runs: how many at most.
        late: whether to end with what was found.
    """
    everything = range(count)
    whole, none = error(everything), error(())
    left, found, small = runs - 3, list[Cause](), list[Cause]()
    blocks: list[tuple[float, int, float, Sequence[int]]] = [(0.0, 0, whole, everything)] if count else []
    while blocks and len(found) < wanted and left > 1 and not late():
        _, _, made, block = heapq.heappop(blocks)
        if len(block) == 1:
            found.append(Cause(tuple(block), made))
            continue
        middle = len(block) // 2
        for half in (block[:middle], block[middle:]):
            made = error(half)
            if made > max(least, none):
                heapq.heappush(blocks, (-made * made / math.sqrt(len(half)), half[0], made, half))
            else:
                small.append(Cause(tuple(half), made))
        left -= 2
    found.sort(key=lambda cause: -cause.error)
    held = {unit for cause in found for unit in cause.units}
    without = error([i for i in everything if i not in held]) if held else whole
    rest = [*(Cause(tuple(block), made) for _, _, made, block in blocks), *small]
    rows = [(block.error**2 / len(block.units), unit) for block in (*found, *rest) for unit in block.units]
    rows.sort(key=lambda row: -row[0])
    return Attribution(tuple(found), whole, none, without, tuple(u for _, u in rows), tuple(s for s, _ in rows))
