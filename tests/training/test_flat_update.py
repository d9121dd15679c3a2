"""Parameters that are moved together end where they do one by one, and more of them cost hardly more nodes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.binding import _session_options
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step import flat_update
from ampgraph.training.step.aliasing import in_place
from ampgraph.training.step.optimizers import AdamW
from ampgraph.training.step.training_step import TrainingStep, session_model
from training.small_steps import Runner, batches, layers, regression, update_nodes

FORMS = {
    "sgd": "sgd:lr=0.1",
    "momentum": "sgd:lr=0.05,momentum=0.9,nesterov=yes,weight_decay=0.01",
    "adam": "adam:lr=0.01,weight_decay=0.02",
    "adamw": "adamw:lr=0.01",
    "groups": ["b*=adamw:lr=0.02,weight_decay=0", "*=adamw:lr=0.01"],
}


def trained(monkeypatch, limit, **options):
    """Parameters, averages and losses after 30 steps, two of which overflow."""
    monkeypatch.setattr(flat_update, "ON_CPU", limit)
    monkeypatch.setattr(flat_update, "ELSEWHERE", limit)
    step = build_training_step(regression(), loss="loss", **options)
    run = Trainer(step, "cpu", strict=options["level"] != "O0", threads=1)
    for number, batch in enumerate(batches(30)):
        run.step({**batch, "x": batch["x"] * np.float32(1e30)} if number in (4, 20) else batch)
    kept = [entry.name for entry in step.layout.of("parameter", "average", "scale", "counter")]
    return step, {name: run.value(name).tobytes() for name in kept}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
@pytest.mark.parametrize("form", FORMS)
def test_together_is_as_one_by_one_to_the_bit(form, level, target, monkeypatch):
    """Also over steps that overflow, with a running average and low parameters."""
    options = {"optimizer": FORMS[form], "level": level, "loss_scale": "dynamic:init=1024", "ema": 0.9}
    options["target"] = target
    step, apart = trained(monkeypatch, 0, **options)
    flat, together = trained(monkeypatch, 1 << 20, **options)
    assert together == apart
    slots = [len(found.layout.of("slot")) for found in (flat, step)]
    assert slots[0] < slots[1] or form == "sgd"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_overflow_leaves_all_as_it_was(target, monkeypatch):
    monkeypatch.setattr(flat_update, "ON_CPU", 1 << 20)
    step = build_training_step(
        regression(), loss="loss", target=target, level="O0", optimizer="adamw:lr=0.1", loss_scale="dynamic:init=1024"
    )
    run = Runner(step)
    run.state["w1"] = np.copysign(np.zeros_like(run.state["w1"]), -1)  # -0.0 too
    before = {e.name: run.state[e.name].tobytes() for e in step.layout.of("parameter", "slot")}
    [batch] = batches(1)
    run({**batch, "t": batch["t"] * np.float32(np.inf)})
    assert {name: run.state[name].tobytes() for name in before} == before


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_nodes_do_not_grow_with_the_number_of_parameters(level):
    """Nor those of Casts. A matrix is read through a Reshape, and so is its gradient; but not where low ones lie side
    by side as rows, all behind a Reshape, and many of one width are taken apart as rows by a Split of their own."""
    few, many = layers(2, level=level), layers(20, level=level)
    split = Counter({"Split": level == "O2"})
    assert update_nodes(few) + split == update_nodes(many)
    reshapes = [sum(node.op_type == "Reshape" for node in step.model.graph) for step in (few, many)]
    assert (reshapes[1] - reshapes[0] < 0) if level == "O2" else (reshapes[1] - reshapes[0] == 2 * 18)


@pytest.mark.slow
def test_o2_has_few_nodes_more_than_o0():
    """With a loss scale in both, or in neither: Casts, and what puts low tensors together."""
    source = Path(__file__).resolve().parents[2] / "models" / "digits_cnn_forward.onnx"
    options: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "batch": 64}
    for scale in ("dynamic", None):
        wide, low = (build_training_step(source, level=level, loss_scale=scale, **options) for level in ("O0", "O2"))
        assert len(low.model.graph) <= 1.05 * len(wide.model.graph)


def test_a_loss_scale_takes_so_many_nodes():
    """For any number of parameters."""
    for count in (2, 20):
        scaled, plain = (update_nodes(layers(count, loss_scale=scale)).total() for scale in ("dynamic", None))
        assert scaled - plain == 9


def test_on_cuda_nodes_run_in_the_order_of_the_graph(tmp_path):
    """ONNX Runtime's own order puts off the gradients of biases, and holds what they are summed of."""
    step = layers(6, batch=2)
    options = _session_options("cuda", strict=False, threads=1)
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "order")
    session = onnxruntime.InferenceSession(session_model(step)[0].SerializeToString(), options)
    batch = {"h0": np.ones((2, 4), np.float32), "labels": np.ones((2, 4), np.float32)}
    session.run(None, {**step.fed(step.initial_state), **batch})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["name"].removesuffix("_kernel_time") for event in sorted(events, key=lambda event: event["ts"])]
    names = [node.name or "" for node in step.model.graph]
    written = [name for name in names if name.startswith("grad/") and name in set(ran)]
    assert [name for name in ran if name in set(written)] == written and len(written) > 20


def test_on_a_cpu_a_parameter_is_written_where_it_lies():
    """One node of its own, and one more where AdamW's decay reads it."""
    few, many = (update_nodes(layers(count, target="cpu", ema=None)) for count in (2, 20))
    assert many - few == Counter({"Sub": 36, "Mul": 36})


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_parameters_that_are_moved_together_take_no_second_place(target):
    step = layers(3, target=target)
    written = in_place(step.model.graph, step.layout.states)
    assert {entry.name for entry in step.layout.of("parameter", "slot", "average")} <= written


def test_the_state_has_its_shapes_and_the_graph_vectors(tmp_path):
    layers(3).save(tmp_path / "step.onnx")
    step = TrainingStep.load(tmp_path / "step.onnx")
    assert {step.initial_state[name].shape for name in ("w0", "ema/w2")} == {(4, 4)}
    fed = step.fed(step.initial_state)
    assert {fed[name].shape for name in ("w0", "ema/w2")} == {(16,)} and fed["b0"].shape == (4,)
    assert {name: array.shape for name, array in step.seen(fed).items()} == {
        name: array.shape for name, array in step.initial_state.items()
    }


def test_long_runs_are_cut_and_large_parameters_stay_alone(monkeypatch):
    step = build_training_step(regression(), loss="loss", optimizer="adam", level="O0", target="cpu")
    assert len(step.layout.of("slot")) == 2  # all four together
    monkeypatch.setattr(flat_update, "ON_CPU", 30)
    step = build_training_step(regression(), loss="loss", optimizer="adam", level="O0", target="cpu")
    slots = [entry.name for entry in step.layout.of("slot") if entry.name.startswith("exp_avg/")]
    assert slots == ["exp_avg/w1", "exp_avg/b1", "exp_avg/w2+1"]


def test_an_optimizer_of_the_user_moves_one_by_one():
    class Own(AdamW):
        """It may look at a tensor as a whole."""

    step = build_training_step(regression(), loss="loss", optimizer=Own(), level="O0", target="cpu")
    assert len(step.layout.of("slot")) == 8
