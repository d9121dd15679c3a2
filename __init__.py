"""For who runs Python in the folder that holds this checkout, which Python takes for the package, named as it is.

The package is the folder `ampgraph` in it, and takes this module's place."""

if __name__ == "ampgraph":
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    package = Path(__file__).resolve().parent / "ampgraph"
    spec = spec_from_file_location(__name__, package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None and spec.loader is not None
    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])
