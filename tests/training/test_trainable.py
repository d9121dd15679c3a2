"""The table of modules that train: some of its cases here, all in a full run; and the results that are committed."""

from __future__ import annotations

import json

import pytest

from share import FULL
from training.trainable.__main__ import RESULTS
from training.trainable.all import CASES
from training.trainable.measure import Measured, measure

CHEAP = ("Cross entropy, label smoothing", "Gradient penalty by torch.func.grad", "pack_padded_sequence")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES if FULL else CHEAP)
def test_it_trains_as_in_torch_or_the_error_says_what_to_do(name):
    found = measure(CASES[name])
    assert found.as_expected(CASES[name]), found


def test_the_results_are_of_these_cases():
    rows = json.loads(RESULTS.read_text())["rows"]
    found = [Measured(**{**row, "losses": tuple(row["losses"]), "low": tuple(row["low"])}) for row in rows]
    assert [row.name for row in found] == list(CASES)
    assert all(row.as_expected(CASES[row.name]) for row in found)
    assert sum(row.trains(CASES[row.name]) for row in found) >= 52
