"""Digests of training steps: the file that is built, and the state after a few strict steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ampgraph
from digests.conversions import DTYPES, LEVELS, of_file, written
from digests.runs import given_of, of_values
from digests.table import Row

COLUMNS = LEVELS
DIGITS_FORWARD = "digits_cnn_forward.onnx"
GRAPHS = ("BERT", "GPT-2", "Llama", "ViT", "ResNet", "ConvNeXt", "Swin", "T5", "CLIP", "Whisper")
BATCHES, ROWS = 3, 32


@dataclass(frozen=True)
class Configuration:
    """``source``: the digits, an architecture, or a graph that the tests write."""

    source: str
    optimizer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "cross_entropy"


DIGITS = {
    "digits/sgd": Configuration("digits", "sgd:lr=0.1,momentum=0.9"),
    "digits/adam": Configuration("digits", "adam:lr=2e-3", {"clip_norm": 1.0}),
    "digits/adamw": Configuration("digits", "adamw:lr=2e-3", {"loss_scale": "static:1024"}),
    "digits/frozen": Configuration("digits", "sgd:lr=0.1", {"freeze": "*bias*", "loss_scale": None}),
}
WRITTEN = {
    "regression": Configuration("regression", "adam:lr=0.02", {"clip_norm": 0.5}, "loss"),
    "joint": Configuration("joint", "adam:lr=0.02", {"loss_scale": "dynamic:init=1024"}, "loss"),
}
ARCHITECTURES = {name: Configuration(name, "adamw:lr=1e-3") for name in GRAPHS}
ALL = {**DIGITS, **WRITTEN, **ARCHITECTURES}


def built(name: str, models: Path, forward_graphs: Callable[[], Path]) -> Iterator[Row]:
    """The file of a step at every level, in both low types."""
    with tempfile.TemporaryDirectory() as folder:
        source = _source(ALL[name].source, Path(folder), models, forward_graphs)
        given = of_file(source)
        for dtype in DTYPES:
            cells = tuple(_file(source, ALL[name], level, dtype, given) for level in LEVELS)
            yield Row(f"{name} {dtype}", given, cells)


def _source(name: str, folder: Path, models: Path, forward_graphs: Callable[[], Path]) -> Path:
    if name == "digits":
        return models / DIGITS_FORWARD
    if name in GRAPHS:
        return forward_graphs() / f"{name}.onnx"
    path = folder / "forward.onnx"
    path.write_bytes(_graph_of_the_tests(name))
    return path


def _graph_of_the_tests(name: str) -> bytes:
    from training.nets import joint, regression

    model = joint() if name == "joint" else regression()
    return model.SerializeToString(deterministic=True)


def _file(source: Path, configuration: Configuration, level: str, dtype: str, given: str) -> str:
    def write(output: Path) -> None:
        build(source, configuration, level, dtype, output=output)

    return written(write, ".onnx", given)


def build(source: Path, configuration: Configuration, level: str, dtype: str, **more: Any) -> ampgraph.TrainingStep:
    options = {**configuration.options, **more}
    return ampgraph.build_training_step(
        source, loss=configuration.loss, optimizer=configuration.optimizer, level=level, dtype=dtype, **options
    )


def trained(name: str, models: Path) -> Iterator[Row]:
    """What is said of a few strict steps on the digits, and the state after them."""
    source = models / DIGITS_FORWARD
    batches = list(_batches(models))
    given = given_of(onnx.load(source), {"image": batches[0]["image"]})
    for dtype in DTYPES:
        cells = tuple(_trajectory(source, DIGITS[name], level, dtype, batches) for level in LEVELS)
        yield Row(f"{name} {dtype}", given, cells)


def _batches(models: Path) -> Iterator[dict[str, np.ndarray]]:
    with np.load(models / "digits_train.npz") as data:
        image, labels = data["image"], data["labels"]
    for number in range(BATCHES):
        rows = slice(number * ROWS, (number + 1) * ROWS)
        yield {"image": image[rows], "labels": labels[rows]}


def _trajectory(
    source: Path, configuration: Configuration, level: str, dtype: str, batches: list[dict[str, np.ndarray]]
) -> str:
    try:
        step = build(source, configuration, level, dtype)
    except ampgraph.AmpError as error:
        return error.code
    trainer = ampgraph.Trainer(step, "cpu", strict=level != "O0", threads=1)
    said = [repr(trainer.step(batch)) for batch in batches]
    return of_values([said, trainer.state])
