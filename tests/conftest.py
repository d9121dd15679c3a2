"""What the tests of the command line share."""

import pytest

from ampgraph.cli import app as cli


@pytest.fixture
def amp(capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.app([str(word) for word in words], prog_name="ampgraph")
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return run
