"""The command that writes CANN's list for its own mixed precision: its arguments and printing."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import show, show_json


def export_mixlist(
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT.json", help="Where the list goes.")],
    policy: Annotated[
        str, typer.Option("--policy", metavar="POLICY", help="Whose lists: ampgraph or mindspore.")
    ] = "ampgraph",
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help="O0, O1, O2, O3 or auto.")] = "O2",
    lists: Annotated[
        list[str] | None, typer.Option("--lists", metavar="FILE", help="A TOML file merged over the lists; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write the lists as CANN's modify_mixlist file, for its own mixed precision on Ascend (docs/ascend.md).

    \b
    ampgraph export-mixlist --level auto -o mixlist.json
    ampgraph export-mixlist --policy mindspore --level auto -o mixlist.json
    """
    from ..api.mixlist import build_mixlist, mixlist_lines, write_mixlist

    files = lists or []
    mixlist = build_mixlist(policy, level, files)
    write_mixlist(mixlist, output, files)
    show_json({"output": output, **mixlist.to_dict()}) if as_json else show(mixlist_lines(mixlist, output))
