"""Commands that run models: their arguments and printing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import AmpError
from .console import progress, show, show_json, signals_wait

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx or .mindir file.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto (the best that is here), cpu, cuda, tensorrt, cann; MindIR: cpu, ascend.",
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Run on the CPU with every low value really rounded (ONNX).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def parse_dims(words: Any) -> dict[str, int]:
    """``["batch=8"]`` as a dictionary."""
    dims = {}
    for word in words:
        name, _, number = word.rpartition("=")
        if not name or not number.isascii() or not number.isdigit() or int(number) < 1:
            raise AmpError("AMP310", f"--dim {word} is not NAME=N", hint="for example --dim batch=8")
        dims[name] = int(number)
    return dims


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
        from ..report.outputs import describe_outputs
        from ..runtime.data import save_npz

    if output is not None:
        refuse_output(Path(output), sources_of(model, data), "-o")
    with progress() as bar:
        bar.stage("running")
        outputs = run_once(model, data, device=device, strict=strict)
        if output is not None:
            bar.stage("writing")
            save_npz(output, outputs)
    rows = describe_outputs(outputs)
    show_json([row.to_dict() for row in rows]) if as_json else show([str(row) for row in rows])
