"""Shapes of convolutions that a target computes wrongly, in words; that it does is shown where its runtime is there."""

from __future__ import annotations

import pytest

from ampgraph.planner.rules.faults import CONDITIONS

CASES = [
    ("channels_by_3", (1, 4, 3, 3, 3), False),  # three channels are read as they are
    ("channels_by_3", (1, 4, 6, 3, 3), True),
    ("channels_by_3", (1, 4, 6, 1, 1), False),
    ("channels_by_3", (1, 6, 6, 3, 3), False),
    ("channels_by_3", (1, 4, 12, 3, 3), False),
    ("channels_by_3", (1, 4, 7, 3, 3), False),
    ("channels_by_3", (2, 4, 6, 3, 3), False),
    ("groups_by_4", (1, 6, 3, 3, 3), False),
    ("groups_by_4", (2, 12, 3, 3, 3), True),  # 6 outputs each
    ("groups_by_4", (2, 10, 1, 1, 1), True),
    ("groups_by_4", (2, 8, 6, 3, 3), False),
    ("groups_by_4", (4, 12, 2, 3, 3), False),
    ("groups_by_4", (2, 16, 4, 3, 3), False),
    ("even_groups_into_one", (2, 4, 1, 2, 2), True),
    ("even_groups_into_one", (2, 6, 1, 2, 2), False),
    ("even_groups_into_one", (2, 8, 2, 2, 2), False),
    ("even_groups_into_one", (1, 4, 1, 2, 2), False),
]


@pytest.mark.parametrize(("name", "shape", "wrong"), CASES)
def test_shapes_that_webgpu_computes_wrongly(name: str, shape: tuple[int, ...], wrong: bool) -> None:
    assert bool(CONDITIONS[name](*shape)) == wrong
