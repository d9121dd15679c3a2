"""What each low node adds to the error, and how it grows: two runs of one graph that holds both models.

Nothing is exposed but two numbers for each value, so memory stays that of an ordinary run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.arrays import Feeds
from ...core.collector import quiet_collector
from ...core.errors import AmpError
from ...core.graph import Graph
from ...formats.kinds import Model
from ...runtime.onnxruntime_session import refused, stopped
from ..graphs import flat_graph
from ..sessions import cpu_options, in_file_order, opened
from ..strict.rewrite import rewrite
from .shadow_graph import ERROR, NORM, Combined


class LocalErrors:
    """Every low node's own error: its operator computed strictly on the float32 reference's own values.

    The node's inputs are the reference's values, rounded as the other model reads them; control-flow nodes are computed
    whole. Opened once and run often.

    Attributes:
        outputs: the node outputs that have an error, in the order of the reference.
    """

    chained = False

    def __init__(self, reference: Model | Graph, low: Model | Graph, *, threads: int = 0) -> None:
        """``reference``, ``low``: what `convert` takes, or Graphs, the second made from the first.

        Raises AmpError AMP1xx for files, AMP208 for models of different opsets, AMP502 where the runtime refuses.
        """
        self._threads = threads
        with quiet_collector():
            self._models = flat_graph(reference), flat_graph(low)
        ours, theirs = (graph.dataflow().opset for graph in self._models)
        if ours != theirs:
            message = f"the models are of opset {ours} and {theirs}: their operators cannot be compared one by one"
            raise AmpError("AMP208", message, hint="convert the reference to that opset first")
        self._masked: frozenset[str] = frozenset()
        self._open()

    def run(self, feeds: Feeds) -> dict[str, float]:
        """Output of a low node -> norm of its error over norm of the reference, elements that are masks left out.

        Infinite where the low result is not finite. ``feeds`` are the reference's. Raises AmpError AMP504.
        """
        return {name: _ratio(error, norm) for name, (error, norm) in self.measured(feeds).items()}

    def measured(self, feeds: Feeds) -> dict[str, tuple[float, float]]:
        """(norm of the error, norm of the reference) of each output."""
        sums, norms = self._run(feeds)
        unmasked = {o for o, n in zip(self.outputs, norms, strict=True) if not np.isfinite(n)} - self._masked
        if unmasked:  # infinities of the reference: those outputs are compared without them from now on
            self._masked |= unmasked
            self._open()
            sums, norms = self._run(feeds)
        found = zip(self.outputs, sums, norms, strict=True)
        return {o: (float(s), float(n)) for o, s, n in found if np.isfinite(n)}

    def _open(self) -> None:
        with quiet_collector():
            reference, low = (graph.copied() for graph in self._models)
            combined = Combined(reference, low, self._masked, self.chained)
            graph = combined.build()
            self.outputs = combined.outputs
            rewrite(graph, keep_border=False)
            content, folder = graph.content(), graph.folder()
        # Nodes run in the order of the graph, each comparison behind what it compares: else they pile up for the end.
        options = in_file_order(cpu_options(folder, self._threads))
        try:
            self._session = opened(content, options)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            raise refused(error, "model") from error

    def _run(self, feeds: Feeds) -> tuple[list[Any], list[Any]]:
        wanted = [f"{o}{sort}" for sort in (ERROR, NORM) for o in self.outputs]
        fed = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in feeds.items()}
        try:
            found = self._session.run(wanted, fed)
        except Exception as error:
            raise stopped(error, "cpu") from error
        return found[: len(self.outputs)], found[len(self.outputs) :]


class GrownErrors(LocalErrors):
    """The error of every value that both models make, the other model running on its own values throughout."""

    chained = True


def _ratio(error: float, norm: float) -> float:
    if not np.isfinite(error):
        return float("inf")
    return error / norm if norm else float(error > 0)
