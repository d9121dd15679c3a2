"""What the verdict of a check says and advises, by what was found."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ampgraph.core.verdict import SIMULATED, CheckVerdict, unchecked

GIVEN: dict[str, Any] = {"error": 4e-3, "tolerance": 1e-2, "samples": 24, "generated": True, "output": "y"}
DATA = (
    "convert again with --data DIR, your own samples as .npz files, by whose values types are then chosen and checked"
)

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"outcome": "ok"}, f"ok: 24 generated inputs, error 0.004, tolerance 0.01 ({SIMULATED})", ""),
    (
        {"outcome": "ok", "relative": True, "worst": 0.02, "exceeded": 1, "pinned": ("op:Pow",)},
        "ok: 24 generated inputs, relative L2 error up to 0.004 on 22 and 0.02 on the worst of the other 2, tolerance "
        "0.01; 1 of 24 above it, which passes: up to 1 in 8 may be, repaired: 1 pinned to float32 (op:Pow ...) "
        f"({SIMULATED})",
        "",
    ),
    (
        {"outcome": "doubtful", "relative": True},
        "DOUBTFUL: relative L2 error 0.004 at 'y' on 24 generated inputs, tolerance 0.01: real ones may miss it",
        DATA,
    ),
    (
        {"outcome": "doubtful", "error": 0.03, "exceeded": 3, "near": "'a' reaches 6e4", "stream": 1e-3},
        "DOUBTFUL: error 0.03 at 'y' on 24 generated inputs, tolerance 0.01, 3 of 24 above it by far; 'a' reaches 6e4 "
        "and may overflow on real ones",
        f"{DATA}, or with --fp32-stream (tried: error 0.001)",
    ),
    (
        {"outcome": "doubtful", "exceeded": 1, "critical": 0.045, "at_a_tie": True, "relative": True},
        "DOUBTFUL: relative L2 error 0.004 at 'y' on 24 generated inputs, tolerance 0.01, 1 of 24 above it; it "
        "would be 0.045 where two classes are equally likely, which real inputs may give",
        DATA,
    ),
    (
        {"outcome": "doubtful", "exceeded": 4, "generated": False, "left": 2},
        "DOUBTFUL: error 0.004 at 'y' on 24 samples (2 more would take too long), tolerance 0.01, 4 of 24 above it",
        "",
    ),
    (
        {"outcome": "doubtful", "vanishing": "'y' has nothing left"},
        "DOUBTFUL: 'y' has nothing left on 24 generated inputs",
        DATA,
    ),
    (
        {"outcome": "missed", "error": math.inf, "samples": 1, "exceeded": 1, "first": "Pow 'p'"},
        "MISSED: error infinite at 'y' on 1 generated input, tolerance 0.01, first at Pow 'p'",
        "convert again with --repair, which searches what must be float32",
    ),
    (
        {"outcome": "missed", "mended_by": ("op:Pow", "a b"), "repaired_error": 2e-3, "on_cpu": "no kernels"},
        "MISSED: error 0.004 at 'y' on 24 generated inputs, tolerance 0.01; no kernels",
        "convert again with --fp32 op:Pow --fp32 'a b' (tried: error 0.002)",
    ),
    (
        {"outcome": "missed", "unrepaired": "too many", "suggested": ("p",), "stream": 1e-3},
        "MISSED: error 0.004 at 'y' on 24 generated inputs, tolerance 0.01",
        "no repair is known: too many; try --fp32 p; try --fp32-stream (tried: error 0.001)",
    ),
    (
        {"outcome": "missed", "sensitivity": 0.5, "suggested": ("p",)},
        "MISSED: error 0.004 at 'y' on 24 generated inputs, tolerance 0.01; the model is chaotic in itself: rounding "
        "its inputs alone changes it by 0.5, whatever is float32 inside; judge it by its task (--metric)",
        "try --fp32 p",
    ),
    (
        {"outcome": "missed", "refused": "no kernel", "why": "as Pow", "mended_by": ("p",)},
        "MISSED: ONNX Runtime does not open it: no kernel, as Pow",
        "convert again with --fp32 p (tried: it opens)",
    ),
]


@pytest.mark.parametrize(("given", "finding", "advice"), CASES)
def test_what_is_said_and_sent_to_another_process(given: dict[str, Any], finding: str, advice: str) -> None:
    verdict = CheckVerdict(**{**GIVEN, **given})
    assert verdict.finding == finding
    assert verdict.advice == advice
    assert str(verdict) == (f"{finding}; {advice}" if advice else finding)
    assert CheckVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


def test_what_passes_a_required_check() -> None:
    passes = {outcome: CheckVerdict(outcome).passes_require for outcome in ("ok", "doubtful", "missed", "not checked")}
    assert passes == {"ok": True, "doubtful": True, "missed": False, "not checked": False}
    nothing = unchecked("it is MindIR", "run it")
    assert str(nothing) == "not checked: it is MindIR; run it" and not nothing.missed
