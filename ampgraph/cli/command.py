"""What all commands share: options, each declared once, the running of a command, and the telling of what it found."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

import typer

from ..core.errors import AmpError
from ..core.metric_names import metrics_help
from ..core.recipe import DEFAULTS, OPTIONS, Option
from ..core.recipe_values import dims
from ..core.shown import Shown, json_value
from ..core.spellings import DTYPES, KEEP_IO, LEVELS
from .terminal import Volume, guard_command, ignore_interrupts, progress, set_volume, show, show_json

# -- what a shell completes behind an option: words of the lists and levels, and nodes of the model that was named ----

Complete = Callable[[typer.Context, str], list[str]]
WORDS = {
    "level": LEVELS,
    "dtype": DTYPES,
    "store_weights": ("low", "keep"),
    "io": ("keep", "low"),
    "opset": ("auto",),
    "rewrite": ("none", "exact"),
    "check": ("auto", "off", "require"),
    "device": ("auto", "cpu", "cuda", "tensorrt", "cann", "ascend"),
}
SHOWN = 2000  # words that a shell is given at most


def words_starting(words: Iterable[str], start: str) -> list[str]:
    """Completion in a shell: the words that begin with ``start``, in order, without repetitions."""
    found = dict.fromkeys(word for word in words if word.startswith(start))
    return list(found)[:SHOWN]


def completion_for(option: str) -> Complete | None:
    """The function by which a shell completes an option or a field of that name; None where it completes files."""
    if option in ("fp32", "low", "node"):
        return complete_pattern
    if option in WORDS or option in ("policy", "target"):
        return lambda ctx, incomplete: words_starting(_words_of_option(option), incomplete)
    return None


def _words_of_option(option: str) -> Iterable[str]:
    """Completion in a shell: the words that an option may be, a key of `WORDS`, ``policy`` or ``target``."""
    if option == "policy":
        from ..planner.policies.registry import names

        return names()
    if option == "target":
        from ..oplists.kernels import TARGETS

        return [target for targets in TARGETS.values() for target in targets]
    return WORDS[option]


def complete_pattern(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completion in a shell, of a pattern: names of the model's nodes, and ``op:Kind`` for its operators."""
    names, kinds = _nodes_of_model(ctx)
    return words_starting([*names, *(f"op:{kind}" for kind in kinds)], incomplete)


def _nodes_of_model(ctx: typer.Context) -> tuple[list[str], list[str]]:
    """For completion: (names, kinds) of the nodes of the model on the command line; empty where it cannot be read."""
    from ..core.errors import AmpError
    from ..formats.adapters import load

    model = ctx.params.get("model") or next(iter(ctx.args), "")  # left there by an option that lacks its word yet
    if not model:
        return [], []
    try:
        ops = load(model)[0].dataflow().ops
    except AmpError:  # the command itself will say it
        return [], []
    return [op.name for op in ops if op.name], sorted({op.kind for op in ops})


# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keyword:
    """How a keyword of a command is given: ``declare`` makes typer's option or argument for the keyword's name."""

    declare: Callable[[str], object]
    annotation: object

    def parameter(self, name: str) -> inspect.Parameter:
        """The keyword as typer reads it from a command's signature."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=self.declare(name), annotation=self.annotation)


def option(
    metavar: str, help: str, default: Any = None, *, flag: tuple[str, ...] = (), kind: type = str,
    repeats: bool = False, hidden: bool = False,
) -> Keyword:  # fmt: skip
    """A command's option with a word behind it, which becomes the type of its default, or ``kind`` without one.

    ``default``: ``...`` for one that must be given. ``flag``: its spellings, by default from its name. ``repeats``: it
    may be given several times, and is a list."""
    kind = kind if default is None or default is ... else type(default)
    annotation: Any = GenericAlias(list, (kind,)) if repeats else kind

    def declare(name: str) -> object:
        names, completion = flag or (f"--{name.replace('_', '-')}",), completion_for(name)
        return typer.Option(
            default, *names, metavar=metavar or None, help=help, hidden=hidden, autocompletion=completion
        )

    return Keyword(declare, annotation | None if default is None else annotation)


def switch(help: str, *flags: str, default: bool = False) -> Keyword:
    """An option of a command that is on or off. ``flags``: its spellings, by default from its name."""
    return option("", help, default, flag=flags)


def argument(metavar: str, help: str, default: Any = ..., *, kind: Any = str) -> Keyword:
    """An argument of a command, by its place; ``...`` for one that must be given."""
    return Keyword(
        lambda name: typer.Argument(default, metavar=metavar, help=help, autocompletion=completion_for(name)),
        kind | None if default is None else kind,
    )


def recipe_fields(*names: str, but: tuple[str, ...] = ()) -> dict[str, Keyword]:
    """A command's options for a recipe's fields (name -> option): for those of ``names``, or all but ``but``; for
    ``io`` also ``--keep-io-types``."""
    chosen = [name for name in OPTIONS if (not names or name in names) and name not in but]
    declared: dict[str, Keyword] = {}
    for name in chosen:
        how = OPTIONS[name]
        declared[name] = option(how.metavar, how.help, flag=(_flags(name, how),), kind=how.kind, repeats=how.repeats)
    if "io" in chosen:
        words = "--keep-io-types/--no-keep-io-types"
        declared[KEEP_IO] = option("", "The same as --io keep, and --io low.", flag=(words,), kind=bool)
    return declared


def _flags(name: str, how: Option) -> str:
    """The flag of a recipe's field ``name``; of a switch without a default of its own, with its --no- form."""
    return f"{how.flag}/--no-{how.flag[2:]}" if how.kind is bool and DEFAULTS[name] is None else how.flag


MODEL = argument("MODEL", "The .onnx or .mindir file.")
HTML = option("FILE", "Write a page to look at: the graph by layers, precisions, reasons.")
DIM = option(
    "NAME=N",
    "Size of a symbolic dimension in generated samples, or least:best:largest for an engine; repeatable.",
    repeats=True,
)
DEVICE = option("DEVICE", "auto (the best that is here), cpu, cuda, tensorrt, cann; MindIR: cpu, ascend.", "auto")
TARGET = option("TARGET", "Execute by the runtime of this target, where it is here: openvino, webgpu, cpu-arm64.", "")
RUNTIME = option("PYTHON", "The python of an environment that has what --target needs.", "")
DATA = option("DIR|FILE.npz", "Samples, by input name; generated if not given.")
SAMPLES = option("N", "At most N samples; 8 where they are generated.", kind=int)
SEED = option("N", "For generated samples.", 0)
METRIC = option("NAME|FUNCTION", metrics_help(), "auto")
JSON = switch("Print the report as JSON.", "--json")
VOLUME = {
    "quiet": switch("Print errors alone, and JSON if it is asked for.", "--quiet", "-q"),
    "verbose": switch("Print all there is to say, and each stage and its time on stderr.", "--verbose", "-v"),
}


@dataclass(frozen=True)
class CommandOutput:
    """What a command prints: ``data`` as JSON, or else ``lines``, on stderr where it is ``aside``, and ``notes`` there
    too. The exit code is ``code`` where it is not ``ok``."""

    data: object
    lines: Callable[[], list[str]]
    ok: bool = True
    aside: bool = False
    notes: tuple[str, ...] = ()
    code: int = 1

    def emit(self, as_json: bool) -> None:
        """Prints the output of a command as JSON or text, and exits with ``code`` where it is not ``ok``."""
        for note in self.notes:
            print(note, file=sys.stderr)
        to = sys.stderr if self.aside else sys.stdout
        show_json(json_value(self.data), to) if as_json else show(self.lines(), to)
        if not self.ok:
            sys.stdout.flush()
            sys.exit(self.code)


def output_of_report(found: Shown, ok: bool = True) -> CommandOutput:
    """The output of a command that prints a report; ``ok``: whether the exit code is 0."""
    return CommandOutput(found, found.lines, ok)


Body = Callable[..., CommandOutput | None]
ABOUT: dict[str, str] = {}
"""Name of a command -> what it does, in a line."""


def command_name(command: Callable[..., object]) -> str:
    """The name of a command on the command line, from that of its function."""
    return command.__name__.replace("_", "-")


def command(
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    /,
    **declared: Keyword | Mapping[str, Keyword],
) -> Callable[[Body], Callable[..., None]]:
    """A decorator that makes a command with the options ``declared``, in their order, and ``--quiet``, ``--verbose``
    and, unless there is ``--format`` (``form``), ``--json``. It runs inside of ``around``.

    The function is given the progress display, and the options by keyword: those of a mapping as one dict of what was
    given, ``dim`` as the dict ``dims``. It returns what is printed, or None. The first line of its docstring is noted
    in `ABOUT`, for the list of commands."""
    grouped = {name: how for name, how in declared.items() if not isinstance(how, Keyword)}
    flat: dict[str, Keyword] = {}
    for name, how in declared.items():
        flat |= {name: how} if isinstance(how, Keyword) else how
    flat |= {"as_json": JSON, **VOLUME} if "form" not in declared else VOLUME

    def decorated(body: Body) -> Callable[..., None]:
        def run(*, quiet: bool, verbose: bool, as_json: bool = False, **values: Any) -> None:
            if quiet and verbose:
                raise AmpError("AMP301", "--quiet and --verbose exclude each other", hint="omit one of the two")
            set_volume(Volume.QUIET if quiet else Volume.VERBOSE if verbose else Volume.USUAL)
            for name, members in grouped.items():
                given = {member: values.pop(member) for member in members}
                values[name] = {member: value for member, value in given.items() if value not in (None, [])}
            if "dim" in values:
                values["dims"] = dict(dims(values.pop("dim")))
            with around(), progress() as bar:
                bar.as_json = as_json
                found = body(bar, **values)
                ignore_interrupts()
            if found is not None:
                found.emit(as_json or values.get("form") == "json")

        run.__name__, run.__doc__ = body.__name__, body.__doc__
        ABOUT[command_name(body)] = (body.__doc__ or "").partition("\n")[0]
        run = guard_command(run)
        run.__signature__ = inspect.Signature([how.parameter(name) for name, how in flat.items()])  # type: ignore[attr-defined]
        return run

    return decorated
