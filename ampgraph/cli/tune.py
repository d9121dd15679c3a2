"""`ampgraph tune`: its arguments and printing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .console import done, progress, show, show_json, signals_wait
from .numbers import JsonOption, parse_dims


def tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The float32 .onnx file.")],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR|FILE.npz", help="Samples, by input name; generated if not given."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="X", help="The error that 9 of 10 samples must meet.")
    ] = 1e-2,
    metric: Annotated[
        str, typer.Option("--metric", metavar="l2|max|argmax|cosine", help="How the error of an output is measured.")
    ] = "l2",
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help="Where to start: O1, O2, O3 or auto.")] = "O2",
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="float16 or bfloat16.")] = "float16",
    samples: Annotated[
        int | None, typer.Option("--samples", metavar="N", help="At most N samples; 8 where they are generated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="For generated samples.")] = 0,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help="Write the tuned model there.")
    ] = None,
    lists: Annotated[
        list[str] | None, typer.Option("--lists", metavar="FILE", help="A TOML file merged over the lists; repeatable.")
    ] = None,
    fp32: Annotated[
        list[str] | None, typer.Option("--fp32", metavar="PATTERN", help="Keep these in float32 anyway; repeatable.")
    ] = None,
    low: Annotated[
        list[str] | None, typer.Option("--low", metavar="PATTERN", help="Keep these low anyway; repeatable.")
    ] = None,
    io: Annotated[
        list[str] | None, typer.Option("--io", metavar="keep|low|NAME=low", help="As in `convert`; repeatable.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="cuda (the default), tensorrt, cann or cpu.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=N", help="Size of a symbolic dimension, for costs; repeatable."),
    ] = None,
    store_weights: Annotated[
        str | None, typer.Option("--store-weights", metavar="low|keep", help="As in `convert`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find as little float32 as meets a tolerance, by at most 20 strict runs over the samples.

    \b
    ampgraph tune model.onnx --data samples/ --tolerance 5e-3 -o tuned.onnx
    ampgraph tune model.onnx --data samples/ --metric argmax --tolerance 0.01 --json

    Without -o no model is written: the report lists the patterns for `convert`. The exit code is 1 where the tolerance
    cannot be met; nothing is written then.
    """
    with signals_wait():
        from ..api.tune import tune as find
        from ..report.tuning import tuning_lines

    with progress() as bar:
        found = find(
            model, data=data, tolerance=tolerance, metric=metric, level=level, dtype=dtype, samples=samples, seed=seed,
            lists=lists, fp32=fp32 or (), low=low or (), io=io or "keep", target=target, dims=parse_dims(dim or ()),
            store_weights=store_weights, output=output, progress=bar.part,
        )  # fmt: skip
        done()
    show_json(found.to_dict()) if as_json else show(tuning_lines(found))
    if not found.met:
        sys.stdout.flush()
        sys.exit(1)
