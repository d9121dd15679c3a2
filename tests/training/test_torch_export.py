"""export_for_training against what torch's exporter does to a training, and digits from torch to a trained model."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.models.digits import load_split
from ampgraph.training.forward.parameters import find_parameters
from ampgraph.training.forward.read import read_forward
from present import present

pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    """Two LayerNorms that start out equal, a BatchNorm behind a Conv, tied weights, a frozen parameter."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 6)
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.dropout = torch.nn.Dropout(dropout)
        self.first, self.second = torch.nn.LayerNorm(6), torch.nn.LayerNorm(6)
        self.hidden = torch.nn.Linear(4 * 64, 6)
        self.out = torch.nn.Linear(6, 10, bias=False)
        self.out.weight = self.embedding.weight
        self.second.bias.requires_grad_(False)

    def forward(self, image):
        rows = self.dropout(torch.relu(self.norm(self.conv(image)))).flatten(1)
        return self.out(self.second(torch.relu(self.first(self.hidden(rows))))) + self.embedding.weight.sum()


TRAINED = ["conv.bias", "conv.weight", "embedding.weight", "first.bias", "first.weight", "hidden.bias"]
TRAINED += ["hidden.weight", "norm.bias", "norm.weight", "second.weight"]


def make(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return Net(dropout)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "net.onnx"
    net = make(0.25).eval()
    net.first.train()
    ampgraph.export_for_training(net, (torch.zeros(3, 1, 8, 8),), path)
    assert not net.training and not net.norm.training and net.first.training, "its modes are put back"
    return path


@pytest.fixture(scope="module")
def digits():
    (image, labels), (held_image, held_labels) = load_split()
    return {"image": image, "labels": labels}, {"image": held_image, "labels": held_labels}


def test_nothing_is_merged_folded_or_renamed(exported):
    model = read_forward(str(exported))
    assert sorted(present(value.name) for value in find_parameters(model)) == TRAINED
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("LayerNormalization") == 2 and {"BatchNormalization", "Dropout"} <= set(kinds)
    assert {"norm.running_mean", "norm.running_var", "second.bias"} <= set(model.graph.initializers)
    assert "out.weight" not in model.graph.initializers
    onnx.checker.check_model(exported, full_check=True)


def test_torch_without_help_loses_parameters(tmp_path):
    """What the helper is for: if this fails, torch's exporter has changed."""
    program = torch.onnx.export(make().train(), (torch.zeros(3, 1, 8, 8),), dynamo=True, verbose=False)
    kept = set(present(program).model.graph.initializers)
    assert not {"first.weight", "second.weight", "norm.weight"} <= kept


def test_the_same_module_gives_the_same_bytes_without_paths(exported, tmp_path):
    ampgraph.export_for_training(make(0.25), (torch.zeros(3, 1, 8, 8),), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == exported.read_bytes()
    assert __file__.encode() not in exported.read_bytes()


class Attention(torch.nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share
        self.line, self.bias = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.zeros(5, 5))

    def forward(self, x):
        heads = self.line(x).view(-1, 5, 2, 4).transpose(1, 2)
        share = self.share if self.training else 0.0
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, self.bias, share)
        return mixed.transpose(1, 2).contiguous().view(x.shape)


def test_attention_with_a_trained_bias(tmp_path):
    """What is added to scores is trained; T5 and Swin as a whole are in test_architectures."""
    ampgraph.export_for_training(Attention(0.0), (torch.zeros(3, 5, 8),), tmp_path / "net.onnx")
    step = ampgraph.build_training_step(tmp_path / "net.onnx", loss="mse", optimizer="sgd:lr=0.1")
    assert step.parameters == ["bias", "line.weight", "line.bias"]


def test_attention_keeps_its_dropout(tmp_path):
    ampgraph.export_for_training(Attention(0.25), (torch.zeros(3, 5, 8),), tmp_path / "net.onnx")
    [dropout] = [node for node in onnx.load(tmp_path / "net.onnx").graph.node if node.op_type == "Dropout"]
    assert len(dropout.input) == 3
    step = ampgraph.build_training_step(tmp_path / "net.onnx", loss="mse", optimizer="sgd:lr=0.1")
    assert "step/iteration" in step.initial_state


def test_a_fixed_batch(tmp_path):
    ampgraph.export_for_training(make(), (torch.zeros(1, 1, 8, 8),), tmp_path / "one.onnx", dynamic_batch=False)
    dims = onnx.load(tmp_path / "one.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 1, 8, 8]


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.line(x) if x.sum() > 0 else x


class Determined(torch.nn.Linear):
    def forward(self, x):
        return torch.linalg.qr(super().forward(x))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, told", [(Branching, "torch.where"), (lambda: Determined(2, 2), "has no form in ONNX")]
)
def test_a_refusal_names_what_to_change_and_torch_says_nothing(tmp_path, capfd, module, told):
    with pytest.raises(AmpError, match="AMP214") as found:
        ampgraph.export_for_training(module(), (torch.zeros(2, 2),), tmp_path / "x.onnx")
    assert told in (found.value.hint or "") and capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_what_was_written_is_returned(tmp_path, capfd):
    made = ampgraph.export_for_training(torch.nn.Linear(4, 3), (torch.zeros(2, 4),), tmp_path / "x.onnx")
    assert (made.path, made.inputs, made.parameters) == (str(tmp_path / "x.onnx"), ["input"], ["weight", "bias"])
    step = ampgraph.build_training_step(made, loss="mse", optimizer="sgd")
    assert step.parameters == made.parameters and len(made.outputs) == 1
    assert capfd.readouterr() == ("", "") and logging.root.manager.disable == 0


@pytest.mark.parametrize(
    "module, args, told",
    [
        (lambda: make().half(), (torch.zeros(2, 1, 8, 8),), "float16"),
        (make, (torch.zeros(1, 1, 8, 8),), "batch of 1"),
        (Branching, (torch.zeros(2, 2),), "cannot export"),
    ],
)
def test_what_cannot_be_exported(tmp_path, module, args, told):
    with pytest.raises(AmpError, match="AMP214") as found:
        ampgraph.export_for_training(module(), args, tmp_path / "x.onnx")
    assert told in str(found.value) and found.value.hint and not list(tmp_path.iterdir())


def test_without_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    nothing: Any = None
    with pytest.raises(AmpError, match="AMP501"):
        ampgraph.export_for_training(nothing, (), tmp_path / "x.onnx")


# -- from torch to a trained model ------------------------------------------------------------------------------------


def test_steps_are_those_of_torch(tmp_path, digits):
    """The losses, the weights and the running statistics of six steps, O0."""
    ampgraph.export_for_training(make(), (torch.zeros(3, 1, 8, 8),), tmp_path / "net.onnx")
    step = ampgraph.build_training_step(
        tmp_path / "net.onnx", loss="cross_entropy", optimizer=ampgraph.SGD(0.05, momentum=0.9), level="O0"
    )
    trainer, net = ampgraph.Trainer(step), make().train()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for start in range(0, 6 * 32, 32):
        batch = {name: array[start : start + 32] for name, array in digits[0].items()}
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(batch["image"])), torch.tensor(batch["labels"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step(batch).loss == pytest.approx(loss.item(), rel=1e-5)
    state, theirs = trainer.state, net.state_dict()
    assert sorted(step.parameters) == TRAINED
    for name in [*TRAINED, "norm.running_mean", "norm.running_var"]:
        np.testing.assert_allclose(state[name], theirs[name].numpy(), rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    """A small CNN with BatchNorm and Dropout."""
    torch.manual_seed(0)
    nn = torch.nn
    front = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    back = [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10)]
    path = tmp_path_factory.mktemp("cnn") / "cnn.onnx"
    ampgraph.export_for_training(nn.Sequential(*front, *back), (torch.zeros(3, 1, 8, 8),), path)
    return path


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1,momentum=0.9", "adamw:lr=0.005"])
def test_digits_train_at_o2_as_at_o0(cnn, digits, tmp_path, optimizer):
    """Strict runs: every low value is rounded. Dropout repeats, for its counter is in the state."""
    train, held_out = ({"input": part["image"], "labels": part["labels"]} for part in digits)
    found = {}
    for level in ("O0", "O2"):
        step = ampgraph.build_training_step(str(cnn), loss="cross_entropy", optimizer=optimizer, level=level)
        trainer = ampgraph.Trainer(step, strict=True, threads=1)
        history = trainer.fit(train, epochs=4, batch_size=64, lr_schedule="cosine:warmup=10")
        found[level] = history.epochs[-1].loss, trainer.evaluate(held_out)["accuracy"]
        assert history.finite.all()
    assert found["O0"][0] != found["O2"][0], "a strict run rounds"
    assert found["O2"][0] == pytest.approx(found["O0"][0], rel=0.2)
    assert min(found["O0"][1], found["O2"][1]) > 0.93  # after four epochs; `test_digits` trains for longer
    trainer.export_weights(tmp_path / "trained.onnx")
    scores = ampgraph.run(tmp_path / "trained.onnx", {"input": held_out["input"]}, device="cpu")
    assert (next(iter(scores.values())).argmax(1) == held_out["labels"]).mean() == found["O2"][1]
    stored = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    assert np.array_equal(stored["1.running_mean"], trainer.state["1.running_mean"])
