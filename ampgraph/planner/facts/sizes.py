"""Sizes of images whose dimensions the file leaves open: as the strides before them divide what goes in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from ...core.dataflow import NONE, Dataflow, Op, Shape
from ...oplists.traits import Traits


class OpenSizes:
    """Dimensions of values; open ones behind batch and channels are guessed at the model's inputs and divided by the
    strides on the way. ``named``: symbolic dimension -> its size, as the user says."""

    def __init__(self, flow: Dataflow, named: dict[str, int], traits: Traits) -> None:
        self.flow, self.named, self.traits = flow, named, traits

    def dims(self, value: int) -> list[int]:
        """The size of each dimension of a value as one number; of an unknown shape as `Dataflow.dims` guesses it."""
        dims, shape = self.flow.dims(value, self.named), self.flow.shape(value)
        if shape is None or value not in self._places:
            return dims
        for axis, size in zip(range(2, len(dims)), self._places[value], strict=False):
            dim = shape[axis]
            if not (isinstance(dim, int) and dim >= 0) and str(dim) not in self.named:
                dims[axis] = size
        return dims

    def guessed(self, op: Op) -> int:
        """How many elements an operator adds up into one, with open dimensions guessed."""
        dims = self.dims(op.inputs[0])
        if self.traits.has(op.role, "sums_all_places"):
            return math.prod(dims[2:])
        if self.traits.has(op.role, "sums_windows"):
            return math.prod(self.flow.integers(op, "kernel_shape") or [])
        return math.prod(dims[axis] for axis in self._reduced_axes(op, len(dims)))

    def _reduced_axes(self, op: Op, rank: int) -> list[int]:
        """The axes over which a reduction of ``rank`` dimensions goes; the last one where they are computed."""
        axes = self.flow.integers(op, "axes")
        if axes is None and len(op.inputs) > 1 and op.inputs[1] != NONE:
            item = self.flow.values[op.inputs[1]]
            array = self.flow.weights.array(item) if item.weight else None
            axes = [-1] if array is None else array.reshape(-1).tolist()
        if not axes:
            return [] if self.flow.attribute(op, "noop_with_empty_axes") else list(range(rank))
        return [axis for axis in axes if -rank <= axis < rank]

    def is_open(self, op: Op, *, any_axes: bool = False) -> bool:
        """Whether an operator adds up all places behind batch and channels, and neither file nor user says how many
        there are. ``any_axes``: of other sums too, whether that holds for an axis that they go along."""
        value = op.inputs[0]
        shape = self.flow.shape(value)
        if any_axes and not self.traits.has(op.role, "sums_all_places"):
            if shape is None:
                return True
            follows = 2 if value in self._places else len(shape)  # from there on sizes follow from the inputs'
            sizes = [shape[axis] for axis in self._reduced_axes(op, len(shape)) if axis % len(shape) < follows]
            return not all((isinstance(size, int) and size >= 0) or str(size) in self.named for size in sizes)
        known = (shape is not None and self._is_known(shape)) or (value in self._places and not self._open_inputs)
        return self.traits.has(op.role, "sums_all_places") and not known

    def _is_known(self, shape: Shape) -> bool:
        """Whether the file or the user says the size of each dimension of a shape behind batch and channels."""
        return all(isinstance(size, int) or str(size) in self.named for size in shape[2:])

    @cached_property
    def _open_inputs(self) -> bool:
        """Whether an input of the model has a dimension behind batch and channels of which nobody says the size."""
        shapes = [self.flow.shape(value) for value in self.flow.scopes[0].inputs]
        return not all(shape is not None and self._is_known(shape) for shape in shapes)

    @cached_property
    def _places(self) -> dict[int, Sequence[int]]:
        """Value -> its sizes behind batch and channels: the model's inputs', divided by the strides on the way."""
        flow = self.flow
        places: dict[int, Sequence[int]] = {}
        for value in flow.scopes[0].inputs if flow.scopes else ():
            if len(flow.shape(value) or ()) > 2:
                places[value] = flow.dims(value, self.named)[2:]
        for op in flow.ops:
            before = [places[v] for v in op.inputs if v in places]
            after = self._sizes_behind(op, before) if before else None
            if after is not None:
                places.update((v, after) for v in op.outputs if v != NONE)
        return places

    def _sizes_behind(self, op: Op, before: list[Sequence[int]]) -> Sequence[int] | None:
        """The sizes behind batch and channels of an operator's result, where its operands have the sizes ``before``;
        None where it rearranges or enlarges."""
        if self.traits.has(op.role, "windows"):
            steps = self.flow.integers(op, "strides") or [1] * len(before[0])
            return [-(-size // step) for size, step in zip(before[0], steps, strict=False)]
        if self.traits.has(op.role, "rearranges") or len({len(sizes) for sizes in before}) > 1:
            return None
        return [max(sizes) for sizes in zip(*before, strict=True)]  # a smaller operand is spread
