"""What TensorRT takes of every operator: forms of it as models of one node, in each type, and of two types at once.

Forms come from ONNX's node suite and from the book that the fuzz draws operators from. A form counts where its float32
model is parsed and built; then each low type is tried in all type variables of the schema, and in some of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "tests")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from engines import built  # noqa: E402
from node_suite import suite  # noqa: E402
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper  # noqa: E402

from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob  # noqa: E402
from fuzz import forms  # noqa: E402

LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
DRAWS = {24: 5, 18: 2, 13: 2, 9: 1}
"""Opset -> forms of each operator that are drawn."""
TYPED = ("dtype", "to", "output_dtype")
"""Attributes that say the type of an output."""
MOST = 24
"""Forms of one operator."""
MORE = {
    "LSTM with lengths": """g (float[4,1,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b, int32[1] n,
        float[1,1,2] h, float[1,1,2] c) => (float[4,1,1,2] y) { y = LSTM <hidden_size = 2> (x, w, r, b, n, h, c) }""",
    "LSTM with peepholes": """g (float[4,1,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b,
        float[1,1,2] h, float[1,1,2] c, float[1,6] p) => (float[4,1,1,2] y)
        { y = LSTM <hidden_size = 2> (x, w, r, b, , h, c, p) }""",
    "GRU with lengths": """g (float[4,1,3] x, float[1,6,3] w, float[1,6,2] r, float[1,12] b, int32[1] n)
        => (float[4,1,1,2] y) { y = GRU <hidden_size = 2> (x, w, r, b, n) }""",
    "RNN with lengths": """g (float[4,1,3] x, float[1,2,3] w, float[1,2,2] r, float[1,4] b, int32[1] n)
        => (float[4,1,1,2] y) { y = RNN <hidden_size = 2> (x, w, r, b, n) }""",
}
"""Forms that neither has."""
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""What the book does not draw, as its results differ from run to run."""


@dataclass(frozen=True)
class Form:
    """One use of an operator in float32. ``variables``: type variables of its schema that are float32 in it."""

    operator: str
    name: str
    job: BuildJob
    variables: tuple[str, ...]

    @property
    def model(self) -> ModelProto:
        """Its one node, with float32 inputs and outputs."""
        assert isinstance(self.job.model, ModelProto)
        return self.job.model

    @property
    def node(self) -> NodeProto:
        """The node."""
        return self.model.graph.node[0]

    @property
    def key(self) -> str:
        """What tells it from others: operator, attributes, which inputs it has, and the rank of each."""
        values = {value.name: len(value.type.tensor_type.shape.dim) for value in self.model.graph.input}
        ranks = [values.get(name, -1) if name else -2 for name in self.node.input]
        attributes = sorted(helper.printable_attribute(attribute) for attribute in self.node.attribute)
        return f"{self.operator} {attributes} {ranks} {len(self.node.output)} {self.variables}"


@dataclass(frozen=True)
class Tried:
    """A form with some of its type variables low, and what became of it."""

    form: Form
    dtype: str
    low: tuple[str, ...]
    answer: BuildAnswer

    @property
    def uniform(self) -> bool:
        """Whether all of it is low."""
        return self.low == self.form.variables


def all_forms() -> dict[str, list[Form]]:
    """Operator -> its forms, in a fixed order."""
    found: dict[str, list[Form]] = {}
    known: set[str] = set()
    for name, job in (*suite().items(), *_written(), *_drawn()):
        form = form_of(name, job)
        if form is None or form.key in known or len(found.get(form.operator, ())) == MOST:
            continue
        known.add(form.key)
        found.setdefault(form.operator, []).append(form)
    return dict(sorted(found.items()))


def form_of(name: str, job: BuildJob) -> Form | None:
    """A use of one operator in float32; None for any other model."""
    assert isinstance(job.model, ModelProto)
    graph = job.model.graph
    if len(graph.node) != 1 or graph.node[0].domain or any(a.HasField("g") for a in graph.node[0].attribute):
        return None
    variables = tuple(sorted({variable for _, variable in _floats(job.model)}))
    return Form(graph.node[0].op_type, name, job, variables) if variables else None


def _floats(model: ModelProto) -> Iterator[tuple[str, str]]:
    """The float32 values of a model of one node, and their type variables."""
    node, types = model.graph.node[0], _types(model)
    schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=model.opset_import[0].version, domain="")
    named = {constraint.type_param_str for constraint in schema.type_constraints}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for place, name in enumerate(names):
            variable = formals[min(place, len(formals) - 1)].type_str
            if types.get(name) == TensorProto.FLOAT and variable in named:
                yield name, variable


def _types(model: ModelProto) -> dict[str, int]:
    values = (*model.graph.input, *model.graph.output)
    found = {v.name: v.type.tensor_type.elem_type for v in values if v.type.HasField("tensor_type")}
    return {**found, **{tensor.name: tensor.data_type for tensor in model.graph.initializer}}


def _drawn() -> Iterator[tuple[str, BuildJob]]:
    """Forms from the fuzz's book, of several opsets."""
    for opset, count in DRAWS.items():
        for operator in sorted({name for name in forms.operators(opset) if "::" not in name}):
            rng = np.random.default_rng([opset, *operator.encode()])
            for number in range(count):
                use = forms.draw(rng, operator, opset)
                model = _of_use(use, opset, rng) if use is not None else None
                if model is not None:
                    yield f"{operator} {number} of opset {opset}", BuildJob(model)
    for operator in RANDOM:
        text = (
            f'<ir_version: 10, opset_import: ["" : 22]> g (float[2, 3] x) => (float[2, 3] y) {{ y = {operator} (x) }}'
        )
        text = text.replace("(x)", "<shape = [2, 3]> ()") if operator in ("RandomNormal", "RandomUniform") else text
        yield f"{operator}, plain", BuildJob(onnx.parser.parse_model(text))


def _written() -> Iterator[tuple[str, BuildJob]]:
    """The forms that are written here."""
    for name, text in MORE.items():
        yield name, BuildJob(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}'))


def _of_use(use: forms.Use, opset: int, rng: np.random.Generator) -> ModelProto | None:
    """A model of a drawn use; None where it is none of float32, or is no valid one."""
    inputs, stored, names = [], [], []
    for place, want in enumerate(use.wants):
        names.append(f"x{place}" if want.dtype else "")
        if not want.dtype:
            continue
        if want.dtype == "string" or want.dtype in LOW or want.dtype == "double":
            return None
        dtype = np.dtype(forms.DTYPES[want.dtype])
        value = want.value if want.value is not None else _numbers(rng, want.shape, dtype)
        if want.constant or dtype.kind != "f":
            stored.append(numpy_helper.from_array(np.asarray(value, dtype), names[-1]))
        else:
            kind = helper.np_dtype_to_tensor_dtype(dtype)
            inputs.append(helper.make_tensor_value_info(names[-1], kind, want.shape))
    outputs = [f"y{number}" for number in range(use.outputs)]
    node = helper.make_node(use.kind, names, outputs, name="node", **use.attributes)
    values = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "form", inputs, values, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return _inferred(model)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape).astype(dtype)


def _inferred(model: ModelProto) -> ModelProto | None:
    """With the types and shapes of its outputs; None for what the checker refuses."""
    try:
        made = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        known = {value.name: value.type for value in (*made.graph.value_info, *made.graph.output)}
        for value in made.graph.output:
            value.type.CopyFrom(known[value.name])
        onnx.checker.check_model(made)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return made


def retyped(form: Form, dtype: str, low: Iterable[str]) -> BuildJob | None:
    """A form with some type variables in a low type; None where the schema does not admit that."""
    wanted, model = set(low), ModelProto()
    model.CopyFrom(form.model)
    of_inputs = {variable for name, variable in _floats(form.model) if name in form.node.input}
    floats = {name: variable for name, variable in _floats(form.model) if variable in wanted}
    for value in (*model.graph.input, *model.graph.output):
        if value.name in floats:
            value.type.tensor_type.elem_type = LOW[dtype]
    for tensor in model.graph.initializer:
        if tensor.name in floats:
            low_type = helper.tensor_dtype_to_np_dtype(LOW[dtype])
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(low_type), tensor.name))
    said = {floats[name] for name in form.node.output if name in floats} - of_inputs
    for attribute in model.graph.node[0].attribute:
        if said and attribute.name in TYPED and attribute.i == TensorProto.FLOAT:
            attribute.i = LOW[dtype]
        if said and attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            low_type = helper.tensor_dtype_to_np_dtype(LOW[dtype])
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(low_type)))
    del model.graph.value_info[:]
    if any(set(a) & wanted and set(a) - wanted for a in _shared(form)):
        return None
    return None if _inferred(model) is None else BuildJob(model, values=form.job.values)


def between_casts(form: Form, dtype: str) -> BuildJob | None:
    """A low form whose float32 inputs and outputs are cast; None where the schema does not admit it."""
    job = retyped(form, dtype, form.variables)
    if job is None:
        return None
    assert isinstance(job.model, ModelProto)
    graph, floats = job.model.graph, {name for name, _ in _floats(form.model)}
    for value in [*graph.input, *graph.output]:
        if value.name in floats:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    node = graph.node[0]
    ends = {*(value.name for value in graph.input), *(value.name for value in graph.output)} & floats
    before = [
        helper.make_node("Cast", [n], [f"{n}_low"], to=LOW[dtype]) for n in dict.fromkeys(node.input) if n in ends
    ]
    after = [helper.make_node("Cast", [f"{n}_low"], [n], to=TensorProto.FLOAT) for n in node.output if n in ends]
    for names in (node.input, node.output):
        names[:] = [f"{name}_low" if name in ends else name for name in names]
    nodes = [*before, node, *after]
    kept = [NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return BuildJob(job.model, values=job.values)


def enclosed(rows: Iterable[Tried], python: str, kept: str) -> Iterator[Tried]:
    """The first form of each operator that is taken in a low type, with its inputs and outputs cast."""
    first = {(row.form.operator, row.dtype): row for row in reversed(list(rows)) if row.uniform and row.answer.ok}
    made = [(row, job) for row in first.values() if (job := between_casts(row.form, row.dtype)) is not None]
    for (row, _), answer in zip(made, built((job for _, job in made), python, kept), strict=True):
        yield Tried(row.form, row.dtype, row.low, answer)


def raised(listed: Iterable[Form], python: str, kept: str) -> Iterator[Tried]:
    """The first form of each operator in float32, behind a Cast of what is computed in a low type, or in float32."""
    first = {form.operator: form for form in reversed(list(listed))}
    types = {"float32": TensorProto.FLOAT, **LOW}
    made = [(form, to, job) for form in first.values() for to in types if (job := _behind_cast(form, types[to]))]
    for (form, low, _), answer in zip(made, built((job for *_, job in made), python, kept), strict=True):
        yield Tried(form, low, (), answer)


def _behind_cast(form: Form, dtype: int) -> BuildJob | None:
    """A form whose first operand is a sigmoid in a type of ONNX's, cast; None where that is no float32 input."""
    model = ModelProto()
    model.CopyFrom(form.model)
    (node,), inputs = model.graph.node, {value.name: value.type.tensor_type for value in model.graph.input}
    name = node.input[0] if node.input else ""
    if name not in inputs or inputs[name].elem_type != TensorProto.FLOAT:
        return None
    inputs[name].elem_type = dtype
    node.input[:] = [f"{name}_wide" if one == name else one for one in node.input]
    model.graph.node.insert(0, helper.make_node("Sigmoid", [name], [f"{name}_low"]))
    model.graph.node.insert(1, helper.make_node("Cast", [f"{name}_low"], [f"{name}_wide"], to=TensorProto.FLOAT))
    return BuildJob(model, values=form.job.values)


def _shared(form: Form) -> list[tuple[str, ...]]:
    """Variables of one value: none, as a value has one; kept for inputs that are read twice."""
    by_name: dict[str, set[str]] = {}
    for name, variable in _floats(form.model):
        by_name.setdefault(name, set()).add(variable)
    return [tuple(variables) for variables in by_name.values() if len(variables) > 1]


def ways(variables: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Which variables are low at once: all; and of several each alone, and each but one."""
    sizes = {len(variables), 1, len(variables) - 1} - {0}
    return [chosen for size in sorted(sizes, reverse=True) for chosen in itertools.combinations(variables, size)]


def taken_forms(found: Mapping[str, list[Form]], python: str, kept: str) -> Iterator[tuple[Form, BuildAnswer]]:
    """The forms that TensorRT takes in float32, and what it makes of them."""
    listed = [form for several in found.values() for form in several]
    for form, answer in zip(listed, built((form.job for form in listed), python, kept), strict=True):
        if answer.ok:
            yield form, answer


def tried(listed: Iterable[Form], python: str, kept: str) -> Iterator[Tried]:
    """Each form in each low type and mix of types that its schema admits."""
    made: list[tuple[Form, str, tuple[str, ...], BuildJob]] = []
    for form, dtype in itertools.product(listed, LOW):
        for low in ways(form.variables):
            job = retyped(form, dtype, low)
            made += [] if job is None else [(form, dtype, low, job)]
    for (form, dtype, low, _), answer in zip(made, built((job for *_, job in made), python, kept), strict=True):
        yield Tried(form, dtype, low, answer)
