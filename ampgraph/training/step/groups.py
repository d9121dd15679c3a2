"""Parameter groups: which optimizer moves which parameter. The first pattern that matches a name wins.

As the ``param_groups`` of torch.optim: each group has its own optimizer, so its own kind, learning rate and decay.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.errors import AmpError, nearest
from .optimizers import OPTIMIZERS, Optimizer, as_optimizer, parse_optimizer, spelled

ALL, FROZEN, SHARED = "*", "frozen", "shared"
FORM = "'*.bias=adamw:weight_decay=0' '*=adamw', the first that matches a name wins"


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters that ``pattern`` matches, and that no earlier one does.

    ``optimizer``: None for parameters that are not trained. Those are constants of the step, or, ``shared``, state that
    it only reads: another step trains them.
    """

    pattern: str
    optimizer: Optimizer | None = None
    shared: bool = False

    def __str__(self) -> str:
        form = spelled(self.optimizer) if self.optimizer is not None else SHARED if self.shared else FROZEN
        return f"{self.pattern}={form}"


@dataclass(frozen=True)
class Groups:
    """All groups, in the order in which their patterns are tried; one that was given alone takes everything."""

    rows: tuple[ParameterGroup, ...]

    @property
    def alone(self) -> bool:
        """Whether one optimizer was given, and no pattern."""
        return len(self.rows) == 1 and self.rows[0].pattern == ALL

    def __str__(self) -> str:
        """The forms that `groups_of` reads."""
        only = self.rows[0].optimizer
        return spelled(only) if self.alone and only is not None else "; ".join(map(str, self.rows))

    def assigned(self, names: Sequence[str]) -> list[ParameterGroup]:
        """Parameter name -> the group whose pattern matches it.

        Raises AmpError AMP305 for a parameter that no pattern matches, and for a pattern that matches none, or none
        that an earlier one leaves.
        """
        found = {name: self._first(name, names) for name in names}
        for row in self.rows:
            if row not in found.values():
                raise self._unused(row, names)
        return list(found.values())

    def _first(self, name: str, names: Sequence[str]) -> ParameterGroup:
        """The group whose pattern comes first that matches a parameter; AmpError AMP305 where none does."""
        row = next((row for row in self.rows if fnmatch.fnmatchcase(name, row.pattern)), None)
        if row is None:
            others = sum(not any(fnmatch.fnmatchcase(n, r.pattern) for r in self.rows) for n in names) - 1
            more = f", nor {others} more" if others else ""
            hint = "end with a group for all others: '*=adamw', or '*=frozen'"
            raise AmpError("AMP305", f"no optimizer's pattern matches parameter '{name}'{more}", hint=hint)
        return row

    def _unused(self, row: ParameterGroup, names: Sequence[str]) -> AmpError:
        """The error for a pattern that matches no parameter, or none that an earlier pattern leaves."""
        hits = fnmatch.filter(names, row.pattern)
        if hits:
            before = next(r for r in self.rows if fnmatch.fnmatchcase(hits[0], r.pattern))
            message = (
                f"optimizer pattern '{row.pattern}' matches nothing that '{before.pattern}' before it does not match"
            )
            return AmpError("AMP305", message, hint=f"put '{row.pattern}' in front of it, or omit it")
        hint = nearest(row.pattern, list(names)) or f"there are: {', '.join(names[:8])}"
        return AmpError("AMP305", f"optimizer pattern '{row.pattern}' matches no parameter that is trained", hint=hint)


def distinct(groups: Iterable[ParameterGroup]) -> list[ParameterGroup]:
    """Each group once, in the order of its first parameter; an optimizer of the user may have no hash."""
    return list({group.pattern: group for group in groups}.values())


def groups_of(given: object) -> Groups:
    """One optimizer or its form, or rows ``(pattern, optimizer)`` or ``PATTERN=FORM``; beside an optimizer, a row may
    say ``frozen`` (or None) and ``shared``.

    Raises AmpError AMP322 for what is neither.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        return Groups((_parse_group(given) if isinstance(given, str) else ParameterGroup(ALL, as_optimizer(given)),))
    rows = tuple(_group_of(row) for row in given)
    patterns = [row.pattern for row in rows]
    twice = next((pattern for pattern in patterns if patterns.count(pattern) > 1), None)
    if twice is not None:
        raise AmpError("AMP322", f"optimizer pattern '{twice}' is given twice", hint=FORM)
    if not any(row.optimizer is not None for row in rows):
        raise AmpError("AMP322", "no group has an optimizer", hint=FORM)
    return Groups(rows)


def group_words(words: Sequence[str]) -> str | list[str]:
    """The options of a command line: groups, or the last of several optimizers without a pattern."""
    whole = all(_parse_group(word).pattern == ALL for word in words)
    return words[-1] if whole else list(words)


def _group_of(row: object) -> ParameterGroup:
    """A group as the user gives it, (pattern, optimizer) or its text "pattern=optimizer"."""
    if isinstance(row, str):
        return _parse_group(row)
    if not isinstance(row, (tuple, list)) or len(row) != 2 or not isinstance(row[0], str):
        hint = 'optimizer=[("*.bias", ampgraph.AdamW(weight_decay=0)), ("*", ampgraph.AdamW())]'
        raise AmpError("AMP322", f"a group of parameters is (pattern, optimizer), not {row!r}", hint=hint)
    pattern, form = row
    if form in (FROZEN, None):
        return ParameterGroup(pattern)
    if isinstance(form, str) and form == SHARED:
        return ParameterGroup(pattern, shared=True)
    return ParameterGroup(pattern, as_optimizer(form))


def _parse_group(text: str) -> ParameterGroup:
    """The pattern and the optimizer's form of ``PATTERN=FORM``, or of a form alone."""
    places = [place for place, letter in enumerate(text) if letter == "=" and place]
    for place in places:  # a name may hold = and :, and so may a form
        pattern, form = text[:place], text[place + 1 :]
        word = form.partition(":")[0]
        if word in (*OPTIMIZERS, FROZEN, SHARED):
            return _group_of((pattern, form))
    pattern, equals, form = text.partition("=")
    if equals and ":" not in pattern:  # the kind of optimizer is what is misspelt
        return ParameterGroup(pattern, parse_optimizer(form))
    return ParameterGroup(ALL, parse_optimizer(text))
