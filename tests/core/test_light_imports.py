"""sympy stays out of conversions, and is itself wherever somebody asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ampgraph.core import light_imports

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
