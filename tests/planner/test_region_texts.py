"""Every text of op_lists/patterns is needed: without it a form is no region, and a norm no longer right by itself."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pytest

from ampgraph.core.dataflow import Dataflow
from ampgraph.core.matching import PatternSet
from ampgraph.formats import adapters
from ampgraph.oplists import pattern_files
from ampgraph.oplists.files import ListFile, data_folder, read_file
from ampgraph.oplists.pattern_files import BIAS, SHARED, conventions, patterns_of
from ampgraph.oplists.patterns import bias_patterns, region_patterns
from near import difference
from onnx_text import parse
from planner import test_region_forms as more
from planner import test_regions as first
from planner.support import float32_and_low
from planner.without import without

NORM = """main(x: f32[64,128])
  parameter w: f32[128,128]
  parameter g: f32[128]
  l = Load(w, state)
  s = Load(g, state)
  a: f32[64,128] = MatMul(x, l, false, false)
  {body}
  b: f32[64,128] = MatMul(n, l, false, false)
  return b
"""
ROOT = "v: f32[64,1] = ReduceMean(q, [1], true)\n  e: f32[64,1] = Add(v, f32[]=1e-5)\n  r: f32[64,1] = Rsqrt(e)"
OVER = "n: f32[64,128] = Mul({0}, r)"
CENTRED = "m: f32[64,1] = ReduceMean(a, [1], true)\n  d: f32[64,128] = Sub(a, m)\n  q: f32[64,128] = Square(d)"
MINDIR = {
    "RMSNormalization": f"q: f32[64,128] = Square(a)\n  {ROOT}\n  {OVER.format('a')}",
    "LayerNormalization": f"{CENTRED}\n  {ROOT}\n  {OVER.format('d')}",
    "LayerNormalization, the scale in the root": f"{CENTRED}\n  {ROOT}\n  f: f32[64,128] = Mul(r, s)"
    "\n  n: f32[64,128] = Mul(d, f)",
    "LpNormalization": f"q: f32[64,128] = Square(a)\n  {ROOT}\n  {OVER.format('a')}".replace("ReduceMean", "ReduceSum"),
}


@cache
def flows(kind: str) -> Sequence[Dataflow]:
    """The forms of a region in all the ways that the tests know."""
    from formats.mindir.parse import graph_of
    from formats.mindir.parse import parse as parse_mindir

    found = [first.between(body) for name, _, body in first.FORMS if name == kind]
    found += [first.between(more.body_of(kind, b), more=more.MORE) for b in more.FORMS.get(kind, {}).values()]
    if kind == "BatchNormalization":
        found += [more.batched(name) for name in more.BATCHED]
    if kind == "LayerNormalization":
        found.append(more.pooled())
    if kind == BIAS:
        text = "g (float[4,8] f) => (float[4,8] o) { x = MatMul (f, w)  o = Add (x, b) }"
        found.append(parse(text, first.used(text)))
        found.append(parse(text.replace("=> (", "=> (float[4,8] x, "), first.used(text)))
    given = [adapters.load(model)[0].dataflow("float16") for model in found]
    bodies = [body for name, body in MINDIR.items() if name.split(",")[0] == kind]
    return [*given, *(graph_of(parse_mindir(NORM.format(body=body))).dataflow("float16") for body in bodies)]


def seen(patterns: PatternSet, flow: Dataflow, kind: str) -> object:
    """The regions of one kind, with their operators."""
    products = {"Product": ["MatMul"]} if kind == BIAS else {}
    return [(match.pattern.kind, sorted(op.id for op in match.ops)) for match in patterns.find(flow, products)]


@cache
def seen_by_all(kind: str) -> Sequence[object]:
    shipped = bias_patterns() if kind == BIAS else region_patterns()
    own = PatternSet([pattern for pattern in shipped.patterns if pattern.kind == kind], shipped.conventions)
    return [seen(own, flow, kind) for flow in flows(kind)]


def files() -> Iterator[ListFile]:
    return (read_file(path) for path in sorted((data_folder() / "patterns").glob("*.toml")))


def texts(file: ListFile) -> Iterator[tuple[str, str, int]]:
    """Section, name and place of every text of a file."""
    for section in ("variants", "functions"):
        for name, held in file.data.get(section, {}).items():
            yield from ((section, name, place) for place in range(1 if isinstance(held, str) else len(held)))
    for section in ("anchors", "ends", "private"):
        yield from ((section, name, 0) for name in file.data.get(section, ()))


def dropped(file: ListFile, section: str, name: str, place: int) -> ListFile:
    data = copy.deepcopy(dict(file.data))
    if section == "variants":
        del data[section][name]
    elif section == "functions":
        del data[section][name][place]
    else:
        data[section] = [other for other in data[section] if other != name]
    return dataclasses.replace(file, data=data)


CELLS = [
    pytest.param(file, section, name, place, id=f"{file.name}: {section}: {name} {place}")
    for file in files()
    for section, name, place in texts(file)
]


@pytest.mark.share(3)
@pytest.mark.parametrize(("file", "section", "name", "place"), CELLS)
def test_without_a_text_some_form_is_no_region(
    file: ListFile, section: str, name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = dropped(file, section, name, place)
    if file.name.endswith(SHARED):
        monkeypatch.setattr(pattern_files, "_shared", lambda: less)
        regions = [other for other in files() if not other.name.endswith(SHARED)]
    else:
        regions = [less]
    assert any(is_missed(region) for region in regions)


def is_missed(file: ListFile) -> bool:
    """Whether the patterns of a file do not find, or not whole, what those of the shipped file find."""
    kind: str = file.data["region"]
    try:
        own = PatternSet(list(patterns_of(file)), conventions())
    except Exception as error:  # a variant that nothing is left of
        return "AmpError" in type(error).__name__
    return any(seen(own, flow, kind) != whole for flow, whole in zip(flows(kind), seen_by_all(kind), strict=True))


OTHER_RULES = ("pow", "cancelling", "eps", "long-sum")  # what would hold parts of a norm that is no region
NORMS: Mapping[str, tuple[str, str]] = {
    **{f"{kind}: {name}": (kind, body) for kind, name, body in first.FORMS if kind.endswith("Normalization")},
    **{
        f"{kind}: {name}": (kind, body)
        for kind, forms in more.FORMS.items()
        for name, body in forms.items()
        if kind.endswith("Normalization")
    },
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_right_by_its_text_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows far from zero, and rows whose squares leave the range: with no guard but the region's, and without it."""
    kind, body = NORMS[name]
    large = 200 if body.count("ReduceL2") == 1 else 1  # a root leaves the range where its elements nearly do
    model, data = first.between(more.body_of(kind, body), more=more.MORE), {"f": more.rows(large) / 2}
    without(monkeypatch, *OTHER_RULES)
    reference, low = float32_and_low(model, data)
    assert not difference(reference["o"], low["o"])
    monkeypatch.setattr("ampgraph.planner.regions.find_regions", lambda flow: [])
    reference, low = float32_and_low(model, data)
    assert difference(reference["o"], low["o"])
