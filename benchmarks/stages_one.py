"""CPU seconds of load, plan, apply and save for one model in this process, by ampgraph's public functions.

    python stages_one.py MODEL TARGET LEVEL --report FILE

`apply` includes the copy that keeps the caller's model as it was; `ampgraph.convert` on a path has no need of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import one_line


def main() -> None:
    """Parse, run the stages, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("level")
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    report: dict[str, Any] = {"error": None}

    def stage(name: str, run: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = run()
        report[name] = time.process_time() - start
        return result

    try:
        import onnx_ir

        import ampgraph

        # Names may be imported on first use: that is not a stage.
        functions = ampgraph.plan, ampgraph.apply
        model = stage("load", lambda: onnx_ir.load(args.model))
        plan = stage("plan", lambda: functions[0](model, level=args.level))
        result = stage("apply", lambda: functions[1](model, plan))
        stage("save", lambda: onnx_ir.save(result, args.target))
    except Exception as error:
        report["error"] = one_line(error)
    args.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
