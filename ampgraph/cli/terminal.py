"""The terminal's side of the command line: errors in one line, progress on stderr, results on stdout."""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

from ..core.errors import AmpError

if TYPE_CHECKING:
    import rich.console
    import rich.progress

Command = TypeVar("Command", bound=Callable[..., None])
INTERRUPTED, PIPE_CLOSED = 130, 141


class Volume(enum.Enum):
    """What is printed besides errors and JSON."""

    QUIET = "nothing"
    USUAL = "the report, and a bar on a terminal"
    VERBOSE = "each stage with its time too, and where an error happened"


_volume = ContextVar("volume", default=Volume.USUAL)


def quiet() -> bool:
    """Whether a command says nothing but errors (--quiet)."""
    return _volume.get() is Volume.QUIET


def verbose() -> bool:
    """Whether a command says all that it can (--verbose)."""
    return _volume.get() is Volume.VERBOSE


def set_volume(volume: Volume) -> None:
    """Sets how much the command prints from here on."""
    _volume.set(volume)


class Interrupted(BaseException):
    """Ctrl-C as an exception that typer does not catch: it would end a command without a word."""


def guard_command(command: Command) -> Command:
    """A decorator of commands: turns what one raises into a message, a hint, and exit code 2, or 130 for Ctrl-C."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
            ignore_interrupts()
        except AmpError as error:
            _print_trace()
            message = AmpError(error.code, error.message, where=error.where)
            fail(2, str(message), *([f"hint: {error.hint}"] if error.hint else []))
        except (KeyboardInterrupt, Interrupted):
            fail(INTERRUPTED, "interrupted")
        except BrokenPipeError:
            _redirect_to_null(sys.stdout)
            sys.exit(PIPE_CLOSED)
        except MemoryError:
            fail(2, "error[AMP502]: not enough memory", "hint: close other programs, or use a machine with more memory")
        except OSError as error:
            _redirect_to_null(sys.stdout)  # what could not be written would be tried again at exit
            _unexpected(error, "the disk is full" if error.errno == errno.ENOSPC else "")
        except Exception as error:  # a defect: reported in one line, whatever it is
            _unexpected(error)

    return run  # type: ignore[return-value]


def fail(code: int, *lines: str) -> NoReturn:
    """Prints lines on stderr and ends the command with an exit code."""
    with contextlib.suppress(OSError):
        print("\n".join(printable(line) for line in lines), file=sys.stderr, flush=True)
    sys.exit(code)


def _print_trace() -> None:
    """Prints the traceback, for those who set AMPGRAPH_DEBUG or --verbose."""
    if os.environ.get("AMPGRAPH_DEBUG") == "1" or verbose():
        import traceback

        traceback.print_exc()


def _unexpected(error: Exception, known: str = "") -> NoReturn:
    """Ends a command with exit code 2 at an unforeseen exception: AMP105 for a ``known`` cause, else AMP900, a
    defect."""
    _print_trace()
    if known:
        fail(2, f"error[AMP105]: the report cannot be written: {known}", "hint: free some space, or write elsewhere")
    message = (str(error).strip().splitlines() or [""])[0]
    fail(
        2,
        f"error[AMP900]: {type(error).__name__}: {message}: this is a defect of ampgraph",
        "hint: please report it with the model; AMPGRAPH_DEBUG=1 shows where it happened",
    )


def _redirect_to_null(stream: IO[str]) -> None:
    """At the end of a command: points a stream that cannot be written at the null device, to close it quietly."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def prepare_streams() -> None:
    """Before a command: has stdout and stderr take any name, warnings print in a line, Ctrl-C and SIGTERM clean up."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda got, frame: sys.exit(128 + got))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of Ctrl-C while a command runs: raises an exception, so that half-written files are removed."""
    raise Interrupted


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """For commands: holds Ctrl-C and SIGTERM back while extension modules are imported, which some do not survive."""
    heard: list[tuple[int, Any]] = []
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):
            handlers[number] = handler
            signal.signal(number, lambda got, frame: heard.append((got, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for got, frame in heard:
        handlers[signal.Signals(got)](got, frame)


def ignore_interrupts() -> None:
    """At the end of a command: ignores Ctrl-C, which comes too late to undo anything."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def printable(text: str) -> str:
    """Text from a model, safe to print: characters that steer a terminal or begin a line are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def show(lines: list[str], to: IO[str] | None = None) -> None:
    """Prints a command's report, by default on stdout."""
    if not quiet():
        print("\n".join(printable(line) for line in lines), file=to)


def show_json(data: object, to: IO[str] | None = None) -> None:
    """Prints data as JSON, by default on stdout."""
    import json

    print(json.dumps(data, indent=2), file=to)


class Display:
    """The progress of a command, which this class shows to nobody. ``as_json``: the report is JSON, without lines."""

    as_json = False

    def line(self, text: str) -> None:
        """Prints a line of the report on stdout while the work goes on, unless the report is JSON or --quiet."""
        if not quiet() and not self.as_json:
            print(printable(text), flush=True)

    def stage(self, text: str) -> None:
        """Shows what the command does next."""

    def part(self, text: str, done: int, total: int) -> None:
        """Shows how far the command is; 0 of 0 where that is not known."""


class TerminalDisplay(Display):
    """Progress as a bar of rich's, which appears with the first stage or part."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self.bars = bars
        self.task = bars.add_task("starting", total=None)

    def line(self, text: str) -> None:
        """Prints a line of the report, while the progress bar is away."""
        self.bars.stop()  # stdout may be the same terminal: the bar would stand in the line
        super().line(text)
        self.bars.start()

    def stage(self, text: str) -> None:
        """Shows a progress bar without an end, for work that does not say how long it takes."""
        self.bars.start()
        self.bars.reset(self.task, description=text, total=None)

    def part(self, text: str, done: int, total: int) -> None:
        """Shows the progress bar at ``done`` of ``total``; without an end where that is 0."""
        if total:
            self.bars.start()
            self.bars.update(self.task, description=text, completed=done, total=total)
        else:
            self.stage(text)


class LineDisplay(Display):
    """Progress as lines on stderr: each stage once, with the seconds since the start."""

    def __init__(self) -> None:
        self.start, self.said = time.monotonic(), ""

    def stage(self, text: str) -> None:
        """Prints the stage of the work with the seconds since the start, unless it is the one printed last."""
        if text != self.said:
            self.said = text
            print(f"[{time.monotonic() - self.start:7.2f} s] {printable(text)}", file=sys.stderr, flush=True)

    def part(self, text: str, done: int, total: int) -> None:
        """Prints the stage of the work, without its parts, which are too many for lines."""
        self.stage(text)


@contextlib.contextmanager
def progress() -> Iterator[Display]:
    """Opens a command's display: lines with --verbose, a bar if stderr is a terminal, else nothing."""
    if verbose():
        yield LineDisplay()
        return
    if quiet() or not sys.stderr.isatty():
        yield Display()
        return
    from rich.console import Console

    bars = progress_bars(Console(stderr=True))
    try:
        yield TerminalDisplay(bars)
    finally:
        bars.stop()


def progress_bars(console: rich.console.Console, get_time: Callable[[], float] | None = None) -> rich.progress.Progress:
    """A command's progress bar: what is done, time taken and time left where known. ``get_time``: another clock."""
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            left = task.time_remaining
            return Text(f"about {int(left) // 60}:{int(left) % 60:02} left" if left else "")

    said = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), said, BarColumn(), TimeElapsedColumn(), TimeLeft())
    return Bars(*columns, console=console, transient=True, get_time=get_time)
