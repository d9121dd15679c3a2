"""`ampgraph.diff`: two conversions or two plans side by side, and nothing where they are alike."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.ranges import Ranges
from ampgraph.core.rewrites import known_rewrites
from conformance.cases import case, index
from digests.groups import MODELS, SMALL, small
from onnx_text import parse
from planner import form_models, test_exponents, test_numbers, test_rewrites
from planner.test_target_fusions import by_tanh
from share import turn

NET = """g (float[N, 8] x) => (float[N, 8] y) {
    [first] h = MatMul(x, w)
    [bias] b = Add(h, v)
    [soft] s = Softmax(b)
    [second] y = MatMul(s, w)
}"""
NORM = """g (float[N, 8] x, float[N, 8] z) => (float[N, 8] y) <float two = {2}, float eps = {0.00001}> {
    [mean] m = ReduceMean<axes = [-1]>(x)
    [centre] d = Sub(x, m)
    [square] q = Pow(d, two)
    [variance] r = ReduceMean<axes = [-1]>(q)
    [floor] e = Add(r, eps)
    [root] t = Sqrt(e)
    [norm] n = Div(d, t)
    [scaled] k = Mul(n, gain)
    [shifted] l = Add(k, shift)
    [product] p = MatMul(l, w)
    [sum] y = Add(p, z)
}"""


def net(text: str = NET, **weights: Any) -> ModelProto:
    return parse(text, w=(8, 8), **(weights or {"v": (8,)}))


def test_models_that_are_alike_or_not() -> None:
    one = ampgraph.convert(net())
    found = ampgraph.diff(one, ampgraph.convert(net()))
    assert found.alike and found.sort == "models" and not found.settings
    assert found.bytes is not None and found.bytes[0] == found.bytes[1]
    # models that differ
    kept = ampgraph.convert(net(), fp32=["second"])
    low = ampgraph.convert(net(), "O3")
    found = ampgraph.diff(kept, low)
    assert not found.alike
    assert {item.name: (item.first, item.second) for item in found.decisions if item.name == "second"} == {
        "second": ("float32", "float16")
    }
    casts = [{n.input[0] for n in m.graph.node if n.op_type == "Cast"} for m in (kept, low)]
    assert len(found.casts.first) >= len(casts[0] - casts[1]) and len(found.casts.second) >= len(casts[1] - casts[0])
    assert found.bytes is not None
    assert [item for item in found.weights if item.name == "'w'"] or found.bytes[0] > found.bytes[1]
    assert not found.nodes
    # nodes that one has alone
    other = net()
    other.graph.node[1].op_type = "Sub"
    found = ampgraph.diff(net(), other)
    assert found.nodes.first == ("Add 'bias'",) and found.nodes.second == ("Sub 'bias'",) and not found.alike


def test_plans_that_differ() -> None:
    plain, held = ampgraph.plan(net()), ampgraph.plan(net(), fp32=["first"])
    assert ampgraph.diff(plain, plain).alike
    found = ampgraph.diff(plain, held)
    changed = next(item for item in found.decisions if item.name.startswith("MatMul #0"))
    assert (changed.kind, changed.first, changed.second) == ("MatMul", "float16", "float32")
    assert changed.first_why.startswith("region: ") and changed.second_why.startswith("user: ")
    assert found.casts or found.weights
    assert found.bytes is None
    # A rewrite takes nodes away; those behind it keep their numbers of the file in the report.
    model = net(NORM, gain=(8,), shift=(8,))
    with_norm, without = ampgraph.plan(model, "O3"), ampgraph.plan(model, "O2", fp32=["product"], rewrite="none")
    assert with_norm.rewrites and not without.rewrites
    found = ampgraph.diff(with_norm, without)
    assert [item.name for item in found.decisions if item.kind == "MatMul"] == ["MatMul #9 T"]
    assert len(found.nodes.first) == 1 and found.nodes.first[0].startswith("LayerNormalization")
    # what cannot be compared
    with pytest.raises(AmpError, match="AMP208.*one of the two is a plan"):
        ampgraph.diff(net(), ampgraph.plan(net()))
    other = parse("g (float[2] x) => (float[2] y) { [other] y = Relu(x) }")
    with pytest.raises(AmpError, match="AMP208.*no node in common"):
        ampgraph.diff(net(), other)
    with pytest.raises(AmpError, match="AMP403"):
        ampgraph.diff(ampgraph.plan(net()), ampgraph.plan(other))


def test_the_command(amp, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(net(), source)
    for level in ("O1", "O3"):
        made, plan = tmp_path / f"{level}.onnx", tmp_path / f"{level}.json"
        assert amp("convert", source, "--level", level, "-o", made, "--plan-out", plan)[0] == 0
    code, out, _ = amp("diff", tmp_path / "O1.onnx", tmp_path / "O3.onnx")
    assert code == 1 and "1 Softmax float32 in the first, float16 in the second (soft)" in out
    assert "verdict     they differ in" in out
    code, out, _ = amp("diff", tmp_path / "O1.json", tmp_path / "O3.json", "--json")
    found = json.loads(out)
    assert code == 1 and not found["alike"] and found["sort"] == "plans"
    assert [item["name"] for item in found["settings"]] == ["level"]
    code, out, _ = amp("diff", tmp_path / "O1.onnx", tmp_path / "O1.onnx")
    assert code == 0 and "the models are alike" in out
    assert amp("diff", tmp_path / "O1.onnx", tmp_path / "O1.json")[0] == 2


def test_errors_side_by_side(amp: Any, tmp_path: Path) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    for level in ("O1", "O3"):
        words = ("--level", level, "-o", tmp_path / f"{level}.onnx", "--plan-out", tmp_path / f"{level}.json")
        assert amp("convert", tmp_path / "m.onnx", *words)[0] == 0
    models, plans = ([tmp_path / f"{level}.{end}" for level in ("O1", "O3")] for end in ("onnx", "json"))
    found = ampgraph.diff(*models, reference=tmp_path / "m.onnx", samples=2)
    (errors,) = found.errors
    seen = [ampgraph.verify(tmp_path / "m.onnx", path, samples=2).outputs[0].p90 for path in models]
    assert [errors.first, errors.second] == pytest.approx(seen) and min(seen) > 0
    assert ampgraph.diff(*plans, reference=tmp_path / "m.onnx", samples=2).errors == found.errors
    code, out, _ = amp("diff", *models, "--reference", tmp_path / "m.onnx", "--samples", 2)
    assert code == 1 and f"errors      y  {seen[0]:.2e} and {seen[1]:.2e}" in out
    code, _, err = amp("diff", *models, "--samples", 2)
    assert code == 2 and "add --reference" in err


# A plan says all that is written: one that was saved is carried out where the planner cannot be imported, to the same
# bytes.

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


BIASED = """g (float[2,4,4,8] q, float[2,4,8,4] k, float[2,4,4,8] v) => (float[2,4,4,8] y) {
    r = Reshape (bias, sizes)  b = Transpose <perm = [2, 0, 1]> (r)
    s = MatMul (q, k)  a = Add (s, b)  p = Softmax <axis = -1> (a)  y = MatMul (p, v) }"""


SCALED = """g (float[2,6,8] x, float[2,2,6,4] k, float[2,2,6,4] v, float[1,1,6,6] mask) => (float[2,2,6,4] y) {
    h = MatMul (x, w)  r = Reshape (h, sizes)  t = Transpose <perm = [0, 2, 1, 3]> (r)  q = Mul (t, half)
    n = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, n)  a = Add (s, mask)
    p = Softmax <axis = -1> (a)  y = MatMul (p, v) }"""
SHARED = """g (float[4,6,8] x, float[4,6,8] z, float[4,6,8] v) => (float[4,6,8] y) {
    q = Sigmoid (x)  h = Sigmoid (z)  t = Transpose <perm = [0, 2, 1]> (h)  k = Div (t, root)  s = MatMul (q, k)
    o = MatMul (q, positions)  a = Add (s, o)  p = Softmax <axis = -1> (a)  y = MatMul (p, v) }"""
SHARES = """g (float[2,4,6,4] q, float[2,4,4,6] k, float[2,2,6,4] v) => (float[2,4,6,4] y) {
    s = MatMul (q, k)  t = Tanh (s)  p = Softmax <axis = -1> (t)  u = Unsqueeze (v, two)  e = Expand (u, wide)
    r = Reshape (e, heads)  m = MatMul (p, r)  y = Relu (m) }"""
FOR_TENSORRT = ("stored", "early", "across", "groups")
SEVERAL = ("bias", "channels")
"""What is done to these differs from level to level; the others take one of two."""


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
        "bias": test_rewrites.fold_model(),
        "number": parse(test_numbers.SCALED, test_numbers.SCALED_STORED, opset=17),
        "cast": test_rewrites.cast_model(test_rewrites.BACK),
        "pad": test_rewrites.given(test_rewrites.BODIES[18], 18),
        "transpose": parse(TRANSPOSED.format("Relu (m)"), w=(8, 8)),
        "ranks": parse(TRANSPOSED.format("Add (m, t)"), w=(8, 8)),
        "rank": test_rewrites.attention_model(13),
        "stored": parse(BIASED, bias=(16, 4), sizes=np.array([4, 4, 4]), opset=20),
        "early": parse(SCALED, w=(8, 8), half=np.float32(0.5), sizes=np.array([2, 6, 2, 4]), opset=20),
        "across": parse(SHARED, root=np.float32(3), positions=(4, 8, 6), opset=20),
        "groups": parse(
            SHARES, two=np.array([2]), wide=np.array([2, 2, 2, 6, 4]), heads=np.array([2, 4, 6, 4]), opset=20
        ),
        "exponent": test_exponents.case("gated")[0],
        "together": parse(NORMS, statistics, opset=17),
    }


def convert(
    source: Path,
    levels: Sequence[str],
    target: str | None = None,
    ranges: Ranges | None = None,
) -> list[ampgraph.Plan]:
    """Beside a model what it is converted to, and the plans."""
    plans = []
    for level in levels:
        for dtype in ("float16", "bfloat16"):
            for rewrite in ("exact", "all"):
                given: dict[str, Any] = {"level": level, "dtype": dtype, "rewrite": rewrite, "target": target}
                given["ranges"] = ranges
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
        ranges = test_exponents.case("gated")[1] if name == "exponent" else None
        levels = ("O1", "O2") if name in SEVERAL else turn(name, ("O1", "O2"))
        target = "tensorrt" if name in FOR_TENSORRT else None
        plans = convert(tmp_path / name / "model.onnx", levels, target, ranges)
        rewrites |= {rewrite.name for plan in plans for rewrite in plan.rewrites}
        together |= {item.why.rule for plan in plans for item in plan.together or ()}
    assert rewrites == known_rewrites().keys() and together == {"channels", "factor", "statistics"}
    assert_applied(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of onnx, which computes what its cases expect
def test_a_sample_of_the_backend_suite(tmp_path: Path) -> None:
    names = sorted(index().ops.keys() - set(index().without_float))
    for name in random.Random(5).sample(names, 40):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(case(name).model)
        convert(tmp_path / name / "model.onnx", turn(name, ("O2", "O3")))
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
        convert(copy, turn(source.name, ("O2", "auto")))
    assert_applied(tmp_path)


NEWER = {"transpose", "ranks"}
"""Rewrites that plans of format 1 never had."""


def of_format_2(plan: ampgraph.Plan) -> Any:
    """A plan as that format had it: what a reason is about stands in its sentence alone."""
    old = json.loads(plan.to_json())
    return old | {"ampgraph_plan": 2, "reasons": [row[:2] for row in old["reasons"]]}


def of_format_1(plan: ampgraph.Plan) -> Any:
    """A plan as that format had it, one row for all rewrites as well."""
    old = of_format_2(plan) | {"ampgraph_plan": 1}
    del old["together"]
    rows = [
        {
            "scope": one.scope,
            "kind": one.writes,
            "nodes": one.nodes,
            "inputs": one.reads,
            "axis": getattr(one, "axis", getattr(one, "dimensions", 0)),
            "epsilon": getattr(one, "epsilon", getattr(one, "number", 0.0)),
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


REASONS = """g (float[2, 3, 8, 8] x) => (float[2, 3, 16, 16] y, float[2, 3, 8, 8] z) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  p = Mul (a, a)  z = Add (p, a)  y = Resize <mode = "linear"> (a, , s) }"""


def test_a_plan_of_format_2_says_what_its_reasons_are_about() -> None:
    scales, about = np.array([1, 1, 2, 2], np.float32), set()
    reasons = parse(REASONS, w=(3, 3, 3, 3), b=(3,), s=scales, opset=17)
    for model in (reasons, *rewritten().values()):
        for level in ("O1", "O2", "auto"):
            plan = ampgraph.plan(model, level)
            assert ampgraph.Plan.from_json(json.dumps(of_format_2(plan))) == plan
            about |= {one.why.rule for one in plan.decisions if one.why.about}
    assert about == {"list", "region", "slot", "taint"}


# Plans of all formats that somebody edits: carried out, or refused in a line with a hint.

EditedPath = tuple[str | int, ...]
WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.5,
    float("inf"),
    "",
    "other",
    "\ud800",
    [],
    ["a"],
    {"a": 1},
    [None],
)
GONE, TWICE = "gone", "twice"


def places(data: Any, path: EditedPath = ()) -> Iterator[EditedPath]:
    """The first of each kind: where two paths differ only in numbers of rows they are one."""
    if path:
        yield path
    if isinstance(data, dict):
        for key in data:
            yield from places(data[key], (*path, key))
    elif isinstance(data, list):
        is_row = len(path) == 2 and path[0] in ("decisions", "reasons", "together")
        for place, item in enumerate(data if is_row else data[:2]):
            yield from places(item, (*path, place))


def held(data: Any, path: EditedPath) -> Any:
    for key in path:
        data = data[key]
    return data


def edits(data: Any) -> Iterator[tuple[EditedPath, Any, Any]]:
    """Where, what now stands there, and the plan; of what is wrong a part at each place, all in a full run."""
    for path in places(data):
        for new in (*turn(path, WRONG, 4), GONE, TWICE):
            plan = copy.deepcopy(data)
            around, key = held(plan, path[:-1]), path[-1]
            if new is GONE:
                del around[key]
            elif new is not TWICE:
                around[key] = new
            elif isinstance(around, list):
                around.insert(0, copy.deepcopy(held(plan, path)))
            else:
                around[f"{key}x"] = 1
            yield path, new, plan


def outcome(model: onnx.ModelProto, plan: Any) -> str:
    """The code of the error, an empty text for none."""
    try:
        read = ampgraph.Plan.from_json(json.dumps(plan))
        assert ampgraph.Plan.from_json(read.to_json()) == read
        read._repr_html_()
        ampgraph.apply(model, read)
    except AmpError as error:
        assert error.hint
        return error.code
    return ""


def is_other_type(old: Any, new: Any, path: EditedPath) -> bool:
    """Whether what stands there now cannot be meant: of another type, and no whole number for one with a fraction."""
    if new in (GONE, TWICE) or (new is None and path[-1] in ("floor", "together")):
        return False
    if isinstance(old, float):
        return type(new) not in (int, float)
    return isinstance(old, (str, int, list, dict)) and type(new) is not type(old)


@pytest.mark.parametrize("name", ["norm", "half", "bias", "together", "number", "ranks"])
def test_every_field(name: str) -> None:
    model = rewritten()[name]
    plan = ampgraph.plan(model)
    written = [json.loads(plan.to_json()), of_format_1(plan)]
    for data in written if name != "ranks" else written[:1]:
        for path, new, edited in edits(data):
            found = outcome(model, edited)
            assert found in ("", "AMP401", "AMP402", "AMP403", "AMP307"), (path, new)
            if is_other_type(held(data, path), new, path):
                assert found == "AMP401", (path, new)


def test_text_that_is_nested_deeply() -> None:
    for text in ("[" * 100_000, '{"ampgraph_plan": ' + "[" * 100_000):
        with pytest.raises(AmpError, match="AMP401"):
            ampgraph.Plan.from_json(text)


@pytest.mark.parametrize("stored", ["low", "keep"])
@pytest.mark.parametrize("mask", [np.float32(-3.4e38), np.float32(0)])
def test_other_weights_beyond_the_range_are_refused(mask: np.float32, stored: str) -> None:
    """Those that are raised to a floor, and those that a Cast reads, as well."""
    text = "g (float[16,16] x) => (float[16,16] y) { a = MatMul (x, w)  s = Add (a, m)  y = Softmax (s) }"
    stored_mask = np.triu(np.full((16, 16), mask), 1)
    given = parse(text, w=(16, 16), m=stored_mask)
    plan = ampgraph.plan(given, "O3", store_weights=stored)
    assert ampgraph.apply(given, plan)
    stored_mask[3, 0] = 1e5
    other = parse(text, w=(16, 16), m=stored_mask)
    assert outcome(other, plan.to_dict()) == "AMP403"
