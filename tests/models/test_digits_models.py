"""The committed digits models: valid, small, without traces of a machine, and accurate on the held-out images."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "models"
MODELS = ["digits_cnn", "digits_transformer"]


@pytest.fixture(scope="module")
def held_out():
    with np.load(FOLDER / "digits_heldout.npz") as data:
        return data["image"], data["labels"]


def session(name):
    return ort.InferenceSession(FOLDER / f"{name}.onnx", providers=["CPUExecutionProvider"])


def test_held_out(held_out):
    image, labels = held_out
    assert image.dtype == np.float32 and image.shape == (360, 1, 8, 8)
    assert labels.dtype == np.int64 and labels.shape == (360,)
    assert image.min() == 0 and image.max() == 1
    assert set(labels) == set(range(10))
    # split is the committed one
    pytest.importorskip("sklearn")
    from ampgraph.models.digits import load_split

    (image, labels), (held_image, held_labels) = load_split()
    assert len(labels) + len(held_labels) == 1797
    np.testing.assert_array_equal(held_image, held_out[0])
    np.testing.assert_array_equal(held_labels, held_out[1])


@pytest.mark.parametrize("name", MODELS)
def test_accuracy_at_any_batch(name, held_out):
    image, labels = held_out
    (logits,) = session(name).run(["logits"], {"image": image})
    assert logits.shape == (360, 10)
    assert (logits.argmax(1) == labels).mean() >= 0.97
    # batch is free
    image, _ = held_out
    one, many = session(name), image[:7]
    together = one.run(None, {"image": many})[0]
    alone = np.concatenate([one.run(None, {"image": many[i : i + 1]})[0] for i in range(len(many))])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_file_is_valid_small_and_whole(name):
    path = FOLDER / f"{name}.onnx"
    data = path.read_bytes()
    assert len(data) < 1_000_000
    assert b"/home/" not in data and b"site-packages" not in data and b".py" not in data
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert not any(t.external_data for t in model.graph.initializer)
    assert [v.name for v in model.graph.input] == ["image"]
    assert [v.name for v in model.graph.output] == ["logits"]


@pytest.mark.parametrize(
    ("name", "opset", "kinds"),
    [
        ("digits_cnn", 20, {"Conv", "BatchNormalization", "Relu", "MaxPool", "Gemm"}),
        ("digits_transformer", 18, {"MatMul", "LayerNormalization", "Softmax", "Erf", "Add"}),
    ],
)
def test_graph_has_what_it_is_there_for(name, opset, kinds):
    model = onnx.load(FOLDER / f"{name}.onnx")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    assert kinds <= {node.op_type for node in model.graph.node}
