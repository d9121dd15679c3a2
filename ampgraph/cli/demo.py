"""`ampgraph demo`: the first example, which needs nothing but the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from .options import JsonOption
from .terminal import done, progress, show, show_json, signals_wait

FolderArgument = Annotated[str, typer.Argument(metavar="[DIR]", help="Where its files go; ampgraph-demo if not given.")]


def demo(folder: FolderArgument = "ampgraph-demo", as_json: JsonOption = False) -> None:
    """Write a small transformer, convert it to float16, and verify the result on 360 images.

    \b
    ampgraph demo
    ampgraph demo somewhere/else
    """
    with signals_wait():
        from ..api.check import convert_and_check
        from ..api.demo import write_demo
        from ..api.steps import Checking, Job
        from ..api.verify import verify
        from ..core.installing import pip_install
        from ..core.recipe import Recipe

    with progress() as bar:
        model, data = write_demo(folder)
        made = model.with_name("digits_transformer.O2.onnx")
        job = Job(str(model), Recipe(), output=made, report=True, checking=Checking(None))
        summary = convert_and_check(job, bar.part).summary
        runs = importlib.util.find_spec("onnxruntime") is not None
        verified = verify(str(model), str(made), data=str(data), progress=bar.part) if runs else None
        done()
    assert summary is not None  # the job asks for one
    if as_json:
        show_json({"convert": summary.to_dict(), "verify": None if verified is None else verified.to_dict()})
        return
    missing = [f"verify      not run: onnxruntime is not installed: {pip_install('cpu')}"]
    show(["$ " + _command("convert", model), *summary.lines()])
    show(["", "$ " + _command("verify", model, made, "--data", data)])
    show(missing if verified is None else verified.lines())
    show(["", "next:", *(f"  {line}" for line in _next(model, made))])


def _next(model: Path, made: Path) -> list[str]:
    return [
        _command("inspect", made, "--against", model),
        _command("explain", model, "node_add_77"),
        _command("convert", "your_model.onnx"),
    ]


def _command(*words: object) -> str:
    """A line that works where this one did: by the command's name, or by Python where it is on no path."""
    import shutil
    import sys
    from shlex import join

    start = ["ampgraph"] if shutil.which("ampgraph") else [sys.executable, "-m", "ampgraph"]
    return join([*start, *map(str, words)])
