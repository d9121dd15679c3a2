"""Write com_microsoft.json and names.json from the installed onnxruntime and onnx.

    python op_lists/schemas/_generate.py

com_microsoft.json holds the schemas that onnx does not know, so that converting needs no onnxruntime.
names.json holds every operator name with its type variables, so that a user's list can be checked without onnx.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
INTERNAL_SUFFIXES = ("_TRT",)  # placeholders that one provider registers for itself
INTERNAL = {"MemcpyFromHost", "MemcpyToHost"}


def _formals(formals: Any) -> list[list[Any]]:
    """Formal parameters as rows: name, type, option, whether variadic ones are all of one type."""
    rows = []
    for formal in formals:
        option = str(formal.option).rsplit(".", 1)[-1].lower()
        rows.append([formal.name, formal.typeStr, option, bool(formal.isHomogeneous)])
    return rows


def _row(schema: Any) -> dict[str, Any]:
    """A schema of ONNX Runtime's as the file has it."""
    return {
        "name": schema.name,
        "domain": schema.domain,
        "since_version": schema.since_version,
        "inputs": _formals(schema.inputs),
        "outputs": _formals(schema.outputs),
        "constraints": {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints},
    }


def contrib_schemas() -> list[dict[str, Any]]:
    """com.microsoft, and the operators of ai.onnx that only onnxruntime registers, sorted."""
    import onnx
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    known = {(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    rows = []
    for schema in state.get_all_operator_schema():
        if schema.name in INTERNAL or schema.name.endswith(INTERNAL_SUFFIXES):
            continue
        new_in_onnx = schema.domain == "" and (schema.name, schema.since_version) not in known
        if schema.domain == "com.microsoft" or new_in_onnx:
            rows.append(_row(schema))
    return sorted(rows, key=lambda row: (row["domain"], row["name"], row["since_version"]))


def operator_names(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Operator -> its type variables over all versions."""
    import onnx

    names: dict[str, set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        kind = schema.name if schema.domain == "" else f"{schema.domain}::{schema.name}"
        names.setdefault(kind, set()).update(c.type_param_str for c in schema.type_constraints)
    for row in rows:
        kind = row["name"] if row["domain"] == "" else f"{row['domain']}::{row['name']}"
        names.setdefault(kind, set()).update(row["constraints"])
    return {kind: sorted(variables) for kind, variables in sorted(names.items())}


def _lines(head: dict[str, Any], key: str, entries: list[str], brackets: str) -> str:
    """A JSON object: ``head``, then ``entries`` under ``key``, one a line."""
    start = json.dumps(head)[1:-1]
    body = ",\n".join(entries)
    return f'{{{start},\n"{key}": {brackets[0]}\n{body}\n{brackets[1]}}}\n'


def render() -> dict[str, str]:
    """File name -> text."""
    import onnx
    import onnxruntime

    rows = contrib_schemas()
    names = operator_names(rows)
    sources = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}
    dump = [json.dumps(row, separators=(",", ":")) for row in rows]
    listing = [f"{json.dumps(kind)}: {json.dumps(variables)}" for kind, variables in names.items()]
    return {
        "com_microsoft.json": _lines(sources, "operators", dump, "[]"),
        "names.json": _lines(sources, "operators", listing, "{}"),
    }


if __name__ == "__main__":
    for name, text in render().items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text)} bytes")
