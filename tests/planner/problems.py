"""Problems of the cut that are known as a whole, small enough to be tried out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ampgraph.planner.costs import CutTask
from ampgraph.planner.cut import CutProblem, Net, Undecided
from ampgraph.planner.decisions import FREE, HIGH, LOW


@dataclass
class Problem:
    """``fixed``: unit -> LOW or HIGH for decided units that occur in a net; ``extra``: what a unit costs in float32."""

    nets: list[Net] = field(default_factory=list)
    fixed: dict[int, int] = field(default_factory=dict)
    extra: dict[int, int] = field(default_factory=dict)

    def cost(self, solution: dict[int, int]) -> int:
        """What an assignment of every unit (float32 or low) costs."""
        side = {**solution, **self.fixed}
        total = sum(extra for unit, extra in self.extra.items() if side[unit] == HIGH)
        return total + sum(net.cost(side) for net in self.nets)


class KnownProblem(CutProblem):
    """What a problem says, told as the cut asks for it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.numbers: dict[int, list[int]] = {}
        for number, net in enumerate(problem.nets):
            for unit in _units(net):
                self.numbers.setdefault(unit, []).append(number)

    def side(self, unit: int) -> int:
        return self.problem.fixed.get(unit, FREE)

    def extra(self, unit: int) -> int:
        return self.problem.extra.get(unit, 0)

    def nets_of(self, unit: int) -> Sequence[int]:
        return self.numbers.get(unit, ())

    def net(self, number: int) -> Net:
        return self.problem.nets[number]

    def starting_points(self) -> tuple[Iterable[int], Iterable[int]]:
        nets = [number for number, net in enumerate(self.problem.nets) if self._draws(net)]
        return nets, [unit for unit, extra in self.problem.extra.items() if extra < 0]

    def _draws(self, net: Net) -> bool:
        return any(self.side(u) == HIGH for u in _units(net)) or (net.writer is None and net.up < net.down)


def _units(net: Net) -> set[int]:
    return set(net.readers) if net.writer is None else {net.writer, *net.readers}


def free_units(problem: Problem) -> list[int]:
    """The units that are to be decided."""
    units = {unit for net in problem.nets for unit in _units(net)} | set(problem.extra)
    return sorted(units - set(problem.fixed))


def solution_of(problem: Problem) -> dict[int, int]:
    """The side of every free unit, by the cut."""
    return dict.fromkeys(free_units(problem), LOW) | dict.fromkeys(KnownProblem(problem).float32_units(), HIGH)


def whole(task: CutTask) -> Problem:
    """All that is around the free units of a model, all of it priced."""
    choices = Undecided(task)
    free = [root for root in dict.fromkeys(task.decisions.roots) if choices.side(root) == FREE]
    found = map(choices.net, range(len(task.flow.values)))
    nets = [net for net in found if net is not None and any(choices.side(u) == FREE for u in _units(net))]
    fixed = {u: choices.side(u) for net in nets for u in _units(net) if choices.side(u) != FREE}
    return Problem(nets, fixed, {unit: choices.extra(unit) for unit in free})
