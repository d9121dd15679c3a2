"""Which nodes are to blame: where an infinity or NaN is born, where the error grows, and what to try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np

from ...core.graph import LOW
from ...core.json_types import JsonObject
from ...core.low_types import low_type
from ...core.names import pattern_for
from ...core.repairs import fp32_options
from ...core.runnable import Site
from ...core.walk import reachable
from ...oplists.traits import has
from .values import HUGE, Extremes, Trace

MASK = -1e30
AMPLIFIES = 4.0  # from there on the inputs' own rounding is the cause as well
FLOOR = 1e-6  # an error below it is float32's own noise


@dataclass(frozen=True)
class TracedValue:
    """A value that a node reads or makes: its range here and in the reference, and its error."""

    name: str
    dtype: str
    range: Extremes
    reference: Extremes | None
    error: float | None


@dataclass(frozen=True)
class Suspect:
    """A node to blame, what it reads and makes, why it is named, and ``patterns`` to try as ``fp32``, the first naming
    itself. An input's ``operator`` is "input".

    ``inside``: the function calls and If nodes around it, from the outside in; ``hints`` are other ways."""

    node: str
    operator: str
    layer: str
    inside: str
    dtype: str
    reads: tuple[TracedValue, ...]
    makes: tuple[TracedValue, ...]
    why: str
    patterns: tuple[str, ...]
    hints: tuple[str, ...] = ()

    @property
    def suggestion(self) -> tuple[str, ...]:
        """What to try against a node to blame, as options of `convert`."""
        return fp32_options(self.patterns)

    def to_dict(self) -> JsonObject:
        """A node to blame as plain data for JSON."""
        return {**asdict(self), "suggestion": self.suggestion}


class Inquest:
    """Finds nodes to blame in one trace; a node is its index in ``tracer.sites``. ``inside``: the branch of an If that
    the trace is of, "" for the main graph; ``maker``, ``readers``: nodes by value."""

    def __init__(self, trace: Trace, inside: str = "") -> None:
        self.trace, self.tracer, self.inside = trace, trace.tracer, inside
        self.maker = {out: i for i, site in enumerate(self.tracer.sites) for out in site.outputs if out}
        self.readers: dict[str, list[int]] = {}
        for i, site in enumerate(self.tracer.sites):
            for name in site.inputs:
                self.readers.setdefault(name, []).append(i)
        self.low_type = next((d for d in self.tracer.dtypes.values() if d in LOW), "float16")

    # -- infinities and NaN -------------------------------------------------------------------------------------------

    def nonfinite_sites(self) -> Iterator[int]:
        """The nodes, in file order, that make infinities or NaN of finite inputs where the reference is finite."""
        odd = self.trace.mismatches
        for i, site in enumerate(self.tracer.sites):
            if any(map(odd, site.outputs)) and not any(map(odd, site.inputs)):
                yield self._first_nonfinite(i)

    def nonfinite_input(self) -> Suspect | None:
        """An input that becomes infinite by being cast to low, if there is one."""
        for name in self.tracer.inputs:
            seen = self.trace.values.get(name)
            if seen is not None and seen.mismatches and seen.reference is not None:
                dtype = self.tracer.dtypes[name]
                largest = low_type(dtype).largest
                why = f"the input itself reaches {seen.reference.absmax:.4g}; {dtype} ends at {largest:,.0f}"
                hint = f"keep it in float32: convert without --io {name}=low"
                made = self._traced_values((name,))
                return Suspect(name, "input", "", self.inside, dtype, (), made, why, (), (hint,))
        return None

    def nonfinite_at(self, i: int) -> Suspect:
        """The finding on a node to blame, at which values stop being finite: a stored weight that is not finite, a
        result beyond the low type, an operand that has become zero, or roundings, whichever shows first."""
        site, limit = self.tracer.sites[i], low_type(self.low_type).largest
        spoiled = self._spoiled_weight(site)
        reached = max((self.trace.reach(out) for out in site.outputs), default=0.0)
        hints = ("--dtype bfloat16",) if self.low_type == "float16" else ()
        if spoiled:
            return self.suspect(i, f"its weight '{spoiled}' holds infinities or NaN", [i])
        if reached > limit:
            ends = (HUGE, float("inf")) if reached >= HUGE else (limit, HUGE)  # masks, or numbers
            near = {n for n in self.trace.values if ends[0] < self.trace.reach(n) <= ends[1]}
            carry = [j for j, s in enumerate(self.tracer.sites) if not near.isdisjoint((*s.inputs, *s.outputs))]
            nodes = sorted((j for j in carry if self._is_low(j)), key=lambda j: j != i)  # this one first
            why = f"its result reaches {reached:.4g} in the reference; {self.low_type} ends at {limit:,.0f}"
            lowest = min((self.trace.lowest(out) for out in site.outputs), default=0.0)
            if lowest < MASK:
                hints = ("write the mask as -inf, or as half of the low type's minimum", *hints)
            return self.suspect(i, why, nodes, hints)
        gone = self.trace.vanished(site.inputs)
        if gone:
            count, size = self.trace.values[gone[0]].vanished, low_type(self.low_type).smallest_subnormal
            why = f"'{gone[0]}' has become zero in {count:,} places: {self.low_type} ends at {size:.1g}"
            hint = f"an eps of at least {size:.1g} before it, if the model is yours"
            return self.suspect(i, why, [i, *self._makers_of_zeros(gone)], (hint,))
        return self.suspect(i, "its inputs are finite, and off by their rounding", [i, *self._nearest_low(i)], hints)

    def _first_nonfinite(self, i: int) -> int:
        """Node ``i``, or the one before it at which values that the reference does not have stop being finite."""
        for name in self.tracer.sites[i].inputs:
            seen, j = self.trace.values.get(name), self.maker.get(name)
            odd = seen is not None and seen.reference is None and (seen.range.infinite or seen.range.nan)
            if odd and j is not None:
                return self._first_nonfinite(j)
        return i

    def _spoiled_weight(self, site: Site) -> str:
        """The name of a stored tensor that a traced node reads and that holds NaN or inf; "" if there is none."""
        for name, numbers in self.tracer.weights(site).items():
            array = numbers.astype(np.float32)
            if np.isnan(array).any() or np.isposinf(array).any():  # -inf is how masks are written
                return name
        return ""

    def _makers_of_zeros(self, names: list[str]) -> list[int]:
        """The traced nodes that made the values ``names`` zero, back to the first that did."""

        def makers(read: Iterable[str]) -> list[int]:
            return [self.maker[name] for name in self.trace.vanished(read) if name in self.maker]

        return list(reachable(makers(names), lambda i: makers(self.tracer.sites[i].inputs)))

    # -- errors -------------------------------------------------------------------------------------------------------

    def growth(self, count: int, least: float = FLOOR) -> list[Suspect]:
        """The nodes to blame for an error: the ``count`` behind which the relative error is larger than before by most,
        and by more than ``least``. Nodes at which values are not finite are left out."""
        gains = []
        for i, site in enumerate(self.tracer.sites):
            if self._is_added_cast(i) or not any(site.inputs):  # a constant is as it was rounded, no node's work
                continue
            finite = [out for out in site.outputs if not self.trace.mismatches(out)]
            after = [error for out in finite if (error := self.trace.error(out)) is not None]
            if not after or any(self.trace.mismatches(name) for name in site.inputs):
                continue
            gain = max(after) - self.error_in(site)
            if gain > max(least, FLOOR):
                gains.append((-gain, i))
        return [self._grown_suspect(i) for _, i in sorted(gains)[:count]]

    def _grown_suspect(self, i: int) -> Suspect:
        """The finding on a node to blame, behind which the error is larger than before: what it cancels, and patterns
        for itself and, if it amplifies errors, for the low nodes before it."""
        site = self.tracer.sites[i]
        before = self.error_in(site)
        after = max(e for out in site.outputs if (e := self.trace.error(out)) is not None)
        why = f"relative error {before:.2g} in, {after:.2g} out"
        widest = max((self.trace.reach(name) for name in site.inputs), default=0.0)
        narrow = max((self.trace.reach(out) for out in site.outputs), default=0.0)
        amplified = after > AMPLIFIES * before and before > FLOOR
        if amplified and has(site.kind, "cancels") and widest > AMPLIFIES * narrow:
            why += f": it cancels {widest:.3g} down to {narrow:.3g}"
        nodes = [i] if self._is_low(i) else []
        if amplified or not nodes:
            nodes += self._nearest_low(i)
        return self.suspect(i, why, nodes)

    def magnified(self, i: int) -> str:
        """The traced node behind node ``i`` by which the relative error grows most, in words, as a logarithm or a
        difference of large numbers; empty where none lets it grow fourfold."""

        def behind(j: int) -> Iterator[int]:
            return (reader for name in self.tracer.sites[j].outputs for reader in self.readers.get(name, ()))

        sites = [self.tracer.sites[j] for j in reachable([i], behind) if j != i]
        grown = [(growth, site) for site in sites if (growth := self._growth_factor(site)) > AMPLIFIES]  # NaN does not
        most, best = max(grown, key=lambda one: one[0], default=(0.0, None))
        return "" if best is None else f"made {most:.2g} times larger by {best.kind} {best.label}"

    def _growth_factor(self, site: Site) -> float:
        """How many times as large a traced node's relative error is as that of what it reads; 0 where that is noise.

        Values below the low type's normal numbers are left out: there relative errors are large, and mean nothing.
        """
        normal, before = low_type(self.low_type).smallest_normal, self.error_in(site)
        errors = [self.trace.error(out) for out in site.outputs if self.trace.reach(out) >= normal]
        return max((e for e in errors if e is not None), default=0.0) / before if before > FLOOR else 0.0

    def error_in(self, site: Site) -> float:
        """The largest relative error of what a traced node reads, taken before Casts that were added."""
        return max((self.trace.error(self._before_casts(name)) or 0.0 for name in site.inputs), default=0.0)

    def _before_casts(self, name: str) -> str:
        """The traced value that a name stands for before the Casts that the conversion added."""
        i = self.maker.get(name)
        while i is not None and self._is_added_cast(i):
            name = self.tracer.sites[i].inputs[0]
            i = self.maker.get(name)
        return name

    def _nearest_low(self, i: int, most: int = 4) -> list[int]:
        """The nearest low nodes before node ``i``, ``most`` of them, those with the largest error first."""

        def before(j: int) -> list[int]:
            if j != i and self._is_low(j):
                return []  # the way back ends at a low node
            names = sorted(self.tracer.sites[j].inputs, key=lambda name: -(self.trace.error(name) or 0.0))
            return [self.maker[name] for name in names if name in self.maker]

        return list(islice((j for j in reachable([i], before) if j != i and self._is_low(j)), most))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _is_added_cast(self, i: int) -> bool:
        """Whether a traced node is a Cast that the conversion added: the reference has one value on both sides."""
        site, twins = self.tracer.sites[i], self.tracer.twins
        return site.kind == "Cast" and site.inputs[0] in twins and twins.get(site.outputs[0]) == twins[site.inputs[0]]

    def _is_low(self, i: int) -> bool:
        """Whether a traced node computes on low values; a constant is none that could be kept."""
        site = self.tracer.sites[i]
        names = (*site.inputs, *site.outputs)
        return (
            any(site.inputs)
            and not self._is_added_cast(i)
            and any(self.tracer.dtypes.get(name) in LOW for name in names)
        )

    def suspect(self, i: int, why: str, nodes: list[int], hints: tuple[str, ...] = ()) -> Suspect:
        """The finding on node ``i`` to blame, for the reason ``why``, with patterns that hold ``nodes`` in float32."""
        site = self.tracer.sites[i]
        inside = "/".join(filter(None, (self.inside, site.scope)))
        origin = None if site.node else self._reference_site(site)
        label = site.label if origin is None else origin.label
        if self._is_added_cast(i):
            named = [self.tracer.sites[j].label for j in self.readers.get(site.outputs[0], [])]
            label = f"{label}, the Cast before {named[0]}" if named else label
        used = [name for name in (*site.outputs, *site.inputs) if name in self.tracer.dtypes]
        dtype = next((self.tracer.dtypes[n] for n in used if self.tracer.dtypes[n] in LOW), "float32")
        patterns = dict.fromkeys(pattern for j in nodes for pattern in self.patterns(j))
        reads, makes = self._traced_values(site.inputs), self._traced_values(site.outputs)
        return Suspect(label, site.kind, site.layer, inside, dtype, reads, makes, why, tuple(patterns), hints)

    def patterns(self, i: int) -> Iterator[str]:
        """The pattern for `convert --fp32` that names a node to blame; none if the conversion added the node."""
        origin = self._reference_site(self.tracer.sites[i])
        if origin is not None:
            yield pattern_for(origin.node, next(filter(None, origin.written), ""))

    def _reference_site(self, site: Site) -> Site | None:
        """The reference's node that makes the twin of a value that a traced node makes; None for none."""
        made = (self.tracer.origins.get(self.tracer.twins.get(out, out)) for out in site.outputs)
        return next((origin for origin in made if origin is not None), None)

    def _traced_values(self, names: tuple[str, ...]) -> tuple[TracedValue, ...]:
        """For a finding: what was seen of the values ``names``; of those that were traced."""
        known = {name: self.trace.values[name] for name in names if name in self.trace.values}
        return tuple(
            TracedValue(name, self.tracer.dtypes[name], seen.range, seen.reference, seen.error)
            for name, seen in known.items()
        )
