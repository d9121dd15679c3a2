"""A .mindir file on MindSpore's executor: its numbers are those of the network, and a mistake is one message."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.runtime.mindspore_session import (
    MindirPorts,
    MindsporeSession,
    error_words,
    import_mindspore,
    select_device,
)
from ampgraph.runtime.ports import Port

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
needs_mindspore = pytest.mark.mindspore


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``two`` (two outputs, an integer input), ``rows`` (any number of rows), ``bf16``, ``count`` (keeps a state)."""
    ms = pytest.importorskip("mindspore")
    from mindspore import nn, ops

    class Two(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(6, 3)

        def construct(self, x: Any, n: Any) -> Any:
            y = self.dense(x)
            return y, (y * n, ops.argmax(y, 1))

    class Rows(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.tanh(x)

    class Bfloat16(nn.Cell):
        def construct(self, x: Any) -> Any:
            low = x.astype(ms.bfloat16)
            return ops.matmul(low, low)

    class Doubled(nn.Cell):
        def construct(self, x: Any) -> Any:
            return (x.astype(ms.float32) * 2).astype(ms.bfloat16)

    class Count(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.total = ms.Parameter(ms.Tensor(0, ms.float32), name="total")

        def construct(self, x: Any) -> Any:
            ops.assign(self.total, self.total + ops.reduce_sum(x))
            return self.total * 1.0

    ms.set_seed(1)
    place, two = tmp_path_factory.mktemp("run"), Two()
    tensor, number = ms.Tensor(X), ms.Tensor(np.array(2, np.int32))
    ms.export(two, tensor, number, file_name=str(place / "two"), file_format="MINDIR")
    rows = ms.Tensor(shape=(None, 6), dtype=ms.float32)
    ms.export(Rows(), rows, file_name=str(place / "rows"), file_format="MINDIR")
    ms.export(Bfloat16(), ms.Tensor(X[:, :4]), file_name=str(place / "bf16"), file_format="MINDIR")
    low = ms.Tensor(X.astype(ml_dtypes.bfloat16))
    ms.export(Doubled(), low, file_name=str(place / "doubled"), file_format="MINDIR")
    ms.export(Count(), tensor, file_name=str(place / "count"), file_format="MINDIR")
    np.savez(place / "two.npz", *[part.asnumpy() for part in (lambda a, b: (a, *b))(*two(tensor, number))])
    return place


@needs_mindspore
@pytest.mark.parametrize("device", ["cpu", "CPU", "auto"])
def test_outputs_are_those_of_the_network(folder: Path, device: str) -> None:
    import mindspore as ms

    before = ms.get_context("mode")
    session = MindsporeSession(folder / "two.mindir", device=device)
    assert session.device == "CPU" and list(session.inputs) == ["x", "n"]
    got = session.run({"n": np.array(2, np.int32), "x": X})  # by name, in any order
    assert ms.get_context("mode") == before
    expected = list(np.load(folder / "two.npz").values())
    assert list(got) == ["output0", "output1", "output2"] == list(session.outputs)
    for one, two in zip(got.values(), expected, strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype
    full = {f"{session.ports.prefix}x": X, "n": np.array(2, np.int32)}
    np.testing.assert_array_equal(session.run(full)["output0"], got["output0"])


@needs_mindspore
def test_sizes_state_and_bfloat16(folder: Path) -> None:
    session = MindsporeSession(folder / "rows.mindir")
    for rows in (1, 3):
        assert session.run({"x": X[:rows]})["output0"].shape == (rows, 6)
    with pytest.raises(AmpError, match=r"AMP503.*'x' takes float32 \[any, 6\].*\[4, 5\]"):
        session.run({"x": X[:, :5]})
    # state is kept from run to run
    session = MindsporeSession(folder / "count.mindir")
    ones = np.ones((4, 6), np.float32)
    assert [float(session.run({"x": ones})["output0"]) for _ in range(3)] == [24, 48, 72]
    assert float(MindsporeSession(folder / "count.mindir").run({"x": ones})["output0"]) == 24
    # bfloat16 comes and goes as ml dtypes has it
    low = X.astype(ml_dtypes.bfloat16)
    session = MindsporeSession(folder / "doubled.mindir")
    for fed in (low, low.view("V2")):  # numpy's files say V2
        got = session.run({"x": fed})["output0"]
        assert got.dtype == ml_dtypes.bfloat16 and (got == low * 2).all()


@needs_mindspore
def test_what_mindspore_says_becomes_one_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AmpError, match="AMP504.*Unsupported op .* on CPU\nhint: MindSpore's CPU has few bfloat16"):
        MindsporeSession(folder / "bf16.mindir").run({"x": X[:, :4]})
    renamed = tmp_path / "two.bin"
    renamed.write_bytes((folder / "two.mindir").read_bytes())
    with pytest.raises(AmpError, match="AMP502.*named .*mindir only"):
        MindsporeSession(renamed)
    with pytest.raises(AmpError, match="AMP10"):
        MindsporeSession(tmp_path / "no.mindir")
    with pytest.raises(AmpError, match=r"AMP505.*mindspore \d.*finds no Ascend device here: it runs on CPU only"):
        MindsporeSession(folder / "two.mindir", device="ascend")
    with pytest.raises(AmpError, match="AMP321.*'asend'\nhint: did you mean 'ascend'"):
        MindsporeSession(folder / "two.mindir", device="asend")


# -- without MindSpore ------------------------------------------------------------------------------------------------

TAKES = MindirPorts(
    {
        "x": Port("x", "float32", (None, 3)),
        "n": Port("n", "int64", (), ranked=True),
        "any": Port("any", "float16", (), ranked=False),
    },
    {"output0": Port("output0", "float32", ())},
    "graph:",
    frozenset(),
)
FITS = {"x": np.zeros((2, 3), np.float32), "n": np.int64(1), "any": np.zeros((1, 1), np.float16)}


def test_feeds_and_errors() -> None:
    given = {"any": FITS["any"], "graph:n": FITS["n"], "x": FITS["x"]}
    assert list(TAKES.check(given)) == ["x", "n", "any"]
    # an error of mindspore in one line
    line = "-" * 52
    text = f"\n{line}\n- Kernel select failed:\n{line}\nUnsupported op [X] on CPU, Please confirm whether\nnode: y\n"
    assert error_words(RuntimeError(text)) == "Unsupported op [X] on CPU"
    assert error_words(RuntimeError("Load MindIR failed.")) == "Load MindIR failed"
    assert error_words(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x": None}, "no value for input 'x'\nhint: feed x, n, any"),
        ({"graph:x": FITS["x"]}, "'x' is given twice"),
        ({"x": np.zeros((2, 4), np.float32)}, "'x' takes float32 [any, 3] but the array fed has shape [2, 4]"),
        ({"n": np.zeros(1, np.int64)}, "'n' takes int64 [] but the array fed has shape [1]"),
        ({"any": np.zeros(1)}, "'any' takes float16 of any shape"),
        ({"x": object()}, "object was fed"),
    ],
)
def test_feeds_that_do_not_fit_are_told(change: dict[str, Any], told: str) -> None:
    feeds = {name: value for name, value in {**FITS, **change}.items() if value is not None}
    with pytest.raises(AmpError) as caught:
        TAKES.check(feeds)
    assert caught.value.code == "AMP503" and caught.value.hint and told in str(caught.value)


def test_mindspore_missing_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    with pytest.raises(AmpError, match=r"AMP501.*\nhint: .* -m pip install 'mindspore==2.10.0'"):
        import_mindspore()


def test_on_ascend_the_types_of_the_file_are_kept() -> None:
    """By a stand-in: no NPU is at hand."""
    calls: list[str] = []
    precision = SimpleNamespace(precision_mode=calls.append)
    device_context = SimpleNamespace(ascend=SimpleNamespace(op_precision=precision))
    ms: Any = SimpleNamespace(
        get_context=lambda key: "CPU", set_device=calls.append, device_context=device_context, __version__="2.10.0"
    )
    assert select_device(ms, "ascend") == "Ascend"
    assert calls == ["Ascend", "must_keep_origin_dtype"]

    def set_before(mode: str) -> None:
        raise RuntimeError("The 'precision_mode' can not be set repeatedly.")

    precision.precision_mode = set_before
    with pytest.raises(AmpError, match="AMP505.*another Ascend precision mode"):
        select_device(ms, "ascend")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mindspore") is None, reason="only where it could be imported")
def test_nothing_imports_mindspore_before_it_is_needed() -> None:
    code = (
        "import sys, ampgraph, ampgraph.training.mindspore, ampgraph.runtime.data, ampgraph.training.step.loss_scale\n"
        "ampgraph.convert, ampgraph.training.mindspore.train_step\n"
        "print('mindspore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
