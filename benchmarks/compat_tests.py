"""Runs the tests of the projects that `ampgraph.compat` stands in for against it, unchanged but for the import.

    python benchmarks/compat_tests.py CHECKOUT [CHECKOUT ...]

CHECKOUT is a clone of microsoft/onnxconverter-common or microsoft/onnxruntime. The functions that `ampgraph.compat` has
are put in the place of the originals before the tests import them; what tests build their models with stays. Needs
onnxconverter-common and onnxmltools for the one, onnxruntime and torch for the other. Exits 1 where a test fails.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path

from ampgraph.compat import onnxconverter_common, onnxruntime_float16

TESTS = {  # by checkout: files, what replaces the originals, and the modules that have them
    "tests/test_float16.py": onnxconverter_common,
    "tests/test_auto_mixed_precision.py": onnxconverter_common,
    "tests/test_auto_mixed_precision_model_path.py": onnxconverter_common,
    "onnxruntime/test/python/transformers/test_float16.py": onnxruntime_float16,
}
MODULES = {
    onnxconverter_common: (
        "onnxconverter_common", "onnxconverter_common.float16", "onnxconverter_common.auto_mixed_precision",
        "onnxconverter_common.auto_mixed_precision_model_path",
    ),
    onnxruntime_float16: ("onnxruntime.transformers.float16",),
}  # fmt: skip


def replace(ours: object) -> None:
    """Puts our functions in the place of the originals, and of ONNX Runtime's sources, which its tests prefer."""
    for name in MODULES[ours]:  # type: ignore[index]
        module = importlib.import_module(name)
        for word in ours.__all__:  # type: ignore[attr-defined]
            if hasattr(module, word):
                setattr(module, word, getattr(ours, word))
        if name == "onnxruntime.transformers.float16":
            sys.modules["float16"] = module


def suites(checkout: Path) -> Iterator[tuple[str, unittest.TestSuite]]:
    """The test files that a checkout has, each loaded with the originals replaced."""
    for place, ours in TESTS.items():
        path = checkout / place
        if path.is_file():
            replace(ours)
            sys.path.insert(0, str(path.parent))  # of what lies beside it
            spec = importlib.util.spec_from_file_location(f"of_{len(sys.modules)}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            yield place, unittest.defaultTestLoader.loadTestsFromModule(module)


def main() -> int:
    """Runs what there is, and says what passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="+", type=Path)
    failed, lines = 0, []
    for checkout in parser.parse_args().checkout:
        for place, suite in suites(checkout.resolve()):
            result = unittest.TextTestRunner(verbosity=2).run(suite)
            bad = len(result.failures) + len(result.errors)
            good = result.testsRun - bad - len(result.skipped)
            lines.append(f"{place}: {good} of {result.testsRun} passed, {len(result.skipped)} skipped")
            failed += bad
    print("\n".join(lines) or "no tests found: is this a clone of onnxconverter-common or onnxruntime?")
    return int(bool(failed) or not lines)


if __name__ == "__main__":
    sys.exit(main())
