"""The suite finds what it is there to find: each kind of broken converter fails at its stage, and only its own case."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.pool import run_cases

HEAD = "import onnx\nfrom onnx import TensorProto, helper\n\n\ndef convert(model, level, dtype, target):\n"
COPY = "    m = onnx.ModelProto()\n    m.CopyFrom(model)\n"
BROKEN = {
    "convert": "    raise ValueError('no')\n",
    "untouched": "    model.producer_name += 'x'\n    return model\n",
    "checker": COPY + "    m.graph.node[0].op_type = 'Nothing'\n    return m\n",
    "interface": COPY + "    m.graph.output[0].type.tensor_type.shape.dim[0].dim_param = 'n'\n    return m\n",
    "accuracy": COPY + "    m.graph.node[0].op_type = 'Sin'\n    return m\n",
    "idempotent": COPY + "    m.producer_name += 'x'\n    return m\n",
    "crash": "    import os\n    os.abort()\n",
    "": "    return model\n",
}


@pytest.mark.parametrize("stage", BROKEN)
def test_broken_converter(stage: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        HEAD + "    if model.graph.node[0].op_type not in ('Cos', 'Sin'):\n        return model\n" + BROKEN[stage]
    )
    outcomes = run_cases(["test_cos", "test_abs"], ("O3",), f"{tmp_path}/broken.py:convert")
    found = {o.case: o.results[0] for o in outcomes}
    assert found["test_abs"].stage == ""
    assert found["test_cos"].stage == stage, found["test_cos"].message
    assert stage == "crash" or found["test_cos"].can_lower
    assert not found["test_cos"].low_nodes


def test_unknown_converter_is_said() -> None:
    with pytest.raises(RuntimeError, match="does the converter load"):
        list(run_cases(["test_cos"], ("O2",), "nowhere:convert"))
