"""Fuses one model by ONNX Runtime's transformers optimizer: a script for the Python of any environment.

PYTHON -I fuse_one.py MODEL FOLDER ARCHITECTURE[,ARCHITECTURE ...]

Needs onnxruntime, onnx and sympy. The fusions are Python code over the graph, so that no session of the target is
opened. Writes FOLDER/ARCHITECTURE.onnx for each that takes the model; those that break on it, which other
architectures' fusions often do, write nothing. Standard output gets one line of JSON: `made`, or `error`.
"""

import json
import logging
import os
import sys
import warnings


def main(model: str, folder: str, architectures: str) -> None:
    """Arguments as on the command line."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        import onnx
        import sympy  # noqa: F401  # the optimizer asks for it in the middle of its work
        from onnxruntime.transformers.optimizer import MODEL_TYPES, optimize_by_fusion
    except ImportError as error:
        print(json.dumps({"error": f"{error.name} is not installed"}))
        return
    made = []
    for name in (name for name in architectures.split(",") if name in MODEL_TYPES):
        try:
            fused = optimize_by_fusion(onnx.load(model), name).model
            onnx.save(fused, os.path.join(folder, f"{name}.onnx"))
        except Exception:  # a fusion for one architecture raises whatever it trips over in another
            continue
        made.append(name)
    print(json.dumps({"made": made}))


if __name__ == "__main__":
    main(*sys.argv[1:])
