"""Opens a session for each of many files: a script for the Python of any environment with onnxruntime.

PYTHON -I open_many.py PROVIDER[,PROVIDER] < LINES OF PATHS

Prints a line of JSON for each: the path, and why it does not open, or an empty string. A file that kills the runtime
ends the process: the caller goes on behind it. Nothing is run.
"""

import json
import sys


def main(providers: str) -> None:
    """Provider names, comma-separated; paths come on standard input."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for line in sys.stdin:
        path, why = line.strip(), ""
        print(json.dumps({"opens": path}), flush=True)
        try:
            onnxruntime.InferenceSession(path, options, providers=providers.split(","))
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(json.dumps({"path": path, "why": why}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
