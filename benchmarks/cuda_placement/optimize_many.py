"""Writes the optimised graphs of many files: a script for the Python of any environment with onnxruntime.

PYTHON -I optimize_many.py PROVIDER[,PROVIDER] < LINES OF PATHS

Beside each file, with `.optimized` behind its name. One that does not open is left out. Nothing is run.
"""

import sys


def main(providers: str) -> None:
    """Provider names, comma-separated; paths come on standard input."""
    import onnxruntime

    for line in sys.stdin:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.optimized_model_filepath = line.strip() + ".optimized"
        try:
            onnxruntime.InferenceSession(line.strip(), options, providers=providers.split(","))
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            print(line.strip(), error, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
