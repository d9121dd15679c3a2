"""How TensorFlow paints a graph low: allow, infer, deny, clear.

Seeds are operators on the allow list; low spreads from them through infer and clear operators, unless what a deny
operator made flows there. Source of the algorithm: TensorFlow 2.21, core/grappler/optimizers/auto_mixed_precision.cc.
An item is a type attribute of an operator, here a unit; edges join items by data flow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

ALLOW, INFER, DENY, CLEAR = "allow", "infer", "deny", "clear"


@dataclass
class Item:
    """What is painted.

    Attributes:
        cls: the class of its operator, empty for none.
        free: whether it may be painted at all: float32 now, and no border of the model.
        admits: whether the schema takes the low type.
        has_kernel: whether there is a kernel for it as well.
        converts: whether it is the result of a conversion in the model, low where all its readers are.
        before, after: numbers of the items that it reads, in order, and that read it.
    """

    cls: str
    free: bool
    admits: bool = True
    has_kernel: bool = True
    converts: bool = False
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    @property
    def spreads(self) -> bool:
        """Whether paint may reach it through its neighbours."""
        return self.free and self.admits and self.has_kernel


@dataclass
class Painted:
    """By number of an item. ``low``: why it is; ``denied``: the deny operator that it goes back to."""

    low: dict[int, str] = field(default_factory=dict)
    denied: dict[int, int] = field(default_factory=dict)


def paint(items: Sequence[Item], forced: Collection[int] = ()) -> Painted:
    """Paints items, which are in the order of the model. ``forced``: what is a seed whatever its class; then nothing is
    denied (UNSAFE_FORCE_ALL)."""
    return _Painter(items).run(forced)


class _Painter:
    """One graph, pass after pass."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items, self.painted = items, Painted()
        self.low, self.denied = self.painted.low, self.painted.denied

    def run(self, forced: Collection[int]) -> Painted:
        for number, item in enumerate(self.items):
            if item.free and (item.cls == ALLOW or number in forced):
                self.low[number] = "is a seed" if item.cls == ALLOW else "is forced"
        if not self.low:
            return self.painted
        if not forced:
            self._deny()
        self._between()
        self._directly_after()
        self._through_clear()
        for number in [n for n in self.low if self.items[n].cls == ALLOW and not self.items[n].admits]:
            del self.low[number]
        self._conversions()
        return self.painted

    def _deny(self) -> None:
        """What a deny operator makes flows on through clear and infer, up to the last deny or infer one."""
        up: set[int] = set()
        for root in self._of(DENY, INFER):
            self._walk([root], lambda n: n not in up and self.items[n].cls == CLEAR, self._before, up.add)
        for root in self._of(DENY):
            if root not in self.denied:
                self._deny_from(root, up)

    def _deny_from(self, root: int, up: set[int]) -> None:
        def take(number: int) -> None:
            self.denied[number] = number if self.items[number].cls == DENY else root

        self._walk([root], lambda n: n not in self.denied and n in up, self._after, take)

    def _between(self) -> None:
        """Clear and infer between two seeds."""
        down: set[int] = set()

        def enters(number: int) -> bool:
            item = self.items[number]
            return number not in down and number not in self.denied and item.spreads and item.cls in (CLEAR, INFER)

        seeds = [number for number in self._of(ALLOW) if self.items[number].free]
        for root in seeds:
            self._walk([root], enters, self._after, down.add)
        reached: set[int] = set()

        def take(number: int) -> None:
            reached.add(number)
            self.low.setdefault(number, "stands between two operators of the allow list")

        for root in seeds:
            if root not in reached:
                self._walk([root], lambda n: n not in reached and n in down, self._before, take)

    def _directly_after(self) -> None:
        """Infer directly after low, in the order of the model; the first operand that is denied forbids it."""
        for number, item in enumerate(self.items):
            if item.cls != INFER or not item.free or not item.admits or number in self.denied or number in self.low:
                continue
            known = [n for n in item.before if n in self.denied or n in self.low]
            if known and not any(n in self.denied for n in known):
                self.low[number] = "stands directly after what is low"

    def _through_clear(self) -> None:
        """Low spreads in both directions through clear."""

        def enters(number: int) -> bool:
            item = self.items[number]
            return number not in self.low and number not in self.denied and item.spreads and item.cls == CLEAR

        def take(number: int) -> None:
            self.low.setdefault(number, "is joined to what is low through operators that compute nothing")

        for root in sorted(self.low):
            self._walk([root], enters, lambda n: [*self.items[n].before, *self.items[n].after], take)

    def _conversions(self) -> None:
        """A conversion to float32 whose readers are all low makes low at once."""
        for number, item in enumerate(self.items):
            if item.converts and item.free and item.after and all(n in self.low for n in item.after):
                self.low.setdefault(number, "is a conversion that low operators alone read")

    def _of(self, *classes: str) -> Iterable[int]:
        return (number for number, item in enumerate(self.items) if item.cls in classes)

    def _before(self, number: int) -> Sequence[int]:
        return self.items[number].before

    def _after(self, number: int) -> Sequence[int]:
        return self.items[number].after

    @staticmethod
    def _walk(
        roots: list[int],
        enters: Callable[[int], bool],
        follow: Callable[[int], Sequence[int]],
        take: Callable[[int], object],
    ) -> None:
        """Takes roots and, from there, whatever may be entered."""
        stack, first, seen = list(roots), set(roots), set()
        while stack:
            number = stack.pop()
            if number in seen or not (number in first or enters(number)):
                continue
            seen.add(number)
            take(number)
            stack += [n for n in follow(number) if n not in seen]
