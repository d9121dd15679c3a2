"""The peak of a GPU's used memory while something runs, by whatever can tell it: NVML, nvidia-smi or torch."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable

MIB = 2**20
Reader = Callable[[], float]


def nvml(index: int) -> Reader:
    """By NVML, the quickest: microseconds a reading."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used / MIB


def nvidia_smi(index: int) -> Reader:
    """By a process for every reading: slow, so that short peaks are missed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise FileNotFoundError("nvidia-smi")
    command = [tool, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", str(index)]
    return lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])


def torch_info(index: int) -> Reader:
    """By torch, which makes a CUDA context of its own in this process; that one is in the baseline then."""
    import torch

    def used() -> float:
        free, total = torch.cuda.mem_get_info(index)
        return (total - free) / MIB

    return used


def reader(index: int) -> tuple[str, Reader] | None:
    """The first way that works here, with its name."""
    for make in (nvml, nvidia_smi, torch_info):
        try:
            read = make(index)
            read()
        except Exception:  # noqa: S112 - each of them fails in its own way where there is no GPU
            continue
        return make.__name__, read
    return None


class Peak:
    """Samples in a thread from `with` to its end; `peak_mb` is above the use before, so other processes cancel out."""

    def __init__(self, read: Reader, seconds: float = 0.002) -> None:
        self.read, self.seconds = read, seconds
        self.before = self.highest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Peak:
        self.before = self.highest = self.read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.highest = max(self.highest, self.read())

    @property
    def peak_mb(self) -> float:
        """The highest reading above the first one."""
        return self.highest - self.before

    def _sample(self) -> None:
        while not self._stop.is_set():
            self.highest = max(self.highest, self.read())
            time.sleep(self.seconds)
