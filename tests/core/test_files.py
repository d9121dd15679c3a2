"""Files appear whole or not at all, whatever stops the writing."""

from __future__ import annotations

import copy
import errno
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

import ampgraph
from ampgraph.core import collector, light_imports
from ampgraph.core.errors import AmpError, first_line
from ampgraph.core.files import try_folder, whole_file, whole_files
from ampgraph.core.names import FreshNames
from ampgraph.core.renamed import DROPPED, RENAMED, is_now, old_attributes
from ampgraph.core.verdict import CheckVerdict
from ampgraph.numerics.metrics.agreement import Agreement
from ampgraph.numerics.quantized import QuantizedParts
from ampgraph.report.explain import Explanation
from ampgraph.report.inspect import Inspection
from ampgraph.report.summary import Products, Summary
from ampgraph.report.training import StepReport


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_text("old")
    with whole_file(target, suffix=".ckpt") as beside:
        beside.write_text("new")
        assert target.read_text() == "old" and beside.parent == tmp_path and beside.suffix == ".ckpt"
    assert target.read_text() == "new" and os.listdir(tmp_path) == ["out.bin"]


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "AMP105.*the disk is full"),
        (OSError(errno.EFBIG, "File too large"), "AMP105.*cannot be written: File too large"),
        (KeyboardInterrupt(), None),
    ],
)
def test_what_stops_the_writing_leaves_the_old_file(tmp_path: Path, raised: BaseException, found: str | None) -> None:
    target = tmp_path / "out.bin"
    target.write_text("old")
    with pytest.raises((AmpError, KeyboardInterrupt), match=found), whole_file(target, "-o") as beside:
        beside.write_text("half")
        raise raised
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["out.bin"]


def noting(calls: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which notes its name where it is called."""

    def called(*given: Any) -> Any:
        calls.append(name)
        return function(*given)

    return called


def test_a_durable_file_is_on_the_disk_before_it_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("replace", "fsync"):
        monkeypatch.setattr(os, name, noting(done, name, getattr(os, name)))
    with whole_file(tmp_path / "a", durable=True) as beside:
        beside.write_text("x")
    assert done == ["fsync", "replace", "fsync"]


def test_names_and_folders(tmp_path: Path) -> None:
    with whole_files(tmp_path / "m.onnx") as temporary:
        assert temporary("data") == temporary("data") != temporary("model")
        temporary("data").write_text("x")
    assert os.listdir(tmp_path) == []
    # a folder is tried without a trace
    try_folder(tmp_path / "a")
    assert os.listdir(tmp_path) == []
    with pytest.raises(AmpError, match="AMP105"):
        try_folder(tmp_path / "none" / "a")


def test_fresh_names_are_counted() -> None:
    fresh = FreshNames(["a", "a_1", None])
    assert [fresh("a"), fresh("a"), fresh("b"), fresh("b")] == ["a_2", "a_3", "b", "b_1"]


# What of others' errors is told.

PLACE = "/onnxruntime_src/onnxruntime/core/framework/tensor.h:210"

SAID = [
    ("", "RuntimeError"),
    ("one line\nand another", "one line"),
    (
        f"Exception: {PLACE} T* onnxruntime::Tensor::MutableData() [with T = float] type is wrong",
        "Exception: tensor.h:210: type is wrong",
    ),
    (
        f"{PLACE} bool f(const std::function<void (int)>&, int) const x > 0 was false. (so)",
        "tensor.h:210: x > 0 was false. (so)",
    ),
    (f"{PLACE} a place without a function", f"{PLACE} a place without a function"),
    (f"{PLACE} never closed (so", f"{PLACE} never closed (so"),
    ("model.onnx: /some/file.onnx is damaged (at 12)", "model.onnx: /some/file.onnx is damaged (at 12)"),
]


@pytest.mark.parametrize(("said", "told"), SAID)
def test_an_error_is_one_line_without_the_function_that_raised_it(said: str, told: str) -> None:
    assert first_line(RuntimeError(said)) == told


# sympy stays out of conversions, and is itself wherever somebody asks for it.

DIGITS = Path(__file__).parents[2] / "models" / "digits_transformer.onnx"
CONVERTED = """
import sys, ampgraph
ampgraph.convert(sys.argv[1], output=sys.argv[2], check="off")
print("mpmath" in sys.modules)
import onnx_ir as ir, pickle
print(ir.SymbolicDim("n") + 1, ir.SymbolicDim("max(n, 2)").evaluate({"n": 1}))
import sympy
print(isinstance((ir.SymbolicDim("n") * 2).simplify()._expr, sympy.Expr), ir.SymbolicDim(sympy.Symbol("m")))
print(pickle.loads(pickle.dumps(sympy.Symbol("m"))) == sympy.Symbol("m"), sympy.__spec__.origin == sympy.__file__)
"""


@pytest.mark.slow
def test_a_conversion_does_without_sympy_and_arithmetic_on_sizes_has_it(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", CONVERTED, str(DIGITS), str(tmp_path / "low.onnx")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["False", "n + 1 2", "True m", "True True"]


def test_a_stand_in_gives_what_the_module_has(monkeypatch: pytest.MonkeyPatch) -> None:
    module = light_imports.stand_in("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", module)
    assert module.rgb_to_hsv(1, 1, 1) == (0, 0, 1)
    assert sys.modules["colorsys"] is not module and vars(module) == vars(sys.modules["colorsys"])
    with pytest.raises(AttributeError, match="no attribute 'cmyk'"):
        module.cmyk  # noqa: B018


def test_names_that_are_taken_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ModuleType("sympy")
    monkeypatch.setitem(sys.modules, "sympy", taken)
    monkeypatch.delitem(sys.modules, "onnx_ir", raising=False)
    light_imports.install()
    assert sys.modules["sympy"] is taken


# Renamed public names are taken for one version, with a warning that points at the caller.


def test_old_names_are_announced_before_they_go() -> None:
    """None outlives the version that drops it, and each bears its own sentence."""
    assert len({one.old for one in RENAMED}) == len(RENAMED)
    here = [int(part) for part in ampgraph.__version__.split(".")[:2]]
    for one in RENAMED:
        assert is_now(one.old) == f"{one.old} is now {one.new}; the old name goes with {one.gone}"
        assert here < [int(part) for part in one.gone.split(".")], f"{one.old} was to go with {one.gone}"
    assert not {one.old for one in DROPPED} & {one.old for one in RENAMED}


def test_reports_have_their_old_names_too() -> None:
    """Each is an attribute that warns, and a key of the JSON, with what the new one has."""
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }'
    report = ampgraph.inspect(onnx.parser.parse_model(text))
    with pytest.warns(DeprecationWarning, match=r"Inspection\.heavy is now Inspection\.products; .* 0\.4") as seen:
        assert report.heavy == report.products  # type: ignore[attr-defined]
    assert seen[0].filename == __file__
    said = report.to_dict()
    assert said["heavy"] == said["products"] == {"float32": 1}
    with pytest.raises(AttributeError, match="no attribute 'heavier'"):
        report.heavier  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError):
        copy.deepcopy(report).heavier  # type: ignore[attr-defined] # noqa: B018
    for owner in (CheckVerdict, Explanation, Inspection, Summary, Products, StepReport, Agreement, QuantizedParts):
        for new in old_attributes(owner.__name__).values():
            assert new in {field.name for field in fields(owner)}, (owner, new)


# Models that were worked on before do not stay in memory for ever.


class Circle:
    """Garbage that only the cyclic collector finds."""

    def __init__(self) -> None:
        self.me = self


def worked_on(times: int) -> list[weakref.ref[Circle]]:
    seen = []
    for _ in range(times):
        with collector.quiet_collector():
            circles = [Circle() for _ in range(100)]
            seen.append(weakref.ref(circles[0]))
        del circles
    return seen


@pytest.mark.slow
def test_garbage_of_earlier_work_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_debt", collector._CollectorDebt())
    monkeypatch.setattr(collector, "MOST_OBJECTS", 50)
    assert sum(ref() is not None for ref in worked_on(3)) <= 2


@pytest.mark.slow
def test_so_it_is_where_few_objects_hold_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(0, 1 << 20))
    monkeypatch.setattr(collector, "_debt", collector._CollectorDebt())
    monkeypatch.setattr(collector, "MOST_BYTES", 1)
    monkeypatch.setattr(collector, "_resident", lambda: next(sizes) << 10)
    assert sum(ref() is not None for ref in worked_on(3)) <= 2


def test_the_collector_is_on_again() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), collector.quiet_collector():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
