"""The table of MindSpore's operators as the code reads it: form and look-ups."""

import re

import pytest

from ampgraph.oplists.files import data_folder, known_operators, tomllib
from ampgraph.oplists.mindspore_schemas import FIXED_TYPES, LOW_TYPES, Operator, Place, is_slot, operator, operators
from ampgraph.oplists.operators import load_op_lists
from ampgraph.oplists.traits import has
from present import present

PATH = data_folder() / "schemas" / "mindspore.toml"


def test_the_table() -> None:
    names = list(tomllib.loads(PATH.read_text(encoding="utf-8")))
    assert names == sorted(names) and len(names) >= 300
    # every role is a standard operator with a class
    lists = load_op_lists()
    roles = {entry.role for entry in operators().values() if entry.role}
    assert roles <= set(known_operators())
    assert not [role for role in sorted(roles) if lists.of(role) is None and role not in UNLISTED]
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
