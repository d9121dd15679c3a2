"""`onnxconverter_common`'s float16 functions by ampgraph: ``from ampgraph.compat.onnxconverter_common import ...``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from ..api.convert import apply
from ..api.run import run
from ..api.tune import tune
from ..core.arrays import Array, Result
from ..numerics.pairs import in_types_of
from ..numerics.strict.session import StrictSession
from .float16 import (
    DEFAULT_OP_BLOCK_LIST,
    CompatWarning,
    NotConverted,
    convert_with_lists,
    has_float16,
    load_whole,
    warn_not_done,
)
from .float16 import convert_np_to_float16 as numbers_in_float16
from .float16 import convert_tensor_float_to_float16 as tensor_in_float16

__all__ = [
    "DEFAULT_OP_BLOCK_LIST", "CompatWarning", "auto_convert_mixed_precision", "auto_convert_mixed_precision_model_path",
    "convert_float_to_float16", "convert_float_to_float16_model_path", "convert_np_to_float16",
    "convert_tensor_float_to_float16",
]  # fmt: skip
Validate = Callable[
    [list[Result], list[Result]], bool
]  # (float32 outputs, outputs of a result) -> whether that is right
LEVELS = (1.0, 0.25, 0.05, 0.01, 0.001)  # shares of the allowed error that are tuned for, until a result is accepted


def convert_float_to_float16(
    model: onnx.ModelProto,
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | list[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    check_fp16_ready: bool = True,
    **options: object,
) -> onnx.ModelProto:
    """A model in float16, by `ampgraph.convert` at O2; the model that is given is never changed.

    Args:
        model: the model.
        min_positive_val: weights of nodes that are not blocked are raised to it in their absolute value, if it is
            given; else nothing is clamped, and a node whose weights float16 cannot hold stays float32.
        max_finite_val: the same from above.
        keep_io_types: whether inputs and outputs keep their types, or the names of those that do.
        disable_shape_infer: makes no difference; types are always known, and never written into the result.
        op_block_list: operators that stay float32, besides those that ampgraph's rules hold.
        node_block_list: names of nodes that stay float32.
        check_fp16_ready: whether a model that has float16 in it already is refused.
        **options: of `ampgraph.convert`: ``check="auto"`` (off here), ``target``, ``level``, ``data`` ...

    Raises:
        AmpError: as `ampgraph.convert`; a ValueError too where ``model`` is no model, or has float16 in it.
    """
    if check_fp16_ready and isinstance(model, onnx.ModelProto) and has_float16(model):
        raise NotConverted("AMP301", "the model has float16 in it already", hint="check_fp16_ready=False converts it")
    return convert_with_lists(
        model, min_positive_val=min_positive_val, max_finite_val=max_finite_val, keep_io_types=keep_io_types,
        op_block_list=op_block_list, node_block_list=node_block_list, options=options,
    )  # fmt: skip


def convert_float_to_float16_model_path(
    model_path: str | Path,
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | list[str] = False,
    **options: object,
) -> onnx.ModelProto:
    """A model's file converted to float16, with its external weights in memory, as by `convert_float_to_float16`."""
    return convert_float_to_float16(
        load_whole(model_path), min_positive_val, max_finite_val, keep_io_types, **cast(dict[str, Any], options)
    )


def auto_convert_mixed_precision(
    model: onnx.ModelProto,
    feed_dict: Mapping[str, Array],
    validate_fn: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool = False,
) -> onnx.ModelProto:
    """A model in float16 with so much in float32 that its outputs on one sample are accepted, by `ampgraph.tune`.

    The sample is run strictly, each low value really rounded; the result is the first of a series of ever smaller
    errors that ``validate_fn`` (of the float32 outputs and the result's) and ``numpy.allclose`` accept.

    Raises:
        AmpError: as `ampgraph.tune`; a ValueError too where there is nothing to judge by, where the float32 outputs
            themselves are not accepted, and where no result is.
    """
    if validate_fn is None and rtol is None and atol is None:
        raise NotConverted("AMP301", "validate_fn and rtol are both None", hint="say what is right enough")
    limits = (1e-5 if rtol is None else rtol, 1e-8 if atol is None else atol)  # numpy.allclose's defaults
    judged = rtol is not None or atol is not None
    return _tune_until_accepted(model, feed_dict, validate_fn, limits if judged else None, keep_io_types)


def auto_convert_mixed_precision_model_path(
    source_model_path: str,
    input_feed: Mapping[str, Array],
    target_model_path: str,
    provider: Sequence[str] | None,
    location: str | None = None,
    customized_validate_func: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool = True,
    verbose: bool = False,
) -> None:
    """Converts a model's file so that its outputs on one sample are accepted, and writes the result, with its weights
    beside it as ``location`` (``fp16_tensor.data`` by default). They are accepted by ``customized_validate_func``, or,
    without one, by ``numpy.allclose`` with rtol 1e-3 and atol 1e-5 unless others are given. ``provider`` and
    ``verbose`` make no difference: the sample is run strictly on the CPU. Raises as `auto_convert_mixed_precision`."""
    if provider is not None and list(provider) != ["CPUExecutionProvider"]:
        warn_not_done("provider", "the sample is run strictly on the CPU, each low value really rounded")
    limits = (1e-3 if rtol is None else rtol, 1e-5 if atol is None else atol)
    model = load_whole(source_model_path)
    judged_by = None if customized_validate_func else limits
    result = _tune_until_accepted(model, input_feed, customized_validate_func, judged_by, keep_io_types)
    place = Path(target_model_path)
    place.parent.mkdir(parents=True, exist_ok=True)
    location = location or "fp16_tensor.data"
    (place.parent / location).unlink(missing_ok=True)  # onnx appends
    onnx.save_model(result, str(place), save_as_external_data=True, location=location)


def _tune_until_accepted(
    model: onnx.ModelProto, feed: Mapping[str, Array], validate: Validate | None,
    limits: tuple[float, float] | None, keep: bool,
) -> onnx.ModelProto:  # fmt: skip
    """For another converter's function: tunes a model to ever smaller shares of the allowed error (`LEVELS`), and
    returns the first result accepted on ``feed``, by ``validate`` if given and by ``limits``, (rtol, atol), if given.
    ``keep``: the types of inputs and outputs. Raises NotConverted where none is accepted."""
    rtol, atol = limits or (1e-2, 1e-3)

    def largest_share(reference: Mapping[str, Any], result: Mapping[str, Any]) -> float:
        """The largest error of any number, as a share of what ``limits`` allow it."""
        return max(share(np.asarray(reference[k], np.float64), np.asarray(result[k], np.float64)) for k in reference)

    def share(a: Array, b: Array) -> float:
        with np.errstate(all="ignore"):  # infinite in both is alike
            shares = np.where(a == b, 0.0, np.abs(b - a) / (atol + rtol * np.abs(b)))
        return float(np.max(np.where(np.isnan(shares), np.inf, shares), initial=0.0))

    def accepts(outputs: list[Result]) -> bool:
        if validate is not None and not validate(wanted, outputs):
            return False
        return limits is None or all(np.allclose(a, b, *limits) for a, b in zip(wanted, outputs, strict=True))

    wanted = list(run(model, feed, device="cpu").values())
    if not accepts(wanted):
        raise NotConverted("AMP312", "the float32 outputs themselves are not accepted", hint="mend validate_fn")
    for part in LEVELS:
        found = tune(model, data=[feed], metric=largest_share, tolerance=part, keep_io_types=keep)
        if found.plan is None:
            continue
        result = apply(model, found.plan)
        session = StrictSession(result)
        types = {name: port.dtype for name, port in session.inputs.items()}
        if accepts(list(session.run(in_types_of(feed, types)).values())):
            return result
    raise NotConverted("AMP312", "no result was accepted", hint="allow more, or keep the model in float32")


def convert_np_to_float16(np_array: Array, min_positive_val: float = 1e-7, max_finite_val: float = 1e4) -> Array:
    """An array as float16, clamped to these absolute values; zeros, infinities and NaN stay. Warns where it clamps."""
    return numbers_in_float16(np_array, min_positive_val, max_finite_val)


def convert_tensor_float_to_float16(
    tensor: onnx.TensorProto, min_positive_val: float = 1e-7, max_finite_val: float = 1e4
) -> onnx.TensorProto:
    """A float32 tensor made float16 in place, clamped so; any other stays. Raises ValueError for what is no tensor."""
    return tensor_in_float16(tensor, min_positive_val, max_finite_val)


float16 = auto_mixed_precision = auto_mixed_precision_model_path = sys.modules[__name__]
"""So that ``from ampgraph.compat.onnxconverter_common import float16`` goes on working."""
