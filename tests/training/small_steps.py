"""A small forward graph with its loss, and running a step graph by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import ModelProto, numpy_helper

from ampgraph.api.build_step import build_training_step
from ampgraph.runtime.onnxruntime_session import CRASHING
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse

INPUTS, HIDDEN, OUTPUTS, BATCH = 6, 8, 3, 16
WEIGHTS = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, OUTPUTS), "b2": (OUTPUTS,)}


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) / 2 for name, shape in WEIGHTS.items()}


def regression() -> ModelProto:
    """tanh(x w1 + b1) w2 + b2 against t: the mean square error is the output ``loss``."""
    model = parse(
        f"""g (float[N,{INPUTS}] x, float[N,{OUTPUTS}] t) => (float loss) {{
          m1 = MatMul (x, w1)  a1 = Add (m1, b1)  h = Tanh (a1)
          m2 = MatMul (h, w2)  y = Add (m2, b2)
          d = Sub (y, t)  s = Mul (d, d)  loss = ReduceMean <keepdims = 0> (s)
        }}""",
        opset=20,
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights().items())
    return model


def batches(count: int, seed: int = 3) -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        x = random.standard_normal((BATCH, INPUTS)).astype(np.float32)
        yield {"x": x, "t": np.tanh(x[:, :OUTPUTS]).astype(np.float32)}


def torch_loss(parameters: Mapping[str, torch.Tensor], batch: Mapping[str, np.ndarray]) -> torch.Tensor:
    x, t = torch.tensor(batch["x"]), torch.tensor(batch["t"])
    h = torch.tanh(x @ parameters["w1"] + parameters["b1"])
    return ((h @ parameters["w2"] + parameters["b2"] - t) ** 2).mean()


class Runner:
    """A step graph on ONNX Runtime, its state as arrays."""

    def __init__(self, step: TrainingStep) -> None:
        self.step, self.state = step, step.initial_state
        proto = ir.to_proto(step.model)
        onnx.checker.check_model(proto, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # it warns of every initializer that is an input
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), options, disabled_optimizers=CRASHING)
        self.names = [output.name for output in self.session.get_outputs()]

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = dict(zip(self.names, self.session.run(None, {**self.step.fed(self.state), **batch}), strict=True))
        states = self.step.layout.states
        self.state = {e.name: e.seen(found[e.output]) if e.output else self.state[e.name] for e in states}
        return found


def layers(count: int, **options: Any) -> TrainingStep:
    """Products of 4 x 4 one behind the other, and a bias behind each."""
    body = "  ".join(f"m{n} = MatMul (h{n}, w{n})  h{n + 1} = Add (m{n}, b{n})" for n in range(count))
    model = parse(
        f"g (float[N,4] h0) => (float[N,4] h{count}) {{ {body} }}",
        {f"w{n}": np.eye(4, dtype=np.float32) for n in range(count)}
        | {f"b{n}": np.zeros(4, np.float32) for n in range(count)},
    )
    given: dict[str, Any] = {
        "optimizer": "adamw",
        "loss_scale": "dynamic",
        "clip_norm": 1.0,
        "ema": 0.99,
        "level": "O0",
    }
    return build_training_step(model, loss="mse", **{**given, **options})


def update_nodes(step: TrainingStep) -> Counter[str]:
    """Nodes that the update adds, but for views of memory: by operator."""
    found = Counter(node.op_type for node in step.model.graph if (node.name or "").startswith("step/"))
    return Counter({kind: count for kind, count in found.items() if kind not in ("Reshape", "Identity")})
