"""Many models, converted, and opened as users open them."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
import torch
from onnx import ModelProto
from torch import nn

import ampgraph
from ampgraph.runtime.opening import Opening, open_each
from conformance.cases import case, index
from fuzz.checks import kept
from onnx_text import proto

FOUND = sorted((Path(__file__).parents[1] / "fuzz" / "found").glob("*.onnx"))
BATCH = 64  # files on the disk at once


@dataclass(frozen=True)
class Way:
    """How a model is converted."""

    level: str
    dtype: str
    target: str

    def __str__(self) -> str:
        return f"{self.level}-{self.dtype}-{self.target}"


# Recurrent layers and encoders with the batch first, as TorchScript writes them, with a Linear behind them.


class Recurrent(nn.Module):
    """A recurrent layer, and what reads all its states."""

    def __init__(self, kind: str, bidirectional: bool = False) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(12, 16, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(16 * (1 + bidirectional), 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0])


class Encoder(nn.Module):
    """Two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class Attention(nn.Module):
    """Attention that gives its weights too: in Reshapes to computed sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(12, 3, batch_first=True), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x, x, x)[0])


MODELS = {
    "lstm": lambda: Recurrent("LSTM"),
    "gru": lambda: Recurrent("GRU"),
    "rnn": lambda: Recurrent("RNN"),
    "bilstm": lambda: Recurrent("LSTM", bidirectional=True),
    "encoder": Encoder,
    "attention": Attention,
}
OPSETS = {"attention": 13}  # the last in which onnx infers no rank of such a Reshape; the others are of 17


@cache
def scripted(name: str) -> onnx.ModelProto:
    """A model with sizes of batch and sequence that are open."""
    torch.manual_seed(0)
    open_sizes = {0: "batch", 1: "length"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "model.onnx")
        torch.onnx.export(
            MODELS[name]().eval(), (torch.randn(2, 5, 12),), path, dynamo=False, opset_version=OPSETS.get(name, 17),
            input_names=["x"], output_names=["y"], dynamic_axes={"x": open_sizes, "y": open_sizes},
        )  # fmt: skip
        return onnx.load(path)


BOTH = ("float16", "bfloat16")
TYPES = {"cuda": BOTH, "tensorrt": BOTH, "cann": BOTH, "cpu": BOTH, "webgpu": ("float16",), "openvino": ("bfloat16",)}
WAYS = [
    Way(level, dtype, target)
    for target, dtypes in TYPES.items()
    for level in ("O1", "O2", "O3", "auto")
    for dtype in dtypes
]
EXPORTS = [f"script/{name}" for name in MODELS]
FAULTS = [f"found/{path.stem}" for path in FOUND]


def suite() -> list[str]:
    """The backend suite of onnx, as far as it has float32 in or out."""
    found = index()
    return [f"suite/{name}" for name in sorted(found.ops) if name not in found.without_float]


def model(name: str) -> ModelProto:
    """A model by where it is from."""
    source, _, one = name.partition("/")
    if source == "file":
        return onnx.load(one)
    if source == "script":
        return scripted(one)
    if source == "suite":
        return case(one).proto()
    return kept(next(path for path in FOUND if path.stem == one))[0].model


@dataclass(frozen=True)
class Opened:
    """A file, and how it opened."""

    name: str
    way: Way | None
    how: Opening

    def __str__(self) -> str:
        return f"{self.name} {self.way or 'as it is'}: {self.how.said or 'opens'}"


def opened(cells: Iterable[tuple[str, Way | None]]) -> Iterator[Opened]:
    """How the files of models open that are converted in some ways, or not at all."""
    batch: list[tuple[str, Way | None]] = []
    for cell in cells:
        batch.append(cell)
        if len(batch) == BATCH:
            yield from _opened(batch)
            batch = []
    yield from _opened(batch)


def _opened(cells: Sequence[tuple[str, Way | None]]) -> list[Opened]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.onnx") for number in range(len(cells))]
        for path, (name, way) in zip(paths, cells, strict=True):
            given = model(name)
            if way is not None:
                given = proto(ampgraph.convert(given, way.level, dtype=way.dtype, target=way.target, check="off"))
            path.write_bytes(given.SerializeToString())
        return [Opened(name, way, how) for (name, way), how in zip(cells, open_each(paths), strict=True)]


def killing(cells: Sequence[tuple[str, Way]]) -> list[str]:
    """Files that kill the runtime though their models do not."""
    dead = [one for one in opened(cells) if one.how.died]
    before = {one.name: one.how.died for one in opened((name, None) for name in {one.name for one in dead})}
    return [str(one) for one in dead if not before[one.name]]
