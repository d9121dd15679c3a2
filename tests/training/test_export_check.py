"""What the exporter leaves out is told: graph and module are run side by side."""

import warnings

import pytest
import torch
from torch import nn

import ampgraph


class Smoothed(nn.Module):
    """torch's exporter drops ``label_smoothing``."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.smoothing = smoothing

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y, label_smoothing=self.smoothing)


def export(module: nn.Module, path) -> None:
    ampgraph.export_for_training(module, (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])), path)


def test_a_loss_without_its_smoothing_is_told(tmp_path):
    with pytest.warns(
        UserWarning, match=r"output '.*' of the exported graph is [\d.]+ at \[\], and [\d.]+ by the module"
    ):
        export(Smoothed(0.3), tmp_path / "forward.onnx")
    assert (tmp_path / "forward.onnx").exists()


def test_dropout_and_batch_norm_are_no_difference(tmp_path):
    module = Smoothed(0.0).train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*exported graph.*")
        export(module, tmp_path / "forward.onnx")
    assert all(part.training for part in module.modules())
