# """Training a .mindir file of forward and loss on MindSpore, which differentiates it; optimizer and scaler are yours.
#
#    step = ampgraph.mindspore.train_step(
#        "loss.O2.mindir", lambda params: nn.Momentum(params, 0.05, 0.9), amp.DynamicLossScaler(2**16, 2, 1000)
#    )
#    for x, y in batches:
#        result = step(x, y)  # result.loss, result.finite, result.scale
# """
#
# from __future__ import annotations
#
# import contextlib
# import os
# from collections.abc import Callable
# from pathlib import Path
# from typing import Any
#
# import numpy as np
#
# from .errors import AmpError, first_line
# from .runtime import mindspore as runtime
# from .training.loss_scale import DynamicLossScale, LossScaleState, StaticLossScale
# from .training.mindspore_step import CellScale, HostScale, ScalerScale, compiled_step
#
# __all__ = ["StepResult", "TrainStep", "train_step"]
