"""Which CUDA device a rank of several shows to the libraries."""

from __future__ import annotations

import os

import pytest

from ampgraph.cli.train import VISIBLE, _hide_other_devices


@pytest.mark.parametrize(
    ("local", "count", "visible", "left"),
    [
        ("1", "2", None, "1"),
        ("1", "2", "4,GPU-7", "GPU-7"),
        ("2", "3", "4,5", "4,5"),  # more ranks than devices: training itself says so
        ("0", "1", "4,5", "4,5"),
        ("", "2", None, None),  # torchrun did not start it
    ],
)
def test_a_rank_sees_its_own_device(
    monkeypatch: pytest.MonkeyPatch, local: str, count: str, visible: str | None, left: str | None
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
    monkeypatch.setenv(VISIBLE, visible or "")
    if visible is None:
        monkeypatch.delenv(VISIBLE)
    _hide_other_devices()
    assert os.environ.get(VISIBLE) == left
