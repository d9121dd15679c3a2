"""A pass for Microsoft's Olive: `AmpgraphMixedPrecision` converts an ONNX model as ``ampgraph convert`` does.

Olive finds its passes by a package configuration, a list of modules: ``python -m ampgraph.plugins.olive packages.json``
writes Olive's own with this pass added, for ``olive run --config workflow.json --package-config packages.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..api.convert import convert
from ..core.errors import AmpError
from ..core.files import text_file
from ..core.installing import pip_install
from ..core.json_types import JsonObject
from ..core.recipe import OPTIONS, Option

try:
    from olive.common.config_utils import validate_config
    from olive.data.config import DataConfig
    from olive.hardware.accelerator import AcceleratorSpec
    from olive.model import ONNXModelHandler
    from olive.model.utils import resolve_onnx_path
    from olive.package_config import OlivePackageConfig
    from olive.passes import Pass
    from olive.passes.pass_config import BasePassConfig, PassConfigParam
except ImportError as error:
    raise AmpError("AMP501", f"{error.name} is not installed", hint=pip_install("olive")) from error

NAME = "AmpgraphMixedPrecision"
TARGETS = {  # execution providers that have kernels of low types; what is chosen for others runs on the CPU
    "CANNExecutionProvider": "cann",
    "CUDAExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "tensorrt",
    "TensorrtExecutionProvider": "tensorrt",
}
WORDS: Mapping[str, tuple[object, object, str]] = {  # arguments of convert besides the recipe: type, default, text
    "check": (str, None, "auto: warn where a strict run misses the tolerance; require: fail; off."),
    "tolerance": (float, None, "The error that this run may have: 1e-2 in float16, 5e-2 in bfloat16."),
    "repair": (bool, False, "Keep in float32 what is to blame where it is missed."),
    "optimize": (bool, False, "ONNX Runtime's own offline optimisation first, where that saves nodes."),
    "metadata": (bool, True, "Nodes of the result say their precision and the reason."),
}


class AmpgraphMixedPrecision(Pass):  # type: ignore[misc]
    """Mixed precision by graph: the fields of `ampgraph.Recipe` and, of `ampgraph.convert`, check and repair. Without
    ``target`` the accelerator's execution provider says it. With ``data_config`` what overflows on its samples stays
    float32, and the result is checked on them."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        """The options of the Olive pass, by name: the recipe's fields, those of `WORDS`, and ``data_config``."""
        params = {name: _param(name, option) for name, option in OPTIONS.items()}
        for name, (kind, default, text) in WORDS.items():
            params[name] = PassConfigParam(type_=kind, default_value=default, description=text)
        params["data_config"] = PassConfigParam(
            type_=DataConfig | dict,
            default_value=None,
            description="Samples for the model's inputs: their ranges are measured, and the result is checked on them.",
        )
        return params

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:
        """False: tells Olive that results depend on the accelerator, as kernels differ."""
        return False

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        """Converts the model to the path that Olive gives, and returns its handler; the target follows the accelerator
        unless the options name one. Raises AmpError as `convert` does."""
        options = {name: getattr(config, name) for name in (*OPTIONS, *WORDS)}
        options = {name: value for name, value in options.items() if value is not None}
        options.setdefault("target", _target(self.accelerator_spec))
        source = Path(model.model_path)
        place = Path(resolve_onnx_path(output_model_path, source.name))
        data = None if config.data_config is None else list(_samples(config.data_config, model))
        convert(source, output=place, data=data, **options)
        return _handler(place)


def _target(accelerator: AcceleratorSpec) -> str:
    """The target of an Olive workflow's accelerator: by its execution provider; ``cuda`` for a GPU, else ``cpu``."""
    provider = accelerator.execution_provider
    if provider is None:
        return "cuda" if str(accelerator.accelerator_type) == "gpu" else "cpu"
    return TARGETS.get(str(provider), "cpu")


def _param(name: str, option: Option) -> PassConfigParam:
    """The Olive pass's parameter for a recipe's field ``name``; optional, as the recipe knows the defaults."""
    kind: Any = option.kind
    if option.repeats:
        kind = list[str] | dict[str, int] | str if name == "dims" else list[str] | str
    elif name in ("level", "opset"):
        kind = int | str
    return PassConfigParam(type_=kind | None, default_value=None, description=option.doc)


def _samples(config: DataConfig | dict[str, Any], model: ONNXModelHandler) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Olive's samples, each as input's name -> array, without labels; data without names is the first input's."""
    names = model.io_config["input_names"]
    for batch in validate_config(config, DataConfig).to_data_container().create_dataloader():
        values = batch[0] if isinstance(batch, (tuple, list)) else batch
        values = values if isinstance(values, Mapping) else {names[0]: values}
        yield {name: np.asarray(values[name]) for name in names if name in values}


def _handler(place: Path) -> ONNXModelHandler:
    """Olive's handler for a model; with data files beside it one of its folder, as Olive moves what a handler names."""
    if any(place.parent.glob(f"{place.name}.*data")):
        return ONNXModelHandler(model_path=str(place.parent), onnx_file_name=place.name)
    return ONNXModelHandler(model_path=str(place))


def package_config() -> dict[str, JsonObject]:
    """Olive's own package configuration with this pass added, as ``olive.run(..., package_config=...)`` takes it."""
    own = Path(OlivePackageConfig.get_default_config_path())
    found: dict[str, JsonObject] = json.loads(own.read_text(encoding="utf-8"))
    found["passes"][NAME] = {
        "module_path": f"ampgraph.plugins.olive.{NAME}",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["fp16", "bf16"],
        "dataset": "dataset_optional",
    }
    return found


def main(arguments: list[str]) -> int:
    """For Olive: writes `package_config` as JSON to the file named by the one argument. Returns the exit status, 2 for
    wrong arguments or a file that cannot be written."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m ampgraph.plugins.olive packages.json", file=sys.stderr)
        return 2
    try:
        with text_file(arguments[0], lambda: json.dumps(package_config(), indent=1) + "\n"):
            pass
    except AmpError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
