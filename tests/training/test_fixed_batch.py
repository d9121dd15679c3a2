"""Steps for batches of one size: no shapes when they run, and their kernels as one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run.binding import Binding, CapturedBinding
from ampgraph.training.run.options import RunOptions
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.packed_forward import FORWARD, unpack
from ampgraph.training.step.training_step import TrainingStep
from training.small_steps import BATCH, batches, regression

CNN = Path(__file__).parents[2] / "models" / "digits_cnn_forward.onnx"
SHAPES = {"Shape", "Size"}


def small(batch: int | None = BATCH, **options: Any) -> TrainingStep:
    return build_training_step(regression(), loss="loss", optimizer="adam:lr=0.05", batch=batch, **options)


@pytest.fixture(scope="module")
def cnn() -> dict[int | None, TrainingStep]:
    options: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "adamw", "level": "O0"}
    return {batch: build_training_step(CNN, batch=batch, clip_norm=1.0, **options) for batch in (None, 4)}


def shapes(step: TrainingStep) -> list[str]:
    return [node.op_type for node in step.model.graph.all_nodes() if node.op_type in SHAPES]


@pytest.mark.slow
def test_no_shape_is_computed(cnn: dict[int | None, TrainingStep]) -> None:
    assert shapes(cnn[None]) and not shapes(cnn[4])
    assert len(list(cnn[4].model.graph)) < len(list(cnn[None].model.graph))


@pytest.mark.slow
def test_it_learns_the_same(cnn: dict[int | None, TrainingStep]) -> None:
    """Dropout, statistics of the batch and the update are those of the step for any batch."""
    random = np.random.default_rng(0)
    value = next(v for v in cnn[None].model.graph.inputs if v.name == cnn[None].layout.inputs[0])
    assert value.shape is not None
    sizes = [4, *(dim for dim in value.shape[1:] if isinstance(dim, int))]
    feeds: dict[str, np.ndarray] = {
        cnn[None].layout.inputs[0]: random.random(sizes, np.float32),
        "labels": np.arange(4),
    }
    trainers = [Trainer(step, "cpu", threads=1) for step in cnn.values()]
    losses = [[trainer.step(feeds).loss for _ in range(3)] for trainer in trainers]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    with pytest.raises(AmpError, match="AMP503"):
        trainers[1].step({name: array[:3] for name, array in feeds.items()})


def test_the_forward_graph_stays_open() -> None:
    step = small()
    forward = unpack(step.model.metadata_props[FORWARD], step.initial_state)
    fed = [value for value in forward.graph.inputs if not value.is_initializer()]
    assert fed and all(value.shape and isinstance(value.shape[0], ir.SymbolicDim) for value in fed)


@pytest.mark.parametrize("batch", [0, -1, 2.5, "many", True])
def test_what_is_no_size_is_refused(batch: object) -> None:
    with pytest.raises(AmpError, match="AMP301"):
        small(batch)  # type: ignore[arg-type]


def test_a_fixed_batch_is_another() -> None:
    model = regression()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 8
    assert build_training_step(model, loss="loss", optimizer="sgd", batch=8).layout.inputs
    with pytest.raises(AmpError, match="whose batch is fixed: 8"):
        build_training_step(model, loss="loss", optimizer="sgd", batch=16)


class OnCpu(CapturedBinding):
    """The places and turns of a graph, on a device that records none; each step is run twice, as for recording."""

    def _asked(self, providers):
        return providers

    def _run_options(self, turn):
        self._session.run_with_iobinding(self._bindings[turn])
        return


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_steps_in_places_of_their_own(level: str) -> None:
    step = small(level=level)
    plain, captured = (kind(step, RunOptions("cpu", threads=1)) for kind in (Binding, OnCpu))
    for binding in (plain, captured):
        binding.put(step.initial_state)
    for number, batch in enumerate(batches(5)):
        made, scale = plain.run(batch)
        found, other = captured.run(batch)
        assert {name: value.numpy() for name, value in made.items()} == {n: v.numpy() for n, v in found.items()}
        assert (scale and scale.numpy()) == (other and other.numpy())
        if number == 2 and step.layout.rates:
            for binding in (plain, captured):
                binding.replace({step.layout.rates: np.array([0.01], np.float32)})
    for entry in step.layout.states:
        np.testing.assert_array_equal(plain.get(entry.name), captured.get(entry.name))


def test_what_a_graph_needs_is_said() -> None:
    with pytest.raises(AmpError, match="cpu has no CUDA graphs"):
        Trainer(small(), "cpu", cuda_graph=True)
    with pytest.raises(AmpError, match="build the step with --batch N"):
        Trainer(small(None), "cpu", cuda_graph=True)
    with pytest.raises(AmpError, match="of a whole step on one device"):
        Trainer(small(), "cpu", cuda_graph=True, accumulate=2)
