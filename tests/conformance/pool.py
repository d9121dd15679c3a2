"""Cases in worker processes: one that crashes or hangs costs its own case, not the others."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from conformance.checks import Convert, Result, check
from conformance.reference import is_cached, mark_crashed, reference
from share import turn

TIMEOUT = 120.0


@dataclass
class Outcome:
    """Everything about one case; `skipped` says why it is not in the suite."""

    case: str
    skipped: str
    results: list[Result]


def load_converter(spec: str) -> Convert:
    """`module:function` or `file.py:function`, called as `f(model, level=, dtype=, target=)`."""
    import importlib
    import importlib.util

    where, _, name = spec.rpartition(":")
    if where.endswith(".py"):
        found = importlib.util.spec_from_file_location("converter_under_test", where)
        assert found and found.loader
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function = getattr(module, name)
    return lambda model, level: function(model, level=level, dtype="float16", target="cpu")


def one(name: str, levels: tuple[str, ...], convert: Convert) -> Outcome:
    """A case in this process."""
    from conformance.cases import case

    ref = reference(name)
    if ref.skipped or not levels:
        return Outcome(name, ref.skipped, [])
    return Outcome(name, "", list(check(case(name), ref, levels, convert)))


@dataclass(frozen=True)
class Grid:
    """What cases are converted with: ``count`` of the levels each, in turn (all in a full run), or all."""

    levels: tuple[str, ...]
    count: int = 0

    def of(self, name: str) -> tuple[str, ...]:
        return tuple(turn(name, self.levels, self.count)) if self.count else self.levels


def _work(pipe: Connection, grid: Grid, spec: str) -> None:
    warnings.simplefilter("ignore")
    convert = load_converter(spec) if grid.levels else None
    pipe.send(None)
    while (name := pipe.recv()) is not None:
        levels = grid.of(name)
        try:
            pipe.send(one(name, levels, convert))  # type: ignore[arg-type]
        except Exception as e:
            failed = [Result(name, level, "harness", f"{type(e).__name__}: {e}"[:400]) for level in levels]
            pipe.send(Outcome(name, "", failed))


class _Worker:
    def __init__(self, grid: Grid, spec: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, grid, spec), daemon=True)
        self.process.start()
        other.close()
        self.case = ""
        self.since = time.monotonic()

    def give(self, name: str) -> None:
        self.case, self.since = name, time.monotonic()
        self.pipe.send(name)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_cases(names: list[str], levels: tuple[str, ...], spec: str, jobs: int = 1, count: int = 0) -> Iterator[Outcome]:
    """Outcomes as they come; no levels means just the references, ``count`` so many of them for each case, in turn."""
    todo, grid = list(reversed(names)), Grid(levels, count)
    workers = [_Worker(grid, spec) for _ in range(min(jobs, len(names)))]
    try:
        while workers:
            for pipe in wait([w.pipe for w in workers], timeout=1.0):
                worker = next(w for w in workers if w.pipe is pipe)
                outcome, died = _receive(worker, grid)
                if outcome:
                    yield outcome
                workers = _next(workers, worker, todo, died, grid, spec)
            for worker in [w for w in workers if w.case and time.monotonic() - w.since > TIMEOUT]:
                yield _lost(worker.case, grid.of(worker.case), f"no answer in {TIMEOUT:.0f} s")
                workers = _next(workers, worker, todo, True, grid, spec)
    finally:
        for worker in workers:
            worker.stop()


def _receive(worker: _Worker, grid: Grid) -> tuple[Outcome | None, bool]:
    try:
        return worker.pipe.recv(), False
    except (EOFError, OSError) as e:
        worker.process.join(5)
        if not worker.case:
            raise RuntimeError("a worker died before its first case: does the converter load?") from e
        return _lost(worker.case, grid.of(worker.case), f"the process died, exit code {worker.process.exitcode}"), True


def _lost(name: str, levels: tuple[str, ...], why: str) -> Outcome:
    if not is_cached(name):
        mark_crashed(name)
        return Outcome(name, why, [])
    return Outcome(name, "", [Result(name, level, "crash", why) for level in levels])


def _next(workers: list[_Worker], worker: _Worker, todo: list[str], died: bool, grid: Grid, spec: str) -> list[_Worker]:
    if died:
        worker.stop()
        workers = [w for w in workers if w is not worker]
        if not todo:
            return workers
        worker = _Worker(grid, spec)
        return [*workers, worker]
    if todo:
        worker.give(todo.pop())
        return workers
    worker.stop()
    return [w for w in workers if w is not worker]
