"""A network that ONNX Runtime quantized to int8: what is quantized stays so, the rest becomes float16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import ampgraph

ROOT = Path(__file__).resolve().parents[1]
MODEL, DATA = ROOT / "models" / "digits_cnn.onnx", ROOT / "models" / "digits_heldout.npz"


class Digits(CalibrationDataReader):
    """Images to calibrate on, in batches."""

    def __init__(self) -> None:
        with np.load(DATA) as held:
            self.batches: Iterator[dict[str, np.ndarray]] = iter([{"image": held["image"][:64]}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def main(folder: Path) -> None:
    quantized = folder / "digits_cnn.int8.onnx"
    kinds = ["Conv"]  # the head stays in floating point
    quantize_static(MODEL, quantized, Digits(), quant_format=QuantFormat.QDQ, op_types_to_quantize=kinds)
    low = ampgraph.convert(quantized, level="O2", output=folder / "digits_cnn.int8.O2.onnx")
    found = ampgraph.verify(quantized, low, data=DATA)
    before, after = (Counter(node.op_type for node in onnx.load(path).graph.node) for path in (quantized, low))
    names = ("QuantizeLinear", "DequantizeLinear", "Cast")
    print(", ".join(f"{name} {before[name]} -> {after[name]}" for name in names))
    print(f"verdict {'ok' if found.ok else 'missed'}, {found.quantized}")


if __name__ == "__main__":
    build = ROOT / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
