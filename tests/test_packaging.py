"""One installed name, every file of the package in the wheel, and no second identity of any module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampgraph.core.installing import PACKAGES

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def _project() -> dict:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)


def test_hints_name_the_packages_of_the_extras() -> None:
    """An extra has no name that works from a checkout and from a wheel; packages have."""
    extras = _project()["project"]["optional-dependencies"]
    for extra, packages in PACKAGES.items():
        assert set(packages) <= {package.partition(";")[0].strip() for package in extras[extra]}, extra
    sources = (ROOT / top for top in ("ampgraph", "passes", "models"))
    assert [path for top in sources for path in top.rglob("*.py") if "install 'ampgraph[" in path.read_text()] == []


def test_a_plain_name_never_enters_sys_modules() -> None:
    code = (
        "import sys, ampgraph, ampgraph.api, ampgraph.passes.apply_plan, ampgraph.op_lists, ampgraph.models\n"
        "ampgraph.convert, ampgraph.inspect\n"
        "print(sorted({'passes', 'op_lists', 'models'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_the_links_point_at_the_folders() -> None:
    for name in ("passes", "op_lists", "models"):
        assert (ROOT / "ampgraph" / name).resolve() == ROOT / name


def test_a_checkout_named_as_the_package_is_no_package_of_its_own(tmp_path: Path) -> None:
    """In the folder that holds it, where `import ampgraph` would find the checkout's folder first."""
    (tmp_path / "ampgraph").symlink_to(ROOT)
    code = "import ampgraph as a, ampgraph.core.errors as e; a.convert; print(a.__file__, e.AmpError.__module__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.split() == [str(ROOT / "ampgraph" / "__init__.py"), "ampgraph.core.errors"], done.stderr


def _files_of_the_package() -> set[str]:
    """Where they are once installed: sources, `py.typed`, lists, patterns, schemas, models, what pages are made of."""
    tops = {"ampgraph": "ampgraph"} | {name: f"ampgraph/{name}" for name in ("passes", "op_lists", "models")}
    listed = subprocess.run(["git", "ls-files", *tops], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    files = [Path(line) for line in listed.splitlines() if not (ROOT / line).is_symlink()]
    return {f"{tops[path.parts[0]]}/{'/'.join(path.parts[1:])}" for path in files}


@pytest.mark.conformance
def test_a_wheel_works_without_the_checkout(tmp_path: Path) -> None:
    """Built and unpacked elsewhere: what a user of the package index gets."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob("ampgraph-*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "site")], check=True)
    packed = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site" / "ampgraph").rglob("*.*")}
    assert _files_of_the_package() <= packed
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ampgraph; from importlib import resources\n"
        "assert ampgraph.__file__.startswith(sys.argv[1]), ampgraph.__file__\n"
        "model = str(resources.files('ampgraph.models') / 'digits_cnn.onnx')\n"
        "print(len(ampgraph.plan(model).decisions) > 0)"
    )
    run = [sys.executable, "-I", "-c", code, str(tmp_path / "site")]
    assert subprocess.run(run, check=True, capture_output=True, text=True, cwd=tmp_path).stdout.strip() == "True"
    demo = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ampgraph.cli.console import main; main()"
    run = [sys.executable, "-I", "-c", demo, str(tmp_path / "site"), "demo"]
    said = subprocess.run(run, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert "verdict     ok" in said and (tmp_path / "ampgraph-demo" / "digits_transformer.O2.onnx").is_file()
