"""What the tests of the command line share."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto

from onnx_text import parse

MODELS = Path(__file__).resolve().parents[1] / "models"
NAMES = ("digits_cnn", "digits_transformer")
COMMAND = (sys.executable, "-m", "ampgraph")


def process(*words, **more):
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=120, **more)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def data_model(path, count=4096, location="data.bin"):
    """A MatMul whose weight lies in a data file; returns the data's path."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[count, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(count * 16))):
        weight.external_data.add(key=key, value=value)
    text = f"g (float[batch, {count}] x) => (float[batch, 4] y) {{ [product] y = MatMul (x, w) }}"
    model = parse(text, opset=18)
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    data = path.parent / location
    if not data.exists():
        data.parent.mkdir(exist_ok=True)
        with open(data, "wb") as file:
            for _ in range(count // 4096):
                file.write(np.full(4 * 4096, 0.5, np.float32).tobytes())
    return data


def refused(result, code, *words):
    """One error line and one hint on stderr, nothing on stdout."""
    status, out, err = result
    lines = err.strip().splitlines()
    assert (status, out) == (2, "")
    assert len(lines) == 2 and lines[0].startswith(f"error[{code}]: ") and lines[1].startswith("hint: "), err
    assert "Traceback" not in err
    for word in words:
        assert word in err
