"""Architectures as other exporters write them: by TorchScript, and by whichever transformers is installed.

    python benchmarks/cuda_placement/other_exports.py OUT [NAME ...] [--exporter torchscript|dynamo] [--opset 17]

The ten of ../export_models.py, and by ``--models vision`` or ``language`` those of ../vision_models.py or
../language_models.py.

Writes OUT/NAME.onnx. Needs what ../export_models.py needs; `nodes.py --check` then says whether they lose a fusion.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import language_models  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import vision_models  # noqa: E402
from export_models import EXAMPLES, Example  # noqa: E402

MODELS = {"ten": EXAMPLES, "vision": vision_models.EXAMPLES, "language": language_models.EXAMPLES}


def export(name: str, build: Callable[[], Example], folder: Path, exporter: str, opset: int) -> str:
    """Exports one model with random weights; a line that says what came out, or why nothing did."""
    torch.manual_seed(0)
    path = folder / f"{name}.onnx"
    try:
        made = build()
        words = {"input_names": list(made.feeds), "output_names": ["out"], "opset_version": opset}
        values, dynamo = tuple(made.feeds.values()), exporter == "dynamo"
        if dynamo:
            torch.onnx.export(made.model.eval(), values, dynamo=True, verbose=False, **words).save(str(path))
        else:
            torch.onnx.export(made.model.eval(), values, str(path), dynamo=False, **words)
    except Exception as error:  # versions differ in what they export at all
        path.unlink(missing_ok=True)
        return f"{name}: not exported: {(str(error).strip().splitlines() or [type(error).__name__])[0][:150]}"
    return f"{name}: opset {opset}, {path.stat().st_size / 2**20:.1f} MB"


def main() -> None:
    """Exports what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--exporter", choices=["torchscript", "dynamo"], default="torchscript")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--models", choices=MODELS, default="ten")
    args = parser.parse_args()
    examples = MODELS[args.models]
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {args.exporter}", flush=True)
    for name in args.names or examples:
        print(export(name, examples[name], args.out, args.exporter, args.opset), flush=True)


if __name__ == "__main__":
    main()
