"""What `convert` says of eleven models of eleven kinds, before its summary was short and now, as pairs.

    python benchmarks/summaries.py --before CHECKOUT --zoo FOLDER [-o benchmarks/summaries.md]

CHECKOUT is one of commit 383bf4e0, the last before; FOLDER holds trained models as FOLDER/NAME.onnx, those of `ZOO`.
The other models are made here. Both are run by this Python, with the check, whose inputs are fewer on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ZOO = {
    "detector": "nudenet",
    "audio, with spectra": "dnsmos_p835",
    "audio, a turn detector": "smart_turn",
    "text recognition": "ppocr4_rec",
    "text, one LSTM": "g2p_lstm_enc",
    "text, a transformer": "g2p_bert",
    "tables": "slanet",
}
"""By kind: trained models that other repositories carry."""
LOW_CACHE = ("--io", "past*=low", "--io", "present*=low")


def made_here(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """By kind: a model, and the options of its conversion."""
    import onnx

    sys.path.insert(0, str(ROOT / "examples"))
    import decoder_with_cache
    import quantized
    from onnxruntime.quantization import QuantFormat, quantize_static

    onnx.save(decoder_with_cache.decoder(), folder / "decoder.onnx")
    int8 = folder / "digits_cnn.int8.onnx"
    kinds = ["Conv"]
    quantize_static(quantized.MODEL, int8, quantized.Digits(), quant_format=QuantFormat.QDQ, op_types_to_quantize=kinds)
    return {
        "a decoder with its cache": (folder / "decoder.onnx", LOW_CACHE),
        "quantized (QDQ)": (int8, ()),
        "MindIR, a network with its loss": (ROOT / "models" / "digits_cnn_loss.mindir", ()),
        "a transformer of torch's exporter": (ROOT / "models" / "digits_transformer.onnx", ()),
    }


def said(checkout: Path, model: Path, options: tuple[str, ...], folder: Path) -> str:
    """What `convert` prints, with file names instead of paths."""
    result = folder / f"{model.stem}.O2{model.suffix}"
    words = [sys.executable, "-m", "ampgraph", "convert", str(model), "-o", str(result), *options]
    around = {**os.environ, "PYTHONPATH": str(checkout), "AMPGRAPH_CHECK": "auto"}
    done = subprocess.run(words, cwd=folder, env=around, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{model}: {done.stderr}")
    return done.stdout.replace(f"{model.parent}/", "").replace(f"{folder}/", "").rstrip()


def page(before: Path, zoo: Path) -> str:
    """The pairs, as Markdown."""
    rows, pairs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {kind: (zoo / f"{model}.onnx", ()) for kind, model in ZOO.items()} | made_here(folder)
        for kind, (model, options) in models.items():
            old, new = (said(checkout, model, options, folder) for checkout in (before, ROOT))
            rows.append(f"| {kind} | {model.name} | {len(old.splitlines())} | {len(new.splitlines())} |")
            fences = [f"{title}\n\n```\n{text}\n```\n" for title, text in (("Before:", old), ("Now:", new))]
            pairs.append("\n".join([f"## {kind[0].upper()}{kind[1:]}\n", *fences]))
    head = "# What `convert` says, before and now\n\nMade by `benchmarks/summaries.py`; lines of the report:\n"
    table = "\n".join(["| kind | model | before | now |", "|---|---|---:|---:|", *rows])
    return "\n".join([head, table, "", *pairs])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--zoo", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "summaries.md")
    given = parser.parse_args()
    given.output.write_text(page(given.before.resolve(), given.zoo.resolve()), encoding="utf-8")
