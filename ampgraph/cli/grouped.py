"""Help of commands with many options: those that everybody needs first, the others under titles."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

MANY = 15  # options: fewer are read as one list
GROUPS = {
    "Precision": (
        "policy", "lists", "keep_io_types", "store_weights", "freeze_weights", "rewrite", "rule", "fp32_stream",
        "opset", "optimize", "runtime",
    ),
    "Numbers": ("samples", "dim", "dims", "ranges", "range_margin", "ranges_out", "seed"),
    "Check": ("tolerance", "repair", "metric", "check_memory"),
    "Output": (
        "plan_in", "plan_out", "metadata", "html", "webgpu_page", "onnxruntime_web", "jobs", "transformers_js",
        "as_json", "quiet", "verbose",
    ),
}  # fmt: skip
"""By title, options by the names of their keywords; any other one is among the first."""


class GroupedCommand(TyperCommand):
    """A command whose help has titles where its options are many."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes options under titles where there are many; a title for one option alone is none."""
        shown = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        options = [(param, record) for param, record in shown if record and param.param_type_name == "option"]
        if len(options) < MANY:
            super().format_options(ctx, formatter)
            return
        title_of = {name: title for title, names in GROUPS.items() for name in names}
        titles: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{title: [] for title in GROUPS}}
        for param, record in shown:
            if record:
                first = "Options" if param.param_type_name == "option" else "Arguments"
                titles[title_of.get(str(param.name), first)].append(record)
        for title in GROUPS:
            if len(titles[title]) == 1:  # no group
                titles["Options"][-1:-1] = titles.pop(title)  # --help is the last
        for title, records in titles.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
