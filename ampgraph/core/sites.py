"""A node as it runs: what a trace of a run and the search for what to put back to float32 both speak of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """A node as it runs. ``node`` is its name in the file (in its function's body, where ``scope`` is the path of
    calls), ``written`` its outputs there; ``inputs`` and ``outputs`` are names of the inlined model, values that its
    bodies capture among the inputs."""

    node: str
    kind: str
    scope: str
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    written: tuple[str, ...]

    @property
    def label(self) -> str:
        """The node's name, else its first output's."""
        return self.node or next(filter(None, self.written), self.kind)


SWITCHES = "@switches"
"""The input of a graph with switches: a truth value for each, whether its node computes low."""


@dataclass(frozen=True)
class Switched:
    """A node whose roundings one truth value turns on: its name, operator and outputs in the file, the control-flow
    nodes around it from the outside in; ``moves``: exact nodes that hand data to it, and are turned on with it."""

    node: str
    kind: str
    outputs: tuple[str, ...]
    inside: tuple[str, ...]
    moves: tuple[Switched, ...] = ()
