"""The nodes whose roundings make an error, with what holding them in float32 leaves of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.arrays import Result
from ..core.node_names import pattern_for
from ..core.sites import Switched
from ..numerics.metrics.agreement import Agreement, apart, scale_of
from ..numerics.metrics.metric import Metric
from ..numerics.search import RUNS, Attribution, Ranking, attribute
from ..numerics.strict.session import SwitchedSession
from ..numerics.trace.suspects import Inquest, Suspect

if TYPE_CHECKING:
    from ..numerics.trace.values import Tracer
    from .kinds import Feeds

Error = Callable[[Mapping[str, Result], Mapping[str, Result]], float]


@dataclass(frozen=True)
class Causes:
    """``whole``: the error as it is, ``left``: with all in float32 that is suggested; ``ranking``: of all nodes."""

    suspects: tuple[Suspect, ...]
    whole: float
    left: float
    ranking: Ranking


def error_by(metric: Metric | None, outputs: Sequence[Agreement]) -> Error:
    """The largest error of the outputs that count, against their scales over the samples; by relative L2 if None."""
    counted = [output for output in outputs if output.counts]
    scales = {output.name: scale_of(judged.size for judged in output.judged) for output in counted}

    def error(expected: Mapping[str, Result], found: Mapping[str, Result]) -> float:
        if metric is None:
            return max((apart(expected[name], found[name]).error for name in scales), default=0.0)
        judged = metric.judge(expected, found)
        return max((one.error(scales.get(name, 0.0)) for name, one in judged.items()), default=0.0)

    return error


def find_causes(
    session: SwitchedSession,
    tracer: Tracer,
    inquest: Inquest,
    fed: Feeds,
    error: Callable[[Mapping[str, Result]], float],
    *,
    wanted: int,
    least: float,
    runs: int = RUNS,
    late: Callable[[], bool] = lambda: False,
) -> Causes:
    """Runs one sample with few nodes low at a time. ``error``: of the outputs of a run; the rest as `attribute`."""

    def of(low: Collection[int]) -> float:
        return error(session.run(fed, low))

    found = attribute(of, len(session.units), wanted, least, runs, late)
    suspects = [_suspect(session.units[cause.units[0]], cause.error, found, tracer, inquest) for cause in found.causes]

    def patterns(unit: int) -> list[str]:
        return _named(session.units[unit], tracer, inquest)

    ranking = Ranking(
        found.order, of, patterns, found.shares, {frozenset(): found.whole, frozenset(found.order): found.none}
    )
    return Causes(tuple(suspects), found.whole, found.without, ranking)


def _named(unit: Switched, tracer: Tracer, inquest: Inquest) -> list[str]:
    """Patterns of a node, and of those that move data to it."""
    outer = [inquest.maker.get(each.outputs[0]) for each in (unit, *unit.moves) if each.outputs and not each.inside]
    named = [pattern for i in outer if i is not None for pattern in inquest.patterns(i)]
    return named or [pattern for each in (unit, *unit.moves) for pattern in _patterns(each, tracer)]


def _suspect(unit: Switched, error: float, found: Attribution, tracer: Tracer, inquest: Inquest) -> Suspect:
    why = f"low alone it makes an error of {error:.2g}, all together make {found.whole:.2g}"
    i = inquest.maker.get(unit.outputs[0]) if unit.outputs and not unit.inside else None
    if i is not None:
        moves = [inquest.maker[move.outputs[0]] for move in unit.moves if move.outputs[0] in inquest.maker]
        told = inquest.magnified(i)
        return inquest.suspect(i, f"{why}, {told}" if told else why, [i, *moves])
    patterns = [pattern for each in (unit, *unit.moves) for pattern in _patterns(each, tracer)]
    label = unit.node or next(iter(unit.outputs), unit.kind)
    return Suspect(
        label, unit.kind, "", "/".join(unit.inside), inquest.low_type, (), (), why,
        tuple(dict.fromkeys(patterns)),
    )  # fmt: skip


def _patterns(unit: Switched, tracer: Tracer) -> list[str]:
    """What names a node in a body to `convert`: as the reference names it."""
    for output in unit.outputs:
        name, value = tracer.named(output)
        if value:
            return [pattern_for(name, value)]
    return []
