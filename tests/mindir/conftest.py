"""What the tests with MindSpore share: one export of the networks for all workers of a run."""

import fcntl
import importlib.util
from contextlib import contextmanager

import pytest

from mindir import parity


@contextmanager
def once(marker):
    """Lets one worker at a time in; gives whether the work is done already, and notes when it is."""
    with open(marker.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield marker.exists()
        marker.touch()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that all workers of this run see."""
    if importlib.util.find_spec("mindspore") is None:
        pytest.skip("needs mindspore: pip install ampgraph[mindspore]")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "popen-gw" in base.name else base) / "mindir"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def exported(shared):
    """``<name>/<level>.mindir`` with inputs and outputs, and ``<level>-bfloat16.mindir``: all that the tests read."""
    with once(shared / "exported.done") as done:
        if not done:
            parity.export(shared, parity.of_names([*parity.NAMED, *parity.USED, *parity.LOW]))
    return shared


@pytest.fixture(scope="session")
def converted(exported):
    """``<name>/mindspore_<level>.mindir`` with its outputs: converted with MindSpore's policy."""
    with once(exported / "converted.done") as done:
        if not done:
            pairs = parity.convertible([*parity.USED, *parity.NAMED])
            for name, level in pairs:
                parity.convert(exported, name, level, "mindspore")
            parity.run(exported, pairs, "mindspore")
    return exported
