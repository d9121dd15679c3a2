"""Writes op_lists/kernels/tensorrt.toml from what TensorRT's parser and builder say of every operator.

    python benchmarks/tensorrt/kernel_table.py [--python build/tensorrt/bin/python] [--kept FILE] [--check]

Some 3,000 engines of one node, two to four minutes. --check writes nothing; exit status 1 where the file is not what
TensorRT says. --kept: a file of answers, which a second run does not ask for again.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import attention_forms  # noqa: E402
import networkx as nx  # noqa: E402
import region_forms  # noqa: E402
from engines import PYTHON  # noqa: E402
from sweep import LOW, Form, Tried, all_forms, enclosed, raised, taken_forms, tried  # noqa: E402

KERNELS = HERE.parents[1] / "op_lists" / "kernels"
FILE = KERNELS / "tensorrt.toml"
HEAD: dict[str, object] = {
    "provider": "TensorrtExecutionProvider",
    "missing": "schema",
    "builder": "tensorrt-rtx",
    "raises_opset": ["bfloat16"],
    "newest_opset": 27,
    "raises_inside": True,
}
COMMENT = """
# Networks are strongly typed: the types in the file are what is computed. Every operator of ONNX was given to the
# parser and the builder in forms of ONNX's node suite and of tests/fuzz/forms.toml (benchmarks/tensorrt/sweep.py),
# first in float32, then in each low type and in two types at once. Nothing was run, and accumulators are not seen.
#
# raises_opset: the parser takes these types at any opset, so a model is moved to the one whose schemas admit them.
# newest_opset: the newest to which it is moved; no release of ONNX Runtime is sure to run what later ones write.
# raises_inside: the kernel behind a Cast to float32 takes it in, so that none is started for it.
# [float32_inside]: its kernels cast their data on the way in and their result on the way out, in every form; what is
# not here may still add up in float32. [tied]: type variables that are refused in two types. [refused]: what is taken
# in float32 and in no form in the low type, in TensorRT's words. [broken]: some forms are not; `without`: those with
# this operand; `runs`: those with another value of the attribute; `at_boundary`: those with a Cast between their first
# operand or result and an input or output of the model. [behind_cast]: what is refused in float32 where a Cast of low
# values makes its first operand, with moves between or none. [attention]: a Softmax of which `selects` takes zero
# where `tests` finds NaN; in the types of `low` one kernel only where all of it is low, and `refused` where it is all
# float32 before a low product; in those of `stored` one kernel only where a stored tensor that is added to its data is
# stored as it is added; in those of `early` with fewer kernels where what scales a key stands before what moves it; in
# those of `across` one kernel only where what scales a key scales the query, where another product reads that too; in
# those of `groups` what is no one kernel takes fewer where the product broadcasts values that heads share.
# [fuses]: the form in which a region is one kernel. [kernels]: 'opsets TYPE VARIABLE=float types'. Of an operator that
# is not here no form is taken in float32: the schema decides.
"""
_MOVES = r"(?:Resh|Move|Tran|Repl|Conc|Slic)*"
_INSIDE = re.compile(rf"{_MOVES}Cast.*[A-Z][a-z]+.*Cast")
_ONLY = re.compile(rf"{_MOVES}(?:Cast)+{_MOVES}")
_NAME = re.compile(r"(?:__myl_)?([A-Za-z0-9]*?)_myl\d")
_CUTS = (
    r"Assertion failed: \(.*\): ", r"API Usage Error \(", r"\(Unnamed Layer\* \d+\) ", r"#\d+",
    r" In \w+ at /_src.*", r"(?<=operation): .*?:(?= \w+:)", r": [\w.#-]+-\(.*", r" The current (?:data )?type = .*",
    r" of __resh\d+ = .*? Error is", r": __resh\d+ .*", r" \(See https.*",
    r"Myelin \(\[[^\]]*\] ", r"\[ElementWise\]: |\[Select\]: ",
)  # fmt: skip
"""What names one node of one model in TensorRT's words, or a place in its source."""


def table(forms: Mapping[str, list[Form]], python: str, kept: str) -> dict[str, dict[str, Any]]:
    """Section -> operator -> its row."""
    good = [form for form, _ in taken_forms(forms, python, kept)]
    by_operator: dict[str, list[Tried]] = {}
    for one in tried(good, python, kept):
        by_operator.setdefault(one.form.operator, []).append(one)
    at_the_boundary = at_boundary(enclosed([row for rows in by_operator.values() for row in rows], python, kept))
    made: dict[str, dict[str, Any]] = {
        "float32_inside": {},
        "tied": {},
        "refused": {},
        "broken": {},
        "behind_cast": behind_cast(raised(good, python, kept)),
        "attention": attention_forms.rows(python, kept),
        "fuses": region_forms.rows(python, kept),
        "kernels": {},
    }
    for operator, rows in sorted(by_operator.items()):
        uniform = [row for row in rows if row.uniform]
        row_of = {
            "float32_inside": inside(uniform),
            "tied": ties([row for row in rows if not row.uniform], uniform),
            "refused": refused(uniform),
            "broken": broken(uniform) or at_the_boundary.get(operator),
            "kernels": kernels(uniform),
        }
        for section, row in row_of.items():
            if row:
                made[section][operator] = row
    return made


def inside(rows: Iterable[Tried]) -> str:
    """What its kernels do in float32, where all of them do in every low type."""
    found = {row.dtype: [] for row in rows if row.answer.engine is not None}
    for row in rows:
        if row.answer.engine is not None:
            names = [_NAME.match(kernel.name) for kernel in row.answer.engine.kernels]
            found[row.dtype].append("".join(name[1] for name in names if name))
    made = [name for names in found.values() for name in names if not _ONLY.fullmatch(name)]
    if set(found) != set(LOW) or not made or not all(map(_INSIDE.match, made)):
        return ""
    return f"computes in float32 between Casts inside: {made[0]}"


def ties(mixed: list[Tried], uniform: list[Tried]) -> list[list[str]]:
    """Groups of type variables that are taken in one type and in no two."""
    fine = {(row.form.name, row.dtype) for row in uniform if row.answer.ok}
    graph = nx.Graph()
    for name in {row.form.name for row in mixed}:
        of_form = [row for row in mixed if row.form.name == name and (name, row.dtype) in fine]
        for pair in combinations(of_form[0].form.variables if of_form else (), 2):
            apart = [row for row in of_form if len(set(pair) & set(row.low)) == 1]
            if apart and not any(row.answer.ok for row in apart):
                graph.add_edge(*pair)
    return sorted(sorted(group) for group in nx.connected_components(graph))


def refused(rows: list[Tried]) -> dict[str, str]:
    """Low type -> TensorRT's words, where no form is taken in it."""
    by_type = {low: [row for row in rows if row.dtype == low] for low in LOW}
    return {low: words(of[0]) for low, of in by_type.items() if of and not any(row.answer.ok for row in of)}


def broken(rows: list[Tried]) -> dict[str, Any]:
    """Low type -> TensorRT's words, where some forms are taken in it, and which are not."""
    partly = [row for row in rows if row.dtype not in refused(rows)]
    bad, good = ([row for row in partly if row.answer.ok is ok] for ok in (False, True))
    if not bad:
        return {}
    said = {row.dtype: words(row) for row in reversed(bad)}
    operands = [place for place in range(10) if all(_has(row, place) for row in bad)]
    apart = next((place for place in operands if not any(_has(row, place) for row in good)), None)
    if apart is not None:
        return {**said, "without": apart}
    for name in sorted({attribute.name for row in bad for attribute in row.form.node.attribute}):
        fine, wrong = ({_value(row.form, name) for row in some} for some in (good, bad))
        if not fine & wrong and None not in wrong:
            return {**said, "runs": {name: sorted(fine - {None})}}
    return said  # no one attribute or operand tells them apart: held in every form


def at_boundary(rows: Iterable[Tried]) -> dict[str, dict[str, Any]]:
    """Operator -> low type -> TensorRT's words, of what is taken at the boundary of a model and not behind a Cast."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if not row.answer.ok:
            found.setdefault(row.form.operator, {"at_boundary": True})[row.dtype] = words(row)
    return found


def behind_cast(rows: Iterable[Tried]) -> dict[str, str]:
    """Operator -> TensorRT's words, of what is taken in float32 and in float32 behind a Cast from no low type."""
    by_operator: dict[str, list[Tried]] = {}
    for row in rows:
        by_operator.setdefault(row.form.operator, []).append(row)
    found = {}
    for operator, tries in by_operator.items():
        fine = {row.dtype for row in tries if row.answer.ok}
        if "float32" in fine and not fine & set(LOW):
            found[operator] = words(next(row for row in tries if row.dtype in LOW))
    return found


def _has(row: Tried, place: int) -> bool:
    return bool(row.form.node.input[place : place + 1] and row.form.node.input[place])


def _value(form: Form, name: str) -> Any:
    found = next((a for a in form.node.attribute if a.name == name), None)
    if found is None:
        return None
    return found.s.decode() if found.s else found.i


def words(row: Tried) -> str:
    """Why a form is refused, without what names that one form."""
    said = row.answer.died or row.answer.refused[0].words
    for cut in _CUTS:
        said = re.sub(cut, "", said)
    return said.strip(" (:.")


def kernels(uniform: list[Tried]) -> list[str]:
    """In which types an operator is built, whatever the opset; a type that no schema admits is not told from one."""
    types = ",".join(["float", *(name for name in LOW if name not in refused(uniform))])
    variables = sorted({variable for row in uniform for variable in row.form.variables})
    return ["1- " + " ".join(f"{variable}={types}" for variable in variables)] if variables else []


def render(
    made: Mapping[str, Mapping[str, Any]], version: str, head: Mapping[str, object] = HEAD, comment: str = COMMENT,
    by: str = "benchmarks/tensorrt/kernel_table.py",
) -> str:  # fmt: skip
    """The text of a file that a script made."""
    spec = importlib.util.spec_from_file_location("_generate", KERNELS / "_generate.py")
    assert spec is not None and spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    lines = [f"# Generated by {by} from {version}. Do not edit.", "#"]
    lines += comment.strip().splitlines() + [""]
    lines += [f"{key} = {shared.toml_value(value)}" for key, value in head.items()]
    for section, rows in made.items():
        lines += ["", f"[{section}]"]
        lines += [f"{shared.toml_key(key)} = {shared.toml_value(row)}" for key, row in sorted(rows.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes or checks the file; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=PYTHON, help="of an environment with TensorRT for RTX")
    parser.add_argument("--kept", default="")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    forms = all_forms()
    version = next(answer.runtime for _, answer in taken_forms(dict(list(forms.items())[:1]), args.python, args.kept))
    text = render(table(forms, args.python, args.kept), version)
    same = FILE.exists() and FILE.read_text(encoding="utf-8") == text
    if not args.check:
        FILE.write_text(text, encoding="utf-8")
    print(f"{FILE.name}: {'as TensorRT says' if same else 'is not current' if args.check else 'written'}")
    return int(args.check and not same)


if __name__ == "__main__":
    sys.exit(main())
