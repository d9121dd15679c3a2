"""Cases in worker processes: one that crashes or hangs costs its own case, not the others."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, TimeoutError, as_completed
from dataclasses import dataclass
from functools import cache

from pebble import ProcessExpired, ProcessPool

from conformance.cases import case
from conformance.checks import Convert, Result, check
from conformance.reference import is_cached, mark_crashed, reference
from share import turn

TIMEOUT = 600.0  # three vision models take two minutes for all levels on a busy machine


@dataclass
class Outcome:
    """Everything about one case; `skipped` says why it is not in the suite."""

    case: str
    skipped: str
    results: list[Result]


@cache
def load_converter(spec: str) -> Convert:
    """`module:function` or `file.py:function`, called as `f(model, level=, dtype=, target=)`."""
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
    ref = reference(name)
    if ref.skipped or not levels:
        return Outcome(name, ref.skipped, [])
    return Outcome(name, "", list(check(case(name), ref, levels, convert)))


def _work(name: str, levels: tuple[str, ...], spec: str) -> Outcome:
    warnings.simplefilter("ignore")
    convert = load_converter(spec)
    try:
        return one(name, levels, convert)
    except Exception as e:
        failed = [Result(name, level, "harness", f"{type(e).__name__}: {e}"[:400]) for level in levels]
        return Outcome(name, "", failed)


def run_cases(names: list[str], levels: tuple[str, ...], spec: str, jobs: int = 1, count: int = 0) -> Iterator[Outcome]:
    """Outcomes as they come; no levels means just the references, ``count`` so many of them for each case, in turn.
    Raises what loading the converter raises."""
    chosen = {name: tuple(turn(name, levels, count)) if count else levels for name in names}
    with ProcessPool(min(jobs, len(names)), context=multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[Outcome], str] = {
            pool.schedule(_work, (name, chosen[name], spec), timeout=TIMEOUT): name for name in names
        }
        try:
            for done in as_completed(running):
                try:
                    yield done.result()
                except TimeoutError:
                    yield _lost(running[done], chosen[running[done]], f"no answer in {TIMEOUT:.0f} s")
                except ProcessExpired as e:
                    yield _lost(running[done], chosen[running[done]], f"the process died, exit code {e.exitcode}")
        finally:
            pool.stop()


def _lost(name: str, levels: tuple[str, ...], why: str) -> Outcome:
    if not is_cached(name):
        mark_crashed(name)
        return Outcome(name, why, [])
    return Outcome(name, "", [Result(name, level, "crash", why) for level in levels])
