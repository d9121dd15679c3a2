"""The command that writes CANN's list for its own mixed precision: its arguments and printing."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.recipe import Given, recipe_of
from .options import JsonOption, recipe_options
from .terminal import show, show_json


@recipe_options("level", "policy", "lists")
def export_mixlist(
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT.json", help="Where the list goes.")],
    fields: Given,
    as_json: JsonOption = False,
) -> None:
    """Write the lists as CANN's modify_mixlist file, for its own mixed precision on Ascend (docs/ascend.md).

    \b
    ampgraph export-mixlist --level auto -o mixlist.json
    ampgraph export-mixlist --policy mindspore --level auto -o mixlist.json
    """
    from ..api.mixlist import export_mixlist as export
    from ..api.mixlist import mixlist_lines

    mixlist = export(output, recipe=recipe_of(None, fields))
    show_json({"output": output, **mixlist.to_dict()}) if as_json else show(mixlist_lines(mixlist, output))
