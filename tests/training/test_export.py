"""export_for_training against torch's own, what it refuses, and which initializers are parameters."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.models.digits import load_split
from ampgraph.training.forward.parameters import find_parameters
from ampgraph.training.forward.read import read_forward
from present import present
from share import FULL


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


def test_attention_keeps_its_dropout(tmp_path):
    ampgraph.export_for_training(Attention(0.25), (torch.zeros(3, 5, 8),), tmp_path / "net.onnx")
    [dropout] = [node for node in onnx.load(tmp_path / "net.onnx").graph.node if node.op_type == "Dropout"]
    assert len(dropout.input) == 3
    step = ampgraph.build_training_step(tmp_path / "net.onnx", loss="mse", optimizer="sgd:lr=0.1")
    assert "step/iteration" in step.initial_state


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
    assert str(made) == os.fspath(made) == made.path
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


class Smoothed(nn.Module):
    def __init__(self, smoothing: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.smoothing = smoothing

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y, label_smoothing=self.smoothing)


class Twice(nn.Module):
    """Two layers, put together by a function."""

    def __init__(self, together) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.together = nn.Linear(6, 6), nn.Linear(6, 4), together

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.together(self, x)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return (x > 0).float()

    @staticmethod
    def backward(context, g):
        return g


def without_gradient(module, x):
    with torch.no_grad():
        hidden = module.one(x)
    return module.two(hidden + x)


LABELS = torch.tensor([0, 1, 2, 0, 1])


class Counting(nn.Linear):
    """What it computes depends on how often it was called: a graph has only one of them."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


def test_what_a_graph_computes_otherwise_is_refused(tmp_path):
    args, path = (torch.randn(5, 4),), tmp_path / "forward.onnx"
    with pytest.raises(
        AmpError, match=r"AMP214.*output '.*' is [-\d.]+ at \[.*\] in the exported graph, and [-\d.]+ by"
    ):
        ampgraph.export_for_training(Counting(4, 3), args, path)
    assert not path.exists()
    ampgraph.export_for_training(Counting(4, 3), args, path, check=False)
    assert path.exists()


def test_dropout_and_batch_norm_are_no_difference(tmp_path):
    module = Smoothed(0.0).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    ampgraph.export_for_training(module, (torch.randn(5, 4), LABELS), tmp_path / "forward.onnx")
    assert all(part.training for part in module.modules()) and all(p.grad is None for p in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    "together", [without_gradient, lambda m, x: m.two(Straight.apply(m.one(x)))], ids=["no_grad", "function"]
)
def test_gradients_that_a_graph_cannot_tell_are_refused(tmp_path, together):
    with pytest.raises(AmpError, match=r"AMP214.*gradient of 'one.weight' is .* by the exported graph, and .* by the"):
        ampgraph.export_for_training(Twice(together), (torch.randn(5, 6),), tmp_path / "forward.onnx")
    assert not (tmp_path / "forward.onnx").exists()


def test_a_hook_is_refused(tmp_path):
    first = nn.Linear(6, 6)
    module = nn.Sequential(first, nn.Linear(6, 4))
    first.weight.register_hook(lambda g: 2 * g)
    with pytest.raises(AmpError, match=r"AMP214.*gradient of '0.weight'"):
        ampgraph.export_for_training(module, (torch.randn(5, 6),), tmp_path / "forward.onnx")


TOGETHER = {
    "a branch": lambda m, x: m.two(m.one(x) - m.one(x).softmax(-1).detach()),
    "straight through": lambda m, x: m.two(m.one(x) + (m.one(x).round() - m.one(x)).detach()),
    "one value twice": lambda m, x: (lambda h: m.two(h.detach() * h + h.detach().tanh()))(m.one(x)),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_detached_gets_no_gradient(tmp_path, name):
    module, x = Twice(TOGETHER[name]), torch.randn(5, 6)
    compare(tmp_path, module, x)


def test_the_padding_of_an_embedding_gets_no_gradient(tmp_path):
    module = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(12, 4))
    compare(tmp_path, module, torch.tensor([[2, 1, 2], [0, 2, 6], [5, 5, 2], [1, 1, 1], [2, 2, 2]]))


def compare(folder, module, x):
    """One step of plain descent, as torch makes it."""
    torch.manual_seed(1)
    ampgraph.export_for_training(module, (x,), folder / "forward.onnx")
    step = ampgraph.build_training_step(
        folder / "forward.onnx", loss="cross_entropy", optimizer="sgd:lr=0.5", level="O0"
    )
    trainer = ampgraph.Trainer(step)
    trainer.step({step.layout.inputs[0]: x.numpy(), "labels": LABELS.numpy()})
    nn.functional.cross_entropy(module(x), LABELS).backward()
    for name, parameter in module.named_parameters():
        expected = (parameter - 0.5 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(trainer.state[name], expected, rtol=1e-4, atol=1e-6)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return found


def kinds(path: object) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]  # type: ignore[arg-type]


def test_the_trained_file_has_the_operator_and_torchs_weights(tmp_path):
    torch.manual_seed(0)
    module, x = Reader(), torch.randn(6, 2, 3)
    losses = {}
    for unroll in (False, True):
        made = ampgraph.export_for_training(module, (x,), tmp_path / f"{unroll}.onnx", unroll=unroll)
        assert kinds(made).count("LSTM") == (0 if unroll else 1)
        assert sorted(made.parameters) == sorted(name for name, _ in module.named_parameters())
        trainer = ampgraph.Trainer(
            ampgraph.build_training_step(made, level="O0", loss="cross_entropy", optimizer="sgd:lr=0.5")
        )
        feeds = {"x": x.numpy(), "labels": np.array([0, 1, 1] * 2)}
        losses[unroll] = [trainer.step(feeds).loss for _ in range(3)]
        trainer.export_weights(tmp_path / f"trained {unroll}.onnx")
    np.testing.assert_allclose(losses[False], losses[True], rtol=1e-6)
    assert losses[True][-1] < losses[True][0]
    module.load_state_dict({name: torch.from_numpy(trainer.state[name]) for name in made.parameters})
    wanted = module(x).detach().numpy()
    for unroll in (False, True):
        [found] = ampgraph.run(tmp_path / f"trained {unroll}.onnx", {"x": x.numpy()}, device="cpu").values()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert kinds(tmp_path / "trained False.onnx").count("LSTM") == 1


@pytest.mark.parametrize(("kind", "unroll"), [(nn.RNN, False), *([(nn.LSTM, False), (nn.GRU, True)] if FULL else [])])
def test_dropout_between_layers_is_kept(tmp_path, kind, unroll):
    """torch's own decomposition leaves it out."""
    module, x = kind(3, 4, num_layers=2, dropout=0.5), torch.randn(5, 2, 3)
    made = ampgraph.export_for_training(module, (x,), tmp_path / "forward.onnx", unroll=unroll, dynamic_batch=False)
    assert kinds(made).count("Dropout") == 1


class Lossy(torch.nn.Module):
    """What exports for inference change: a norm behind a convolution, and Dropout."""

    def __init__(self, norm: bool, dropout: bool) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.BatchNorm2d(2) if norm else torch.nn.Identity()
        self.drop = torch.nn.Dropout() if dropout else torch.nn.Identity()
        self.out = torch.nn.Linear(2 * 16, 3)

    def forward(self, x):
        return self.out(self.drop(self.norm(self.conv(x))).flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "said"), [(True, "BatchNormalization is folded"), (False, "Dropout is gone, if")])
def test_a_plain_export_is_said_to_be_another_network(tmp_path, norm, said):
    path, x = tmp_path / "m.onnx", torch.zeros(2, 1, 6, 6)
    words: dict[str, Any] = {"input_names": ["x"], "opset_version": 18, "verbose": False}
    for dynamo in (False, True) if not norm else (False,):  # with a norm the newer one loses parameters: AMP211 says so
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(Lossy(norm, True).eval(), (x,), path, dynamo=dynamo, **words)
        notes = ampgraph.build_training_step(path, loss="cross_entropy", optimizer="sgd").notes
        assert [said in note.text and "export_for_training keeps" in note.text for note in notes] == [True], dynamo
    ampgraph.export_for_training(Lossy(norm, dropout=False), (x,), path)
    assert not ampgraph.build_training_step(path, loss="cross_entropy", optimizer="sgd").notes
