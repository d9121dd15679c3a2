"""Six small models that break converters, built node by node as exporters write them, each with 32 seeded inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from . import decoder, detector, encoders, others

Feeds = Mapping[str, np.ndarray]
SAMPLES = 32


@dataclass(frozen=True)
class HardModel:
    """``build`` makes the model; ``feed`` draws one input."""

    build: Callable[[], ModelProto]
    feed: Callable[[np.random.Generator], dict[str, np.ndarray]]

    def feeds(self, count: int = SAMPLES) -> list[dict[str, np.ndarray]]:
        """The same inputs every time."""
        return [self.feed(np.random.default_rng([7, seed])) for seed in range(count)]


HARD_MODELS = {
    "llama": HardModel(decoder.build, decoder.feed),
    "vit": HardModel(encoders.vision, encoders.image),
    "t5": HardModel(encoders.t5, encoders.sentence),
    "bytes": HardModel(others.byte_classifier, others.text),
    "lstm": HardModel(others.lstm, others.series),
    "detector": HardModel(detector.build, detector.feed),
}
