"""A BERT-like encoder exported from torch: converted in memory, verified, and tuned to a tolerance."""

from __future__ import annotations

from pathlib import Path

import torch

import ampgraph

WIDTH, WORDS, LENGTH = 32, 100, 12


class Encoder(torch.nn.Module):
    """Embeddings, two layers of attention and feed-forward, a pooled output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, "gelu", batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(self.embed(input_ids))[:, 0])


def main(folder: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, WORDS, (2, LENGTH))
    program = torch.onnx.export(Encoder().eval(), (ids,), dynamo=True, verbose=False, input_names=["input_ids"])
    assert program is not None
    program.save(str(folder / "encoder.onnx"))
    low = ampgraph.convert(program, level="auto")  # an ONNXProgram again
    low.save(str(folder / "encoder.auto.onnx"))
    data = [{"input_ids": torch.randint(0, WORDS, (2, LENGTH)).numpy()} for _ in range(4)]
    found = ampgraph.verify(folder / "encoder.onnx", folder / "encoder.auto.onnx", data=data)
    print("verdict", "ok" if found.ok else "missed")
    tuned = ampgraph.tune(folder / "encoder.onnx", data=data, tolerance=5e-4)
    print("met" if tuned.met else "not met", "with", len(tuned.patterns), "patterns in float32")


if __name__ == "__main__":
    build = Path(__file__).resolve().parents[1] / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
