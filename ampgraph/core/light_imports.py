"""onnx_ir without sympy, which it imports at its head and needs for arithmetic on symbolic dimensions only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HEAVY = "onnx_ir"
# The second one reads attributes of the first at its head.
LATER = ("sympy", "onnx_ir._symbolic_shapes")


def stand_in(name: str) -> ModuleType:
    """A module (PEP 562) whose attributes are those of the real one, which is imported when the first is asked for."""
    module = ModuleType(name)

    def load(attribute: str) -> object:
        withdraw(module)
        return getattr(importlib.import_module(name), attribute)

    module.__dict__["__getattr__"] = load
    return module


def withdraw(module: ModuleType) -> None:
    """Who imports the module's name from now on finds the real one."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


def execute_among(modules: list[ModuleType], spec: ModuleSpec) -> None:
    """Let the spec's own loader run its module while the names of `modules` mean these, and only then."""
    assert spec.loader is not None
    execute = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        for one in modules:
            sys.modules.setdefault(one.__name__, one)
        try:
            execute(module)
        finally:
            for one in modules:
                withdraw(one)

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]


class LightFinder:
    """Finds onnx_ir as Python does, once, to have it executed among stand-ins (see importlib.abc.MetaPathFinder)."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Found by other finders if not on the path: then nothing is changed."""
        if fullname != HEAVY:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute_among([stand_in(name) for name in LATER], spec)
        return spec


def install() -> None:
    """Let the first import of onnx_ir be a light one; nothing to save where sympy is there already."""
    if HEAVY not in sys.modules and LATER[0] not in sys.modules:
        sys.meta_path.insert(0, LightFinder())
