"""A function run in a process of its own, which may crash, hang or want too much memory.

What it is given, what it answers and what it says of errors goes through files, since Python's `communicate` neither
fills nor empties a pipe where it times out first. Answers are a line of JSON each: whole lines count, so that a process
that dies leaves what it had answered.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Answer = Callable[[Any], None]
TICK = 0.2  # seconds between two looks at what a process has answered


@dataclass(frozen=True)
class Ended:
    """What a child process answered, as JSON has it, how it ended (``said``, "" for well), and if by a signal."""

    answers: list[Any]
    said: str = ""
    crashed: bool = False


def in_child(
    function: Callable[[Any, Answer], None], argument: object, *, seconds: float, memory: int,
    on_answer: Answer = lambda answer: None,
) -> Ended:  # fmt: skip
    """Calls ``function(argument, answer)`` in another process, which imports it from its module.

    ``argument`` is pickled; ``answer`` takes what JSON can hold, any number of times; ``seconds``: when the process is
    killed; ``memory``: bytes that it may hold; ``on_answer``: is given each answer while the process runs on."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        answers = Path(folder, "answers.jsonl")
        # in two parts: the second can be read once modules are found as here
        sent = pickle.dumps([*map(str, sys.path)]) + pickle.dumps((function, argument, str(answers), memory))
        known: list[Any] = []

        def read() -> None:
            lines = answers.read_text(encoding="utf-8").splitlines(keepends=True) if answers.is_file() else []
            for line in lines[len(known) :]:
                if line.endswith("\n"):
                    known.append(json.loads(line))
                    on_answer(known[-1])

        said, crashed = _run_process([sys.executable, "-I", __file__], sent, seconds, read)
        read()
        return Ended(known, said, crashed)


def _run_process(words: list[str], sent: bytes, seconds: float, meanwhile: Callable[[], None]) -> tuple[str, bool]:
    """Runs a child process, the command ``words``, with ``sent`` as its input, until it ends or is killed after
    ``seconds``, and calls ``meanwhile`` every `TICK`. How it ended, in words, "" for well, and whether it crashed."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(sent)
        given.seek(0)
        try:
            child = subprocess.Popen(words, stdin=given, stdout=subprocess.DEVNULL, stderr=said)
        except OSError as error:
            return f"no process could be started: {error.strerror or error}", False
        with child:
            try:
                while time.monotonic() < until:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(min(TICK, until - time.monotonic()))
                        break
                    meanwhile()
                else:
                    return f"the run took more than {seconds:g} seconds", False
            finally:
                child.kill()  # which does nothing to one that has ended
        if child.returncode < 0:
            return f"the run crashed: {signal_words(child.returncode)}", True
        said.seek(0)
        last = (said.read().decode(errors="replace").strip().splitlines() or [""])[-1]
    return f"the run failed: {last or f'exit status {child.returncode}'}", False


def signal_words(code: int) -> str:
    """Of a child process: the signal that killed it, from its negative exit status, in words."""
    return signal.strsignal(-code) or f"signal {-code}"


def serve() -> None:
    """What the child process does: reads the function's place and argument from stdin, calls it, writes the answers."""
    sys.path[:] = pickle.load(sys.stdin.buffer)
    function, argument, answers, memory = pickle.load(sys.stdin.buffer)
    limit_memory(memory)
    with open(answers, "w", encoding="utf-8") as file:

        def answer(found: object) -> None:
            file.write(json.dumps(found) + "\n")
            file.flush()

        function(argument, answer)


def limit_memory(size: int) -> None:
    """In the child process: allocations beyond ``size`` bytes fail, where the system can do that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if sys.platform == "linux":  # elsewhere the limit counts nothing, or address space that is only reserved
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        size = size if most == resource.RLIM_INFINITY else min(size, most)  # a child of a child may not have more
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


if __name__ == "__main__":
    serve()
