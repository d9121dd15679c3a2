"""What is converted opens on ONNX Runtime as its users open it: a share of the files of ``python -m opening``."""

from __future__ import annotations

import pytest

from opening.sweep import EXPORTS, FAULTS, WAYS, killing, suite
from share import share

pytestmark = pytest.mark.slow


def test_no_export_kills_the_runtime() -> None:
    assert killing(share([(name, way) for name in EXPORTS for way in WAYS], 4)) == []


def test_no_model_of_the_suite_or_of_the_fuzz_kills_the_runtime() -> None:
    assert killing(share([(name, way) for name in (*FAULTS, *suite()) for way in WAYS], 400)) == []
