"""Commands that run models: their arguments and printing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import DeviceOption, DimOption, JsonOption, ModelArgument, SeedOption
from .terminal import progress, show, show_json, signals_wait
from .volume import quiet

StrictOption = Annotated[
    bool, typer.Option("--strict", help="Run on the CPU with every low value really rounded (ONNX).")
]


def run(
    model: ModelArgument,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE.npz", help="Arrays by input name; generated if not given.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT.npz", help="Write the outputs there.")
    ] = None,
    device: DeviceOption = "auto",
    strict: StrictOption = False,
    seed: SeedOption = 0,
    dim: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model once: ONNX on ONNX Runtime, MindIR on MindSpore.

    \b
    ampgraph run model.onnx --data inputs.npz -o outputs.npz
    ampgraph run model.O2.onnx --strict --seed 3
    ampgraph run net.O2.mindir --data inputs.npz --device cpu
    """
    with signals_wait():
        from ..api.run import ran
        from ..core.files import refuse_output, sources_of
        from ..core.recipe_values import dims
        from ..report.outputs import describe_outputs, maps_in
        from ..runtime.data import save_npz

    if output is not None:
        refuse_output(Path(output), sources_of(model, data), "-o")
    with progress() as bar:
        bar.stage("running")
        found = ran(model, data, device=device, strict=strict, seed=seed, dims=dict(dims(dim)))
        outputs = found.outputs
        if output is not None:
            bar.stage("writing")
            save_npz(output, {name: value for name, value in outputs.items() if not maps_in(value)})
    for note in (*(() if quiet() else found.notes), *found.doubts):
        print(note, file=sys.stderr)
    rows = describe_outputs(outputs)
    left = [name for name, value in outputs.items() if output is not None and maps_in(value)]
    if left:
        print(f"not in {output}, which holds arrays and no maps: {', '.join(left)}", file=sys.stderr)
    show_json([row.to_dict() for row in rows]) if as_json else show([str(row) for row in rows])
