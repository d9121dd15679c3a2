"""Training steps as they come out of build-step: bytes, packed forward graph, layout, types, operators."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import Adam
from ampgraph.training.step.packed_forward import FORWARD, pack, unpack
from ampgraph.training.step.training_step import KEY, TrainingStep
from present import present
from training.nets import Runner, blobs, linear_step, regression, weights, without_cuda_kernel

MODELS = Path(__file__).resolve().parents[2] / "models"


def build(model, **options):
    return build_training_step(model, **{"optimizer": "sgd:lr=0.5", "level": "O0", "loss": "loss", **options})


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    code = (
        "import sys; from ampgraph.api.build_step import build_training_step as build;"
        "build(sys.argv[1], loss='cross_entropy', optimizer='adamw', clip_norm=1.0, output=sys.argv[2])"
    )
    source, told = MODELS / "digits_cnn_forward.onnx", []
    for seed in ("1", "2"):
        output = tmp_path / f"{seed}.onnx"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(source), str(output)], env=environment, check=True, timeout=120)
        told.append(hashlib.sha256(output.read_bytes()).hexdigest())
    assert told[0] == told[1]


@pytest.fixture(scope="module")
def cnn():
    """Digits: convolutions, BatchNormalization and Dropout; by level."""
    source = MODELS / "digits_cnn_forward.onnx"
    return {
        level: build_training_step(source, loss="cross_entropy", optimizer="adam", level=level, clip_norm=1.0)
        for level in ("O0", "O1", "O2", "O3")
    }


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_the_packed_forward_graph_computes_the_same(cnn, level):
    step, source = cnn[level], onnx.load(MODELS / "digits_cnn_forward.onnx")
    stored = {name: value.const_value.numpy() for name, value in step.model.graph.initializers.items()}
    stored |= step.initial_state
    if level == "O3":  # its weights are rounded
        stored = {i.name: numpy_helper.to_array(i) for i in source.graph.initializer}
    packed = ir.to_proto(unpack(step.model.metadata_props[FORWARD], stored))
    onnx.checker.check_model(packed, full_check=True)
    made = []
    for model in (packed, source):
        without_dropout(model)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        [port] = session.get_inputs()
        shape = [dim if isinstance(dim, int) else 5 for dim in port.shape]
        made.append(
            session.run(None, {port.name: np.random.default_rng(4).standard_normal(shape).astype(np.float32)})[0]
        )
    np.testing.assert_array_equal(*made)


def without_dropout(model):
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]


# -- kernels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_every_operator_has_a_cuda_kernel(cnn, level):
    steps = [cnn[level], build(regression(), level=level, optimizer="sgd:lr=0.1,momentum=0.9", clip_norm=1.0)]
    steps.append(
        build(MODELS / "digits_transformer.onnx", level=level, loss="mse", loss_scale="dynamic:rule=mindspore")
    )
    assert not {kind for step in steps for kind in without_cuda_kernel(step)}


def test_a_step_prints_as_one_line():
    told = "level O2, dtype float16, loss loss, optimizer sgd, loss scale dynamic, 4 parameters, inputs x, t"
    assert repr(build(regression(), level="O2", loss_scale="dynamic")) == f"TrainingStep({told})"


def text_of(data: bytes) -> str:
    return base64.b85encode(data).decode()


@pytest.mark.parametrize(
    "text",
    ["", "no base 85 ", text_of(b"no zlib"), text_of(zlib.compress(bytes(100))[:-2]), text_of(zlib.compress(b"\xff"))],
)
def test_what_is_not_a_packed_graph(text):
    with pytest.raises(AmpError, match="AMP206.*cannot be read"):
        unpack(text, {})


def test_a_text_that_would_fill_the_memory_is_refused():
    stream, pieces = zlib.compressobj(9), []
    for _ in range(8):
        pieces.append(stream.compress(bytes(16 << 20)))
    text = text_of(b"".join(pieces) + stream.flush())  # 130 kilobytes hold 128 megabytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AmpError, match="AMP206.*cannot be read"):
        unpack(text, {})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_graph_that_is_nearly_empty_of_information_is_read_again():
    """Its text would be that of a bomb."""
    model = ir.from_proto(regression())
    model.metadata_props["note"] = "." * (2 << 20)
    found = unpack(pack(model), weights())
    assert found.metadata_props["note"] == model.metadata_props["note"]
    np.testing.assert_array_equal(present(found.graph.initializers["w1"].const_value).numpy(), weights()["w1"])


def test_a_packed_graph_wants_numbers_for_what_it_left_out():
    """Small weights are in the text; numbers of the step's state come before those that were only left out."""
    model = ir.from_proto(regression())
    big = ir.tensor(np.zeros((64, 64), np.float32), name="big")
    model.graph.initializers["big"] = ir.Value(name="big", shape=ir.Shape((64, 64)), const_value=big)
    text, ones = pack(model), np.ones((64, 64), np.float32)
    with pytest.raises(AmpError, match="AMP206.*no numbers for 'big'"):
        unpack(text, weights())
    for found in (unpack(text, {}, {"big": ones, "w1": ones}), unpack(text, {"big": ones}, {"big": ones * 2})):
        assert present(found.graph.initializers["big"].const_value).numpy().tobytes() == ones.tobytes()
        assert list(present(found.graph.initializers["w1"].shape)) == list(weights()["w1"].shape)


def _without(*names):
    return lambda d: d.update(states=[entry for entry in d["states"] if entry["name"] not in names])


HOSTILE = {
    "no such input": lambda d: d.update(inputs=["x", "labels", "nope"]),
    "an input fewer": lambda d: d.update(inputs=["x"], labels=""),
    "an input twice": lambda d: d.update(inputs=["x", "x", "labels"]),
    "an input that is state": lambda d: d.update(inputs=["x", "labels", "weight"]),
    "a number of inputs": lambda d: d.update(inputs=3),
    "inputs that are numbers": lambda d: d.update(inputs=[1, 2]),
    "no such loss": lambda d: d.update(loss="nope"),
    "no loss": lambda d: d.update(loss=""),
    "a loss that is a list": lambda d: d.update(loss=["loss"]),
    "a loss that is state": lambda d: d.update(loss="next/weight"),
    "no such flag": lambda d: d.update(finite="nope"),
    "no such norm": lambda d: d.update(norm="nope"),
    "a norm that is the flag": lambda d: d.update(norm=d["finite"]),
    "no such labels": lambda d: d.update(labels="nope"),
    "labels that are state": lambda d: d.update(labels="weight"),
    "no such state": lambda d: d["states"][0].update(name="nope"),
    "a state twice": lambda d: d["states"].append(d["states"][0]),
    "a state with a list for a name": lambda d: d["states"][0].update(name=["a"]),
    "a state with a number for an output": lambda d: d["states"][0].update(output=7),
    "a state with a number for a kind": lambda d: d["states"][0].update(kind=None),
    "a state of another size": lambda d: d["states"][0].update(shape=[7, 9]),
    "a state with a text for a shape": lambda d: d["states"][0].update(shape="two"),
    "a state with a number for a shape": lambda d: d["states"][0].update(shape=3),
    "a state with sizes below 0": lambda d: d["states"][0].update(shape=[-1, -1]),
    "one output for two states": lambda d: d["states"][1].update(output=d["states"][0]["output"]),
    "a field too many": lambda d: d["states"][0].update(more=1),
    "no learning rates": _without("step/learning_rates"),
    "no weight": _without("weight"),
    "options that are a list": lambda d: d.update(options=[1]),
    "classes that are text": lambda d: d.update(classes="3"),
    "another version": lambda d: d.update(version=99),
    "no version": lambda d: d.pop("version"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("layout") / "step.onnx"
    linear_step(Adam(0.1), DynamicLossScale(), clip=1.0).save(path)
    return onnx.load(path)


def saved(model, path, text):
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    next(row for row in changed.metadata_props if row.key == KEY).value = text
    onnx.save(changed, path)
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_description_that_does_not_fit(model, tmp_path, name):
    data = json.loads(next(row.value for row in model.metadata_props if row.key == KEY))
    HOSTILE[name](data)
    path = saved(model, tmp_path / "step.onnx", json.dumps(data))
    with pytest.raises(AmpError, match="AMP206") as found:
        TrainingStep.load(path)
    assert found.value.hint and found.value.where == str(path)


@pytest.mark.parametrize("text", ["", "[1]", "3", "null", '"version"', "{", "[" * 100000])
def test_a_description_that_is_none(model, tmp_path, text):
    with pytest.raises(AmpError, match="AMP206"):
        TrainingStep.load(saved(model, tmp_path / "step.onnx", text))


def test_the_real_one(model, tmp_path):
    text = next(row.value for row in model.metadata_props if row.key == KEY)
    step = TrainingStep.load(saved(model, tmp_path / "step.onnx", text))
    found = step.layout
    assert (found.scale, found.count) == ("step/scale", "step/count")
    assert found.rate_tables == [("step/learning_rates", "step/last_rate")]
    assert Trainer(step, "cpu").step({name: array[:16] for name, array in blobs().items()}).finite
    assert linear_step().layout.scale == ""


WIDTH, HEADS, LENGTH, ROWS = 8, 2, 5, 4


class Masked(nn.Dropout):
    """Dropout by a mask that is given."""

    mask: torch.Tensor | None = None

    def forward(self, x):
        return super().forward(x) if self.mask is None else x * self.mask.reshape(x.shape) / (1 - self.p)


class Transformer(nn.Module):
    """Dropout where BERT has it: of the embedding, of the attention, of both branches."""

    def __init__(self):
        super().__init__()
        self.words, self.norms = nn.Embedding(20, WIDTH), nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.queries, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.drops = nn.ModuleList(Masked(p) for p in (0.1, 0.3, 0.2, 0.5))

    def forward(self, ids):
        x = self.drops[0](self.words(ids))
        heads = self.queries(x).reshape(ids.shape[0], LENGTH, HEADS, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, -1)
        chances = self.drops[1](torch.softmax(q @ k.transpose(-1, -2) / 2, -1))
        mixed = (chances @ v).transpose(1, 2).reshape(ids.shape[0], LENGTH, WIDTH)
        x = self.norms[0](x + self.drops[2](self.mixed(mixed)))
        x = self.norms[1](x + self.drops[3](self.down(nn.functional.gelu(self.up(x)))))
        return self.last(x.mean(1))


def masks_of(step):
    """Adds the masks of a step to its outputs, in the order of the forward."""
    graph = step.model.graph
    found: list[ir.Value] = []
    for node in graph:
        mask = node.inputs[0] if node.op_type == "Where" else None
        maker = None if mask is None else mask.producer()
        if mask is None or maker is None or maker.op_type != "Reshape" or mask.dtype != ir.DataType.BOOL:
            continue
        if mask not in found:
            found.append(mask)
    graph.outputs.extend(found)
    return [mask.name for mask in found]


@pytest.mark.slow
def test_it_trains_as_torch_does_with_the_same_masks(tmp_path):
    torch.manual_seed(3)
    module, random = Transformer(), np.random.default_rng(0)
    ids, labels = random.integers(0, 20, (ROWS, LENGTH)), random.integers(0, 3, ROWS)
    ampgraph.export_for_training(module, (torch.tensor(ids),), tmp_path / "forward.onnx")
    step = build_training_step(tmp_path / "forward.onnx", loss="cross_entropy", optimizer="sgd:lr=0.5", level="O0")
    names, runner = masks_of(step), None
    assert len(names) == 4
    runner, optimizer, seen = Runner(step), torch.optim.SGD(module.parameters(), 0.5), []
    for _ in range(3):
        made = runner({"ids": ids, "labels": labels})
        for drop, name in zip(module.drops, names, strict=True):
            drop.mask = torch.tensor(made[name]).float()
        seen.append(b"".join(made[name].tobytes() for name in names))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.tensor(ids)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        assert made["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert len(set(seen)) == 3
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(runner.state[name], parameter.detach(), rtol=1e-4, atol=1e-5, err_msg=name)
