"""Types of the public names as programs and editors read them: hints resolve at run time, overloads are there."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator

import pytest

import ampgraph

OVERLOADS = {"apply": 3, "convert": 6}


def functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """The public functions, and the public methods of classes, with their names."""
    for name in ampgraph.__all__:
        found = getattr(ampgraph, name)
        yield name, found
        if inspect.isclass(found):
            for inner, member in vars(found).items():
                plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if not inner.startswith("_") and inspect.isfunction(plain):
                    yield f"{name}.{inner}", plain


@pytest.mark.parametrize(("name", "function"), [pytest.param(*one, id=one[0]) for one in functions()])
def test_hints_resolve(name: str, function: Callable[..., object]) -> None:
    """Of torch's types too, which are imported for that."""
    pytest.importorskip("torch")
    hints = typing.get_type_hints(function)
    assert inspect.isclass(function) or "return" in hints, name
    assert not any(isinstance(hint, str) for hint in hints.values())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is of Python 3.11")
def test_overloads_say_what_comes_back() -> None:
    found = {name: typing.get_overloads(function) for name, function in functions()}
    assert {name: len(some) for name, some in found.items() if some} == OVERLOADS
    returned = [str(typing.get_type_hints(one)["return"]) for one in found["convert"]]
    assert len(set(returned)) == len(returned)
    assert any("ModelProto" in one for one in returned) and any("Summary" in one for one in returned)
    assert typing.get_type_hints(ampgraph.verify)["return"] is ampgraph.Verification
    assert typing.get_type_hints(ampgraph.plan)["return"] is ampgraph.Plan


def test_nothing_is_imported_for_hints_that_nobody_asks_for() -> None:
    code = "import sys, ampgraph; ampgraph.convert, ampgraph.export_for_training, ampgraph.Trainer; "
    code += "print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
