"""The nodes that `verify` and the check blame: where a value stops being finite, whose roundings make the error, where
it grows."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from ...core.arrays import Feeds
from ...core.errors import AmpError
from ...core.names import pattern_for
from ...core.progress import Count, Progress
from ...core.repairs import RepairOutcome
from ...core.runnable import Switched
from ..inputs.samples import Samples
from ..metrics.verdict import Compared
from ..pairs import Pair
from ..search import RUNS, Attribution, Search, attribute
from ..strict.session import SwitchedSession
from .suspects import Inquest, Suspect
from .values import Tracer

SECONDS = 60.0  # for runs with few nodes low
MOST_SITES = 8  # nodes where values stop being finite: a repair holds so many at once
WORTH = 0.1  # of the tolerance: a growth below it is not worth naming, unless asked for


@dataclass
class FaultSearch:
    """The search for nodes to blame: runs one sample again, the first that is not finite or the worst. `look` fills in
    what is found.

    Attributes:
        pair: the two models; ``compared``: what their runs gave; ``tolerance``: for the error.
        count: how many to name; ``asked``: whether the user said so.
        runs: in which few nodes are low, at most; ``seconds``: for them.
        kept: the run to look at, where a sample alone does not give its feeds: its number, and those of both sides.
        seen: the errors of all nodes are wanted, whether one is to be named or not.
        first_nonfinite: where a value stops being finite; ``also_nonfinite``: other nodes where one does.
        growth: the nodes that make the error; ``left``: what remains of it with these in float32.
        traced: the number of the sample that was run, None before and where it failed.
        errors: relative L2 of what each node makes, by its label; the largest of its outputs.
        search: for low nodes that have to be in float32, None where causes were not looked for; ``patterns``: those
            that name a unit of it.
    """

    pair: Pair
    compared: Compared
    tolerance: float
    count: int
    asked: bool
    runs: int = RUNS
    seconds: float = SECONDS
    kept: tuple[int, Feeds, Feeds] | None = None
    seen: bool = False
    first_nonfinite: Suspect | None = field(default=None, init=False)
    also_nonfinite: tuple[Suspect, ...] = field(default=(), init=False)
    growth: tuple[Suspect, ...] = field(default=(), init=False)
    traced: int | None = field(default=None, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    left: float | None = field(default=None, init=False)
    errors: dict[str, float] = field(default_factory=dict, init=False)
    search: Search | None = field(default=None, init=False)
    patterns: Callable[[int], list[str]] = field(default=lambda unit: [], init=False)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """All nodes to blame that were found, those at which values stop being finite first."""
        return self.growth if self.first_nonfinite is None else (self.first_nonfinite, *self.also_nonfinite)

    def notes_if_chaotic(self, notes: list[str], mended: RepairOutcome | None) -> list[str]:
        """Of nodes to blame: ``notes`` on a chaotic model, none where a repair mends it; where a repair was tried and
        does not, the nodes' patterns are withdrawn, as they would not help."""
        if mended is not None and mended.repair is not None:
            return []
        if notes and mended is not None:
            if self.first_nonfinite is not None:
                self.first_nonfinite = replace(self.first_nonfinite, patterns=())
            self.also_nonfinite = ()
            self.growth = tuple(replace(suspect, patterns=()) for suspect in self.growth)
        return notes

    def look(self, drawn: Samples, progress: Progress | None) -> None:
        """Finds the nodes to blame, and what else the attributes say; what stops it becomes a note."""
        outputs = self.compared.outputs
        missed = any(not output.within(self.tolerance) for output in outputs)
        named = self.count > 0 and (missed or self.asked)
        if not self.pair.sees_nodes or not (named or self.seen):
            return
        errors = self.compared.errors
        chosen = max(range(len(errors)), key=lambda i: errors[i])  # the first of equal ones
        try:
            if self.kept is None:
                ours, theirs = self.pair.feeds(next(itertools.islice(iter(drawn), chosen, None)))
            else:
                chosen, ours, theirs = self.kept
            expected = self.pair.run_reference(ours)
            count = None if progress is None else functools.partial(progress, "looking at nodes")
            tracer = self.pair.tracer()
            assert tracer is not None
            self._inquire(tracer, (ours, theirs, expected), named, count)
            self.traced = chosen
        except AmpError as error:
            self.notes.append(f"nodes could not be looked at: {error.message}")
        if (
            self.traced is not None
            and self.first_nonfinite is None
            and any(output.nonfinite_mismatches for output in outputs)
        ):
            self.notes.append(f"in the run that shows every value, sample {chosen} stays finite at every node")

    def _inquire(self, tracer: Tracer, run: tuple[Feeds, Feeds, Feeds], named: bool, progress: Count | None) -> None:
        """Runs one sample with every value in view, notes each node's error and, if ``named``, the nodes to blame.
        ``run``: the feeds of either side, and the reference's outputs."""
        ours, theirs, expected = run
        trace = tracer.run(ours, theirs, progress)
        inquest = Inquest(trace)
        for site in tracer.sites:
            self.errors[site.label] = max((trace.error(name) or 0.0 for name in site.outputs), default=0.0)
        if not named:
            return
        self.first_nonfinite = inquest.nonfinite_input() or self._find_nonfinite(inquest, ours, theirs)
        self.also_nonfinite = tuple(
            inquest.nonfinite_at(i) for i in itertools.islice(inquest.nonfinite_sites(), 1, MOST_SITES)
        )
        least = 0.0 if self.asked else WORTH * self.tolerance
        reached = self.first_nonfinite is not None and any(
            output.nonfinite_mismatches for output in self.compared.outputs
        )
        measured = not reached and self.pair.strict and self.runs > 0
        if not measured or not self._name_causes(_UnitNames(inquest), theirs, expected, least):
            self.growth = tuple(inquest.growth(self.count, least))

    def _name_causes(self, names: _UnitNames, fed: Feeds, expected: Feeds, least: float) -> bool:
        """Names the nodes whose roundings make an error above ``least``, as runs with few nodes low show (``fed``: the
        model's feeds); fills in ``growth``, ``left``, ``search``. False where no node does, or the model is refused."""
        until = time.monotonic() + self.seconds

        def late() -> bool:
            return time.monotonic() > until

        def error_of(low: Collection[int]) -> float:
            return self.compared.error_of(expected, session.run(fed, low))

        try:
            session = SwitchedSession(*names.inquest.tracer.graphs)
            units = session.units
            found = attribute(error_of, len(units), self.count, least, self.runs, late)
        except AmpError as refused:
            self.notes.append(f"nodes are named by where errors grow, not by what they cause: {refused.message}")
            return False
        if late():
            instead = "" if found.causes else ": nodes are named by where errors grow"
            text = f"the search for the nodes that make the error ended after {self.seconds:g} seconds"
            self.notes.append(text + instead)
        self.growth = tuple(names.suspect(units[cause.units[0]], cause.error, found) for cause in found.causes)
        self.left = found.without if found.causes else None
        weights = [share for _, share in sorted(zip(found.order, found.shares, strict=True))]
        known = {frozenset[int](): found.whole, frozenset(found.order): found.none}
        left = lambda held: error_of([unit for unit in range(len(units)) if unit not in held])  # noqa: E731
        self.search = Search([1] * len(units), left, lambda held: weights, known=known)
        self.patterns = lambda unit: names.patterns(units[unit])
        return bool(found.causes)

    def _find_nonfinite(self, inquest: Inquest, ours: Feeds, theirs: Feeds) -> Suspect | None:
        """The first node where values stop being finite; of an If the node inside the branch that runs, or the If and a
        note where it cannot be looked at. None for none. ``ours``, ``theirs``: feeds of reference and model."""
        place = next(inquest.nonfinite_sites(), None)
        if place is None:
            return None
        site = inquest.tracer.sites[place]
        if site.kind == "If":
            inside = "/".join(filter(None, (inquest.inside, site.scope, site.label)))
            try:
                body = inquest.tracer.branch(site, ours, theirs)
                if body is not None:
                    inner, ours, theirs = body
                    found = self._find_nonfinite(Inquest(inner.run(ours, theirs), inside), ours, theirs)
                    if found is not None:
                        return found
            except AmpError as error:  # the If itself is still a good answer
                self.notes.append(f"the body of '{site.label}' could not be looked at: {error.message}")
        return inquest.nonfinite_at(place)


@dataclass(frozen=True)
class _UnitNames:
    """Names the nodes that a run can switch: those of the main graph by a trace, others by the reference."""

    inquest: Inquest

    def patterns(self, unit: Switched) -> list[str]:
        """Patterns for a node to blame and those that move data to it, of the trace, else of the reference."""
        outer = [self._traced_index(each) for each in (unit, *unit.moves)]
        named = [pattern for i in outer if i is not None for pattern in self.inquest.patterns(i)]
        return named or self._reference_patterns(unit)

    def suspect(self, unit: Switched, error: float, found: Attribution) -> Suspect:
        """The finding on a node to blame, which makes ``error`` if it is low alone; ``found``: the whole search."""
        why = f"low alone it makes an error of {error:.2g}, all together make {found.whole:.2g}"
        i, maker = self._traced_index(unit), self.inquest.maker
        if i is not None:
            moves = [maker[move.outputs[0]] for move in unit.moves if move.outputs[0] in maker]
            told = self.inquest.magnified(i)
            return self.inquest.suspect(i, f"{why}, {told}" if told else why, [i, *moves])
        label, patterns = (
            unit.node or next(iter(unit.outputs), unit.kind),
            tuple(dict.fromkeys(self._reference_patterns(unit))),
        )
        return Suspect(label, unit.kind, "", "/".join(unit.inside), self.inquest.low_type, (), (), why, patterns)

    def _traced_index(self, unit: Switched) -> int | None:
        """The traced node that a switch of the strict model is for, None for one within a body."""
        return self.inquest.maker.get(unit.outputs[0]) if unit.outputs and not unit.inside else None

    def _reference_patterns(self, unit: Switched) -> list[str]:
        """Patterns for a node to blame that no trace knows, and for its moves, by the reference's names for them; none
        for a node that the reference does not have."""
        found = []
        for each in (unit, *unit.moves):
            for output in each.outputs:
                name, value = self.inquest.tracer.reference_node(output)
                if value:  # by the first output that the reference has
                    found.append(pattern_for(name, value))
                    break
        return found
