"""Damaged and foreign MindIR files: they are converted, or refused by an AmpError, with little work. Nothing else.

Bytes are changed in a real file and in small ones, and fields through the schema, so that what parses is reached."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import schema
from ampgraph.models import digits
from effort import lines_run
from formats.mindir.files import DIGITS, dense, refused, rounded_all, write
from formats.mindir.parse import data, dump, parse
from formats.mindir.random_texts import random_texts
from formats.mindir.small_file import LINES, SMALL, survives
from share import examples

SHARED = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
REAL = Path(digits.__file__).parent / "digits_cnn.mindir"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "damaged.mindir"


OPTIONS = st.fixed_dictionaries(
    {"level": st.sampled_from(("O1", "O2", "O3", "auto")), "dtype": st.sampled_from(("float16", "bfloat16"))},
    optional={"policy": st.just("mindspore"), "io": st.just("low")},
)


# -- bytes ------------------------------------------------------------------------------------------------------------


def damaged(content: bytes, rnd: random.Random) -> bytes:
    """A few bits flipped, bytes set, pieces cut out, doubled or moved; now and then the end is gone."""
    result = bytearray(content)
    for _ in range(rnd.choice((1, 1, 2, 8))):
        at, size = rnd.randrange(max(1, len(result))), rnd.choice((1, 2, 8, 64))
        kind = rnd.choice(("flip", "flip", "set", "cut", "double", "end"))
        if kind == "flip" and result:
            result[at] ^= 1 << rnd.randrange(8)
        elif kind == "set" and result:
            result[at] = rnd.choice((0, 1, 127, 128, 255))
        elif kind == "cut":
            del result[at : at + size]
        elif kind == "double":
            result[at:at] = result[at : at + size]
        elif kind == "end" and rnd.random() < 0.3:
            del result[at:]
    return bytes(result)


@pytest.mark.slow
@settings(SHARED, max_examples=examples(100))
@given(st.integers(0, 2**32), OPTIONS)
def test_bytes_of_a_real_file(path: Path, seed: int, options: dict[str, Any]) -> None:
    """The graph stands behind the first bytes and in front of the weights' numbers: half of the damage goes there."""
    content = REAL.read_bytes()
    rnd = random.Random(seed)
    model = schema.Model.FromString(content)
    if rnd.random() < 0.5:
        for tensor in model.graph.parameter:
            tensor.ClearField("raw_data")  # all of the rest is structure
        content = data(model)
    survives(path, damaged(content, rnd), **options)


@pytest.mark.slow
@settings(SHARED, max_examples=examples(100))
@given(random_texts(), st.integers(0, 2**32), OPTIONS)
def test_bytes_of_small_models(path: Path, text: str, seed: int, options: dict[str, Any]) -> None:
    survives(path, damaged(data(parse(text)), random.Random(seed)), **options)


@pytest.mark.slow
@pytest.mark.parametrize("size", range(0, 2000, 97))
def test_a_file_that_is_cut_short(path: Path, size: int) -> None:
    content = data(parse(SMALL))
    assert not survives(path, content[: min(size, len(content) - 1)])


# -- fields -----------------------------------------------------------------------------------------------------------


def messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from messages(item)


NUMBERS = (0, -1, -2, 1, 2, 10, 16, 17, 19, 20, 29, 99, -(2**31), 2**31 - 1)
LARGE = (2**40, 2**62, -(2**63), 2**63 - 1)


def edit(model: Any, rnd: random.Random) -> str:
    """One field of one message gets another value, another message's, a copy of itself, or goes."""
    message = rnd.choice(list(messages(model)))
    fields = [field for field in message.DESCRIPTOR.fields if message.ListFields() or rnd.random() < 0.2]
    here = [field for field, _ in message.ListFields()]
    field = rnd.choice(here if here and rnd.random() < 0.8 else fields or message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if rnd.random() < 0.2:
        message.ClearField(field.name)
    elif field.type == field.TYPE_MESSAGE:
        _edit_message(model, message, field, value, rnd)
    elif _is_list(value):
        _edit_list(value, _other(model, field, rnd), rnd)
    else:
        setattr(message, field.name, _other(model, field, rnd))
    return f"{message.DESCRIPTOR.name}.{field.name}"


def _is_list(value: Any) -> bool:
    return hasattr(value, "extend")


def _edit_message(model: Any, message: Any, field: Any, value: Any, rnd: random.Random) -> None:
    alike = [item for item in messages(model) if item.DESCRIPTOR is field.message_type]
    copy = type(rnd.choice(alike)).FromString(rnd.choice(alike).SerializeToString()) if alike else None
    if not _is_list(value):
        if copy is not None:
            value.CopyFrom(copy)
        return
    kind = rnd.choice(("double", "swap", "drop", "add"))
    if kind == "add" and copy is not None:
        value.add().CopyFrom(copy)
    elif value and kind == "double":
        value.add().CopyFrom(rnd.choice(value))
    elif value and kind == "drop":
        del value[rnd.randrange(len(value))]
    elif len(value) > 1:
        items = [type(item).FromString(item.SerializeToString()) for item in value]
        rnd.shuffle(items)
        del value[:]
        value.extend(items)


def _edit_list(value: Any, new: Any, rnd: random.Random) -> None:
    kind = rnd.choice(("set", "set", "add", "drop"))
    if kind == "add" or not value:
        value.append(new)
    elif kind == "drop":
        del value[rnd.randrange(len(value))]
    else:
        value[rnd.randrange(len(value))] = new


def _other(model: Any, field: Any, rnd: random.Random) -> Any:
    """A value for a field: odd, or one that stands elsewhere in the model."""
    if field.type == field.TYPE_STRING:
        names = [node.output[0] for node in model.graph.node if node.output] + [p.name for p in model.graph.parameter]
        names += [f"REF::{p.name}" for p in model.primitives] + [f.name for f in model.functions]
        names += ["", "nobody", "Cast", "Constant", "Switch", "Partial", "MakeTuple", "Depend", "REF::", "x" * 5000]
        return rnd.choice(names)
    if field.type == field.TYPE_BYTES:
        return rnd.choice((b"", b"\0", b"NCHW", b"\xff" * 7, bytes(64)))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rnd.choice((0.0, -1.0, 1e-12, float("inf"), float("nan")))
    if field.type == field.TYPE_BOOL:
        return rnd.random() < 0.5
    return rnd.choice(NUMBERS if field.type == field.TYPE_INT32 else NUMBERS + LARGE)


@pytest.mark.slow
@settings(SHARED, max_examples=examples(250))
@given(st.integers(0, 2**32), OPTIONS)
def test_fields_of_a_small_model(path: Path, seed: int, options: dict[str, Any]) -> None:
    model, rnd = parse(SMALL), random.Random(seed)
    note(", ".join(edit(model, rnd) for _ in range(rnd.choice((1, 1, 1, 2, 4)))))
    survives(path, data(model), **options)


@pytest.mark.slow
@settings(SHARED, max_examples=examples(100))
@given(random_texts(), st.integers(0, 2**32), OPTIONS)
def test_fields_of_random_models(path: Path, text: str, seed: int, options: dict[str, Any]) -> None:
    model, rnd = parse(text), random.Random(seed)
    note(", ".join(edit(model, rnd) for _ in range(rnd.choice((1, 1, 2)))))
    survives(path, data(model), **options)


@pytest.mark.slow
def test_most_edits_reach_the_planner(path: Path) -> None:
    """Otherwise the tests above would test the first check alone."""
    done = 0
    for seed in range(60):
        model = parse(SMALL)
        edit(model, random.Random(seed))
        done += survives(path, data(model))
    assert 10 <= done <= 55


# MindIR files that are damaged or hostile: an AmpError or a model, never anything else.

# -- what is refused --------------------------------------------------------------------------------------------------


def change(path, edit, target="model"):
    """Edits the model of a file in place."""
    model = schema.Model.FromString(path.read_bytes())
    edit(model if target == "model" else model.graph.parameter[0])
    path.chmod(0o600)
    write(model, path)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xd8^:\x7f" + bytes(range(200)), r"encrypted (AES-GCM)"),
        (b"\xda^:\x7f" + bytes(range(200)), r"encrypted (SM4-CBC)"),
        (bytes(range(255, 0, -1)), "encrypted, cut short, or another format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"PK\3\4" + bytes(40), "zip"),
        (b"some text of a user, no model at all", "another format"),
        (b"\x0a\x031.1", "holds no MindIR graph"),
        (dense().SerializeToString()[:-300], "cut short"),
    ],
)
def test_foreign_content(content, says, tmp_path):
    (tmp_path / "net.mindir").write_bytes(content)
    assert says in refused("AMP102", mindir_io.load, tmp_path / "net.mindir")


def test_an_onnx_file():
    assert "is an ONNX model" in refused("AMP102", mindir_io.load, DIGITS)


def test_paths_that_are_no_file(tmp_path):
    assert "no such file" in refused("AMP101", mindir_io.load, tmp_path / "none.mindir")
    assert "directory" in refused("AMP101", mindir_io.load, tmp_path)
    os.mkfifo(tmp_path / "pipe.mindir")
    assert "not a file" in refused("AMP101", mindir_io.load, tmp_path / "pipe.mindir")
    refused("AMP101", mindir_io.load, "nul\0.mindir")


def test_what_is_wrong_in_a_file(together):
    whole = together.read_bytes()
    assert "mind_ir_version 4" in refused(
        "AMP102", mindir_io.load, change(together, lambda m: setattr(m, "mind_ir_version", 4))
    )
    together.write_bytes(whole)
    assert "big-endian" in refused(
        "AMP102", mindir_io.load, change(together, lambda m: setattr(m, "little_endian", False))
    )
    # names that are no text
    together.write_bytes(whole.replace(b"layer-Dense", b"layer\xff\xfeense"))
    assert "not text" in refused("AMP102", mindir_io.load, together)
    # sizes that do not agree
    together.write_bytes(whole)
    change(together, lambda t: t.dims.append(2), "parameter")
    assert "parameter 'layer.weight' says 240 bytes and holds 120" in refused("AMP102", mindir_io.load, together)

    # a cut between two fields
    together.write_bytes(whole)

    def cut(model):
        del model.primitives[1:]
        model.ClearField("mind_ir_version")

    assert "before its primitives" in refused("AMP102", mindir_io.load, change(together, cut))


@pytest.mark.parametrize("dims", [[-1, 5], [1 << 62, 1 << 62], [1 << 40, 1 << 20, 0]])
def test_absurd_shapes(together, dims):
    change(together, lambda t: t.dims.__setitem__(slice(None), dims), "parameter")
    assert "absurd" in refused("AMP102", mindir_io.load, together)


def test_data_held_twice(split):
    change(split, lambda t: setattr(t, "raw_data", bytes(120)), "parameter")
    assert "twice" in refused("AMP102", mindir_io.load, split)


@pytest.mark.parametrize("fields", [{"offset": -4}, {"offset": 1 << 62}, {"length": 4}, {"length": -1}])
def test_places_outside_the_data_file(split, fields):
    def moved(tensor):
        for field, value in fields.items():
            setattr(tensor.external_data, field, value)

    change(split, moved, "parameter")
    assert "parameter 'layer.weight' wants" in refused("AMP103", mindir_io.load, split)


@pytest.mark.parametrize(
    "location", ["", "/etc/passwd", "../outside", "link/data", "a\0b", "net_variables/../../outside"]
)
def test_locations_that_leave_the_folder(split, location):
    (split.parent.parent / "outside").write_bytes(b"\1" + bytes(999))
    (split.parent / "link").symlink_to("/etc")
    change(split, lambda t: setattr(t.external_data, "location", location), "parameter")
    assert "outside the model's folder" in refused("AMP103", mindir_io.load, split)


def test_data_files_that_are_wrong(split):
    data = split.parent / "net_variables" / "data_0"
    data.chmod(0o600)
    whole = data.read_bytes()
    data.write_bytes(whole[:80])
    assert "which has 80" in refused("AMP103", mindir_io.load, split)
    data.write_bytes(b"\0" + whole[1:])
    assert "little endian" in refused("AMP103", mindir_io.load, split)
    data.write_bytes(b"\xd9^:\x7f" + whole[4:])
    assert "encrypted (AES-CBC)" in refused("AMP103", mindir_io.load, split)
    data.unlink()
    assert "is missing" in refused("AMP103", mindir_io.load, split)


def test_data_that_is_gone_when_it_is_read(split, tmp_path):
    file = rounded_all(split)
    data = split.parent / "net_variables" / "data_1"
    data.chmod(0o600)
    data.write_bytes(data.read_bytes()[:70])
    refused("AMP103", mindir_io.save, file, tmp_path / "out.mindir")
    assert not [p for p in tmp_path.iterdir() if p.name != "given"]


def _node(model: Any, kind: str) -> Any:
    return next(node for node in model.graph.node if kind in node.op_type)


def _cycle(model: Any) -> None:
    _node(model, "MatMul").input[0] = _node(model, "Concat").output[0]


def _call_of_itself(model: Any) -> None:
    """A function that is nothing but a call of itself."""
    function = model.functions[1]
    del function.node[:]
    node = function.node.add(name="no:g", output=["no:g"], op_type="REF::no", input=["no:e"])
    node.attribute.add(name="shape", type=schema.TENSORS).tensors.add(data_type=1, dims=[8, 4])
    function.output[0].name = "no:g"


def _deep_tuple(model: Any, deep: int) -> None:
    reference, name = _node(model, "MakeTuple").op_type, model.graph.node[-1].output[0]
    for number in range(deep):
        name, inner = f"deep{number}", name
        model.graph.node.add(name=name, output=[name], op_type=reference, input=[inner, inner])
    model.graph.output[0].name = name


def _deep_abstract(model: Any) -> None:
    item = _node(model, "MatMul").attribute[0]
    for _ in range(60):
        item.type = schema.TUPLE
        item = item.values.add()


def _dims(model: Any, *dims: int) -> None:
    tensor = model.graph.parameter[0]
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _cast_to_a_tuple(model: Any) -> None:
    """The operand of a Cast that names its type is a tuple."""
    node = next(node for node in model.graph.node if node.name == _node(model, "Cast").input[1])
    node.attribute[0].type = schema.TUPLE
    node.attribute[0].values.add(type=schema.INT64, ints=[42])


def _operand_without_value(model: Any) -> None:
    """A state stands where the operator reads a tensor."""
    _node(model, "Mul:").input[0] = _node(model, "Load").input[1]


REFUSED: dict[str, Callable[[Any], None]] = {
    "a name that nothing has": lambda m: _node(m, "MatMul").input.__setitem__(0, "nobody"),
    "a cycle": _cycle,
    "two nodes of one name": lambda m: _node(m, "Mul").output.__setitem__(0, _node(m, "Concat").output[0]),
    "a node without a name": lambda m: _node(m, "Mul").output.__setitem__(0, ""),
    "a node of no outputs": lambda m: _node(m, "Concat").ClearField("output"),
    "a node of two outputs": lambda m: _node(m, "Concat").output.append("second"),
    "a node without a type": lambda m: _node(m, "MatMul").ClearField("attribute"),
    "two functions of one name": lambda m: setattr(m.functions[1], "name", "yes"),
    "a Load of nothing": lambda m: _node(m, "Load").ClearField("input"),
    "a Switch without branches": lambda m: _node(m, "Switch").input.pop(),
    "a call with too many operands": lambda m: _node(m, "Partial").input.append(_node(m, "Concat").output[0]),
    "a negative dimension of a weight": lambda m: _dims(m, -4, 4),
    "a huge dimension": lambda m: _dims(m, 2**40, 4),
    "dimensions that overflow": lambda m: _dims(m, 2**62, 2**62, 4),
    "more numbers than the shape has": lambda m: _dims(m, 2, 2),
    "tuples that double": lambda m: _deep_tuple(m, 40),
    "a data type that nobody knows": lambda m: setattr(m.graph.parameter[0], "data_type", 99),
    "a weight without a type": lambda m: setattr(m.graph.parameter[0], "data_type", 0),
    "a newer format": lambda m: setattr(m, "mind_ir_version", 4),
}
TAKEN: dict[str, Callable[[Any], None]] = {
    "nothing": lambda m: None,
    "a function that calls itself": _call_of_itself,
    "an abstract of many levels": _deep_abstract,
    "a Cast to a tuple": _cast_to_a_tuple,
    "a state where a tensor is read": _operand_without_value,
    "a formal of no type for a parameter": lambda m: setattr(m.functions[0].input[1].tensor[0], "data_type", 99),
    "a float64 among float32": lambda m: setattr(
        _node(m, "LayerNorm").attribute[0].values[0].tensors[0], "data_type", 11
    ),
    "a bfloat16 among float32": lambda m: setattr(m.functions[0].input[0].tensor[0], "data_type", 16),
    "a function that says bfloat16": lambda m: setattr(
        m.functions[0].node[-1].attribute[0].tensors[0], "data_type", 16
    ),
    "a primitive that nobody knows": lambda m: setattr(m.primitives[1], "op_type", "NobodyKnowsThis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(path: Path, name: str) -> None:
    model = parse(SMALL)
    REFUSED[name](model)

    def refused() -> None:
        assert not survives(path, data(model)), dump(model, True)

    refused()
    lines_run(refused, most=LINES)
    assert not survives(path, data(model), io="low")


@pytest.mark.parametrize("name", TAKEN)
def test_is_taken(path: Path, name: str) -> None:
    model = parse(SMALL)
    TAKEN[name](model)
    assert survives(path, data(model))
