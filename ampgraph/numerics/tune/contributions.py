"""What each node's own error does to the outputs: its size, times how much of it arrives there.

How an error grows is measured: where the low model runs beside the reference, every value has an error, and a node
passes on as much of its inputs' error as its result has beyond its own. Carried back from the outputs, that is a weight
for every value. Sums take the inputs' errors by their share of the result; errors add up in squares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.sites import Site
from ...oplists.traits import has

LEAST, MOST = 1e-3, 1e4  # bounds of a measured growth, in squares: a ratio of two small errors means little


@dataclass
class Measured:
    """Squared relative errors and norms of values, gathered over the samples."""

    squares: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)

    def add(self, found: Mapping[str, tuple[float, float]]) -> None:
        """(norm of the error, norm of the reference) of one sample."""
        for name, (error, norm) in found.items():
            ratio = math.inf if not math.isfinite(error) else error / norm if norm else float(error > 0)
            self.squares[name] = self.squares.get(name, 0.0) + ratio * ratio
            self.norms[name] = self.norms.get(name, 0.0) + norm * norm

    def square(self, name: str) -> float:
        return self.squares.get(name, 0.0)


def contributions(
    sites: Sequence[Site], outputs: Iterable[str], local: Measured, grown: Measured, exact: Collection[str]
) -> dict[str, float]:
    """Value -> squared error that its own rounding leaves in the outputs, infinite where it overflows.

    ``exact``: operators that move or select data; their own error is that of what they read.
    """
    arrives = dict.fromkeys(outputs, 1.0)
    found: dict[str, float] = {}
    for site in reversed(sites):
        heaviest = max((name for name in site.outputs if name), key=lambda name: arrives.get(name, 0.0), default="")
        for name in site.outputs:
            own = local.square(name)
            if own and (site.kind not in exact or math.isinf(own)):
                found[name] = math.inf if math.isinf(own) else own * arrives.get(name, 0.0)
        weight = arrives.get(heaviest, 0.0)
        if weight:
            for name, share in _passed(site, heaviest, local, grown, exact).items():
                arrives[name] = arrives.get(name, 0.0) + share * weight
    return found


def _passed(site: Site, output: str, local: Measured, grown: Measured, exact: Collection[str]) -> dict[str, float]:
    """How much of each input's squared error is found in a node's result."""
    inputs = [name for name in dict.fromkeys(site.inputs) if name in grown.squares]
    shares = dict.fromkeys(inputs, 1.0)
    size = grown.norms.get(output, 0.0)
    if has(site.kind, "shares") and size:
        shares = {name: grown.norms[name] / size for name in inputs}
    expected = sum(share * grown.square(name) for name, share in shares.items())
    if not expected or output not in grown.squares or not math.isfinite(expected + grown.square(output)):
        return shares
    own = 0.0 if site.kind in exact else local.square(output)
    growth = min(max((grown.square(output) - own) / expected, LEAST), MOST)
    return {name: share * growth for name, share in shares.items()}
