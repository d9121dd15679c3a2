"""What the tests of the command line share."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from ampgraph.cli import app as cli
from share import share

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


@pytest.fixture
def interruptible():
    """Ctrl-C reaches this process and those it starts, also where pytest runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def amp(capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.app([str(word) for word in words], prog_name="ampgraph")
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return run
