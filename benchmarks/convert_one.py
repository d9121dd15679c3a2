"""One conversion in this process, measured after the converter's imports; `peers.py` and others start it.

    python convert_one.py CONVERTER SOURCE TARGET --report FILE

Needs the chosen converter's packages only, so that it can run in another environment than the benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measure import MIB, bytes_written, one_line, status_mb

# Above this a model is saved with its weights in a file of their own: protobuf ends at 2 GiB.
LARGE = int(1.9 * 2**30)


@dataclass(frozen=True)
class Converter:
    """A converter's imports, which are not timed, and its conversion, which is: read, convert, write."""

    prepare: Callable[[], None]
    convert: Callable[[Path, Path], None]


def is_large(source: Path) -> bool:
    """Whether the model and its external data together pass what protobuf holds."""
    data = sum(f.stat().st_size for f in source.parent.glob(source.name + "*"))
    return data > LARGE


def save_proto(model: object, target: Path, large: bool) -> None:
    """Write a ModelProto, with external data where it must be."""
    import onnx

    if large:
        onnx.save_model(model, str(target), save_as_external_data=True, location=target.name + ".data")
    else:
        onnx.save(model, str(target))


def ampgraph(level: str, dtype: str, opset: str = "", stream: bool = False) -> Converter:
    """This project, through its public entry point; ``stream``: with residual streams in float32."""

    def prepare() -> None:
        import ampgraph

        # Public names may be loaded on first use; importing is not what is measured.
        if not hasattr(ampgraph, "convert"):
            raise ImportError("this ampgraph has no convert")

    def convert(source: Path, target: Path) -> None:
        import ampgraph

        more = {"opset": opset if opset == "auto" else int(opset)} if opset else {}
        more |= {"fp32_stream": True} if stream else {}
        ampgraph.convert(str(source), level=level, dtype=dtype, output=str(target), check="off", **more)

    return Converter(prepare, convert)


def ort_model() -> Converter:
    """ONNX Runtime's OnnxModel.convert_float_to_float16: what its optimizer's --float16 and Olive use."""

    def prepare() -> None:
        import onnx  # noqa: F401
        import onnxruntime.transformers as package

        # The method imports its shape inference by a top-level name.
        sys.path.insert(0, package.__path__[0])
        import onnxruntime.transformers.onnx_model  # noqa: F401
        import shape_infer_helper  # noqa: F401

    def convert(source: Path, target: Path) -> None:
        import onnx
        from onnxruntime.transformers.onnx_model import OnnxModel

        model = OnnxModel(onnx.load(str(source)))
        model.convert_float_to_float16(keep_io_types=True)
        model.save_model_to_file(str(target), use_external_data_format=is_large(source))

    return Converter(prepare, convert)


def ort_float16() -> Converter:
    """onnxruntime.transformers.float16 as it is, without OnnxModel around it."""

    def prepare() -> None:
        import onnx  # noqa: F401
        import onnxruntime.transformers.float16  # noqa: F401

    def convert(source: Path, target: Path) -> None:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        # It takes a path for large models and loads the weights itself.
        save_proto(convert_float_to_float16(str(source), keep_io_types=True), target, is_large(source))

    return Converter(prepare, convert)


def occ_float16() -> Converter:
    """onnxconverter-common's float16; large models by its `_model_path` variant."""

    def prepare() -> None:
        import onnx  # noqa: F401
        import onnxconverter_common.float16  # noqa: F401

    def convert(source: Path, target: Path) -> None:
        import onnx
        from onnxconverter_common import float16

        large = is_large(source)
        if large:
            model = float16.convert_float_to_float16_model_path(str(source), keep_io_types=True)
        else:
            model = float16.convert_float_to_float16(onnx.load(str(source)), keep_io_types=True)
        save_proto(model, target, large)

    return Converter(prepare, convert)


def autocast(dtype: str = "fp16") -> Converter:
    """NVIDIA ModelOpt AutoCast, calibrated with the inputs beside the model: NAME.npz, or a folder NAME of them."""

    def prepare() -> None:
        import modelopt.onnx.autocast
        import modelopt.onnx.utils  # noqa: F401
        import onnxruntime  # noqa: F401

    def convert(source: Path, target: Path) -> None:
        from modelopt.onnx.autocast import convert_to_mixed_precision
        from modelopt.onnx.utils import save_onnx

        feeds = [path for path in (source.with_suffix(".npz"), source.with_suffix("")) if path.exists()]
        calibration = {"calibration_data": str(feeds[0])} if feeds else {}
        made = convert_to_mixed_precision(str(source), low_precision_type=dtype, keep_io_types=True, **calibration)
        save_onnx(made, str(target))

    return Converter(prepare, convert)


def winml() -> Converter:
    """Microsoft's winml-cli, as its ``--precision fp16``: onnxruntime.transformers.float16 between repairs of its own.

    Nothing of that needs Windows: ``pip install --no-deps winml-cli``, onnx, onnxruntime, sympy, ml_dtypes."""

    def prepare() -> None:
        from winml.modelkit.quant import quantize_onnx  # noqa: F401

    def convert(source: Path, target: Path) -> None:
        from winml.modelkit.quant import WinMLQuantizationConfig, quantize_onnx

        large = is_large(source)
        made = quantize_onnx(source, target, WinMLQuantizationConfig(mode="fp16"), use_external_data=large)
        if not made.success:
            raise RuntimeError("; ".join(made.errors))

    return Converter(prepare, convert)


PEERS: dict[str, Callable[[], Converter]] = {
    "ort_model": ort_model,
    "ort_float16": ort_float16,
    "occ_float16": occ_float16,
    "autocast": autocast,
    "winml": winml,
    "autocast_bfloat16": partial(autocast, "bf16"),
}


def is_ampgraph(name: str) -> bool:
    """Whether `name` is one of ours: `ampgraph[:LEVEL[:DTYPE[:OPSET]]]`."""
    return name.split(":")[0] == "ampgraph"


def converter(name: str) -> Converter:
    """Look a converter up: `ampgraph:O2`, `ampgraph:O2:bfloat16:auto`, `ampgraph:O2:float16::stream`, or a peer."""
    if is_ampgraph(name):
        _, level, dtype, opset, stream, *_ = (*name.split(":"), "", "", "", "")
        return ampgraph(level or "O2", dtype or "float16", opset, stream == "stream")
    if name not in PEERS:
        raise SystemExit(
            f"unknown converter '{name}'; known: ampgraph:LEVEL[:DTYPE[:OPSET[:stream]]], {', '.join(PEERS)}"
        )
    return PEERS[name]()


def measured(chosen: Converter, source: Path, target: Path) -> dict[str, object]:
    """Convert, and return what it took."""
    start = time.perf_counter()
    chosen.prepare()
    report: dict[str, object] = {
        "import_s": time.perf_counter() - start,
        "base_private_mb": status_mb("self", "RssAnon"),
    }
    written, wall, cpu = bytes_written(), time.perf_counter(), time.process_time()
    try:
        chosen.convert(source, target)
        report["error"] = None
    except (Exception, SystemExit) as error:
        report["error"] = one_line(error)
    report["cpu_s"], report["wall_s"] = time.process_time() - cpu, time.perf_counter() - wall
    after = bytes_written()
    report["written_mb"] = None if written is None or after is None else (after - written) / MIB
    # The kernel's own high-water mark, exact where the sampling from outside is not.
    report["max_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return report


def main() -> None:
    """Parse, convert, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("converter")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    try:
        report = measured(converter(args.converter), args.source, args.target)
    except ImportError as error:
        report = {"error": f"not installed: {one_line(error)}", "missing": True}
    args.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
