"""LSTM and GRU through the export: one operator in the file, and in the model that is written for inference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import ampgraph
from share import FULL

pytestmark = pytest.mark.slow


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
    module, x = Reader(), torch.randn(6, 4, 3)
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
