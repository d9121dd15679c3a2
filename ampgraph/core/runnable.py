"""What a run and the graph that runs both speak of: declared inputs and outputs, kernels' sums, nodes as they run."""

from __future__ import annotations

from dataclasses import dataclass

from .dataflow import Op, Shape


@dataclass(frozen=True)
class Declared:
    """A model's input or output as declared; ``container``: as in `Value`; ``stored``: whether it has a default."""

    name: str
    container: str
    dtype: str
    shape: Shape
    stored: bool = False


@dataclass(frozen=True)
class Sums:
    """How the kernel of ``op`` adds up in the low type: each sum is rounded; each product too, unless ``fused``.
    ``shapes``: of its operands, before anything is edited; ``stepwise``: whether each step of its formula is rounded as
    well; ``folded``: the Conv in front, into whose stored numbers a runtime takes this norm."""

    op: Op
    shapes: tuple[Shape | None, ...]
    fused: bool = False
    stepwise: bool = False
    folded: Sums | None = None


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
        """How reports and runs name this node: by its name, else its first output with a name, else its kind."""
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
