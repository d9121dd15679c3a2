"""MindSpore's own lists, for the policy ``mindspore``: cells and operators, by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

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
    """The rules as mindspore.toml has them."""
    data = own_file("mindspore.toml").data
    return MindsporeRules(
        white_cells={name: frozenset(made) for name, made in data["O1"]["white_cells"].items()},
        white_operators=frozenset(data["O1"]["white_operators"]),
        python_operators=frozenset(data["O1"]["python_operators"]),
        helper_cells=frozenset(data["O1"]["helper_cells"]),
        unreached_containers=frozenset(data["O1"]["unreached_containers"]),
        unreached_inside=frozenset(data["O1"]["unreached_inside"]),
        black_cells={name: frozenset(made) for name, made in data["O2"]["black_cells"].items()},
        layers=frozenset(data["O3"]["layers"]),
        containers=frozenset(data["O3"]["containers"]),
        parameter_operators=frozenset(data["O3"]["parameter_operators"]),
        function_operators=frozenset(data["O3"]["function_operators"]),
        auto_white=frozenset(data["auto"]["white"]),
        auto_black=frozenset(data["auto"]["black"]),
        auto_promote=frozenset(data["auto"]["promote"]),
        follow_cells=frozenset(data["follow"]["cells"]),
        norms=frozenset(data["O3"]["norms"]),
        scaled=frozenset(data["numbers"]["scaled"]),
        number_functions=frozenset(data["numbers"]["functions"]),
    )
