"""Training steps as they come out of `build`: their bytes, their forward graph, their types and their operators."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.packed_forward import FORWARD, unpack
from training.kernels import without_cuda_kernel
from training.small_steps import batches, regression

MODELS = Path(__file__).resolve().parents[2] / "models"
LOW = ir.DataType.FLOAT16


def build(model, **options):
    return build_training_step(model, **{"optimizer": "sgd:lr=0.5", "level": "O0", "loss": "loss", **options})


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    code = (
        "import sys; from ampgraph.api.build_step import build_training_step as build;"
        "build(sys.argv[1], loss='cross_entropy', optimizer='adamw', clip_norm=1.0, output=sys.argv[2])"
    )
    source, told = MODELS / "digits_cnn_forward.onnx", []
    for seed in ("1", "2"):
        output = tmp_path / f"{seed}.onnx"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(source), str(output)], env=environment, check=True, timeout=120)
        told.append(hashlib.sha256(output.read_bytes()).hexdigest())
    assert told[0] == told[1]


@pytest.fixture(scope="module")
def cnn():
    """Digits: convolutions, BatchNormalization and Dropout; by level."""
    source = MODELS / "digits_cnn_forward.onnx"
    return {
        level: build_training_step(source, loss="cross_entropy", optimizer="adam", level=level, clip_norm=1.0)
        for level in ("O0", "O1", "O2", "O3")
    }


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_the_packed_forward_graph_computes_the_same(cnn, level):
    step, source = cnn[level], onnx.load(MODELS / "digits_cnn_forward.onnx")
    stored = {name: value.const_value.numpy() for name, value in step.model.graph.initializers.items()}
    stored |= step.initial_state
    if level == "O3":  # its weights are rounded
        stored = {i.name: numpy_helper.to_array(i) for i in source.graph.initializer}
    packed = ir.to_proto(unpack(step.model.metadata_props[FORWARD], stored))
    onnx.checker.check_model(packed, full_check=True)
    made = []
    for model in (packed, source):
        without_dropout(model)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        [port] = session.get_inputs()
        shape = [dim if isinstance(dim, int) else 5 for dim in port.shape]
        made.append(
            session.run(None, {port.name: np.random.default_rng(4).standard_normal(shape).astype(np.float32)})[0]
        )
    np.testing.assert_array_equal(*made)


def without_dropout(model):
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]


def test_o2_keeps_its_state_in_float32_and_casts_a_weight_once(cnn):
    step = cnn["O2"]
    assert {array.dtype.name for array in step.initial_state.values()} <= {"float32", "int64", "int32"}
    casts = [use.node for name in step.parameters for use in cast_with_others(step, name)]
    assert len(casts) >= 4 and len(set(casts)) == 1  # the weights of convolutions and products, all at once
    heavy = Counter(node.outputs[0].dtype for node in step.model.graph if node.op_type in ("Conv", "MatMul", "Gemm"))
    assert heavy[LOW] > 0 and heavy[ir.DataType.FLOAT] <= heavy[LOW]


def cast_with_others(step, name):
    """Casts to a low type behind the Concats that read a parameter, or behind the first piece of these."""
    joined = [use.node for use in step.model.graph.initializers[name].uses() if use.node.op_type == "Concat"]
    found = [use for node in joined for use in node.outputs[0].uses()]
    found += [use for split in found if split.node.op_type == "Split" for use in split.node.outputs[0].uses()]
    return [use for use in found if use.node.op_type == "Cast" and use.node.outputs[0].dtype == LOW]


def test_o3_stores_parameters_low_and_everything_else_in_float32(cnn):
    step = cnn["O3"]
    state = step.initial_state
    kinds = {entry.name: entry.kind for entry in step.layout.states}
    low = {name for name, array in state.items() if array.dtype == np.float16}
    assert low and all(kinds[name] == "parameter" for name in low)
    for entry in step.layout.of("slot", "running"):
        assert state[entry.name].dtype == np.float32
    big = {name for name in step.parameters if state[name].ndim > 1}
    assert big <= low


def test_o0_casts_no_float(cnn):
    assert all(value.dtype != LOW for node in cnn["O0"].model.graph for value in node.outputs)


# -- kernels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_every_operator_has_a_cuda_kernel(cnn, level):
    steps = [cnn[level], build(regression(), level=level, optimizer="sgd:lr=0.1,momentum=0.9", clip_norm=1.0)]
    steps.append(
        build(MODELS / "digits_transformer.onnx", level=level, loss="mse", loss_scale="dynamic:rule=mindspore")
    )
    assert not {kind for step in steps for kind in without_cuda_kernel(step)}


def test_a_step_is_trained_by_the_trainer(tmp_path):
    build(regression(), level="O2", loss_scale="dynamic", output=tmp_path / "step.onnx")
    trainer = Trainer(tmp_path / "step.onnx", "cpu", strict=True)
    losses = [trainer.step(batch).loss for batch in batches(25)]
    assert losses[-1] < losses[0] / 3


def test_a_step_prints_as_one_line():
    told = "level O2, dtype float16, loss loss, optimizer sgd, loss scale dynamic, 4 parameters, inputs x, t"
    assert repr(build(regression(), level="O2", loss_scale="dynamic")) == f"TrainingStep({told})"
