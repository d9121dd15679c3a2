"""Every session is a `Session`: its ports, what must be fed, and runs that give all outputs or some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ampgraph.api.run import opened
from ampgraph.core.errors import AmpError
from ampgraph.runtime.devices import choose
from ampgraph.runtime.ports import Port, Session

MODELS = Path(__file__).resolve().parents[2] / "models"


def check(session: Session) -> None:
    [(name, port)] = session.inputs.items()
    assert list(session.required) == [name] and isinstance(port, Port) and port.dtype == "float32" and port.ranked
    sizes = [size if isinstance(size, int) else 2 for size in port.shape]
    feeds = {name: np.zeros(sizes, np.float32)}
    found = session.run(feeds)
    assert list(found) == list(session.outputs) and all(isinstance(p, Port) for p in session.outputs.values())
    last = list(session.outputs)[-1]
    np.testing.assert_array_equal(session.run(feeds, outputs=[last])[last], found[last])
    with pytest.raises(AmpError, match="AMP503|AMP504"):
        session.run(feeds, outputs=["nothing is called so"])


@pytest.mark.parametrize("strict", [False, True])
def test_sessions_of_onnx(strict: bool) -> None:
    check(opened(MODELS / "digits_cnn.onnx", "cpu", strict))


@pytest.mark.mindspore
def test_sessions_of_mindspore() -> None:
    pytest.importorskip("mindspore")
    check(opened(MODELS / "digits_cnn.mindir", "cpu"))


def test_ports_in_words() -> None:
    assert str(Port("x", "float32", ("N", None, 3))) == "float32 [N, any, 3]"
    assert str(Port("x", "float16", (), ranked=False)) == "float16 of any shape"


def test_a_runtime_without_cuda_is_not_asked_for_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones say on standard output that they have none, in front of what a command prints."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    asked: list[object] = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda *_: asked.append(1), raising=False)
    assert choose("auto")[0] == "cpu" and asked == []
