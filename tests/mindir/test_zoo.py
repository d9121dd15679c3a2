"""Networks of mindcv: the policy ``mindspore`` gives the bits of MindSpore's own mixed precision.

What is recorded of many networks stands in `zoo.json`; three are kept as graphs and run here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindir import compare, parity, zoo
from share import turn

KEPT = sorted({file.name.rpartition("_")[0] for file in zoo.HOME.glob("*.mindir.gz")})
PAIRS = [(name, level) for name in KEPT for level in turn(name, zoo.LEVELS)]
RECORDED: dict[str, Any] = json.loads(zoo.RESULTS.read_text())["networks"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MindSpore's own files and ours, with what they compute of two images."""
    pytest.importorskip("mindspore")
    folder, jobs = tmp_path_factory.mktemp("zoo"), []
    for name, level in PAIRS:
        place = folder / name
        place.mkdir(exist_ok=True)
        zoo.write(name, level, place / f"{level}.mindir")
        zoo.write(name, "fp32", place / "fp32.mindir")
        parity.convert(folder, name, level, "mindspore")
        side, dice = zoo.SIZES[name], np.random.default_rng(1)
        np.savez(place / "inputs.npz", *dice.standard_normal((2, 1, 3, side, side)).astype(np.float32))
        for what in (level, f"mindspore_{level}"):
            jobs += [place / f"{what}.mindir", place / "inputs.npz", place / f"outputs_{what}.npz"]
    parity.python("--run", "--times", "2", *jobs, cwd=folder)
    return folder


@pytest.mark.slow
@pytest.mark.mindspore
@pytest.mark.parametrize(("name", "level"), PAIRS)
def test_a_network_has_the_bits_of_mindspores_own(ran: Path, name: str, level: str) -> None:
    own, ours = parity.outputs(ran, name, level), parity.outputs(ran, name, f"mindspore_{level}")
    assert all(np.isfinite(one).all() and np.ptp(one) > 0 for one in own)
    assert [array.tobytes() for array in own] == [array.tobytes() for array in ours]
    place = ran / name
    found = compare.compare(place / f"{level}.mindir", place / f"mindspore_{level}.mindir")
    assert found.agrees and found.casts[0] == found.casts[1], str(found)


def test_what_is_recorded_is_identical_or_excused() -> None:
    apart = {name for name, found in RECORDED.items() for level in zoo.LEVELS if not found[level]["identical"]}
    assert apart == set(zoo.EXCUSED) & set(RECORDED) and len(apart) <= 5
    assert len(RECORDED) >= 30
    at_o1 = {name: found["O1"] for name, found in RECORDED.items() if "refused" not in found["O1"]}
    assert len(at_o1) >= 10 and {n for n, found in at_o1.items() if not found["identical"]} == set(zoo.APART_AT_O1)


def test_our_own_policy_is_no_worse_and_takes_fewer_casts() -> None:
    """The largest difference of three images goes up and down by some hundredths."""
    pairs = [(found["O2"]["ampgraph"], found["O2"]["own"]) for found in RECORDED.values()]
    assert all(ours["casts"] < own["casts"] and ours["error"] <= 1.05 * own["error"] for ours, own in pairs)
