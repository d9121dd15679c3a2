"""Every ONNX backend case, converted at a level, is valid, keeps its interface, runs, and is accurate.

By default a sample; `-m conformance` runs a quarter of all, each at one of the levels in turn (in a full run all, at
every level), in chunks that pytest-xdist can spread.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from conformance.cases import index, locked, read, write
from conformance.checks import LEVELS
from conformance.pool import Outcome, run_cases
from conformance.run import CONVERTER, effectiveness, sample, summary, table
from share import share

CHUNKS = 4  # each starts a process
SPEC = os.environ.get("AMPGRAPH_CONFORMANCE_CONVERTER", CONVERTER)


def _run(names: list[str], jobs: int = 1) -> list[Outcome]:
    return list(run_cases(names, LEVELS, SPEC, jobs, count=1))


def _fail_on(outcomes: list[Outcome]) -> None:
    failures = table([r for o in outcomes for r in o.results], limit=60)
    if failures:
        pytest.fail(f"{failures}\n{summary(outcomes)}", pytrace=False)


@pytest.mark.slow
@pytest.mark.sample
def test_sample() -> None:
    outcomes = _run(sample(40), jobs=2)
    # Some of the sample the runtime cannot reproduce; most must be there for this to mean anything.
    assert sum(not o.skipped for o in outcomes) >= 30
    _fail_on(outcomes)


def test_what_there_is() -> None:
    found = index()
    assert len(found.ops) > 1000, "the installed onnx has no backend cases"
    assert not found.absent, f"not on disk: {found.absent}"


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all(chunk: int) -> None:
    outcomes = _run(share(sorted(index().ops)[chunk::CHUNKS], 4))
    everything = _gather(chunk, outcomes)
    _fail_on(outcomes)
    if everything:
        _fail_when_ineffective(everything)


def _gather(chunk: int, outcomes: list[Outcome]) -> list[Outcome]:
    """Everything, to whoever finishes the last chunk of this run; to the others nothing."""
    uid = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"pid{os.getpid()}")
    folder = Path(tempfile.gettempdir()) / "ampgraph-conformance" / "runs" / uid
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        write(folder / f"{chunk}.pkl", outcomes)
        parts = [folder / f"{i}.pkl" for i in range(CHUNKS)]
        return [o for p in parts for o in read(p)] if all(p.exists() for p in parts) else []


def _fail_when_ineffective(outcomes: list[Outcome]) -> None:
    print(summary(outcomes))
    results = [r for o in outcomes for r in o.results]
    idle = [r for r in results if r.can_lower and not (r.low_nodes or r.held or r.stage)]
    for level in LEVELS:
        share, lowered, able = effectiveness([r for r in results if r.level == level])
        names = ", ".join(r.case for r in idle if r.level == level)
        assert share >= 0.99, f"{level} lowered something in {lowered} of {able} cases; nothing in {names}"
