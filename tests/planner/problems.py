"""Problems of the cut that are known as a whole, small enough to be tried out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampgraph.planner.costs import CutTask
from ampgraph.planner.cut import Net, OpenProblem, Problem, solve
from ampgraph.planner.decisions import FREE, HIGH, LOW
from ampgraph.planner.undecided import Undecided


class KnownProblem(OpenProblem):
    """What a problem says, told as the cut asks for it."""

    def __init__(self, problem: Problem) -> None:
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

    def drawing(self) -> tuple[Iterable[int], Iterable[int]]:
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
    return dict.fromkeys(free_units(problem), LOW) | dict.fromkeys(solve(KnownProblem(problem)), HIGH)


def whole(task: CutTask) -> Problem:
    """All that is around the free units of a model, all of it priced."""
    choices = Undecided(task, task.costs)
    free = [root for root in dict.fromkeys(task.decisions.roots) if choices.side(root) == FREE]
    found = map(choices.net, range(len(task.flow.values)))
    nets = [net for net in found if net is not None and any(choices.side(u) == FREE for u in _units(net))]
    fixed = {u: choices.side(u) for net in nets for u in _units(net) if choices.side(u) != FREE}
    return Problem(nets, fixed, {unit: choices.extra(unit) for unit in free})
