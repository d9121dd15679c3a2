"""NVIDIA Apex's amp on the CPU, on the facades of facade.py.

Only apex/amp, apex/fp16_utils and apex/multi_tensor_apply are run, which are plain Python; what needs compiled
extensions is left out. Apex is on no index: give the path of a checkout of commit e13873de.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import torch

from oracles.facade import Facade

COMMIT = "e13873de"


def load(checkout):
    """apex.amp of a checkout, without what it would compile."""
    torch.version.cuda = "12.8"  # amp asks it whether bmm is fast in float16
    source = Path(checkout) / "apex"

    def package(name):
        module = types.ModuleType(name)
        module.__path__ = [str(source.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
        return module

    apex = package("apex")
    apex.DeprecatedFeatureWarning, apex.deprecated_warning = FutureWarning, lambda *_: None
    for name, cls in (
        ("apex.contrib", ""), ("apex.contrib.optimizers", "FP16_Optimizer"), ("apex.optimizers", "FusedSGD"),
        ("apex.parallel", "DistributedDataParallel"), ("apex.parallel.LARC", "LARC"),
    ):  # fmt: skip
        module = package(name)
        if cls:
            setattr(module, cls, type(cls, (), {}))
    setattr(torch.cuda, "IntTensor", lambda value: torch.tensor(value, dtype=torch.int32))  # noqa: B010
    amp = importlib.import_module("apex.amp")
    sys.modules["apex.amp._amp_state"]._amp_state.allow_incoming_model_not_fp32 = True  # it is not on CUDA yet
    return amp


def initialized(amp, module, level, **options):
    """A module under a level: apex casts its plain tensors, which then become facades."""
    done = amp.initialize(module, None, opt_level=level, verbosity=0, **options)
    for part in done.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = torch.nn.Parameter(Facade(value.detach()), requires_grad=False)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = Facade(value)
        for name in getattr(part, "_flat_weights_names", ()):  # a recurrent module keeps its weights twice
            part._flat_weights[part._flat_weights_names.index(name)] = part._parameters[name]
    return done
