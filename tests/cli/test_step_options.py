"""Options of build-step that shape the update and the loss, from the words of the command line to a trained model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from ampgraph.cli.app import app
from npz import write_npz
from onnx_text import parse
from training.nets import batches, regression


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(regression(), "forward.onnx")
    rows = list(batches(4))
    write_npz("train.npz", {name: np.concatenate([batch[name] for batch in rows]) for name in ("x", "t")})


def run(words):
    result = CliRunner().invoke(app, words.split())
    return result.exit_code, result.stdout, result.stderr


def weights(path):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_groups_and_an_average_of_the_weights(made):
    code, out, err = run(
        "build-step forward.onnx --loss loss --optimizer b*=adamw:weight_decay=0 --optimizer w1=frozen "
        "--optimizer *=sgd:lr=0.1 --clip-value 0.5 --ema 0.9 -o step.onnx"
    )
    assert code == 0, err
    assert "optimizer   b*=adamw:lr=0.001" in out and "w1=frozen" in out and "clip value  0.5" in out
    assert "ema         0.9" in out and "frozen      w1" in out
    train = "train step.onnx --data train.npz --epochs 2 --batch-size 16 --checkpoint run"
    assert run(f"{train} --lr-schedule b*=cosine --lr-schedule *=linear:end=0.1")[0] == 0
    assert run("export-weights step.onnx run -o trained.onnx")[0] == 0
    assert run("export-weights step.onnx run --ema -o average.onnx")[0] == 0
    first, trained, average = weights("forward.onnx"), weights("trained.onnx"), weights("average.onnx")
    assert np.array_equal(first["w1"], average["w1"])
    for name in ("w2", "b2"):
        assert not np.array_equal(trained[name], average[name]) and not np.array_equal(trained[name], first[name])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--optimizer b*=sgd", "error[AMP305]: no optimizer's pattern matches parameter 'w1', nor 1 more"),
        ("--optimizer sgd --clip-norm 1 --clip-value 1", "error[AMP322]: clip_norm and clip_value"),
    ],
)
def test_what_is_refused(made, tmp_path, words, told):
    code, _, err = run(f"build-step forward.onnx --loss loss {words} -o step.onnx")
    assert code == 2 and told in err and "hint: " in err and not (tmp_path / "step.onnx").exists()


def test_no_average_to_export(made):
    assert run("build-step forward.onnx --loss loss --optimizer sgd -o step.onnx")[0] == 0
    assert run("train step.onnx --data train.npz --epochs 1 --batch-size 16 --checkpoint run")[0] == 0
    code, _, err = run("export-weights step.onnx run --ema -o average.onnx")
    assert code == 2 and "keeps no running average" in err and "--ema 0.999" in err


def test_a_mask_that_may_hide_rows_is_told(tmp_path, monkeypatch):
    """No check runs a step: what the plan warns of is in the report, and what it names takes the warning away."""
    monkeypatch.chdir(tmp_path)
    mask = np.zeros((4, 4), np.float32)
    mask[1] = -10000
    nodes = (
        "s = MatMul (x, w)  m = Add (s, mask)  p = Softmax (m)  y = MatMul (p, v)  loss = ReduceMean <keepdims = 0> (y)"
    )
    weights = {"w": np.eye(4, dtype=np.float32), "v": np.full((4, 4), 0.5, np.float32), "mask": mask}
    onnx.save(parse(f"g (float[4, 4] x) => (float loss) {{ {nodes} }}", weights), "masked.onnx")
    build = "build-step masked.onnx --loss loss --optimizer sgd --freeze mask -o step.onnx"
    code, out, err = run(build)
    assert code == 0, err
    assert "adds masks of 10,000 in float16: rows hidden whole lose their scores" in out
    assert "rows hidden whole" not in run(f"{build} --fp32 op:Add --fp32 op:Softmax")[1]
