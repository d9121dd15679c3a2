"""What every step looks at and none changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..core.borders import Borders
from ..core.dataflow import Dataflow, Op
from ..oplists.operators import Listing
from ..oplists.traits import Traits
from .extents import Extents
from .options import Options
from .sizes import OpenSizes


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
    def sizes(self) -> OpenSizes:
        """Sizes of values, the open dimensions guessed."""
        return OpenSizes(self.flow, self.options.dims, self.traits)

    @property
    def guards_hold(self) -> bool:
        """Whether accuracy guards hold at this level."""
        return self.options.level.accuracy_guards == "hold"

    def listing(self, op: Op) -> Listing | None:
        """The list entry of an operator."""
        return self.options.lists.listing(self.flow, op)
