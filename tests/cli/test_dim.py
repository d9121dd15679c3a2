"""``--dim NAME=N`` wherever inputs are generated: one option, and in Python the same as ``dims``."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse

ROWS = 97  # more than are tried where nobody says how many


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that runs with so many rows alone, and what is made from it."""
    folder = tmp_path_factory.mktemp("dim")
    head = f"g (float[rows, 8] x) => (float[{ROWS}, 8] y) <int64[2] to = {{{ROWS}, 8}}>"
    onnx.save(parse(f"{head} {{ m = MatMul(x, w) y = Reshape(m, to) }}", w=(8, 8)), folder / "m.onnx")
    ampgraph.convert(folder / "m.onnx", output=folder / "low.onnx", check="off")
    return folder / "m.onnx", folder / "low.onnx"


def words(verb: str, pair: tuple[Path, Path]) -> list[str]:
    source, low = map(str, pair)
    out = str(pair[0].parent / "out.onnx")
    return {
        "verify": ["verify", source, low],
        "diff": ["diff", low, low, "--reference", source],
        "run": ["run", source],
        "check": ["check", low, "--against", source],
        "tune": ["tune", source, "--tolerance", "0.1", "-o", out],
        "convert": ["convert", source, "-o", out, "--check", "require"],
    }[verb]


@pytest.mark.parametrize(
    "verb", ["verify", "diff", "run", "check", "tune", pytest.param("convert", marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("check_here")
def test_it_sizes_generated_inputs(amp, verb, pair):
    status, _, error = amp(*words(verb, pair), "--dim", f"rows={ROWS}")
    assert status == 0 and "AMP" not in error
    status, out, error = amp(*words(verb, pair))
    assert status and "no generated input fits" in out + error


@pytest.mark.parametrize("verb", ["verify", "diff", "run", "check", "tune", "convert"])
def test_a_name_that_the_model_does_not_have_is_refused(amp, verb, pair):
    status, _, error = amp(*words(verb, pair), "--dim", f"row={ROWS}")
    assert status == 2 and "AMP310" in error and "rows" in error


def test_in_python(pair):
    source, low = map(str, pair)
    assert ampgraph.verify(source, low, dims={"rows": ROWS}).ok
    assert ampgraph.diff(low, low, reference=source, dims={"rows": ROWS}).alike
    assert ampgraph.tune(source, tolerance=0.1, dims={"rows": ROWS}).met
    assert ampgraph.calibrate(source, dims={"rows": ROWS}).values
    with pytest.raises(AmpError, match="no generated input fits"):
        ampgraph.verify(source, low)
