"""A metric of the user's own: a Python function, given as it is or by where it is."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from ...core.arrays import Result
from ...core.errors import AmpError, first_line
from ...core.metric_names import CUSTOM

Function: TypeAlias = Callable[[Mapping[str, Result], Mapping[str, Result]], float]
"""``function(reference, result) -> error``: the outputs of one sample by name, as arrays (sequences as lists, maps as
dictionaries), float32 where a model has low ones. 0 says that they are alike, a larger number that they are further
apart; infinite misses every tolerance."""


def loaded(text: str) -> Function:
    """The function that ``module:function`` or ``file.py:function`` names.

    Raises AmpError AMP312 where there is none.
    """
    place, _, name = text.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # whatever a file of the user's own raises
        raise AmpError("AMP312", f"metric {text}: {_line(error)}", hint=f"give {CUSTOM}") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = ", ".join(n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n)))
        message = f"metric {text}: {place} has no function '{name}'"
        raise AmpError("AMP312", message, hint=f"it has {there}" if there else f"give {CUSTOM}")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> Result:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"ampgraph_metric_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def error_of(function: Function, name: str, reference: Mapping[str, Result], result: Mapping[str, Result]) -> float:
    """What a function says of one sample. Raises AmpError AMP312 where it raises, or gives no error from 0 on."""
    try:
        found = function(dict(reference), dict(result))
    except AmpError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise AmpError("AMP312", f"metric {name} raised {_line(error)}", hint="see its traceback in Python") from error
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or number < 0:
        message = f"metric {name} gives {found!r}, which is no error from 0 on"
        raise AmpError("AMP312", message, hint="return a float: 0 for alike, larger for further apart")
    return number


def address_of(function: Function) -> str:
    """Where another process finds a function, empty if nowhere: what is defined in a function or a session is not."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return ""
    home = sys.modules.get(module)
    if getattr(home, name, None) is not function:
        return ""
    file = getattr(home, "__file__", None)
    return f"{os.path.abspath(file)}:{name}" if module.startswith("ampgraph_metric_") and file else f"{module}:{name}"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
