"""Every ONNX backend case, converted at a level, is valid, keeps its interface, runs, and is accurate.

By default a sample; `-m conformance` runs a quarter of all, each at one of the levels in turn (in a full run all, at
every level), in chunks that pytest-xdist can spread."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from conformance.cases import case, index, locked, read, write
from conformance.checks import LEVELS, Failure, Result, check_level
from conformance.pool import Outcome, run_cases
from conformance.reference import Reference, is_valid, reference
from conformance.run import CONVERTER, effectiveness, sample, summary, table
from near import difference
from share import FULL, share, turn

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


WAYS = [("bfloat16", "cpu"), ("bfloat16", "cuda"), ("float16", "cuda"), ("float16", "tensorrt")]
FEWER = {("bfloat16", "cpu"), ("bfloat16", "cuda"), ("float16", "tensorrt")}
"""Decide by tables that differ little from those of the other: one case in three, at O2 or auto; of it one in two."""


def _faults(name: str, dtype: str, target: str) -> list[str]:
    """What is wrong with a case converted for a target, as far as that can be seen without a run."""
    one, faults = case(name), []
    unrun = Reference(checked=is_valid(one.proto()), skipped="the target is not here")
    for level in turn(name, ("O2", "auto") if (dtype, target) in FEWER else LEVELS):
        try:
            check_level(one, unrun, Result(name, level), partial(ampgraph.convert, dtype=dtype, target=target), {})
        except Failure as fault:
            faults.append(f"{name} at {level} in {dtype} for {target}: {fault.stage}: {fault}")
    return faults


@pytest.mark.sample
@pytest.mark.parametrize(("dtype", "target"), WAYS)
def test_sample_of_what_is_not_run(dtype: str, target: str) -> None:
    assert [f for name in sorted(index().ops)[::40] for f in _faults(name, dtype, target)] == []


@pytest.mark.share(2)
@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize(("dtype", "target"), WAYS)
def test_all_that_is_not_run(dtype: str, target: str, chunk: int) -> None:
    names = sorted(index().ops)[chunk::CHUNKS]
    chosen = share(names, 3 if (dtype, target) in FEWER else 2)
    assert [f for name in chosen for f in _faults(name, dtype, target)] == []


EXCUSE = "beyond float16"
SMALL = ("test_quantizelinear_int16", "test_reduce_prod_default_axes_keepdims_example", "test_squeezenet")
LOGITS = [f"test_{kind}_large_number{form}" for kind in ("softmax", "logsoftmax")
          for form in ("", "_expanded", "_expanded_ver18")]  # fmt: skip


def _wrong(name: str, level: str, **more: Any) -> list[str]:
    """Where a case converted at a level is wrong."""
    ref, model = reference(name), case(name).proto()
    session = StrictSession(ampgraph.convert(model, level, target="cpu", **more), threads=1)
    found = [(expected, session.run(feeds)) for feeds, expected in zip(ref.feeds, ref.outputs, strict=True)]
    pairs = [(key, expected[key], values[key]) for expected, values in found for key in values]
    return [f"{name} at {level}: {key}: {d}" for key, one, other in pairs if (d := difference(one, other))]


def _wrong_with_data(name: str, level: str) -> list[str]:
    return _wrong(name, level, data=reference(name).feeds)


@pytest.mark.sample
@pytest.mark.parametrize("name", SMALL)
def test_sample_of_excused_cases(name: str) -> None:
    assert reference(name).excuses[0].startswith(EXCUSE)
    assert [fault for level in turn(name, LEVELS, 2) for fault in _wrong_with_data(name, level)] == []


@pytest.mark.parametrize("name", LOGITS)
def test_logits_that_float16_does_not_resolve(name: str) -> None:
    """Of 10,000 and its neighbours float16 knows every eighth: rounding the input alone is 36 times the tolerance."""
    assert reference(name).excuses[0].startswith("ill-conditioned")
    assert _wrong(name, "O2") != []
    assert [fault for level in LEVELS for fault in _wrong_with_data(name, level)] == []


@pytest.mark.conformance
def test_all_excused_cases() -> None:
    """A third of what is excused; all in a full run."""
    chosen = [
        name
        for name in share(sorted(index().ops), 3)
        if any(text.startswith(EXCUSE) for text in reference(name).excuses)
    ]
    excused = [(name, level) for name in chosen for level in turn(name, LEVELS) if _wrong(name, level)]
    assert len({name for name, _ in excused}) >= (6 if FULL else 2)
    assert [fault for name, level in excused for fault in _wrong_with_data(name, level)] == []


CONVERTER = """import os
from onnx import ModelProto


def convert(model, level, dtype, target):
    node = model.graph.node[0]
    if node.op_type == "Cos":
        raise ValueError("no")
    if node.op_type == "Tan":
        model.producer_name += "x"
        return model
    if node.op_type == "Cosh":
        os.abort()
    result = ModelProto()
    result.CopyFrom(model)
    node = result.graph.node[0]
    if node.op_type == "Acos":
        node.op_type = "Nothing"
    if node.op_type == "Asin":
        result.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    if node.op_type == "Tanh":
        node.op_type = "Sin"
    if node.op_type == "Atan":
        result.producer_name += "x"
    return result
"""
STAGES = {
    "test_cos": "convert",
    "test_tan": "untouched",
    "test_acos": "checker",
    "test_asin": "interface",
    "test_tanh": "accuracy",
    "test_atan": "idempotent",
    "test_cosh": "crash",
    "test_abs": "",
}


@pytest.mark.slow
def test_a_broken_converter(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(CONVERTER)
    found = {o.case: o.results[0] for o in run_cases(list(STAGES), ("O3",), f"{tmp_path}/broken.py:convert")}
    assert {name: result.stage for name, result in found.items()} == STAGES
    assert all(result.can_lower for result in found.values() if result.stage != "crash")
    assert not any(result.low_nodes for result in found.values())


@pytest.mark.slow
def test_unknown_converter_is_said() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        list(run_cases(["test_cos"], ("O2",), "nowhere:convert"))
