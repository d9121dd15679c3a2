"""Help reads from what everybody needs to what few do."""

from ampgraph.cli.app import GROUPS


def test_many_options_stand_under_titles(amp):
    out = amp("convert", "--help")[1]
    titles = [line[:-1] for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Arguments", "Options", *GROUPS]
    first = out.partition("\nOptions:")[2].partition("\nPrecision:")[0]
    flags = [line.split()[0].strip(",") for line in first.splitlines() if line.startswith("  -")]
    wanted = "-o --level --dtype --fp32 --low --io --target --data --dry-run --check -h"
    assert flags == wanted.split(), "ten, and help"
    assert "\nPrecision:" not in amp("run", "--help")[1]


def test_shared_options_stand_in_the_same_groups(amp):
    for command, titles in (
        ("tune", list(GROUPS)),
        ("verify", ["Numbers", "Check", "Output"]),
        ("build-step", ["Precision", "Output"]),
        ("explain", ["Precision", "Numbers", "Output"]),
    ):
        out = amp(command, "--help")[1]
        found = [line[:-1] for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
        assert found == ["Arguments", "Options", *titles], command
        assert set(titles) <= set(GROUPS)
