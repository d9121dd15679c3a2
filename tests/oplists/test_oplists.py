"""The lists: complete, well-formed, merged in order; and each mistake in a user's file told with its line."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from ampgraph.oplists import traits
from ampgraph.oplists.check import CLASSES, LEVEL_VALUES, OLD_CLASSES, check_file
from ampgraph.oplists.files import check_operator, data_folder, known_operators, own_file, read_file
from ampgraph.oplists.framework_lists import FOLLOWS, INSIDE, Listing, entries, framework
from ampgraph.oplists.kernels import load_kernels
from ampgraph.oplists.levels import Level, load_level, load_levels
from ampgraph.oplists.mindspore_schemas import operators
from ampgraph.oplists.mindspore_schemas import operators as mindspore_operators
from ampgraph.oplists.operators import load_op_lists
from ampgraph.oplists.pattern_files import region_kinds
from ampgraph.planner.resolve import lists_of
from present import present

DATA = data_folder()
LOW = ("float16", "bfloat16")


def write(tmp_path: Path, text: str, name: str = "mine.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def admits_low(types) -> bool:
    return any(f"tensor({low})" in text for low in LOW for text in types)


def float_operators() -> list[str]:
    """Every operator whose schema admits a low type somewhere, in any version."""
    found = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and any(admits_low(c.allowed_type_strs) for c in schema.type_constraints):
            found.add(schema.name)
    return sorted(found)


def contrib_rows() -> list[dict]:
    return json.loads((DATA / "schemas" / "com_microsoft.json").read_text(encoding="utf-8"))["operators"]


# --- the lists as shipped


@pytest.mark.parametrize("kind", float_operators())
def test_every_float_operator_of_onnx_is_listed(kind):
    listing = load_op_lists().entry(kind)
    assert listing is not None and listing.cls in CLASSES and listing.reason


def test_entries_are_operators():
    lists = load_op_lists()
    wanted = {
        f"com.microsoft::{r['name']}"
        for r in contrib_rows()
        if r["domain"] and any(admits_low(types) for types in r["constraints"].values())
    }
    assert wanted and not [kind for kind in sorted(wanted) if lists.entry(kind) is None]
    assert present(lists.entry("SimplifiedLayerNormalization")).cls == "fp32"
    # every entry names an operator with a float tensor
    known = known_operators()
    low = set(float_operators())
    low |= {
        f"com.microsoft::{r['name']}" if r["domain"] else r["name"]
        for r in contrib_rows()
        if any(admits_low(types) for types in r["constraints"].values())
    }
    low |= {entry.kind for entry in operators().values() if entry.slots}
    for kind, _ in load_op_lists().items():
        assert (kind in known or kind.startswith("mindspore::")) and kind in low, kind
    # operators without floats and strangers are in no list
    lists = load_op_lists()
    assert lists.entry("And") is lists.entry("my.domain::Op") is lists.entry("Gelu2") is None
    # regions stand for listed operators
    lists = load_op_lists()
    assert set(lists.regions) == set(region_kinds())
    assert all(lists.entry(region) for region in lists.regions if region != "Bias")


@pytest.mark.parametrize("name", ["ampgraph.toml", "tied_slots.toml", "levels.toml"])
def test_our_own_files_pass_the_check_for_users_files(name):
    check_file(read_file(DATA / name))


def test_entries_have_places():
    lists = load_op_lists()
    lines = (DATA / "ampgraph.toml").read_text(encoding="utf-8").splitlines()
    for kind, listing in lists.items():
        name, line = listing.source.split(":")
        assert name == "ampgraph.toml"
        assert lines[int(line) - 1].split(" = ")[0].strip('"') == kind
        assert listing.reason in lines[int(line) - 1]
    # items are sorted and frozen
    lists = load_op_lists()
    kinds = [kind for kind, _ in lists.items()]
    assert kinds == sorted(kinds) and len(kinds) > 250
    with pytest.raises(TypeError):
        lists.listings["Conv"] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        lists.float32_slots["Dropout"]["T"] = "no"  # type: ignore[index]


@pytest.mark.parametrize(
    ("cls", "kinds"),
    {
        "allow": ["MatMul", "Gemm", "Conv", "LSTM", "com.microsoft::FusedMatMul"],
        "infer": ["Add", "Gelu", "Resize", "com.microsoft::FastGelu"],
        "neutral": ["Reshape", "Where", "Relu", "Loop", "If", "SequenceAt", "TopK"],
        "deny": ["Softmax", "Exp", "Pow", "ReduceMean", "Range", "RoiAlign"],
        "fp32": [
            "LayerNormalization",
            "RMSNormalization",
            "BatchNormalization",
            "SoftmaxCrossEntropyLoss",
            "com.microsoft::SkipLayerNormalization",
        ],
    }.items(),
)
def test_classes(cls, kinds):
    lists = load_op_lists()
    assert {kind: present(lists.entry(kind)).cls for kind in kinds} == dict.fromkeys(kinds, cls)


def test_slots():
    lists = load_op_lists()
    assert lists.tied["RMSNormalization"] == (frozenset({"T", "V"}),)
    assert lists.tied["Attention"] == (frozenset({"T1", "T2", "U"}),)
    assert set(lists.float32_slots["BatchNormalization"]) == {"T1", "T2", "U"}
    assert "input:scales" in lists.float32_slots["Resize"]
    assert "T1" not in lists.float32_slots["Resize"]
    # named inputs exist
    for kind, slots in load_op_lists().float32_slots.items():
        names = {i.name for s in onnx.defs.get_all_schemas_with_history() if s.name == kind for i in s.inputs}
        assert {slot[len("input:") :] for slot in slots if slot.startswith("input:")} <= names
    # A type variable that is the data in some version must not be listed because it is a ratio in another.
    lists = load_op_lists()
    for kind in ("Dropout", "Resize", "GridSample", "OneHot", "BatchNormalization", "LayerNormalization"):
        for schema in onnx.defs.get_all_schemas_with_history():
            if schema.name == kind and schema.domain == "":
                data = schema.outputs[0].type_str
                assert data not in lists.float32_slots[kind], (kind, schema.since_version)


# --- levels


def test_levels():
    levels = load_levels()
    assert list(levels) == ["O0", "O1", "O2", "O3", "auto"]
    table = {name: [level.of_class(cls) for cls in CLASSES] for name, level in levels.items()}
    assert table == {
        "O0": ["float32"] * 5,
        "O1": ["low", "float32", "cut", "float32", "float32"],
        "O2": ["low", "low", "cut", "low", "float32"],
        "O3": ["low"] * 5,
        "auto": ["low", "cut", "cut", "cut", "float32"],
    }
    assert {name: level.accuracy_guards for name, level in levels.items()} == {
        "O0": "off",
        "O1": "hold",
        "O2": "hold",
        "O3": "warn",
        "auto": "hold",
    }
    assert [name for name, level in levels.items() if level.float32_inside == "cut"] == ["O2", "auto"]
    assert all(level.description and isinstance(level, Level) for level in levels.values())
    # level values cover every field of a level
    assert set(LEVEL_VALUES) | {"name", "description"} == set(Level.__dataclass_fields__)


def test_files_of_users(tmp_path):
    path = write(tmp_path, '[levels.O2]\nfp32 = "low"\n')
    assert load_level("O2", [path]).fp32 == "low"
    assert load_level("O2", [path]).infer == "low"
    assert load_level("O1", [path]) == load_level("O1")
    assert load_level("O2").fp32 == "float32"
    # later files win
    first = write(tmp_path, '[deny]\nConv = "first"\nAdd = "only here"\n', "first.toml")
    second = write(tmp_path, '# a line\n\n[infer]\n"ai.onnx::Conv" = "second"\n', "second.toml")
    lists = load_op_lists(extra=[first, str(second)])
    assert lists.entry("Conv") == Listing("infer", "second", "second.toml:4")
    assert (present(lists.entry("Add")).cls, present(lists.entry("Add")).source) == ("deny", "first.toml:3")
    assert present(load_op_lists(extra=[second, first]).entry("Conv")).cls == "deny"
    assert present(load_op_lists().entry("Conv")).cls == "allow"
    # a missing or binary file is told
    with pytest.raises(AmpError, match="AMP301.*none.toml.*No such file"):
        load_op_lists(extra=[tmp_path / "none.toml"])
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AmpError, match="AMP301.*b.toml.*not UTF-8"):
        load_op_lists(extra=[tmp_path / "b.toml"])


# --- merging


def test_a_custom_domain_and_slots_can_be_listed(tmp_path):
    text = """
[allow]
"my.domain::Op" = "ours"
[tied]
Pow = { groups = [], reason = "our runtime mixes them" }
"my.domain::Op" = { groups = [["in0", "out0"]], reason = "ours" }
[float32]
Gather = { T = "a table of positions" }
Dropout = { T = "ours" }
"my.domain::Op" = { in1 = "ours" }
"""
    lists = load_op_lists(extra=[write(tmp_path, text)])
    assert present(lists.entry("my.domain::Op")).cls == "allow"
    assert lists.tied["Pow"] == () and lists.tied["my.domain::Op"] == (frozenset({"in0", "out0"}),)
    assert set(lists.float32_slots["Dropout"]) == {"T", "T1"}
    assert lists.float32_slots["Gather"]["T"] == "a table of positions"


@pytest.mark.parametrize(("old", "new"), OLD_CLASSES.items())
def test_the_names_that_classes_had_are_read_with_a_warning(old, new, tmp_path):
    text = f'[{old}]\nExp = "mine"\n[levels.O2]\n{old} = "cut"\n'
    path = write(tmp_path, text)
    with pytest.warns(FutureWarning, match=f"mine.toml: '{old}' is now '{new}'; the old names go with 0.4") as seen:
        lists, level = load_op_lists(extra=[path]), load_level("O2", [path])
    assert lists.entry("Exp") == Listing(new, "mine", "mine.toml:2") and level.of_class(new) == "cut"
    assert len({str(one.message) for one in seen}) == 1
    for both in (f'{text}[{new}]\nSin = "mine"\n', f'{text}{new} = "low"\n'):
        with (
            pytest.warns(FutureWarning),
            pytest.raises(AmpError, match=f"'{old}' is the old name of '{new}'") as caught,
        ):
            load_op_lists(extra=[write(tmp_path, both)])
        assert caught.value.where in ("mine.toml:1", "mine.toml:4")


# --- mistakes

MISTAKES = {
    "syntax": ("[allow]\nConv = \n", 2, "not valid TOML", "an entry looks like this"),
    "open string": ('[allow]\nConv = "why\n', 2, "not valid TOML", "an entry looks like this"),
    "bare domain": ('[allow]\ncom.microsoft::Gelu = "why"\n', 2, "not valid TOML", "quoted"),
    "duplicate key": ('[allow]\nConv = "a"\nConv = "b"\n', 3, "not valid TOML", ""),
    "unknown table": (
        '[allow]\nConv = "a"\n[infers]\nAdd = "b"\n',
        3,
        "unknown table 'infers'",
        "did you mean 'infer'?",
    ),
    "stray key": ('Conv = "a"\n', 1, "unknown key 'Conv'", "tables are"),
    "table as key": ('\nallow = ["Conv"]\n', 2, "'allow' is a table", "write [allow]"),
    "operator": ('[allow]\n\nConvv = "a"\n', 3, "no operator is called 'Convv'", "did you mean 'Conv'?"),
    "case": ('[allow]\nmatmul = "a"\n', 2, "no operator is called 'matmul'", "did you mean 'MatMul'?"),
    "domain forgotten": (
        '[allow]\nFusedMatMul = "a"\n',
        2,
        "no operator is called 'FusedMatMul'",
        "did you mean 'com.microsoft::FusedMatMul'?",
    ),
    "operator of a known domain": (
        '[infer]\n"com.microsoft::Gellu" = "a"\n',
        2,
        "no operator is called",
        "did you mean 'com.microsoft::Gelu'?",
    ),
    "value": ("[allow]\nConv = true\n", 2, "the value of 'Conv' is a boolean", 'write Conv = "why"'),
    "no reason": ('[allow]\nConv = " "\n', 2, "'Conv' has no reason", "say why"),
    "two classes": (
        '[allow]\nConv = "a"\n[deny]\nAdd = "b"\n"ai.onnx::Conv" = "c"\n',
        5,
        "'Conv' is in [deny] and in [allow] (mine.toml:2)",
        "keep one",
    ),
    "region": ('[regions]\nGelus = "a"\n', 2, "unknown region 'Gelus'", "did you mean 'Gelu'?"),
    "tied shape": ('[tied]\nPow = [["T", "T1"]]\n', 2, "'Pow' needs groups and a reason", "write Pow = {"),
    "tied groups": ('[tied]\nPow = { groups = ["T", "T1"], reason = "a" }\n', 2, "not arrays", "write Pow = {"),
    "tied variable": (
        '[tied]\nPow = { groups = [["T", "T9"]], reason = "a" }\n',
        2,
        "'Pow' has no type variable 'T9'",
        "T1",
    ),
    "tied number": ('[tied]\nPow = { groups = [["T", 1]], reason = "a" }\n', 2, "holds a number", "write Pow = {"),
    "tied reason": ('[tied]\nPow = { groups = [["T", "T1"]], reason = 1 }\n', 2, "is a number, not a reason", ""),
    "float32 shape": ('[float32]\nResize = "a"\n', 2, "'Resize' needs its slots", "write Resize = {"),
    "float32 variable": ('[float32]\nResize = { T7 = "a" }\n', 2, "'Resize' has no type variable 'T7'", "T1"),
    "float32 reason": ("[float32]\nResize = { T2 = 1 }\n", 2, "is a number, not a reason", ""),
    "level": ('[levels.O4]\nallow = "low"\n', 1, "unknown level 'O4'", "levels are O0, O1, O2, O3, auto"),
    "level key": ('[levels.O2]\nallows = "low"\n', 2, "unknown key 'allows'", "did you mean 'allow'?"),
    "level value": ('[levels.O2]\nfp32 = "float16"\n', 2, "'fp32' cannot be 'float16'", "float32"),
    "level type": ("[levels.O2]\nfp32 = 16\n", 2, "'fp32' cannot be a number", "one of low, float32, cut"),
    "level text": (
        "[levels.O2]\ndescription = 1\n",
        2,
        "'description' cannot be a number",
        'write description = "why"',
    ),
    "level table": ('[levels]\nO2 = "low"\n', 2, "'O2' is a table", "write [levels.O2]"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_error_with_its_line(name, tmp_path):
    text, line, message, hint = MISTAKES[name]
    path = write(tmp_path, text)
    for load in (lambda: load_op_lists(extra=[path]), lambda: load_levels(extra=[path])):
        with pytest.raises(AmpError) as caught:
            load()
        error = caught.value
        assert (error.code, error.where) == ("AMP301", f"mine.toml:{line}")
        assert message in error.message and hint in error.hint
        assert "\n" not in error.message


def test_keys_that_look_alike_in_other_tables_and_strings_keep_their_lines(tmp_path):
    text = '[infer]\n# Conv = "no"\n[allow]   # Conv\nAdd = """\nConv = 1\n"""\n\'Conv\' = "yes"\n'
    lists = load_op_lists(extra=[write(tmp_path, text)])
    assert present(lists.entry("Add")).source == "mine.toml:4"
    assert present(lists.entry("Conv")).reason == "yes"


@pytest.mark.parametrize(
    ("call", "code", "message", "hint"),
    [
        (lambda: load_level("O5"), "AMP302", "unknown level 'O5'", "levels are O0, O1"),
        (lambda: load_level("Auto"), "AMP302", "unknown level 'Auto'", "did you mean 'auto'?"),
        (lambda: lists_of(Recipe(policy="ampgrap")), "AMP303", "unknown policy 'ampgrap'", "did you mean 'ampgraph'?"),
        (lambda: load_kernels("ascend"), "AMP304", "ONNX models do not run on 'ascend'", "cuda"),
        (lambda: load_kernels("cuda", "MindIR"), "AMP304", "MindIR models do not run on 'cuda'", "ascend, cpu"),
        (lambda: load_kernels("cdua"), "AMP304", "unknown target 'cdua'", "did you mean 'cuda'?"),
    ],
)
def test_unknown_names(call, code, message, hint):
    with pytest.raises(AmpError) as caught:
        call()
    assert (caught.value.code, caught.value.message) == (code, message)
    assert hint in caught.value.hint


def test_loading_needs_neither_numpy_nor_onnx():
    code = (
        "import sys; from ampgraph.oplists.operators import *; from ampgraph.oplists.levels import *;"
        "from ampgraph.oplists.kernels import *; load_op_lists(); load_level('O2'); load_kernels('cuda');"
        "sys.exit(bool({'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The lists of frameworks: each operator once, of a name that exists, in a class that says what becomes of it.

FILES = sorted(path.name for path in data_folder().glob("*.toml") if "[framework]" in path.read_text(encoding="utf-8"))
AT = {"low", "float32", "widest", FOLLOWS, INSIDE}


@pytest.mark.parametrize("name", ["pytorch.toml", "pytorch_cpu.toml", "apex.toml"])
def test_classes_say_what_code_knows(name: str) -> None:
    for cls in framework(name).classes.values():
        assert {cls.at, *cls.levels.values()} <= AT


@pytest.mark.parametrize("name", FILES)
def test_each_operator_is_in_one_class_and_exists(name: str) -> None:
    file, whose = read_file(data_folder() / name), framework(name)
    found = list(entries(file, whose))
    assert [kind for kind, count in Counter(kind for kind, _ in found).items() if count > 1] == []
    own = set(whose.own(file))
    for kind, listing in found:
        if kind not in own:
            check_operator(file, listing.cls, kind)
    assert all(cls.source and cls.about for cls in whose.classes.values())


def test_a_file_that_says_no_framework_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[low]\nConv = "mine"\n', encoding="utf-8")
    with pytest.raises(AmpError, match=r"\[framework\]"):
        framework(path)
    path = tmp_path / "other.toml"  # a file is read once
    path.write_text('[framework]\nname = "x"\n[classes.low]\nat = "low"\n', encoding="utf-8")
    with pytest.raises(AmpError, match="'low' needs at, about, source"):
        framework(path)


# Traits: the file as shipped, what it includes, what a user's list adds, and each mistake told with its line.

Write = Callable[[str], Path]


@pytest.fixture
def trait_write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return written


ASKS, ROOT = ("has", "at", "positions"), Path(__file__).parents[2]


def test_the_traits() -> None:
    file, shipped = own_file("traits.toml"), traits.traits()
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
    # what a trait includes has it too
    assert shipped.operators("reshapes") < shipped.operators("moves") < shipped.operators("mask_path")
    assert traits.has("Cast", "mask_path") and not traits.has("Cast", "moves")
    # operands that a trait is about
    assert shipped.positions("Resize", "scales") == (1, 2)
    assert shipped.positions("Conv", "scales") == ()
    assert [shipped.at("Where", "mask_path", index) for index in range(3)] == [False, True, True]
    assert [shipped.at("Gather", "mask_path", index) for index in range(2)] == [True, False]
    assert shipped.at("Concat", "joins", 17) and not shipped.at("MatMul", "joins", 0)


@pytest.mark.parametrize("trait", traits.names())
def test_every_operator_of_a_trait_is_one(trait: traits.Trait) -> None:
    found = traits.traits().operators(trait)
    assert found
    for kind in found:
        domain, _, name = kind.rpartition("::")
        assert name in mindspore_operators() if domain == "mindspore" else kind in known_operators(), kind


def test_lists_of_traits(trait_write: Write) -> None:
    path = trait_write(
        '[traits.moves]\noperators = ["mine::Shuffle"]\n[traits.attention_bias.positions]\n"mine::Attention" = [2, 3]\n'
    )
    mine = load_op_lists(extra=[path]).traits
    assert mine.has("mine::Shuffle", "moves") and mine.has("mine::Shuffle", "mask_path")
    assert mine.positions("mine::Attention", "attention_bias") == (2, 3)
    assert not traits.has("mine::Shuffle", "moves")
    assert mine.operators("moves") - traits.traits().operators("moves") == {"mine::Shuffle"}
    # a trait that includes itself
    path = trait_write('[traits.moves]\nincludes = ["mask_path"]')
    with pytest.raises(AmpError, match="includes itself"):
        load_op_lists(extra=[path])


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
def test_mistakes(trait_write: Write, text: str, line: int, message: str, hint: str) -> None:
    with pytest.raises(AmpError) as caught:
        load_op_lists(extra=[trait_write(text)])
    assert caught.value.code == "AMP301"
    assert caught.value.where == f"mine.toml:{line}"
    assert message in caught.value.message and hint in caught.value.hint
