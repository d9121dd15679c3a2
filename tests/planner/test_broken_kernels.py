"""What a runtime cannot load is not written for it."""

from __future__ import annotations

import pytest

import ampgraph
from ampgraph.runtime.optimizing import optimized
from onnx_text import parse
from planner.form_models import WRITTEN_OUT, embeddings

BEFORE = {
    "graph input": "t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Relu(m)",
    "float32 value": "e = Exp(x) t = Transpose<perm = [1, 0, 2]>(e) m = MatMul(t, w) y = Relu(m)",
    "in place": "t = Transpose<perm = [1, 0, 2]>(x) i = Identity(t) m = MatMul(i, w) y = Relu(m)",
    "second operand": "t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(w, t) y = Relu(m)",
}


def model(body: str):
    return parse(f"g (float[8, 8, 8] x) => (float[8, 8, 8] y) {{ {body} }}", w=(8, 8))


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("body", BEFORE.values(), ids=list(BEFORE))
def test_a_transpose_before_a_product_is_float32_on_a_cpu(body, level):
    """A low one kills ONNX Runtime 1.31 as it opens a session, with its default optimisations."""
    found = ampgraph.explain(model(body), "t", level=level, target="cpu")
    assert found.precision == "float32" and "dies as it loads" in found.slots[0].reason
    assert ampgraph.explain(model(body), "m", level=level, target="cpu").precision == "float16"


@pytest.mark.slow
@pytest.mark.parametrize("body", BEFORE.values(), ids=list(BEFORE))
def test_what_is_written_for_a_cpu_loads(body):
    made = ampgraph.convert(model(body), level="O2", target="cpu")
    assert optimized(made, "CPUExecutionProvider").providers()["CPU"] > 2


def test_a_transpose_elsewhere_is_as_before():
    body = "t = Transpose<perm = [1, 0, 2]>(x) r = Relu(t) m = MatMul(r, w) y = Relu(m)"
    assert ampgraph.explain(model(body), "t", level="O2", target="cpu").precision == "float16"
    assert ampgraph.explain(model(BEFORE["graph input"]), "t", level="O2").precision == "float16"


@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
@pytest.mark.parametrize("given", [embeddings(), embeddings(WRITTEN_OUT)], ids=["operator", "written out"])
def test_embeddings_that_would_be_fused_into_what_takes_no_bfloat16(given, level):
    """The last sum stays float32, whatever the norm behind it; float16 has a kernel, other targets have no fusion."""
    found = ampgraph.explain(given, "e", level=level, dtype="bfloat16")
    assert found.precision == "float32" and "makes one operator of" in found.slots[0].reason
    low = [ampgraph.Recipe.of(level="O3"), ampgraph.Recipe.of(level="O3", dtype="bfloat16", target="tensorrt")]
    assert all(ampgraph.explain(given, "e", recipe=recipe).precision != "float32" for recipe in low)


def test_embeddings_before_no_fused_attention_are_low():
    given = embeddings(attention=False)
    assert ampgraph.explain(given, "e", level="O3", dtype="bfloat16").precision == "bfloat16"
    assert ampgraph.explain(embeddings(), "two", level="O3", dtype="bfloat16").precision == "bfloat16"


def test_what_is_like_a_type_that_has_no_cast_stays_float32():
    """From 4 bits no provider of the wheel makes float16."""
    given = parse("g (float4e2m1[3, 4] x, float[1] like) => (float[3, 4] y) { y = CastLike (x, like) }", opset=25)
    found = ampgraph.explain(given, "y", level="O3")
    assert found.precision == "float32" and "no provider has a Cast" in found.slots[0].reason
    other = parse("g (int8[3, 4] x, float[1] like) => (float[3, 4] y) { y = CastLike (x, like) }", opset=25)
    assert ampgraph.explain(other, "y", level="O3").precision == "float16"
