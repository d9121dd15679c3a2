"""All that the rules ask of a model, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from ...core.dataflow import Dataflow, Op, Value
from ...core.low_types import LowType, low_type
from ...core.walk import Crossings
from ...oplists.framework_lists import Listing
from ...oplists.options import Options
from ...oplists.traits import Traits
from .masks import Masks
from .measured import MeasuredRanges
from .sizes import OpenSizes
from .squares import Squares
from .values import Extent, Values

OF_FILE = frozenset({"crossings", "stored", "sizes", "squares", "truths", "values", "_before", "_extents"})
"""Names of facts that no level and no kernels change; of these what was measured changes ``values`` alone."""


@dataclass(frozen=True)
class Facts:
    """A model's dataflow, all that steers its plan, and what follows from both before anything is decided."""

    flow: Dataflow
    options: Options

    @staticmethod
    def of(flow: Dataflow, options: Options) -> Facts:
        """The facts of a dataflow, built once for these options as long as the model is not edited. What those for
        other options have computed is taken over where these options do not change it."""
        known: list[Facts] = flow.memo.setdefault(Facts, [])
        found = next((facts for facts in known if facts.options is options), None)
        if found is None:
            found = Facts(flow, options)
            for other in known:
                found.__dict__.update({name: other.__dict__[name] for name in other._names_that_stay(options)})
            known.append(found)
        return found

    def _names_that_stay(self, options: Options) -> Iterable[str]:
        """The names of computed facts that stay the same under other options, whatever their level: all with the same
        lists, type, sizes, kernels and ranges; without the same kernels or ranges those of `OF_FILE`; else none."""
        own = self.options
        if own.lists is not options.lists or own.dtype != options.dtype or own.dims != options.dims:
            return ()
        if own.kernels is options.kernels and own.ranges is options.ranges and own.range_margin == options.range_margin:
            return self.__dict__.keys() - {"flow", "options"}
        kept = OF_FILE if own.ranges is None is options.ranges else OF_FILE - {"values"}
        return self.__dict__.keys() & kept

    # -- what it is asked with ----------------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """What operators are: as shipped, with the user's lists."""
        return self.options.lists.traits

    @cached_property
    def low(self) -> LowType:
        """The limits of the low type that is planned for."""
        return low_type(self.options.dtype)

    def listing(self, op: Op) -> Listing | None:
        """The list entry of an operator; None where it is in no list."""
        return self.options.lists.listing(self.flow, op)

    @cached_property
    def sights(self) -> list[object]:
        """Every `Sight` of these facts so far: rules of the next plan of the model look for what was computed."""
        return []

    # -- ways ---------------------------------------------------------------------------------------------------------

    @cached_property
    def crossings(self) -> Crossings:
        """Facts: which values carry on as others into and out of bodies and functions."""
        return Crossings(self.flow)

    @cached_property
    def _before(self) -> dict[frozenset[int], set[int]]:
        """What `with_all_before` has found, by the operators that it was asked for."""
        return {}

    def with_all_before(self, ops: frozenset[int]) -> Set[int]:
        """The ids of some operators and of all before them, across boundaries of bodies and functions as well."""
        if ops not in self._before:
            found, values = set(ops), set[int]()
            add = self.crossings.origins_into(values)
            for op in reversed(self.flow.ops):
                if op.id in ops or not values.isdisjoint(op.outputs):
                    found.add(op.id)
                    add(op.inputs)
            self._before[ops] = found
        return self._before[ops]

    # -- values -------------------------------------------------------------------------------------------------------

    @cached_property
    def stored(self) -> frozenset[int]:
        """The ids of the values that are stored tensors."""
        return frozenset(value.id for value in self.flow.values if value.weight)

    @cached_property
    def _extents(self) -> dict[object, Extent]:
        """Extents of stored tensors by the key of what is stored: each is read once."""
        return {}

    def extent(self, value: Value) -> Extent:
        """How large the numbers of a stored tensor are, every element of which is read, once."""
        key = self.flow.weights.key(value)
        if key not in self._extents:
            self._extents[key] = Extent.of(self.flow.weights.chunks(value), self.low)
        return self._extents[key]

    @cached_property
    def values(self) -> Values:
        """Facts: between which numbers values are, and the numbers themselves where they are few and known."""
        return Values(self.flow, self.traits, self.crossings.before, self.measured.ranges, self.options.range_margin)

    @cached_property
    def truths(self) -> Values:
        """Facts: between which numbers values are, where integers of which nothing is known are taken for truths."""
        return Values(self.flow, self.traits, self.crossings.before, truths=True)

    @cached_property
    def sizes(self) -> OpenSizes:
        """Facts: sizes of values, open dimensions as the recipe's --dim says (``options.dims``), else guessed."""
        return OpenSizes(self.flow, self.options.dims, self.traits)

    @cached_property
    def squares(self) -> Mapping[int, int]:
        """Facts: id of an operator that squares -> the value that it squares."""
        return Squares(self.flow, self.traits).of_op

    @cached_property
    def masks(self) -> Masks:
        """What is put upon scores before a Softmax."""
        return Masks(self.flow, self.options, self.truths)

    @cached_property
    def measured(self) -> MeasuredRanges:
        """Facts: what values were measured to reach, by the recipe's ranges."""
        return MeasuredRanges(self.flow, self.options, self.masks)

    @cached_property
    def passing(self) -> Mapping[int, str]:
        """Facts: the values that were measured to pass the limit of the low type, as `MeasuredRanges.passing`."""
        return self.measured.passing()
