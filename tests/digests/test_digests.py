"""What ampgraph writes and computes is what the committed digests say: a slice in every run, the whole by command.

Where bytes change on purpose: ``cd tests && python -m digests --write``, and the commit says which changed and why.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from digests.check import check_names, file_of
from digests.groups import GROUPS, backend
from digests.table import Row, Table, compare

MAKE = "made on purpose? cd tests && python -m digests --write {}"
SMALL_STEPS = ("digits/adam", "regression", "joint")
NETS = ("mlp", "if", "while", "block", "lstm", "residual", "functions")
HARD = ("digits_transformer", "hard/lstm", "hard/detector")


def some(count: int, seed: int) -> list[str]:
    return random.Random(seed).sample(backend(), count)


def assert_same(group: str, names: Sequence[str]) -> None:
    verdict = check_names(GROUPS[group], names)
    if verdict.not_compared and not verdict.changed:
        pytest.skip(f"{group}: {verdict.not_compared}")
    assert not verdict.changed, f"{verdict}\n{MAKE.format(group)}"
    assert verdict.equal >= len(names)


@pytest.mark.slow
def test_committed_models() -> None:
    assert_same("models", GROUPS["models"].names())


@pytest.mark.slow
def test_some_backend_cases() -> None:
    assert_same("backend", some(60, seed=1))


@pytest.mark.slow
def test_some_training_steps() -> None:
    assert_same("steps", SMALL_STEPS)


@pytest.mark.slow
def test_some_strict_runs() -> None:
    assert_same("strict", HARD)


@pytest.mark.slow
def test_some_networks_of_mindspore() -> None:
    assert_same("mindir", NETS)


@pytest.mark.parametrize("name", GROUPS)
def test_files_read_back_as_they_are(name: str) -> None:
    """Else a diff of them would show more than what changed."""
    table = Table.read(file_of(GROUPS[name]))
    assert table.rows and table.columns == GROUPS[name].columns and set(table.versions) == set(GROUPS[name].packages)
    assert table.text() == file_of(GROUPS[name]).read_text(encoding="utf-8")


def test_a_change_is_named_and_another_input_is_none() -> None:
    old = Table.of({}, ("O1", "O2"), [Row(key, "aa", ("11", "22")) for key in ("same", "changed", "other", "gone")])
    found = [Row("same", "aa", ("11", "22")), Row("changed", "aa", ("11", "33")), Row("other", "bb", ("44", "44"))]
    result = compare(old, [*found, Row("new", "aa", ("11", "22"))])
    assert result.changed == ["changed: O2 22 -> 33", "new: not in the file", "gone: only in the file"]
    assert (result.other_input, result.equal) == (["other"], 1)


def test_what_differs_from_run_to_run_is_not_compared() -> None:
    row = Row("dropout", "aa", ("11", "22")).steady(Row("dropout", "aa", ("11", "33")))
    assert row.cells == ("11", "-")
    assert not compare(Table.of({}, ("O1", "O2"), [row]), [Row("dropout", "aa", ("11", "44"))]).changed
