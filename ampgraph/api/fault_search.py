"""The nodes that `verify` blames: where a value stops being finite, where the error grows."""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.errors import AmpError
from ..core.progress import Count, Progress
from ..numerics.metrics.agreement import Agreement
from .kinds import Feeds
from .pairs import OnnxPair, Pair

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples
    from ..numerics.metrics.metric import Metric
    from ..numerics.search import Ranking
    from ..numerics.trace.suspects import Inquest, Suspect
    from ..numerics.trace.values import Tracer

RUNS = 64
SECONDS = 60.0  # for runs with few nodes low
BIRTHS = 8  # nodes where values stop being finite: a repair holds so many at once
WORTH = 0.1  # of the tolerance: a growth below it is not worth naming, unless asked for


@dataclass
class FaultSearch:
    """The search for nodes: runs one sample again, the first that is not finite or the worst."""

    pair: Pair
    outputs: list[Agreement]
    tolerance: float
    count: int
    asked: bool
    born: Suspect | None = None
    born_too: tuple[Suspect, ...] = ()  # behind other nodes, beside
    growth: tuple[Suspect, ...] = ()
    traced: int | None = None
    notes: list[str] = field(default_factory=list)
    kept: tuple[int, Feeds, Feeds] | None = None  # the run to look at, where a sample alone does not give its feeds
    metric: Metric | None = None
    runs: int = RUNS  # in which few nodes are low, at most
    seconds: float = SECONDS
    left: float | None = None  # of the error, with what is named in float32
    seen: bool = False  # the errors of all nodes are wanted, whether one is to be named or not
    errors: dict[str, float] = field(default_factory=dict)  # of what each node makes, by its name
    ranking: Ranking | None = None  # of all low nodes, where causes were found

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """All that were found."""
        return self.growth if self.born is None else (self.born, *self.born_too)

    def withdraw(self) -> None:
        """Suggests nothing: no choice of precision is known to help."""
        self.born = None if self.born is None else replace(self.born, patterns=())
        self.born_too = ()
        self.growth = tuple(replace(suspect, patterns=()) for suspect in self.growth)

    def anew(self) -> FaultSearch:
        """The same search, before it has found anything; for another pair as a rule."""
        return FaultSearch(
            self.pair, self.outputs, self.tolerance, self.count, self.asked, metric=self.metric, runs=self.runs,
            seconds=self.seconds,
        )  # fmt: skip

    def look(self, drawn: Samples, progress: Progress | None) -> None:
        missed = [output for output in self.outputs if not output.within(self.tolerance)]
        named = self.count > 0 and bool(missed or self.asked)
        if not named and not self.seen:
            return
        judged = [output.judged_errors for output in self.outputs if output.counts] or [self.outputs[0].errors]
        errors = [max(of_output[i] for of_output in judged) for i in range(len(judged[0]))]
        chosen = max(range(len(errors)), key=lambda i: errors[i])  # the first of equal ones
        try:
            if not isinstance(self.pair, OnnxPair):
                return
            if self.kept is None:
                ours, theirs = self.pair.feeds(next(itertools.islice(iter(drawn), chosen, None)))
            else:
                chosen, ours, theirs = self.kept
            expected = self.pair.expected(ours)
            count = None if progress is None else functools.partial(progress, "looking at nodes")
            self._inquire(self.pair, (ours, theirs, expected), named, count)
            self.traced = chosen
        except AmpError as error:  # the comparison stands without it
            self.notes.append(f"nodes could not be looked at: {error.message}")
        if self.traced is not None and self.born is None and any(output.astray for output in self.outputs):
            self.notes.append(f"in the run that shows every value, sample {chosen} stays finite at every node")

    def _inquire(self, pair: OnnxPair, run: tuple[Feeds, Feeds, Feeds], named: bool, progress: Count | None) -> None:
        from ..numerics.trace.suspects import Inquest

        ours, theirs, expected = run
        tracer = pair.tracer()
        trace = tracer.run(ours, theirs, progress)
        inquest = Inquest(trace, tracer.weights)
        for site in trace.sites:
            self.errors[site.label] = max((trace.error(name) or 0.0 for name in site.outputs), default=0.0)
        if not named:
            return
        self.born = inquest.born_in_input() or self._descended(inquest, tracer, ours, theirs)
        self.born_too = tuple(inquest.born_at(i) for i in itertools.islice(inquest.birthplaces(), 1, BIRTHS))
        least = 0.0 if self.asked else WORTH * self.tolerance
        reached = self.born is not None and any(output.astray for output in self.outputs)
        measured = not reached and pair.strict and self.runs > 0
        if not measured or not self._caused(pair, tracer, inquest, theirs, expected, least):
            self.growth = tuple(inquest.growth(self.count, least))

    def _caused(
        self, pair: OnnxPair, tracer: Tracer, inquest: Inquest, fed: Feeds, expected: Feeds, least: float
    ) -> bool:
        """The nodes whose roundings make the error, as runs with few nodes low show; False where there are no such."""
        from ..numerics.strict.session import SwitchedSession
        from .causes import error_by, find_causes

        error, until = error_by(self.metric, self.outputs), time.monotonic() + self.seconds

        def late() -> bool:
            return time.monotonic() > until

        try:
            session = SwitchedSession(pair.source, pair.result)
            found = find_causes(
                session, tracer, inquest, fed, functools.partial(error, expected), wanted=self.count, least=least,
                runs=self.runs, late=late,
            )  # fmt: skip
        except AmpError as refused:
            self.notes.append(f"nodes are named by where errors grow, not by what they cause: {refused.message}")
            return False
        if late():
            instead = "" if found.suspects else ": nodes are named by where errors grow"
            text = f"the search for the nodes that make the error ended after {self.seconds:g} seconds"
            self.notes.append(text + instead)
        self.growth, self.left = found.suspects, found.left if found.suspects else None
        self.ranking = found.ranking
        return bool(found.suspects)

    def _descended(self, inquest: Inquest, tracer: Tracer, ours: Feeds, theirs: Feeds) -> Suspect | None:
        """The birthplace, in the body of an If where that is where it is."""
        from ..numerics.trace.suspects import Inquest

        place = next(inquest.birthplaces(), None)
        if place is None:
            return None
        site = tracer.sites[place]
        if site.kind == "If":
            inside = "/".join(filter(None, (inquest.inside, site.scope, site.label)))
            try:
                body = tracer.branch(site, ours, theirs)
                if body is not None:
                    inner, ours, theirs = body
                    within = Inquest(inner.run(ours, theirs), inner.weights, inside)
                    found = self._descended(within, inner, ours, theirs)
                    if found is not None:
                        return found
            except AmpError as error:  # the If itself is still a good answer
                self.notes.append(f"the body of '{site.label}' could not be looked at: {error.message}")
        return inquest.born_at(place)
