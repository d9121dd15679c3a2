"""Damaged and foreign MindIR files: they are converted, or refused by an AmpError, with little work. Nothing else.

Bytes are changed in a real file and in small ones, and fields through the schema, so that what still parses is reached.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ampgraph.formats.mindir import schema
from ampgraph.models import digits
from formats.mindir.parse import data, parse
from formats.mindir.random_texts import random_texts
from formats.mindir.small_file import SMALL, survives
from share import examples

pytestmark = pytest.mark.slow  # a grid: many small cases

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


@settings(SHARED, max_examples=examples(100))
@given(random_texts(), st.integers(0, 2**32), OPTIONS)
def test_bytes_of_small_models(path: Path, text: str, seed: int, options: dict[str, Any]) -> None:
    survives(path, damaged(data(parse(text)), random.Random(seed)), **options)


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


def test_most_edits_reach_the_planner(path: Path) -> None:
    """Otherwise the tests above would test the first check alone."""
    done = 0
    for seed in range(60):
        model = parse(SMALL)
        edit(model, random.Random(seed))
        done += survives(path, data(model))
    assert 10 <= done <= 55
