"""The table of MindSpore's operators as the code reads it: form, look-ups, and what a mistake in it says."""

import pytest

from ampgraph.core.errors import AmpError
from ampgraph.oplists.files import data_folder, tomllib
from ampgraph.oplists.mindspore_schemas import LOW_TYPES, Place, is_slot, operator, operators, parse
from ampgraph.oplists.operators import load_op_lists
from ampgraph.oplists.schemas import known_operators
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('inputs = ["T"]\noutputs = ["T"]\nrolle = "Add"', "unknown key 'rolle'"),
        ('inputs = ["T"]', "inputs and outputs are needed"),
        ('inputs = ["t"]\noutputs = []', "'t' is neither a slot"),
        ('inputs = ["float32"]\noutputs = []', "'float32' is neither a slot"),
        ('inputs = ["T"]\noutputs = ["T1"]', "no operand has the slot 'T1'"),
        ('inputs = ["T"]\noutputs = ["T"]\norder = [1]', "order [1] does not fit 1 operands"),
        ('inputs = ["T"]\noutputs = ["T"]\nattributes = { axis = "input:1" }', "'input:1' is beyond its 1 operands"),
        ('inputs = ["T"]\noutputs = ["T"]\nattributes = { axis = "1" }', "'1' is neither input:<number>"),
        ('inputs = ["T"]\noutputs = ["T"]\nadmits = ["float8"]', "admits ['float8']"),
        ('structural = true\nrole = "Add"', "a structural operator has no other key"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(AmpError) as caught:
        parse(f"[Op]\n{text}")
    assert message in str(caught.value)
