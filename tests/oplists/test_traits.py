"""Traits: the file as shipped, what it includes, what a user's list adds, and each mistake told with its line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from ampgraph.core.errors import AmpError
from ampgraph.oplists import traits
from ampgraph.oplists.files import known_operators, own_file
from ampgraph.oplists.kernels import load_kernels
from ampgraph.oplists.mindspore_schemas import operators as mindspore_operators
from ampgraph.oplists.operators import load_op_lists

ASKS = ("has", "at", "positions")
ROOT = Path(__file__).parents[2]
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return written


def test_the_file_has_the_traits_that_code_asks_for() -> None:
    file = own_file("traits.toml")
    traits.check_traits(file)
    paths = [path for folder in ("ampgraph", "passes") for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    asked = [node.args[1] for node in calls if getattr(node.func, "id", getattr(node.func, "attr", "")) in ASKS]
    words |= {other for entry in file.data["traits"].values() for other in entry.get("includes", ())}
    words |= {load_kernels("cuda").broken["Add"].beside}
    assert {arg.value for arg in asked if isinstance(arg, ast.Constant)} <= {*traits.names()} <= words
    assert all(entry["about"].strip() for entry in file.data["traits"].values())


@pytest.mark.parametrize("trait", traits.names())
def test_every_operator_of_a_trait_is_one(trait: traits.Trait) -> None:
    found = traits.operators(trait)
    assert found
    for kind in found:
        domain, _, name = kind.rpartition("::")
        assert name in mindspore_operators() if domain == "mindspore" else kind in known_operators(), kind


def test_what_a_trait_includes_has_it_too() -> None:
    assert traits.operators("reshapes") < traits.operators("moves") < traits.operators("mask_path")
    assert traits.has("Cast", "mask_path") and not traits.has("Cast", "moves")


def test_operands_that_a_trait_is_about() -> None:
    assert traits.positions("Resize", "scales") == (1, 2)
    assert traits.positions("Conv", "scales") == ()
    assert [traits.at("Where", "mask_path", index) for index in range(3)] == [False, True, True]
    assert [traits.at("Gather", "mask_path", index) for index in range(2)] == [True, False]
    assert traits.at("Concat", "joins", 17) and not traits.at("MatMul", "joins", 0)


def test_a_list_adds_operators(write: Write) -> None:
    path = write(
        '[traits.moves]\noperators = ["mine::Shuffle"]\n[traits.attention_bias.positions]\n"mine::Attention" = [2, 3]\n'
    )
    mine = load_op_lists(extra=[path]).traits
    assert mine.has("mine::Shuffle", "moves") and mine.has("mine::Shuffle", "mask_path")
    assert mine.positions("mine::Attention", "attention_bias") == (2, 3)
    assert not traits.has("mine::Shuffle", "moves")
    assert mine.operators("moves") - traits.operators("moves") == {"mine::Shuffle"}


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('[traits.movs]\noperators = ["Mine"]', 1, "unknown trait 'movs'", "did you mean 'moves'?"),
        ("[traits]\nmoves = 3", 2, "trait 'moves' is a table", "[traits.moves]"),
        ('[traits.moves]\noperator = ["Conv"]', 2, "unknown key 'operator' of a trait", "did you mean 'operators'?"),
        ('[traits.moves]\n\noperators = "Conv"', 3, "'operators' is an array of names", "operators = ["),
        ('[traits.moves]\noperators = ["Shufle"]', 2, "no operator is called 'Shufle'", ""),
        ('[traits.moves]\nincludes = ["joinss"]', 2, "unknown trait 'joinss'", "did you mean 'joins'?"),
        ("[traits.scales]\npositions = [1]", 2, "'positions' gives operands by operator", ""),
        ("[traits.scales]\npositions = { Conv = -1 }", 2, "'Conv' has no operand -1", '"all"'),
        ("[traits.scales.positions]\n\nConv = []", 3, "'Conv' has no operand []", '"all"'),
        ("[traits.scales.positions]\nCnv = 1", 2, "no operator is called 'Cnv'", "did you mean 'Conv'?"),
    ],
)
def test_mistakes(write: Write, text: str, line: int, message: str, hint: str) -> None:
    with pytest.raises(AmpError) as caught:
        load_op_lists(extra=[write(text)])
    assert caught.value.code == "AMP301"
    assert caught.value.where == f"mine.toml:{line}"
    assert message in caught.value.message and hint in caught.value.hint


def test_a_trait_that_includes_itself(write: Write) -> None:
    path = write('[traits.moves]\nincludes = ["mask_path"]')
    with pytest.raises(AmpError, match="includes itself"):
        load_op_lists(extra=[path])
