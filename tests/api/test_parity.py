"""What the command line does, Python does in the same words: each option is a keyword of the call of that name."""

from __future__ import annotations

import inspect
from functools import reduce

import pytest
from typer import main

import ampgraph
from ampgraph.cli.app import app

COMMANDS = main.get_command(app).commands  # type: ignore[attr-defined]
CALLS = {"build-step": "build_training_step", "demo": "convert"}
PRINTING = {"as_json": "to_dict() of what is returned", "quiet": "nothing is printed", "verbose": "progress="}
TAKEN = {
    "keep_io_types": "a word of other tools for io, which recipes take by either name",
    "dim": "dims, a mapping",
    "models": "one model for each call",
}
"""Options -> how the call of their command says them."""
ELSEWHERE = {
    ("convert", "plan_in"): ("convert", "its keyword plan, or apply"),
    ("convert", "plan_out"): ("Plan.write", "of what plan returns"),
    ("convert", "dry_run"): ("plan", "which writes nothing"),
    ("convert", "samples"): ("calibrate", "its keyword count; the result is convert's ranges"),
    ("convert", "ranges_out"): ("Ranges.write", "of what calibrate returns"),
    ("convert", "runtime"): ("convert", "optimize, which takes that Python"),
    ("convert", "loss_scale"): ("build_training_step", "convert refuses it, and says so"),
    ("inspect", "model_explorer"): ("overlay", "which returns the data"),
    ("lists", "rules"): ("explain", "whose decisions name their rule; the table is a page of levels.md"),
    ("check", "form"): ("Checked.to_dict", "text, JUnit and SARIF are for machines that call the command"),
    ("run", "output"): ("run", "returns the arrays"),
    ("demo", "folder"): ("convert", "demo is what a newcomer types; its parts are verbs"),
    ("build-step", "gradient"): ("build_training_step", "gradients, a mapping"),
    ("build-step", "seed_input"): ("build_training_step", "seed, which belongs to gradients"),
}
"""(command, option) -> (what of ampgraph does it, how)."""


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_a_keyword_of_the_call(name: str) -> None:
    call = getattr(ampgraph, CALLS.get(name, name.replace("-", "_")))
    keywords = inspect.signature(call).parameters
    options = {option.name for option in COMMANDS[name].params} - {*PRINTING, *TAKEN}
    lacking = {option for option in options if option not in keywords and (name, option) not in ELSEWHERE}
    assert lacking == set()


def test_what_is_said_elsewhere_is_there_and_needed() -> None:
    for (name, option), (place, how) in ELSEWHERE.items():
        assert option in {found.name for found in COMMANDS[name].params}, (name, option)
        assert callable(reduce(getattr, place.split("."), ampgraph)) and how
    every = {option.name for command in COMMANDS.values() for option in command.params}
    assert {*PRINTING, *TAKEN} <= every
