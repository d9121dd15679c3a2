"""The one error type that users see: a code, one sentence, where, and a hint."""

from __future__ import annotations

import numbers
import re

_SOURCE = re.compile(r"/\S+/(\w+\.(?:cc|cpp|cu|h):\d+) ")  # where C++ says that it failed; its function follows


class AmpError(Exception):
    """The one error of ampgraph: a mistake in the input or in its use, reported in one line with a hint.

    Codes: 1xx reading and writing files, 2xx the model, 3xx lists, patterns and options, 4xx plans, 5xx running,
    9xx a defect of ampgraph itself.
    """

    def __init__(self, code: str, message: str, *, where: str = "", hint: str = "") -> None:
        """``code``: one of `error_codes.CODES`; ``where``: the file, node or option at fault; "" for none."""
        self.code, self.message, self.where, self.hint = code, message, where, hint
        super().__init__(self.__str__())

    def __str__(self) -> str:
        """The words ``error[CODE]: PLACE: MESSAGE``, and the hint on a line of its own."""
        place = f"{self.where}: " if self.where else ""
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"error[{self.code}]: {place}{self.message}{hint}"


class NoMemory(AmpError):
    """The AmpError of a run that failed for want of memory, not by a fault of the model: AMP504."""

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__("AMP504", message, where=where, hint=hint)


class Unmatched(AmpError):
    """The AmpError for a ``word`` of an option that means nothing in this model, but may in another: AMP305, AMP310."""

    def __init__(self, code: str, message: str, *, hint: str, word: str) -> None:
        super().__init__(code, message, hint=hint)
        self.word = word


class UnknownKeyword(AmpError, TypeError):
    """A keyword that a function does not take: AMP301, and a TypeError as Python's own."""

    def __init__(self, name: str, known: list[str]) -> None:
        hint = nearest(name, known) or f"there are: {', '.join(known)}"
        super().__init__("AMP301", f"unknown keyword '{name}'", hint=hint)


def nearest(name: str, known: list[str]) -> str:
    """For a hint of an AmpError: ``did you mean 'X'?`` with the closest one of ``known``, or "" when none is close."""
    import difflib

    lower = {k.lower(): k for k in known}
    match = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return f"did you mean '{lower[match[0]]}'?" if match else ""


def is_number(value: object) -> bool:
    """Checks of arguments: whether a caller gave a number, numpy's included; texts and truth values are not numbers."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Checks of arguments: whether a caller gave a value of an integer type, numpy's included; truth values are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without the C++ function that said it; its class where there is no text."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _without_function(line).rstrip(": ")


def _without_function(line: str) -> str:
    """Of an error's text: a line of a C++ trace without path and function: ``... file.cc:12: words`` of ``...
    /long/path/file.cc:12 bool f(int (*)(), T) [with T = float] words``; any other line as it is."""
    found = _SOURCE.search(line)
    if found is None:
        return line
    end = _closing_bracket(line, line.find("(", found.end()))
    if end is None:
        return line
    words = re.sub(r"^ (const )?(\[with [^]]*\] )?", "", line[end:])
    return f"{line[: found.start()]}{found[1]}: {words}"


def _closing_bracket(line: str, start: int) -> int | None:
    """Of an error's text: the position behind the bracket that closes the one at ``start``; None for -1, or without
    one."""
    if start == -1:
        return None
    depth = 0
    for place in range(start, len(line)):
        depth += (line[place] == "(") - (line[place] == ")")
        if depth == 0:
            return place + 1
    return None
