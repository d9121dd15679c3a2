"""onnx_ir without sympy, which it imports at its head and needs for arithmetic on symbolic dimensions only: that takes
as long as all the rest of the command line's start."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType

LATER = ("sympy", "onnx_ir._symbolic_shapes")  # the second one reads attributes of the first at its head


def stand_in(name: str) -> ModuleType:
    """Quick imports: a module that stands for the one called ``name``, and imports it when an attribute is first asked
    for (PEP 562). It is for the caller to keep; nothing is put into sys.modules."""
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
    """Quick imports: stands for a class of a module that is not imported yet, in annotations that name it beside others
    (``Later("torch.distributed", "ProcessGroup") | None``). The module is imported when the annotation is evaluated, as
    somebody asks for the types of a function."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __or__(self, other: object) -> object:
        return getattr(importlib.import_module(self.module), self.name) | other

    def __ror__(self, other: object) -> object:
        return other | getattr(importlib.import_module(self.module), self.name)


def install() -> None:
    """Quick imports: has a first import of onnx_ir find stand-ins for `LATER`, unless one of them is imported."""
    if sys.modules.keys().isdisjoint({"onnx_ir", *LATER}):
        sys.modules.update({name: stand_in(name) for name in LATER})
