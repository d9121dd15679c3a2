"""What a step graph says of itself is checked whole when it is loaded."""

from __future__ import annotations

import json

import onnx
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import Adam
from ampgraph.training.step.training_step import KEY, TrainingStep
from training.steps import blobs, linear_step


def _without(*names):
    return lambda d: d.update(states=[entry for entry in d["states"] if entry["name"] not in names])


HOSTILE = {
    "no such input": lambda d: d.update(inputs=["x", "labels", "nope"]),
    "an input fewer": lambda d: d.update(inputs=["x"], labels=""),
    "an input twice": lambda d: d.update(inputs=["x", "x", "labels"]),
    "an input that is state": lambda d: d.update(inputs=["x", "labels", "weight"]),
    "a number of inputs": lambda d: d.update(inputs=3),
    "inputs that are numbers": lambda d: d.update(inputs=[1, 2]),
    "no such loss": lambda d: d.update(loss="nope"),
    "no loss": lambda d: d.update(loss=""),
    "a loss that is a list": lambda d: d.update(loss=["loss"]),
    "a loss that is state": lambda d: d.update(loss="next/weight"),
    "no such flag": lambda d: d.update(finite="nope"),
    "no such norm": lambda d: d.update(norm="nope"),
    "a norm that is the flag": lambda d: d.update(norm=d["finite"]),
    "no such labels": lambda d: d.update(labels="nope"),
    "labels that are state": lambda d: d.update(labels="weight"),
    "no such state": lambda d: d["states"][0].update(name="nope"),
    "a state twice": lambda d: d["states"].append(d["states"][0]),
    "a state with a list for a name": lambda d: d["states"][0].update(name=["a"]),
    "a state with a number for an output": lambda d: d["states"][0].update(output=7),
    "a state with a number for a kind": lambda d: d["states"][0].update(kind=None),
    "a state of another size": lambda d: d["states"][0].update(shape=[7, 9]),
    "a state with a text for a shape": lambda d: d["states"][0].update(shape="two"),
    "a state with a number for a shape": lambda d: d["states"][0].update(shape=3),
    "a state with sizes below 0": lambda d: d["states"][0].update(shape=[-1, -1]),
    "one output for two states": lambda d: d["states"][1].update(output=d["states"][0]["output"]),
    "a field too many": lambda d: d["states"][0].update(more=1),
    "no learning rates": _without("step/learning_rates"),
    "no weight": _without("weight"),
    "options that are a list": lambda d: d.update(options=[1]),
    "classes that are text": lambda d: d.update(classes="3"),
    "another version": lambda d: d.update(version=99),
    "no version": lambda d: d.pop("version"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("layout") / "step.onnx"
    linear_step(Adam(0.1), DynamicLossScale(), clip=1.0).save(path)
    return onnx.load(path)


def saved(model, path, text):
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    next(row for row in changed.metadata_props if row.key == KEY).value = text
    onnx.save(changed, path)
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_description_that_does_not_fit(model, tmp_path, name):
    data = json.loads(next(row.value for row in model.metadata_props if row.key == KEY))
    HOSTILE[name](data)
    path = saved(model, tmp_path / "step.onnx", json.dumps(data))
    with pytest.raises(AmpError, match="AMP206") as found:
        TrainingStep.load(path)
    assert found.value.hint and found.value.where == str(path)


@pytest.mark.parametrize("text", ["", "[1]", "3", "null", '"version"', "{", "[" * 100000])
def test_a_description_that_is_none(model, tmp_path, text):
    with pytest.raises(AmpError, match="AMP206"):
        TrainingStep.load(saved(model, tmp_path / "step.onnx", text))


def test_the_real_one(model, tmp_path):
    text = next(row.value for row in model.metadata_props if row.key == KEY)
    step = TrainingStep.load(saved(model, tmp_path / "step.onnx", text))
    found = step.layout
    assert (found.scale, found.count, found.rates, found.last_rate) == (
        *("step/scale", "step/count", "step/learning_rates", "step/last_rate"),
    )
    assert Trainer(step, "cpu").step({name: array[:16] for name, array in blobs().items()}).finite
    assert linear_step().layout.scale == ""
