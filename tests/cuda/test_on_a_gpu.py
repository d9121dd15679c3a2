"""What only a CUDA GPU can show: files and steps compute there what a strict run on the CPU predicts."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph

ort = pytest.importorskip("onnxruntime")
CUDA = "CUDAExecutionProvider"
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="needs a CUDA GPU and onnxruntime-gpu"),
]
FORWARD = Path(ampgraph.__file__).parent / "models" / "digits_cnn_forward.onnx"
STEPS = 6


def batches():
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        yield {"image": random.random((32, 1, 8, 8), np.float32), "labels": random.integers(0, 10, 32)}


def losses(device: str, level: str, **options: Any) -> list[float]:
    step = ampgraph.build_training_step(FORWARD, loss="cross_entropy", optimizer="adam", level=level, batch=32)
    trainer = ampgraph.Trainer(step, device, **options)
    return [float(trainer.step(batch).loss) for batch in batches()]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "auto"])
def test_a_step_trains_on_cuda_as_on_the_cpu(level):
    np.testing.assert_allclose(losses("cuda", level), losses("cpu", level), rtol=2e-2)


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_captured_step_trains_as_one_that_is_launched_node_by_node(level):
    np.testing.assert_allclose(losses("cuda", level, cuda_graph=True), losses("cuda", level), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_converted_file_has_the_error_that_a_strict_run_predicts(tmp_path, dtype):
    from ampgraph.numerics.strict.session import StrictSession

    path = tmp_path / "low.onnx"
    ampgraph.convert(str(FORWARD), "O2", dtype=dtype, target="cuda", output=str(path))
    feeds = {"image": next(batches())["image"]}
    [exact], [told] = (list(StrictSession(model).run(feeds).values()) for model in (FORWARD, path))
    ort.preload_dlls()
    session = ort.InferenceSession(str(path), providers=[(CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"])
    [found] = session.run(None, {session.get_inputs()[0].name: feeds["image"]})
    error, predicted = (np.linalg.norm(value - exact) / np.linalg.norm(exact) for value in (found, told))
    assert predicted / 2 < error < 2 * predicted


def test_a_mean_is_infinite_where_its_sum_leaves_float16():
    """What `low_inside` of the kernel table says of it."""
    from ampgraph.numerics.strict.session import StrictSession

    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [2, 1024])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [2])
    mean = onnx.helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)
    graph = onnx.helper.make_graph([mean], "mean", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.full((2, 1024), [[60], [70]], np.float16)}
    ort.preload_dlls()
    [found] = ort.InferenceSession(model.SerializeToString(), providers=[CUDA]).run(None, feeds)
    np.testing.assert_array_equal(found, StrictSession(model, target="cuda").run(feeds)["y"])
