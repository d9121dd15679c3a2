"""What the real loss scalers do, as `scalers.json`: python -m oracles.scalers write|check FRAMEWORK [APEX_CHECKOUT]

In tests. FRAMEWORK is torch, apex (with the path of a checkout of NVIDIA/apex at e13873de), keras, tf_keras or mxnet;
each runs in an environment of its own, which `environments.sh` makes.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import types
from pathlib import Path

ANSWERS = Path(__file__).with_name("scalers.json")
STEPS = 300
CASES = [(0, 65536.0, 5), (1, 2.0**23, 3), (2, 4.0, 50), (3, 2.0**15, 7), (4, 1.0, 400)]
"""(seed, first scale, interval)"""
SHARES = {2: 0.2}
"""How many of the steps of a seed overflow; else 0.03."""


def finite_steps(seed):
    """Which steps of a case are finite."""
    dice = random.Random(seed)
    return [dice.random() > SHARES.get(seed, 0.03) for _ in range(STEPS)]


def torch_scaler(init, interval):
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_interval=interval)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def step(factor):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale()

    return torch.__version__, step


def apex_scaler(init, interval):
    import torch

    package = types.ModuleType("apex")
    package.__path__ = [str(Path(sys.argv[3]) / "apex")]
    sys.modules["apex"] = package
    amp = types.ModuleType("apex.amp")  # without its __init__, which imports compiled extensions
    amp.__path__ = [str(Path(sys.argv[3]) / "apex" / "amp")]
    sys.modules["apex.amp"] = amp
    vars(torch.cuda)["IntTensor"] = lambda numbers: torch.tensor(numbers, dtype=torch.int32)
    module = importlib.import_module("apex.amp.scaler")
    module.multi_tensor_applier.available = False
    scaler = module.LossScaler("dynamic", init_scale=init, scale_window=interval)

    def step(factor):
        scaler.clear_overflow_state()
        scaler.unscale([torch.tensor([factor])], [torch.zeros(1)], None)
        scaler.update_scale()
        return scaler.loss_scale()

    return "e13873de", step


def keras_scaler(init, interval):
    import keras
    import numpy as np
    import tensorflow as tf

    sgd = keras.optimizers.SGD(0.0)
    optimizer = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=init, dynamic_growth_steps=interval)
    weight = keras.Variable(np.ones(1, "f4"))
    optimizer.build([weight])

    def step(factor):
        optimizer.apply([tf.constant([factor])], [weight])
        return float(optimizer.dynamic_scale)

    return keras.__version__, step


def tf_keras_scaler(init, interval):
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    import tf_keras

    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(0.0), dynamic=True, initial_scale=init, dynamic_growth_steps=interval
    )
    weight = tf.Variable([1.0])

    def step(factor):
        optimizer.apply_gradients([(tf.constant([factor]), weight)])
        return float(optimizer.loss_scale)

    return tf_keras.__version__, step


def mxnet_scaler(init, interval):
    import mxnet as mx
    from mxnet.contrib.amp.loss_scaler import LossScaler

    scaler = LossScaler()
    scaler._loss_scale = scaler._next_loss_scale = init
    scaler._scale_seq_len = interval

    def step(factor):
        parameter = types.SimpleNamespace(grad_req="write", _grad=[mx.nd.array([factor])])
        scaler.has_overflow([parameter])
        return float(scaler.loss_scale)

    return mx.__version__, step


SCALERS = {
    "torch": torch_scaler,
    "apex": apex_scaler,
    "keras": keras_scaler,
    "tf_keras": tf_keras_scaler,
    "mxnet": mxnet_scaler,
}


def answers(framework):
    """``{"version": ..., "traces": [[[scale, steps it stays], ...], ...]}``: the scale after every step, by case."""
    version, traces = "", []
    for seed, init, interval in CASES:
        version, step = SCALERS[framework](init, interval)
        runs: list[list[float]] = []
        for finite in finite_steps(seed):
            scale = step(1.0 if finite else float("inf"))
            if runs and runs[-1][0] == scale:
                runs[-1][1] += 1
            else:
                runs.append([scale, 1])
        traces.append(runs)
    return {"version": version, "traces": traces}


def main():
    framework = sys.argv[2]
    found = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    made = answers(framework)
    if sys.argv[1] == "check":
        sys.exit(0 if made == found[framework] else framework)
    rows = [f'"{name}": {json.dumps(one)}' for name, one in sorted({**found, framework: made}.items())]
    ANSWERS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
