"""Executes models in a process of its own, by a Python of any environment that has the runtime: session_one.py KIND.

A line of JSON is a question, another one its answer; arrays lie in .npz files, bfloat16 as raw 16-bit words. Nothing
but numpy and the runtime is imported: ampgraph need not be there.
"""

import itertools
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from typing import Any

import numpy as np

NAMES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "boolean": "bool",
    **{f"{sign}{bits}": f"{word}{bits}" for sign, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip
HINTS = {"": "f32", "bfloat16": "bf16", "float16": "f16"}
LAYER = ("layerType", "runtimePrecision", "originalLayersNames")
WORDS = np.dtype("V2")  # how numpy's files keep bfloat16
ARM64 = ("aarch64", "arm64")
SOFTWARE = "its driver is software: times say nothing about a GPU"
EMULATED = "its CPU is emulated: times say nothing about a real one"


class OpenVino:
    """Models on OpenVINO's CPU plugin, in the precisions of the file, or with another hint."""

    module = "openvino"

    def __init__(self) -> None:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # nothing is sent, by no other process
        import openvino

        self.ov, self.core = openvino, openvino.Core()
        self.opened: dict[int, Any] = {}
        self.numbers = itertools.count()

    def about(self) -> dict[str, Any]:
        """OpenVINO's version, and the low types in which this CPU computes."""
        low = {"BF16": "bfloat16", "FP16": "float16"}
        here = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        version = self.ov.get_version().split("-")[0]
        return {"runtime": f"OpenVINO {version}", "low": [low[word] for word in here if word in low]}

    def open(self, model: str, threads: int, hint: str) -> dict[str, Any]:
        """Compiles a model with OpenVINO for the CPU; returns the session's number and the names of its ports.
        ``hint``: "" for the types of the file."""
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": HINTS[hint], "NUM_STREAMS": 1}
        if threads:
            settings |= {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
        compiled = self.core.compile_model(self.core.read_model(model), "CPU", settings)
        number = next(self.numbers)
        self.opened[number] = compiled, compiled.create_infer_request()
        inputs, outputs = ([sorted(port.get_names()) for port in of] for of in (compiled.inputs, compiled.outputs))
        return {"session": number, "inputs": inputs, "outputs": outputs}

    def feed(self, session: int, feeds: dict[int, Any]) -> None:
        """Puts arrays into a session of OpenVINO, by the place of the input."""
        compiled, request = self.opened[session]
        for place, array in feeds.items():
            if array.dtype == WORDS:  # numpy has no name for it, so that the tensor is filled, not made of an array
                tensor = self.ov.Tensor(self.ov.Type.bf16, self.ov.Shape(array.shape))
                tensor.data[...] = array.view(tensor.data.dtype)
            else:
                tensor = self.ov.Tensor(array)
            request.set_tensor(compiled.inputs[place], tensor)

    def infer(self, session: int) -> None:
        """Runs a session of OpenVINO once on what it was fed."""
        self.opened[session][1].infer()

    def results(self, session: int) -> list[Any]:
        """The outputs of the last run of OpenVINO, as arrays in the order of the outputs, bfloat16 as words."""
        compiled, request = self.opened[session]
        tensors = [request.get_tensor(port) for port in compiled.outputs]
        low = self.ov.Type.bf16
        words = [np.array(t.data).view(WORDS) if t.element_type == low else np.array(t.data) for t in tensors]
        return [array.reshape(tuple(tensor.shape)) for array, tensor in zip(words, tensors, strict=True)]

    def layers(self, session: int) -> list[dict[str, Any]]:
        """The layers that OpenVINO runs: each one's kind and type, and the nodes of the file that it computes."""
        rows = []
        for op in self.opened[session][0].get_runtime_model().get_ordered_ops():
            info = op.get_rt_info()
            said = {key: info[key].astype(str) for key in LAYER if key in info}
            dtype = said.get("runtimePrecision", "")
            nodes = [name for name in said.get("originalLayersNames", "").split(",") if name]
            rows.append({
                "name": op.get_friendly_name(), "kind": said.get("layerType", ""), "dtype": NAMES.get(dtype, dtype),
                "nodes": nodes,
            })  # fmt: skip
        return rows


class OnnxRuntime:
    """Models on ONNX Runtime's CPU provider, with its default optimisations."""

    module = "onnxruntime"
    provider = "CPUExecutionProvider"

    def __init__(self) -> None:
        """Imports ONNX Runtime; an ImportError says that it is not here."""
        import onnxruntime

        self.ort = onnxruntime
        self.opened: dict[int, Any] = {}
        self.numbers = itertools.count()
        self.fed: dict[int, dict[str, Any]] = {}
        self.made: dict[int, list[Any]] = {}

    def about(self) -> dict[str, Any]:
        """ONNX Runtime's version, the low types that have kernels here, and a note on times if the CPU is emulated."""
        arm = platform.machine() in ARM64
        name = f"ONNX Runtime {self.ort.__version__}{' on Arm64' if arm else ''}"
        note = EMULATED if os.environ.get("AMPGRAPH_EMULATED") else ""
        return {"runtime": name, "low": ["float16"] if arm else [], "note": note}

    def open(self, model: str, threads: int, hint: str) -> dict[str, Any]:
        """Opens a model with ONNX Runtime; returns the session's number and the names of its ports."""
        options = self.options()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        number, providers = next(self.numbers), [self.provider] if self.provider else None
        self.opened[number] = session = self.ort.InferenceSession(model, options, providers=providers)
        inputs, outputs = ([[port.name] for port in of] for of in (session.get_inputs(), session.get_outputs()))
        return {"session": number, "inputs": inputs, "outputs": outputs}

    def options(self) -> Any:
        """Options of a session of ONNX Runtime; subclasses add their provider."""
        return self.ort.SessionOptions()

    def feed(self, session: int, feeds: dict[int, Any]) -> None:
        """Keeps arrays for the next run of ONNX Runtime, by the place of the input."""
        taken = self.opened[session].get_inputs()
        self.fed[session] = {taken[place].name: array for place, array in feeds.items()}

    def infer(self, session: int) -> None:
        """Runs ONNX Runtime once on what was fed, and keeps the results."""
        self.made[session] = self.opened[session].run(None, self.fed[session])

    def results(self, session: int) -> list[Any]:
        """The outputs of the last run of ONNX Runtime, in their order."""
        return self.made[session]

    def layers(self, session: int) -> list[dict[str, Any]]:
        """No layers: the CPU provider of ONNX Runtime does not say what it runs."""
        return []


class WebGpu(OnnxRuntime):
    """Models on ONNX Runtime's WebGPU provider: on the GPU, or on the software driver that lies in the environment."""

    module = "onnxruntime_ep_webgpu"
    provider = ""

    def __init__(self) -> None:
        driver = os.path.join(sys.prefix, "lavapipe", "lvp.json")
        if os.path.isfile(driver):
            os.environ.setdefault("VK_DRIVER_FILES", driver)
            os.environ["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        super().__init__()
        import onnxruntime_ep_webgpu as plugin

        self.ort.register_execution_provider_library("webgpu", plugin.get_library_path())
        wanted, here = plugin.get_ep_name(), self.ort.get_ep_devices()
        self.devices = [device for device in here if device.ep_name == wanted][:1]
        if not self.devices:
            raise ImportError("WebGPU finds no device here")

    def about(self) -> dict[str, Any]:
        """The version of the runtime; ``note`` where a software driver stands for the GPU."""
        software = self.devices[0].device.type == self.ort.OrtHardwareDeviceType.CPU
        name = f"WebGPU of ONNX Runtime {self.ort.__version__}"
        return {"runtime": name, "low": ["float16"], "note": SOFTWARE if software else ""}

    def options(self) -> Any:
        """Session options with the WebGPU provider, and with a profile, by which `layers` knows what ran where."""
        options = super().options()
        options.add_provider_for_devices(self.devices, {})
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(tempfile.mkdtemp(prefix="ampgraph-"), "profile")
        return options

    def layers(self, session: int) -> list[dict[str, Any]]:
        """The kernels that ran, with copies between devices; before the first run, each node with its provider."""
        opened = self.opened[session]
        if session in self.made:
            return self._executed_layers(opened.end_profiling())
        placed = [
            (found.ep_name, node) for found in opened.get_provider_graph_assignment_info() for node in found.get_nodes()
        ]
        return [self._layer_row(node.name, node.op_type, provider, []) for provider, node in placed]

    def _executed_layers(self, profile: str) -> list[dict[str, Any]]:
        """The layers that a profile file of ONNX Runtime tells, one for each kernel; its folder is removed."""
        with open(profile, encoding="utf-8") as file:
            events = json.load(file)
        shutil.rmtree(os.path.dirname(profile))
        end = "_kernel_time"
        rows = {event["name"].removesuffix(end): event["args"] for event in events if event["name"].endswith(end)}
        return [
            self._layer_row(
                name, said["op_name"], said["provider"], [kind for one in said["output_type_shape"] for kind in one]
            )
            for name, said in rows.items()
        ]

    def _layer_row(self, name: str, kind: str, provider: str, types: list[str]) -> dict[str, Any]:
        """A kernel as `layers` gives it: kind, type of its first output, and the device that it ran on."""
        dtype = {"float": "float32", "double": "float64"}.get(types[0], types[0]) if types else ""
        on = provider.removesuffix("ExecutionProvider").lower()
        return {"name": name, "kind": kind, "dtype": dtype, "nodes": [name], "on": on}


KINDS: dict[str, Any] = {"cpu": OnnxRuntime, "openvino": OpenVino, "webgpu": WebGpu}


def answer_question(runtime: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Answers one question: calls the runtime's method of that name, with arrays read from and written to files."""
    asked, session = question.pop("ask"), question.get("session")
    if asked in ("about", "open", "layers"):
        found = getattr(runtime, asked)(**question)
        return found if isinstance(found, dict) else {"layers": found}
    if asked == "close":
        return {"closed": runtime.opened.pop(session) is not None}
    if asked == "feed":
        with np.load(question["feeds"]) as arrays:
            runtime.feed(session, {int(place): arrays[place] for place in arrays})
        return {}
    if asked == "results":
        np.savez(question["results"], **{str(place): array for place, array in enumerate(runtime.results(session))})
        return {}
    start, cpu = time.perf_counter(), time.process_time()
    runtime.infer(session)
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}


def main(kind: str) -> None:
    """In the process of a target's runtime: reads questions from stdin, a line each, and answers until they end."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a runtime prints is no answer

    def tell(found: dict[str, Any]) -> None:
        said.write(json.dumps(found) + "\n")
        said.flush()

    try:
        runtime = KINDS[kind]()
    except ImportError as error:
        tell({"lacking": str(error)})
        return
    tell(runtime.about())
    for line in sys.stdin:
        try:
            tell(answer_question(runtime, json.loads(line)))
        except Exception as error:  # runtimes raise kinds of their own for every fault
            tell({"error": str(error).strip() or type(error).__name__})


if __name__ == "__main__":
    main(*sys.argv[1:])
