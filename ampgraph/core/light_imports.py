"""onnx_ir without sympy, which it imports at its head and needs for arithmetic on symbolic dimensions only: that takes
as long as all the rest of the command line's start."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType

LATER = ("sympy", "onnx_ir._symbolic_shapes")  # the second one reads attributes of the first at its head


def stand_in(name: str) -> ModuleType:
    """Quick imports: a module (PEP 562) that is the real one, which is imported when an attribute is asked for."""
    module = ModuleType(name)

    def load(attribute: str) -> object:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        real = importlib.import_module(name)
        vars(module).pop("__getattr__", None)
        vars(module).update(vars(real))
        return getattr(real, attribute)

    vars(module).update(__spec__=PathFinder.find_spec(name), __getattr__=load)
    return module


class Later:
    """Quick imports: a class by its module, for annotations that name it beside others (``Later("torch.distributed",
    "ProcessGroup") | None``): the module is imported when somebody asks for the types of a function."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __or__(self, other: object) -> object:
        return getattr(importlib.import_module(self.module), self.name) | other

    def __ror__(self, other: object) -> object:
        return other | getattr(importlib.import_module(self.module), self.name)


def install() -> None:
    """Quick imports: lets the first one of onnx_ir be a light one, unless it or sympy is there already."""
    if sys.modules.keys().isdisjoint({"onnx_ir", *LATER}):
        sys.modules.update({name: stand_in(name) for name in LATER})
