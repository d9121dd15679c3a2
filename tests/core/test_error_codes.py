"""Every error code is explained, and the page of them is made from the code as it is."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from ampgraph.core.error_codes import CODES, FAMILIES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import make_errors  # noqa: E402


def test_codes() -> None:
    found = set().union(
        *(
            make_errors.used(ast.parse(path.read_text(encoding="utf-8")))
            for path in make_errors.sources()
            if path.name != "error_codes.py"
        )
    )
    assert found | {"AMP900"} == set(CODES)  # the command line writes AMP900 within a longer text
    assert {code[3] for code in CODES} == set(FAMILIES)
    # messages are read with their holes
    tree = ast.parse('def f(x):\n    m = f"no {x}" if x else "none"\n    raise AmpError("AMP101", m)')
    assert list(make_errors.messages(tree)) == [("AMP101", "no …"), ("AMP101", "none")]
