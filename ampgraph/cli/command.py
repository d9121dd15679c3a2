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
from .terminal import Volume, guarded, ignore_interrupts, progress, set_volume, show, show_json

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
SHOWN = 2000  # names: a shell shows no more


def starting(words: Iterable[str], start: str) -> list[str]:
    """Completion in a shell: the words that begin with ``start``, in order, without repetitions."""
    found = dict.fromkeys(word for word in words if word.startswith(start))
    return list(found)[:SHOWN]


def completes(option: str) -> Complete | None:
    """What completes an option or a field on the command line, by its name; None where only files do."""
    if option in ("fp32", "low", "node"):
        return patterns
    known = option in WORDS or option in ("policy", "target")
    return (lambda ctx, incomplete: starting(_words(option), incomplete)) if known else None


def _words(option: str) -> Iterable[str]:
    """Completion in a shell: the words that an option may be: those of the lists are read when asked for."""
    if option == "policy":
        from ..planner.policies.registry import names

        return names()
    if option == "target":
        from ..oplists.kernels import TARGETS

        return [target for targets in TARGETS.values() for target in targets]
    return WORDS[option]


def patterns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completion in a shell, of a pattern: names of the model's nodes, and ``op:Kind`` for its operators."""
    names, kinds = _nodes(ctx)
    return starting([*names, *(f"op:{kind}" for kind in kinds)], incomplete)


def _nodes(ctx: typer.Context) -> tuple[list[str], list[str]]:
    """Names and kinds of the nodes of the model on the command line, for completion; empty where it cannot be read."""
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
    """How a keyword of a command is given: ``shown`` makes typer's option or argument of it for its name."""

    shown: Callable[[str], object]
    annotation: object

    def parameter(self, name: str) -> inspect.Parameter:
        """The keyword as typer reads it from a command's signature."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=self.shown(name), annotation=self.annotation)


def option(
    metavar: str, help: str, default: Any = None, *, flag: tuple[str, ...] = (), kind: type = str,
    repeats: bool = False, hidden: bool = False,
) -> Keyword:  # fmt: skip
    """A command's option with a word behind it, of the kind of its default; ``...`` for one that must be given."""
    kind = kind if default is None or default is ... else type(default)
    annotation: Any = GenericAlias(list, (kind,)) if repeats else kind

    def shown(name: str) -> object:
        names, completion = flag or (f"--{name.replace('_', '-')}",), completes(name)
        return typer.Option(
            default, *names, metavar=metavar or None, help=help, hidden=hidden, autocompletion=completion
        )

    return Keyword(shown, annotation | None if default is None else annotation)


def switch(help: str, *flags: str, default: bool = False) -> Keyword:
    """An option of a command that takes no value: it is on or off."""
    return option("", help, default, flag=flags)


def argument(metavar: str, help: str, default: Any = ..., *, kind: Any = str) -> Keyword:
    """An argument of a command, by its place; ``...`` for one that must be given."""
    return Keyword(
        lambda name: typer.Argument(default, metavar=metavar, help=help, autocompletion=completes(name)),
        kind | None if default is None else kind,
    )


def recipe_fields(*names: str, but: tuple[str, ...] = ()) -> dict[str, Keyword]:
    """The options of a recipe's fields, of all or of some; the command gets as ``fields`` what the user wrote, and
    nothing for options that were left away."""
    chosen = [name for name in OPTIONS if (not names or name in names) and name not in but]
    shown = ((name, OPTIONS[name]) for name in chosen)
    declared = {n: option(o.metavar, o.help, flag=(_flags(n, o),), kind=o.kind, repeats=o.repeats) for n, o in shown}
    if "io" in chosen:
        words = "--keep-io-types/--no-keep-io-types"
        declared[KEEP_IO] = option("", "The same as --io keep, and --io low.", flag=(words,), kind=bool)
    return declared


def _flags(name: str, of: Option) -> str:
    """The texts of a command's switch; one whose default follows from the model has a --no- form too."""
    return f"{of.flag}/--no-{of.flag[2:]}" if of.kind is bool and DEFAULTS[name] is None else of.flag


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

    def tell(self, as_json: bool) -> None:
        """Prints the output of a command as JSON or text, and exits with the code of a failure."""
        for note in self.notes:
            print(note, file=sys.stderr)
        to = sys.stderr if self.aside else sys.stdout
        show_json(json_value(self.data), to) if as_json else show(self.lines(), to)
        if not self.ok:
            sys.stdout.flush()
            sys.exit(self.code)


def printed(found: Shown, ok: bool = True) -> CommandOutput:
    """The output of a command whose report shows itself, and its exit status."""
    return CommandOutput(found, found.lines, ok)


Body = Callable[..., CommandOutput | None]
ABOUT: dict[str, str] = {}
"""By command, what it does."""


def name_of(command: Callable[..., object]) -> str:
    """What a command's function is called on the command line."""
    return command.__name__.replace("_", "-")


def command(
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    /,
    **declared: Keyword | Mapping[str, Keyword],
) -> Callable[[Body], Callable[..., None]]:
    """A command of these options in their order, and ``--json``, ``--quiet`` and ``--verbose``; it runs inside of
    ``around``.

    Its function is given the progress display, and by keyword the options; those of a mapping together under its name,
    but for those that were left away; sizes of dimensions as ``dims``.
    """
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
                found.tell(as_json or values.get("form") == "json")

        run.__name__, run.__doc__ = body.__name__, body.__doc__
        ABOUT[name_of(body)] = (body.__doc__ or "").partition("\n")[0]
        run = guarded(run)
        run.__signature__ = inspect.Signature([how.parameter(name) for name, how in flat.items()])  # type: ignore[attr-defined]
        return run

    return decorated
