"""Opens one session and writes the graph that it would run, or fuses one model by the runtime's transformers optimizer:
a script for the Python of any environment.

PYTHON -I optimize_one.py optimize MODEL OPTIMIZED PROVIDER[,PROVIDER ...] LEVEL [EXTERNAL_FOLDER]
PYTHON -I optimize_one.py fuse MODEL FOLDER ARCHITECTURE[,ARCHITECTURE ...]

Needs onnxruntime, and to fuse onnx and sympy. Standard output gets one line of JSON, which holds `error` where it
failed. What the runtime logs of placement goes to standard error. Nothing is run.
"""

import json
import logging
import os
import sys
import warnings

KEPT_OUT = "session.optimized_model_external_initializers_"


def optimize(model: str, optimized: str, providers: str, level: str, folder: str = "") -> None:
    """Answers `runtime` (its version), `available` (all its providers) and `providers` (those of the session).

    ``folder`` holds the external data of a model that was moved."""
    try:
        import onnxruntime
    except ImportError:
        print(json.dumps({"error": "onnxruntime is not installed", "available": []}))
        return
    told = {"runtime": onnxruntime.__version__, "available": onnxruntime.get_available_providers()}
    missing = [name for name in providers.split(",") if name not in told["available"]]
    if missing:
        print(json.dumps({**told, "error": f"no {missing[0]} here"}))
        return
    if "CUDAExecutionProvider" in told["available"] and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 0
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = optimized
    options.add_session_config_entry(f"{KEPT_OUT}file_name", "weights.bin")
    options.add_session_config_entry(f"{KEPT_OUT}min_size_in_bytes", "1024")
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        with open(model, "rb") as file:
            session = onnxruntime.InferenceSession(file.read(), options, providers=providers.split(","))
        told["providers"] = session.get_providers()
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        told["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0]
    print(json.dumps(told))


def fuse(model: str, folder: str, architectures: str) -> None:
    """ONNX Runtime's transformers optimizer: answers `made`: it writes FOLDER/ARCHITECTURE.onnx for each that takes the
    model. Those that break on it, which other architectures' fusions often do, write nothing.

    The fusions are Python code over the graph, so that no session of the target is opened."""
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
    (fuse if sys.argv[1] == "fuse" else optimize)(*sys.argv[2:])
