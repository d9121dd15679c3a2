"""Fresh processes, and what they used: time, memory, bytes written. Only the standard library.

Memory is sampled from outside, so a child that holds Python's lock for seconds is still seen. `private` is RssAnon:
pages that belong to the process alone. Pages of memory-mapped weights count as resident, but the system can drop them
at any time; they are not private. Both are None where there is no /proc.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAMPLE_SECONDS = 0.005
MIB = 2**20


@dataclass
class Child:
    """One finished child process; `report` is what it wrote to the file that it was given."""

    code: int
    timed_out: bool
    wall_s: float
    rss_mb: float | None
    private_mb: float | None
    log: str
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def failure(self) -> str | None:
        """Why there is no report, in one line, or None."""
        if self.timed_out:
            return f"stopped after {self.wall_s:.0f} s"
        if self.report:
            return None
        last = self.log.strip().splitlines()[-1:] or [""]
        return f"exit {self.code}: {last[0][:200]}"


def status_mb(pid: int | str, key: str) -> float | None:
    """A field of /proc/PID/status in MiB, or None where it cannot be read."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def bytes_written() -> int | None:
    """Bytes that this process has passed to write calls so far (writes through a memory map are not seen)."""
    try:
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def highest(a: float | None, b: float | None) -> float | None:
    """The larger of two readings, either of which may be missing."""
    known = [v for v in (a, b) if v is not None]
    return max(known) if known else None


def run_child(
    script: Path, args: Sequence[str], *, python: str = sys.executable, timeout: float = 600, env: dict | None = None
) -> Child:
    """Run `script ARGS --report FILE` in a fresh process and sample its memory until it ends or its time is up."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder, "report.json"), Path(folder, "log.txt")
        command = [python, str(script), *map(str, args), "--report", str(report)]
        start, timed_out, rss, private = time.perf_counter(), False, None, None
        with log.open("wb") as sink:
            # A session of its own, so that at a timeout its own children end with it.
            process = subprocess.Popen(
                command, stdout=sink, stderr=sink, env={**os.environ, **(env or {})}, start_new_session=True
            )
            while process.poll() is None:
                rss = highest(rss, status_mb(process.pid, "VmHWM"))
                private = highest(private, status_mb(process.pid, "RssAnon"))
                timed_out = time.perf_counter() - start > timeout
                if timed_out:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    break
                time.sleep(SAMPLE_SECONDS)
        wall = time.perf_counter() - start
        text = log.read_text(errors="replace")
        data = json.loads(report.read_text()) if report.exists() and not timed_out else {}
    return Child(process.returncode, timed_out, wall, rss, private, text, data)


def one_line(error: BaseException) -> str:
    """An exception as one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def folder_mb(folder: Path) -> float:
    """Size of all files in `folder`, in MiB."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / MIB


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; None becomes an empty cell."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join("" if c is None else str(c).replace("|", "/") for c in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None, form: str = ".2f") -> str | None:
    """Format a number, or None for a missing one."""
    return None if value is None else format(value, form)
