"""Opens one session and writes the graph that it would run: a script for the Python of any environment.

PYTHON -I optimize_one.py MODEL OPTIMIZED PROVIDER[,PROVIDER ...] LEVEL [EXTERNAL_FOLDER]

Needs onnxruntime and nothing else. Standard output gets one line of JSON: `runtime` (its version), `available` (all its
providers), `providers` (those of the session) or `error`. What the runtime logs of placement goes to standard error.
Nothing is run.
"""

import json
import sys

KEPT_OUT = "session.optimized_model_external_initializers_"


def main(model: str, optimized: str, providers: str, level: str, folder: str = "") -> None:
    """Arguments as on the command line; ``folder`` holds the external data of a model that was moved."""
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


if __name__ == "__main__":
    main(*sys.argv[1:])
