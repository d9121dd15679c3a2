"""A product behind a Transpose is written so that ONNX Runtime's CPU opens it, at every target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from ampgraph.runtime.opening import open_each
from onnx_text import array, parse, proto

MATRICES = {"w": (8, 8), "v": (8, 8), "q": (4, 8), "u": (6, 4)}
STORED = {**MATRICES, "b": (8,), "n": (8,), "two": array(2.0).astype("f"), "zero": np.array([0]), "one": np.array([1])}
BATCH, SUMMED = "c = Transpose<perm = [1, 0, 2]>(a)", "c = Transpose<perm = [1, 2, 0]>(a)"
OTHERS = {"v3": (3, 8), "stack": (1, 8, 8), "number": np.full((1, 1, 1, 1), 2, "f"), "wide": np.array([2, 1, 1, 1])}
FORMS = {
    "a bias": (f"{BATCH} m = MatMul(c, w) y = Add(b, m)", "MatMul Add Transpose"),
    "no bias": (f"{BATCH} m = MatMul(c, w) y = Relu(m)", "MatMul Transpose Relu"),
    "two products": (f"{BATCH} m = MatMul(c, w) l = Add(m, b) y = MatMul(l, v)", "MatMul Add MatMul Transpose"),
    "another reader": (f"{BATCH} m = MatMul(c, w) r = Relu(c) y = Add(m, r)", "Transpose Einsum Relu Add"),
    "what was first is summed over": (f"{SUMMED} y = MatMul(c, q)", "Transpose Einsum"),
    "the matrix is on the left": (f"{BATCH} y = MatMul(u, c)", "Transpose Einsum"),
    "a vector": (f"{BATCH} m = MatMul(c, n) y = Relu(m)", "Transpose Einsum Relu"),
    "a number between": (f"{BATCH} s = Mul(c, two) y = MatMul(s, w)", "Transpose Mul Einsum"),
    "a part": (f"{BATCH} s = Slice(c, zero, one) y = MatMul(s, w)", "Transpose Slice Einsum"),
    "two Transposes": (
        "d = Transpose<perm = [0, 2, 1]>(a) c = Transpose<perm = [2, 0, 1]>(d) y = MatMul(c, w)",
        "Transpose Transpose Einsum",
    ),
}
OPEN = {  # which open as they are
    "the last two": "c = Transpose<perm = [0, 2, 1]>(a) y = MatMul(c, v3)",
    "a stack of matrices": f"{BATCH} y = MatMul(c, stack)",
    "a number that adds a dimension": f"{BATCH} s = Mul(c, number) y = MatMul(s, w)",
    "copies along a new dimension": f"{BATCH} s = Expand(c, wide) y = MatMul(s, w)",
    "other arithmetic between": f"{BATCH} r = Relu(c) y = MatMul(r, w)",
}


def model(form: str) -> onnx.ModelProto:
    shape = "R, S" if "MatMul(c, n)" in form else "Q, R, S, T" if "number" in form or "wide" in form else "R, S, T"
    text = f"g (float[B, 3, 8] a) => (float[{shape}] y) {{ {form} }}"
    return parse(text, {**STORED, **OTHERS})


def kinds(converted: onnx.ModelProto) -> str:
    return " ".join(node.op_type for node in converted.graph.node if node.op_type != "Cast")


def written(folder: Path, name: str, given: onnx.ModelProto, *rewrites: str, target: str = "cuda") -> onnx.ModelProto:
    made = proto(ampgraph.convert(given, "O3", target=target, rewrite=["exact", *rewrites], check="off"))
    onnx.save(made, folder / f"{name}.onnx")
    return made


@pytest.mark.parametrize("target", ["cuda", "tensorrt", "cann"])
def test_every_form_opens_has_no_node_more_and_is_right(tmp_path: Path, target: str) -> None:
    feeds = {"a": np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32)}
    for name, (form, expected) in FORMS.items():
        given = model(form)
        made = written(tmp_path, name, given, target=target)
        assert kinds(made) == expected, name
        onnx.checker.check_model(made, full_check=True)
        wanted, found = run_strict(given, feeds)["y"], run_strict(made, feeds)["y"]
        assert wanted.shape == found.shape and np.abs(wanted - found).max() < 2e-3 * np.abs(wanted).max(), name
        again = proto(ampgraph.convert(made, "O3", target=target, check="off"))
        assert again == made, name
    paths = [tmp_path / f"{name}.onnx" for name in FORMS]
    assert [path.stem for path, how in zip(paths, open_each(paths), strict=True) if not how.opens] == []


def test_each_kills_the_runtime_without_it(tmp_path: Path) -> None:
    for name, (form, _) in FORMS.items():
        written(tmp_path, name, model(form), "no-transpose", "no-einsum")
    opened = open_each([tmp_path / f"{name}.onnx" for name in FORMS])
    assert [name for name, how in zip(FORMS, opened, strict=True) if not how.died] == []


def test_one_of_the_two_is_enough(tmp_path: Path) -> None:
    """Without the one the other does it, where it can."""
    given = model(FORMS["a bias"][0])
    assert kinds(written(tmp_path, "einsum", given, "no-transpose")) == "Transpose Einsum Add"
    assert open_each([tmp_path / "einsum.onnx"])[0].opens


def test_what_opens_stays_as_it_is(tmp_path: Path) -> None:
    for name, form in OPEN.items():
        given = model(form)
        made = written(tmp_path, name, given)
        assert [n.op_type for n in made.graph.node if n.op_type != "Cast"] == [n.op_type for n in given.graph.node]
    assert all(how.opens for how in open_each([tmp_path / f"{name}.onnx" for name in OPEN]))


def test_nodes_of_which_the_user_speaks_stay() -> None:
    given = model("[p] c = Transpose<perm = [1, 0, 2]>(a) m = MatMul(c, w) y = Relu(m)")
    made = proto(ampgraph.convert(given, "O3", target="cuda", fp32=["p"], check="off"))
    assert kinds(made) == "Transpose MatMul Relu"


def test_where_nothing_is_low_nothing_changes() -> None:
    given = model(FORMS["a bias"][0])
    assert proto(ampgraph.convert(given, "O3", target="cuda", fp32=["op:*"], check="off")) == given


def test_the_plan_says_so() -> None:
    plan = ampgraph.plan(model(FORMS["a bias"][0]), level="O3", target="cuda")
    (rewrite,) = plan.rewrites
    assert rewrite.name == "transpose" and "crashes" in rewrite.said
