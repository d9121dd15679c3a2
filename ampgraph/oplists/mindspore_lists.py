"""MindSpore's own lists, for the policy ``mindspore``: cells and operators, by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..core.typed import reader
from .files import own_file

Cells = Mapping[str, frozenset[str]]
"""Class of a cell -> the operators that its ``construct`` makes."""


@dataclass(frozen=True)
class MindsporeRules:
    """What `mindspore.amp.auto_mixed_precision` goes by."""

    white_cells: Cells
    white_operators: frozenset[str]
    python_operators: frozenset[str]
    helper_cells: frozenset[str]
    unreached_containers: frozenset[str]
    unreached_inside: frozenset[str]
    black_cells: Cells
    layers: frozenset[str]
    containers: frozenset[str]
    parameter_operators: frozenset[str]
    function_operators: frozenset[str]
    auto_white: frozenset[str]
    auto_black: frozenset[str]
    auto_promote: frozenset[str]
    follow_cells: frozenset[str]
    norms: frozenset[str]
    scaled: frozenset[str]
    number_functions: frozenset[str]


@cache
def load_mindspore_rules() -> MindsporeRules:
    """The rules of op_lists/mindspore.toml; what a short name would not say is called after its table too."""
    tables = own_file("mindspore.toml").data
    named = {"cells": "follow_cells", "functions": "number_functions"}
    named |= {name: f"auto_{name}" for name in tables["auto"]}
    rows = {named.get(name, name): row for table in tables.values() for name, row in table.items()}
    found: MindsporeRules = reader(MindsporeRules)(rows)
    return found
