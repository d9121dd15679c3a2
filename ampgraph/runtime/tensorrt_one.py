"""Parses models by TensorRT's ONNX parser and builds engines of them: a script for the Python of any environment.

PYTHON -I tensorrt_one.py JOBS ANSWERS

Needs TensorRT for RTX and nothing else, no GPU either. JOBS is a file of JSON: `models`, each with a `model` and
perhaps `folder` (where its external data lies), `sizes` (of open dimensions by `NAME` or `INPUT:AXIS`, as least, best
and largest), `values` (of inputs that are shapes) and `capabilities` (of GPUs, as `89`). ANSWERS gets a
line of JSON for each, as soon as it is there, up to the first one that is refused: what TensorRT keeps of a refusal is
not carried into another model. Nothing is run.
"""

import contextlib
import json
import os
import sys
from typing import Any

GUESSED = 2  # for a dimension that nobody has said: 1 would let axes be dropped


def main(jobs: str, answers: str) -> None:
    """Reads TensorRT's jobs, and writes an answer for each: ``jobs`` and ``answers`` are the two files."""
    with open(jobs, encoding="utf-8") as file:
        asked = json.load(file)
    os.dup2(2, 1)  # the compiler prints now and then
    with open(answers, "a", encoding="utf-8") as out:
        for job in asked["models"]:
            told = _answer_job(job)
            print(json.dumps(told), file=out, flush=True)
            if told.get("refused") or "error" in told or "capability" in told:
                return


def _answer_job(job: dict[str, Any]) -> dict[str, Any]:
    """In TensorRT's process: parses one model and builds its engine. The answer: `refused` (from `_refusal`), `layers`
    (a text) and `bytes` of the engine; or only `error` without TensorRT, `capability` for an unknown one."""
    with contextlib.suppress(ImportError):  # an installation from NVIDIA's archive has it beside the bindings
        import tensorrt_rtx_libs  # noqa: F401  # loads the library that the bindings look for
    try:
        import tensorrt_rtx_bindings as trt
    except ImportError:
        try:
            import tensorrt_rtx as trt
        except ImportError:
            return {"error": "TensorRT for RTX is not installed"}
    known = [name.removeprefix("SM") for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    for name in job.get("capabilities") or []:
        if name not in known:
            return {"capability": name, "known": known}
    log = _log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(0)  # strongly typed: the only kind there is
    parser = trt.OnnxParser(network, log)
    told = {"runtime": trt.__version__, "refused": [], "layers": "", "bytes": 0}
    with open(job["model"], "rb") as file:
        taken = parser.parse(
            file.read(), os.path.join(job.get("folder") or os.path.dirname(job["model"]), "model.onnx")
        )
    if not taken:
        faults = [parser.get_error(number) for number in range(parser.num_errors)]
        told["refused"] = [_refusal("parser", f.node_name(), f.node_operator(), f.desc()) for f in faults]
        return told
    engine = builder.build_serialized_network(network, _builder_config(trt, builder, network, job))
    told["layers"], told["bytes"] = log.layers, 0 if engine is None else engine.nbytes
    if engine is None:
        told["refused"] = [_refusal("builder", "", "", text) for text in log.errors or ["no engine, and no reason"]]
    return told


def _refusal(by: str, node: str, operator: str, words: str) -> dict[str, str]:
    """An operator that TensorRT's parser or builder refuses, in its words, and of which node."""
    return {"by": by, "node": node, "operator": operator, "words": words}


def _builder_config(trt: Any, builder: Any, network: Any, job: dict[str, Any]) -> Any:
    """The settings of TensorRT's builder for a job: layers in detail, GPUs to build for, sizes of open dimensions and
    values of shape inputs, `GUESSED` where the job does not say them."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    capabilities = job.get("capabilities") or []
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for number, name in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + name), number)
    profile, used = builder.create_optimization_profile(), False
    for number in range(network.num_inputs):
        tensor = network.get_input(number)
        if tensor.is_shape_tensor:
            count = max(1, tensor.shape[0]) if len(tensor.shape) else 1
            values = job.get("values", {}).get(tensor.name, [GUESSED] * count)
            profile.set_shape_input(tensor.name, *(values if isinstance(values[0], list) else [values] * 3))
            used = True
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *_profile_shapes(tensor, job.get("sizes", {})))
            used = True
    if used:
        config.add_optimization_profile(profile)
    return config


def _profile_shapes(tensor: Any, sizes: dict[str, Any]) -> list[list[int]]:
    """The least, the best and the largest shape of an input, for TensorRT's optimisation profile; ``sizes``: of open
    dimensions by `INPUT:AXIS` or `NAME`, the former first."""
    shapes = []
    for which in range(3):
        shape = []
        for axis, size in enumerate(tensor.shape):
            name = tensor.get_dimension_name(axis)
            said = sizes.get(f"{tensor.name}:{axis}", sizes.get(name, [GUESSED] * 3))
            shape.append(said[which] if size == -1 else size)
        shapes.append(shape)
    return shapes


def _log(trt: Any) -> Any:
    """TensorRT's log, from which layers and errors are read."""

    class Log(trt.ILogger):  # type: ignore[misc]
        """Keeps the list of the engine's layers, and errors."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = ""
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if "Layers:\nName: " in message:
                self.layers = message
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and message not in self.errors:
                self.errors.append(message)

    return Log()


if __name__ == "__main__":
    main(*sys.argv[1:])
