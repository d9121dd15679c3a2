"""Devices that ONNX Runtime can run on: which are here, and what to install for one that is not."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ..core.errors import AmpError, nearest
from ..core.installing import pip_install
from ..core.spellings import device_word

PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
    "cann": ("CANNExecutionProvider", "CPUExecutionProvider"),
}
"""Device -> the providers that share a model, the wanted one first."""

BEST_FIRST = ("cuda", "cann", "cpu")  # for auto; TensorRT builds an engine first, which takes minutes: on request only

_INSTALL: dict[str, Callable[[], str]] = {
    "cpu": lambda: pip_install("cpu"),
    "cuda": lambda: f"{pip_install('gpu')} (not beside plain onnxruntime), with an NVIDIA driver",
    "tensorrt": lambda: f"{pip_install('gpu')} and TensorRT itself, with an NVIDIA driver",
    "cann": lambda: "install onnxruntime-cann and the CANN toolkit",
}


def import_onnxruntime() -> ModuleType:
    """The onnxruntime module. Raises AmpError AMP501 where it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise AmpError("AMP501", "onnxruntime is not installed", hint=_INSTALL["cpu"]()) from error
    module: ModuleType = onnxruntime
    return module


def choose(device: str) -> tuple[str, tuple[str, ...]]:
    """The device that a session runs on, ``auto`` resolved, and ONNX Runtime's providers for it in order.

    Raises AmpError AMP321 for an unknown word, AMP505 for a device that is not here.
    """
    known = [*PROVIDERS, "auto"]
    device = device_word(device)
    if device not in known:
        hint = nearest(str(device), known) or f"there are: {', '.join(known)}"
        raise AmpError("AMP321", f"unknown device '{device}'", hint=hint)
    ort = import_onnxruntime()
    here = set(ort.get_available_providers())
    if "CUDAExecutionProvider" in here and hasattr(ort, "preload_dlls") and device in ("auto", "cuda", "tensorrt"):
        ort.preload_dlls()  # CUDA's libraries may come with pip packages that nothing else points to
    if device == "auto":
        device = next(name for name in BEST_FIRST if PROVIDERS[name][0] in here)
    wanted = PROVIDERS[device]
    if wanted[0] not in here:
        message = ", ".join(sorted(name.removesuffix("ExecutionProvider") for name in here))
        raise AmpError(
            "AMP505",
            f"onnxruntime {ort.__version__} has no {wanted[0].removesuffix('ExecutionProvider')} here, only {message}",
            hint=_INSTALL[device](),
        )
    return device, tuple(name for name in wanted if name in here)
