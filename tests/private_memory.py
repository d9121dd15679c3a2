"""The most memory of its own that a statement takes, in a process of its own; mapped files do not count."""

import subprocess
import sys
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="private memory is read from /proc")
WATCHED = """
import sys, threading
from pathlib import Path
source, target = map(Path, sys.argv[1:])
peak, done = [0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]))
thread = threading.Thread(target=watch)
thread.start()
RUN
done.set()
thread.join()
print(peak[0])
"""


def most_megabytes(statement: str, source: Path, target: Path) -> int:
    """Of ``statement``, which reads the file ``source`` and writes ``target``."""
    words = [sys.executable, "-c", WATCHED.replace("RUN", statement), str(source), str(target)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout) // 1024
