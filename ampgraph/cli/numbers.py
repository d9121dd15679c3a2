"""Commands that run models: their arguments and printing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import DeviceOption, JsonOption, ModelArgument
from .terminal import progress, show, show_json, signals_wait

StrictOption = Annotated[
    bool, typer.Option("--strict", help="Run on the CPU with every low value really rounded (ONNX).")
]


def run(
    model: ModelArgument,
    data: Annotated[str, typer.Option("--data", metavar="FILE.npz", help="Arrays by input name.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT.npz", help="Write the outputs there.")
    ] = None,
    device: DeviceOption = "auto",
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a model once: ONNX on ONNX Runtime, MindIR on MindSpore.

    \b
    ampgraph run model.onnx --data inputs.npz -o outputs.npz
    ampgraph run net.O2.mindir --data inputs.npz --device cpu
    """
    with signals_wait():
        from ..api.run import run as run_once
        from ..core.files import refuse_output, sources_of
        from ..report.outputs import describe_outputs, maps_in
        from ..runtime.data import save_npz

    if output is not None:
        refuse_output(Path(output), sources_of(model, data), "-o")
    with progress() as bar:
        bar.stage("running")
        outputs = run_once(model, data, device=device, strict=strict)
        if output is not None:
            bar.stage("writing")
            save_npz(output, {name: value for name, value in outputs.items() if not maps_in(value)})
    rows = describe_outputs(outputs)
    left = [name for name, value in outputs.items() if output is not None and maps_in(value)]
    if left:
        print(f"not in {output}, which holds arrays and no maps: {', '.join(left)}", file=sys.stderr)
    show_json([row.to_dict() for row in rows]) if as_json else show([str(row) for row in rows])
