"""What every step looks at and none changes."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property

from ..core.borders import Borders
from ..core.dataflow import NONE, Dataflow, Op
from ..oplists.operators import Listing
from ..oplists.traits import Trait, Traits
from .extents import Extents
from .options import Options
from .sizes import OpenSizes

TOWARDS_SCORES: tuple[Trait, ...] = ("mask_path", "scalings", "multiplies")
"""Traits of the operators by which a mask reaches its Softmax."""


@dataclass(frozen=True)
class Context:
    """A model's dataflow, and all that steers its plan."""

    flow: Dataflow
    options: Options

    @cached_property
    def borders(self) -> Borders:
        """Values that carry on into and out of bodies and functions."""
        return Borders(self.flow)

    @cached_property
    def traits(self) -> Traits:
        """What operators are: as shipped, with the user's lists."""
        return self.options.lists.traits

    @cached_property
    def extents(self) -> Extents:
        """How large the numbers of stored tensors are."""
        return Extents(self.flow, self.options)

    @cached_property
    def stored(self) -> frozenset[int]:
        """The values that are stored tensors."""
        return frozenset(value.id for value in self.flow.values if value.weight)

    @cached_property
    def scores(self) -> set[int]:
        """What a Softmax may read, through arithmetic and moves: most values of a model are none, and so no mask."""
        flow, traits, found = self.flow, self.traits, set[int]()
        through = frozenset[str]().union(*map(traits.operators, TOWARDS_SCORES))
        readers = flow.with_roles(traits.operators("softmaxes") | traits.operators("attention_bias"))
        work = [value for op in readers for value in op.inputs if value != NONE]
        while work:
            value = work.pop()
            if value not in found:
                found.add(value)
                writer = flow.writer(value)
                if writer is not None and writer.role in through:
                    work += [v for v in writer.inputs if v != NONE]
        return found

    @cached_property
    def sizes(self) -> OpenSizes:
        """Sizes of values, the open dimensions guessed."""
        return OpenSizes(self.flow, self.options.dims, self.traits)

    @cached_property
    def _before(self) -> dict[frozenset[int], set[int]]:
        return {}

    def with_all_before(self, ops: frozenset[int]) -> Set[int]:
        """Operators, with all those that what they read was made by, across borders as well."""
        if ops not in self._before:
            found, values = set(ops), set[int]()
            add = self.borders.origins_into(values)
            for op in reversed(self.flow.ops):
                if op.id in ops or not values.isdisjoint(op.outputs):
                    found.add(op.id)
                    add(op.inputs)
            self._before[ops] = found
        return self._before[ops]

    @property
    def guards_hold(self) -> bool:
        """Whether accuracy guards hold at this level."""
        return self.options.level.accuracy_guards == "hold"

    def listing(self, op: Op) -> Listing | None:
        """The list entry of an operator."""
        return self.options.lists.listing(self.flow, op)
