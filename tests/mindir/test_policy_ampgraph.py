"""The policy ``ampgraph`` on MindIR: fewer casts than MindSpore's own mixed precision, and no larger error.

Beside MindSpore's own files of the same networks; errors are medians over seeded inputs against the float32 file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ampgraph import convert
from ampgraph.formats.mindir import view
from formats.mindir import text
from mindir import cases, compare, parity
from mindir.conftest import once
from npz import read_numbered

pytestmark = pytest.mark.mindspore
TIMES = 24  # the ratio of two medians over fewer inputs is chance
CASTS = parity.convertible(parity.USED)
PAIRS = parity.ESSENTIAL
RUN = [pair for pair in PAIRS if pair[1] in ("O2", "O3")]
"""O1 and auto lower more than MindSpore's do: recurrent products, and what follows a low value."""
SCRIPT = """
import sys
from pathlib import Path
from ampgraph import convert
for place in map(Path, sys.argv[2:]):
    level = place.name
    convert(place.parent / "fp32.mindir", level, output=Path(sys.argv[1]) / f"{place.parent.name}_{level}.mindir")
"""


@pytest.fixture(scope="session")
def lowered(exported):
    """``<name>/ampgraph_<level>.mindir``."""
    with once(exported / "lowered.done") as done:
        if not done:
            for name, level in CASTS:
                parity.convert(exported, name, level, "ampgraph")
    return exported


@pytest.fixture(scope="session")
def errors(lowered):
    """(network, file) -> the median relative error of its outputs over seeded inputs."""
    with once(lowered / "errors.done") as done:
        if not done:
            run(lowered)
    files = [(name, word) for name, level in RUN for word in (level, f"ampgraph_{level}")]
    return {(name, word): error(lowered / name, word) for name, word in files}


def run(folder: Path) -> None:
    """Runs the float32 file, MindSpore's and ours on the same inputs, in one process."""
    jobs = []
    for name in dict(RUN):
        place = folder / name
        np.savez(place / "several.npz", *several(read_numbered(place / "inputs.npz")))
        levels = [level for other, level in RUN if other == name]
        for word in ("fp32", *levels, *(f"ampgraph_{level}" for level in levels)):
            jobs += [place / f"{word}.mindir", place / "several.npz", place / f"several_{word}.npz"]
    parity.python("--run", "--times", str(TIMES), *jobs, cwd=folder)


def several(given: list[np.ndarray]) -> list[np.ndarray]:
    """The inputs of many runs, as large as those given; integers choose branches and stay."""
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal(item.shape) * item.std()).astype(np.float32) if item.dtype == np.float32 else item
        for _ in range(TIMES)
        for item in given
    ]


def error(place: Path, word: str) -> float:
    exact, got = (read_numbered(place / f"several_{what}.npz") for what in ("fp32", word))
    each = len(exact) // TIMES
    found = []
    for start in range(0, len(exact), each):
        a, b = (np.concatenate([x.ravel() for x in part[start : start + each]]).astype(float) for part in (exact, got))
        found.append(np.linalg.norm(a - b) / np.linalg.norm(a))
    return float(np.median(found))


@pytest.mark.parametrize(("name", "level"), CASTS)
def test_no_more_casts_than_mindspore(lowered, name, level):
    place = lowered / name
    own, ours = (compare.casts(text.load(place / f"{word}.mindir")) for word in (level, f"ampgraph_{level}"))
    assert ours > 0
    assert (ours > own) == ((name, level) in cases.MORE_CASTS), f"{ours} casts, MindSpore has {own}"


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "level"), RUN)
def test_no_larger_error_than_mindspore(errors, name, level):
    own, ours = errors[name, level], errors[name, f"ampgraph_{level}"]
    assert own < 1e-3 and 0 < ours <= 1.05 * own, f"{ours:.2e}, MindSpore has {own:.2e}"


def readers(model) -> dict[str, set[str]]:
    """Parameter -> what reads it: the types that a Cast makes of it, or the operator; through Loads and functions."""
    known = view.primitives(model)
    found: dict[str, set[str]] = {t.ref_key: set() for t in model.graph.parameter}
    for graph in (model.graph, *model.functions):
        names = {tensor.name: tensor.ref_key for tensor in graph.parameter}
        names |= {item.name: item.tensor[0].ref_key for item in graph.input if item.tensor and item.tensor[0].ref_key}
        kinds = {node.output[0]: view.kind_of(node, known) for node in graph.node}
        states = {name for node in graph.node if kinds[node.output[0]] == "UpdateState" for name in node.input}
        for node in graph.node:
            kind, result = kinds[node.output[0]], node.output[0]
            for name in node.input:
                if name not in names or kind in ("UpdateState", "Partial", view.CALL):
                    continue
                if kind in view.TUPLES and result in states:  # it keeps an order
                    continue
                if kind == "Load":
                    names[result] = names[name]
                    continue
                made = next(view.elements(view.attribute(node, "shape")))
                found[names[name]].add(view.dtype_of(made) if kind == "Cast" else kind)
    return found


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "level"), PAIRS)
def test_weights_are_stored_low_where_every_reader_is_low(lowered, name, level):
    model = text.load(lowered / name / f"ampgraph_{level}.mindir")
    stored = {tensor.ref_key: view.dtype_of(tensor) for tensor in model.graph.parameter}
    found = readers(model)
    assert "float16" in stored.values() and all(found[key] for key in stored)
    assert [key for key, dtype in stored.items() if dtype == "float32" and found[key] == {"float16"}] == []


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "level"), PAIRS)
def test_converting_again_changes_nothing(lowered, tmp_path, name, level):
    once_converted = lowered / name / f"ampgraph_{level}.mindir"
    again = convert(once_converted, level, output=tmp_path / "again.mindir")
    assert again.read_bytes() == once_converted.read_bytes()


def test_every_process_writes_the_same_bytes(lowered, tmp_path):
    """Whatever the order of its sets."""
    places = [str(lowered / name / level) for name, level in PAIRS]
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", SCRIPT, folder, *places], check=True, env=environment)
        for name, level in PAIRS:
            made = (folder / f"{name}_{level}.mindir").read_bytes()
            assert made == (lowered / name / f"ampgraph_{level}.mindir").read_bytes(), (name, level)
