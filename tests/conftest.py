"""What the tests of the command line share."""

import gc
import json
import os
import pickle
import signal
import sys
import warnings
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from ampgraph.api import check
from ampgraph.cli import app as cli
from ampgraph.cli import folder
from ampgraph.runtime import opening
from ampgraph.runtime.child import Ended
from share import share
from torchlib import read_once

os.environ.setdefault(
    "AMPGRAPH_CHECK", "off"
)  # thousands of conversions start no process each; tests/api/test_check.py
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # a busy one is slow, not wrong


def pytest_collection_modifyitems(config, items):
    """Leaves out what is not in the share of a grid that is marked so, and samples of a suite that runs itself."""
    left_out = {item for item in items for mark in item.iter_markers("share") if not share([item.name], *mark.args)}
    whole = {item.path for item in items if item.get_closest_marker("conformance")}
    left_out |= {item for item in items if item.get_closest_marker("sample") and item.path in whole}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish():
    """Where test modules of this run have imported these: what they do anew each time takes most of many tests."""
    if "torch" in sys.modules:
        read_once()
    if "mindspore.graph.api" in sys.modules:
        collect_little(sys.modules["mindspore.graph.api"])


def collect_little(module):
    """MindSpore collects all garbage before each compilation, half a second among the objects of all tests: here what
    is young. The rest is collected as always."""
    module.gc = SimpleNamespace(collect=lambda: gc.collect(1))


@pytest.fixture
def interruptible():
    """Ctrl-C reaches this process and those it starts, also where pytest runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def check_here(monkeypatch):
    """The code that a conversion's check gives to a process of its own runs in this one, for a tenth of the time, and
    so does what that gives to another, to open the file.

    What the processes are for (their limits, their end, their path) is tested without this, in tests/api/test_check.py
    and test_opening.py.
    """
    monkeypatch.setattr(check, "in_child", in_this_process)
    monkeypatch.setattr(opening, "in_child", in_this_process)


@pytest.fixture
def models_here(monkeypatch):
    """The models of a folder are converted in this process; without it tests/cli/test_folder.py has their own."""
    monkeypatch.setattr(folder, "in_child", in_this_process)


def in_this_process(function, argument, on_answer=lambda answer: None, **limits):
    """What a child process does, and what it answers."""
    answers = []
    with warnings.catch_warnings(record=True):
        function(pickle.loads(pickle.dumps(argument)), lambda found: answers.append(json.loads(json.dumps(found))))
    for answer in answers:
        on_answer(answer)
    return Ended(answers)


@pytest.fixture
def amp(capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.app([str(word) for word in words], prog_name="ampgraph")
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return run
