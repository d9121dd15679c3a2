"""The table of MindSpore's operators against what MindSpore itself infers.

Calls of operator_cases.py are exported, many to a file, and the types of their operands and results are read back.
Nothing runs, so types need no kernel. A full run takes every operator in float32, float16 and bfloat16; other runs take
a share of them, and hold the table to what the last full run has seen."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampgraph.formats.mindir.schema import ELEMENT_TYPES, Model
from ampgraph.oplists.files import data_folder, known_operators, tomllib
from ampgraph.oplists.mindspore_schemas import FIXED_TYPES, LOW_TYPES, Operator, Place, is_slot, operator, operators
from ampgraph.oplists.operators import load_op_lists
from ampgraph.oplists.traits import has
from formats.mindir.operator_cases import CASES, Dtype, Tensor
from present import present
from share import share, turn

FLOATS = {"float32", *LOW_TYPES}
BATCH = 24

ASCEND_WRITE = "writes state in a way that only Ascend has a kernel for"
OPTIMIZER = "all of its operands stay as they are: no slot to check"
FOLDED = "a constant as soon as shapes are known"
NOT_BUILT = {
    **dict.fromkeys(("AdamNoUpdateParam", "AdamW", "ApplyAdamWithAmsgrad", "ApplyAdamWithAmsgradV2"), OPTIMIZER),
    **dict.fromkeys(("ApplyCenteredRMSProp", "ApplyKerasMomentum", "ApplyProximalGradientDescent"), OPTIMIZER),
    **dict.fromkeys(("FusedSparseAdam", "FusedSparseFtrl", "FusedSparseLazyAdam"), OPTIMIZER),
    **dict.fromkeys(("FusedSparseProximalAdagrad", "LARSUpdate", "Lamb"), OPTIMIZER),
    **dict.fromkeys(("SparseApplyAdagradV2", "SparseApplyFtrl"), OPTIMIZER),
    **dict.fromkeys(("InplaceFillTensor", "InplaceScatterAdd", "InplaceScatterSrc"), OPTIMIZER),
    **dict.fromkeys(("KVCacheScatterUpdate", "PagedAttention", "ReshapeAndCache", "AllFinite"), ASCEND_WRITE),
    **dict.fromkeys(("NPUAllocFloatStatus", "NPUClearFloatStatusV2", "NPUGetFloatStatusV2"), ASCEND_WRITE),
    **dict.fromkeys(("Arange", "OnesLike", "Ones", "Rank", "ScalarToTensor", "Shape", "Size"), FOLDED),
    **dict.fromkeys(("Zeros", "ZerosLike"), FOLDED),
    "StopGradient": "the exporter takes it out of a graph without gradients",
    "TensorMove": "put in by the compiler, after in-place writes",
}
"""Not exported by themselves on CPU, and why: checked for their form only."""

LOW_ONLY = {"ApplyRotaryPosEmb", "IncreFlashAttention", "PromptFlashAttention"}
"""Refuse float32."""


SEEN = "8e23e139de556f4a"
"""The table that a full run has seen, with MindSpore 2.10.0: `AMPGRAPH_TESTS=full pytest tests/formats/mindir`."""


def test_the_table_was_seen_whole() -> None:
    rows = [
        f"{name} {entry.inputs} {entry.outputs} {sorted(entry.admits)} {entry.variadic_input} {entry.variadic_output}"
        for name, entry in sorted(operators().items())
    ]
    found = hashlib.blake2b("\n".join(rows).encode(), digest_size=8).hexdigest()
    assert found == SEEN, f"after a full run of this file passed, write {found} here"
    # every operator has a call or a reason
    known = {name for name, entry in operators().items() if not entry.structural}
    assert known == {*CASES, *NOT_BUILT} and not set(NOT_BUILT) & set(CASES)


@pytest.fixture(scope="module")
def ms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MS_OM_PATH", str(tmp_path_factory.mktemp("failed")))  # where it writes what does not compile
        mindspore = pytest.importorskip("mindspore")
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        yield mindspore


def _primitive(ms: Any, name: str) -> Any:
    from mindspore.ops import auto_generate
    from mindspore.ops.operations import _grad_ops, _inner_ops, array_ops, image_ops, math_ops, nn_ops, random_ops

    operations = ms.ops.operations, nn_ops, math_ops, array_ops, image_ops, random_ops
    homes = (auto_generate, *operations, _grad_ops, _inner_ops)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def _net(ms: Any, calls: Sequence[tuple[Any, tuple]], states: list[Any]) -> Any:
    """A Cell that makes every call; an operand is (kind, payload): input, tuple of inputs, state or constant."""

    class Calls(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.primitives = tuple(primitive for primitive, _ in calls)
            self.layouts = tuple(layout for _, layout in calls)
            self.states = ms.ParameterTuple(states)

        def construct(self, *xs: Any) -> Any:
            results: tuple[Any, ...] = ()
            for index in range(len(self.primitives)):
                operands: tuple[Any, ...] = ()
                for kind, payload in self.layouts[index]:
                    if kind == "input":
                        operands = operands + (xs[payload],)  # noqa: RUF005  (what MindSpore parses)
                    elif kind == "inputs":
                        group: tuple[Any, ...] = ()
                        for place in payload:
                            group = group + (xs[place],)  # noqa: RUF005
                        operands = operands + (group,)  # noqa: RUF005
                    elif kind == "state":
                        operands = operands + (self.states[payload],)  # noqa: RUF005
                    else:
                        operands = operands + (payload,)  # noqa: RUF005
                results = results + (self.primitives[index](*operands),)  # noqa: RUF005
            return results

    return Calls()


def _build(ms: Any, names: Sequence[str], lowered: dict[str, str]) -> tuple[Any, list[Any]]:
    """The network of some calls and its inputs; floats take the type of their slot in ``lowered``."""
    inputs: list[Any] = []
    states: list[Any] = []
    calls = []

    def add(tensor: Tensor, slot: str) -> int:
        element = lowered.get(slot, "float32") if tensor.kind == "float" else tensor.kind
        inputs.append(ms.ops.ones(tensor.shape, getattr(ms, element if element != "bool" else "bool_")))
        return len(inputs) - 1

    for name in names:
        layout: list[tuple[str, Any]] = []
        for place, item in enumerate(CASES[name].operands):
            slot = _entry(name).slot_of_input(place)
            if isinstance(item, Tensor) and item.kind == "state":
                states.append(ms.Parameter(ms.ops.ones(item.shape, ms.float32), name=f"{name}_{place}"))
                layout.append(("state", len(states) - 1))
            elif isinstance(item, Tensor):
                layout.append(("input", add(item, slot)))
            elif isinstance(item, tuple) and item and isinstance(item[0], Tensor):
                layout.append(("inputs", tuple(add(part, slot) for part in item)))
            else:
                layout.append(("constant", getattr(ms, item.name) if isinstance(item, Dtype) else item))
        case = CASES[name]
        calls.append((_primitive(ms, name)(*case.init, **case.options), tuple(layout)))
    return _net(ms, calls, states), inputs


def _entry(name: str) -> Operator:
    entry = operator(name)
    assert entry is not None
    return entry


def _export(ms: Any, folder: Path, names: Sequence[str], lowered: dict[str, str]) -> dict[str, list[SimpleNamespace]]:
    """Operator -> its nodes in the exported file, with the types of operands and results."""
    net, inputs = _build(ms, names, lowered)
    path = folder / "calls.mindir"
    path.unlink(missing_ok=True)
    ms.export(net, *inputs, file_name=str(path), file_format="MINDIR")
    model = Model.FromString(path.read_bytes())
    kinds = {primitive.name: primitive.op_type for primitive in model.primitives}
    types = {value.name: [ELEMENT_TYPES[t.data_type] for t in value.tensor] for value in model.graph.input}
    types |= {weight.name: [ELEMENT_TYPES[weight.data_type]] for weight in model.graph.parameter}
    found: dict[str, list[SimpleNamespace]] = {}
    for node in model.graph.node:
        kind = kinds.get(node.op_type.removeprefix("REF::"), node.op_type)
        made = [t for a in node.attribute if a.name in ("shape", "value") for t in _types(a)]
        types[node.name] = made
        for output in node.output:
            types[output] = made
        monads = [i for i, name in enumerate(node.input) if types.get(name) == ["monad"]]
        operands = [types.get(name, []) for i, name in enumerate(node.input) if i not in monads]
        found.setdefault(kind, []).append(SimpleNamespace(operands=operands, results=made))
    return found


def _types(attribute: Any) -> Iterator[str]:
    """Element types of an abstract, tuples flattened; "monad" for what only orders."""
    for part in attribute.values:
        yield from _types(part)
    for tensor in attribute.tensors:
        yield ELEMENT_TYPES[tensor.data_type]
    if attribute.type in (23, 24):
        yield "monad"


def _differences(name: str, nodes: list[SimpleNamespace], lowered: dict[str, str]) -> str:
    """How the node of a call differs from the table, or an empty string."""
    if not nodes:
        return f"{name} is not in the file"
    entry = _entry(name)
    wrong: list[list[str]] = []
    for node in nodes:
        wrong.append([])
        if len(node.operands) != len(entry.inputs) and not entry.variadic_input:
            wrong[-1].append(f"{len(node.operands)} operands, {len(entry.inputs)} in the table")
        for place, types in enumerate(node.operands):
            expected = lowered.get(entry.slot_of_input(place), "float32")
            if any(t in FLOATS and t != expected for t in types):
                wrong[-1].append(f"operand {place} is {types}, the table says {expected}")
        if len(node.results) < len(entry.outputs) or (
            len(node.results) > len(entry.outputs) and not entry.variadic_output
        ):
            wrong[-1].append(f"{len(node.results)} results, {len(entry.outputs)} in the table")
        for place, given in enumerate(node.results):
            slot = entry.slot_of_output(place)
            if is_slot(slot) and slot not in entry.inputs:
                continue  # an operand of a Cast names it
            fixed = given not in LOW_TYPES if slot == "-" else given == slot
            if not (given == lowered.get(slot, "float32") if is_slot(slot) else fixed):
                wrong[-1].append(f"result {place} is {given}, the table says {slot}")
    return "" if not all(wrong) else f"{name}: {'; '.join(wrong[0])}"


def _check(ms: Any, folder: Path, names: Sequence[str], lowered: dict[str, str]) -> list[str]:
    """Differences of some calls made in one graph, or each in its own if they do not compile together."""
    try:
        found = _export(ms, folder, names, lowered)
    except Exception as error:  # MindSpore raises anything
        if len(names) == 1:
            return [f"{names[0]} does not compile: {str(error).strip().partition(chr(10))[0]}"]
        half = len(names) // 2
        return [*_check(ms, folder, names[:half], lowered), *_check(ms, folder, names[half:], lowered)]
    return [text for name in names if (text := _differences(name, found.get(name, []), lowered))]


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while batch := list(islice(rest, BATCH)):
        yield batch


@pytest.mark.mindspore
@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16"])
def test_types_are_those_that_mindspore_infers(ms: Any, tmp_path: Path, element: str) -> None:
    names = [n for n in CASES if element in _entry(n).admits or element == "float32" and n not in LOW_ONLY]
    names = share([n for n in names if element in turn(n, ["float32", *sorted(_entry(n).admits & LOW_TYPES)])], 8)
    lowered = {slot: element for entry in operators().values() for slot in entry.slots}
    wrong = [text for batch in _batches(names) for text in _check(ms, tmp_path, batch, lowered)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.mindspore
def test_slots_and_types_that_are_not_admitted(ms: Any, tmp_path: Path) -> None:
    wrong = []
    several = [name for name in CASES if len(_entry(name).slots) > 1 and name != "Cast"]
    for name in share(several, 8):
        for slot in _entry(name).slots:
            wrong += _check(ms, tmp_path, [name], {slot: "float16"})
    assert not wrong, "\n".join(wrong)
    # Of an operator that admits neither low type one is tried: each takes a compilation.
    wrongly = []
    for name in share([name for name in CASES if LOW_TYPES - _entry(name).admits], 40):
        for low in turn(name, sorted(LOW_TYPES - _entry(name).admits)):
            lowered = dict.fromkeys(_entry(name).slots, low)
            if not _check(ms, tmp_path, [name], lowered):
                wrongly.append(f"{name} takes {low}")
    assert not wrongly, "\n".join(wrongly)


# The table of MindSpore's operators as the code reads it: form and look-ups.

PATH = data_folder() / "schemas" / "mindspore.toml"


def test_the_table() -> None:
    names = list(tomllib.loads(PATH.read_text(encoding="utf-8")))
    assert names == sorted(names) and len(names) >= 300
    # every role is a standard operator with a class
    lists = load_op_lists()
    roles = {entry.role for entry in operators().values() if entry.role}
    assert roles <= set(known_operators())
    assert not [role for role in sorted(roles) if lists.entry(role) is None and role not in UNLISTED]
    # operands that are none of the roles have no slot or are shared
    for known in operators().values():
        assert not set(known.order) - set(range(len(known.inputs)))
        assert known.role or not known.order, known.name
    # writers of parameters leave their operands alone
    free = [e.name for e in operators().values() if e.effect and e.slots]
    assert sorted(free) == ["BatchNorm", "BatchNormExt", "Embedding", "InstanceNorm"]
    # look ups
    entry = operator("LayerNormExt")
    assert entry is not None and entry.kind == "LayerNormalization" and entry.order == (0, 2, 3)
    assert [entry.slot_of_input(place) for place in range(6)] == ["T", "-", "T", "T", "-", "-"]
    assert [entry.slot_of_output(place) for place in range(4)] == ["T", "float32", "float32", "-"]
    assert entry.attributes["epsilon"] == Place(operand=4)
    assert present(operator("Conv2D")).attributes["kernel_shape"] == Place(attribute="kernel_size")
    assert present(operator("Split")).slot_of_output(7) == "T"
    assert present(operator("Square")).kind == "mindspore::Square"
    assert operator("NoSuchOperator") is None
    assert present(operator("MakeTuple")).structural
    # low types that type inference refuses
    assert present(operator("BatchNorm")).admits == {"float16"}
    assert present(operator("Range")).admits == frozenset()
    assert present(operator("MatMul")).admits == LOW_TYPES
    # slots and fixed types
    assert is_slot("T1") and not is_slot("-") and not is_slot("float32")


UNLISTED: set[str] = set()


@pytest.mark.parametrize("entry", [one for one in operators().values() if not one.structural], ids=lambda one: one.name)
def test_an_entry_is_consistent(entry: Operator) -> None:
    words = [*entry.inputs, *entry.outputs]
    assert all(re.fullmatch("-|[A-Z][A-Z0-9]*", word) or word in FIXED_TYPES for word in words)
    assert FIXED_TYPES.isdisjoint(entry.inputs)
    assert has(entry.role, "casts") or {slot for slot in entry.outputs if is_slot(slot)} <= {*entry.inputs}
    assert len({*entry.order}) == len(entry.order) and {*entry.order} <= {*range(len(entry.inputs))}
    assert all(place.operand < len(entry.inputs) for place in entry.attributes.values()) and entry.admits <= LOW_TYPES
