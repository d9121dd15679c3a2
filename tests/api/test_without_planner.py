"""A plan says all that is written: one that was saved is carried out where the planner cannot be imported, to the same
bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.rewrites import known_rewrites
from conformance.cases import case, index
from digests.groups import MODELS, SMALL, small
from onnx_text import parse
from planner import form_models, test_folds, test_given_casts, test_given_pads, test_known_numbers, test_shifts
from planner.test_wide_gelu import by_tanh

APPLY = """
import json, pathlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("ampgraph.planner"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import ampgraph
for plan in sorted(pathlib.Path(sys.argv[1]).rglob("*.json")):
    source = next(plan.parent.glob("model.*"))
    ampgraph.apply(source, ampgraph.Plan.read(plan), output=plan.with_suffix(f".applied{source.suffix}"))
assert not [name for name in sys.modules if name.startswith("ampgraph.planner")]
"""
CHANNELS = """g (float[2,3,4,4] x) => (float[2,3,4,4] y) { h = Conv (x, w)
    mean = ReduceMean <axes = [1]> (h)  d = Sub (h, mean)  sq = Mul (d, d)  var = ReduceMean <axes = [1]> (sq)
    v1 = Add (var, e)  r = Sqrt (v1)  n = Div (d, r)  k = Mul (n, scale)  y = Conv (k, w) }"""
TRANSPOSED = """g (float[b,3,8] x) => (float[3,b,8] y, float[b,3,8] z) {{
    z = MatMul (x, w)  t = Transpose <perm = [1, 0, 2]> (x)  m = MatMul (t, w)  y = {} }}"""
CLIP = """g (float[4,8] x) => (float[4,8] y) {
    a = MatMul (x, w)  c = Clip <min = -0.5, max = 6.0> (a)  y = MatMul (c, w) }"""
NORMS = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    c = Conv (x, w)  n = BatchNormalization (c, s, b, m, v)  k = Mul (n, f)  y = Conv (k, w) }"""


def rewritten() -> dict[str, onnx.ModelProto]:
    """A model for each rewrite, and one whose stored tensors are rounded together."""
    rng = np.random.default_rng(0)
    row = {name: rng.uniform(0.5, 1, 4).astype(np.float32) for name in "sbmv"}
    conv: dict[str, Any] = {"w": (3, 3, 1, 1), "e": np.float32(1e-3), "scale": np.ones((3, 1, 1), np.float32)}
    statistics = {**row, "w": rng.standard_normal((4, 4, 1, 1)).astype(np.float32), "f": np.float32(1.0004)}
    return {
        "norm": form_models.layer_norm(17),
        "channels": parse(CHANNELS, **conv, opset=17),
        "quotient": form_models.rms(form_models.INVERSES["Reciprocal"]),
        "half": form_models.gelu(form_models.GELUS["swapped"]),
        "gelu": by_tanh(20),
        "squares": by_tanh(),
        "clip": parse(CLIP, w=(8, 8), opset=9),
        "bias": test_folds.model(),
        "power": test_folds.model(test_folds.POWER, s=np.float32(0.5)),
        "mask": test_shifts.model(test_shifts.FORMS["added"]),
        "order": form_models.attention(-3.4e38),
        "number": parse(test_known_numbers.SCALED, test_known_numbers.SCALED_STORED, opset=17),
        "cast": test_given_casts.model(test_given_casts.BACK),
        "pad": test_given_pads.given(test_given_pads.BODIES[18], 18),
        "transpose": parse(TRANSPOSED.format("Relu (m)"), w=(8, 8)),
        "einsum": parse(TRANSPOSED.format("Add (m, t)"), w=(8, 8)),
        "together": parse(NORMS, statistics, opset=17),
    }


def convert(source: Path, levels: tuple[str, ...] = ("O1", "O2", "O3", "auto")) -> list[ampgraph.Plan]:
    """Beside a model what it is converted to, and the plans."""
    plans = []
    for level in levels:
        for dtype in ("float16", "bfloat16"):
            for rewrite in ("exact", "all"):
                given: dict[str, Any] = {"level": level, "dtype": dtype, "rewrite": rewrite}
                plans.append(ampgraph.plan(source, **given))
                plan = source.with_name(f"{level}-{dtype}-{rewrite}.json")
                plans[-1].write(plan)
                output = plan.with_suffix(f".converted{source.suffix}")
                ampgraph.convert(source, **given, output=output, check="off")
    return plans


def assert_applied(folders: Path) -> None:
    """Carries the plans out in a process that cannot import the planner."""
    environment = {**os.environ, "AMPGRAPH_CHECK": "off"}
    done = subprocess.run([sys.executable, "-c", APPLY, folders], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plans = sorted(folders.rglob("*.json"))
    assert plans
    for plan in plans:
        written, expected = (
            {path.suffix: path.read_bytes() for path in plan.parent.glob(f"{plan.stem}.{way}.*")}
            for way in ("applied", "converted")
        )
        assert written and written == expected, plan


def test_every_rewrite_and_what_is_rounded_together(tmp_path: Path) -> None:
    rewrites, together = set(), set()
    for name, model in rewritten().items():
        (tmp_path / name).mkdir()
        onnx.save(model, tmp_path / name / "model.onnx")
        plans = convert(tmp_path / name / "model.onnx", ("O1", "O2"))
        rewrites |= {rewrite.name for plan in plans for rewrite in plan.rewrites}
        together |= {item.why.rule for plan in plans for item in plan.together or ()}
    assert rewrites == known_rewrites().keys() and together == {"factor", "statistics"}
    assert_applied(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of onnx, which computes what its cases expect
def test_a_sample_of_the_backend_suite(tmp_path: Path) -> None:
    names = sorted(index().ops.keys() - set(index().without_float))
    for name in random.Random(5).sample(names, 40):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(case(name).model)
        convert(tmp_path / name / "model.onnx", ("O2", "O3"))
    assert_applied(tmp_path)


@pytest.mark.slow
def test_exports_and_models(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sources = [small() / f"{name}.onnx" for name in SMALL]
    sources += [path for path in sorted(MODELS.iterdir()) if path.suffix in (".onnx", ".mindir")]
    for number, source in enumerate(sources):
        copy = tmp_path / str(number) / f"model{source.suffix}"
        copy.parent.mkdir()
        shutil.copy(source, copy)
        convert(copy, ("O2", "auto"))
    assert_applied(tmp_path)


NEWER = {"transpose", "einsum"}
"""Rewrites that plans of format 1 never had."""


def of_format_1(plan: ampgraph.Plan) -> Any:
    """A plan as that format had it, one row for all rewrites."""
    old = json.loads(plan.to_json())
    old["ampgraph_plan"] = 1
    del old["together"]
    rows = [
        {
            "scope": one.scope,
            "kind": one.writes,
            "nodes": one.nodes,
            "inputs": one.reads,
            "axis": getattr(one, "axis", getattr(one, "dimensions", 0)),
            "epsilon": getattr(one, "epsilon", getattr(one, "number", 0.0)) if one.name != "order" else 0.0,
            "name": one.name,
        }
        for one in plan.rewrites
    ]
    old["rewrites"] = json.loads(json.dumps(rows))
    return old


def test_a_plan_of_format_1_gives_the_same_bytes(tmp_path: Path) -> None:
    """It has one row for all rewrites, and does not say what is rounded together."""
    for name, model in rewritten().items():
        plan = ampgraph.plan(model)
        if {one.name for one in plan.rewrites} & NEWER:
            continue
        read = ampgraph.Plan.from_json(json.dumps(of_format_1(plan)))
        assert read.rewrites == plan.rewrites and read.together is None
        assert ampgraph.Plan.from_json(read.to_json()) == read
        assert ampgraph.apply(model, read) == ampgraph.convert(model), name
