"""What every session can do, whichever runtime it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..core.arrays import Feeds, Result
from .ports import Port


class Session(Protocol):
    """A model that was opened once and is run often."""

    @property
    def inputs(self) -> Mapping[str, Port]:
        """What may be fed, in the order of the model."""
        ...

    @property
    def outputs(self) -> Mapping[str, Port]:
        """What a run gives, in the order of the model."""
        ...

    @property
    def required(self) -> Sequence[str]:
        """The inputs that have no value of their own."""
        ...

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
        """The outputs by name, all or some: arrays, and for outputs that are no tensors what the runtime has.

        Raises AmpError AMP503 for feeds that do not fit and for an output that is not there, AMP504 where it stops.
        """
        ...
