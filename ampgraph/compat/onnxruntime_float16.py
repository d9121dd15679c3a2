"""`onnxruntime.transformers.float16` by ampgraph: ``from ampgraph.compat.onnxruntime_float16 import ...``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from .float16 import (
    DEFAULT_OP_BLOCK_LIST,
    CompatWarning,
    convert_np_to_float16,
    convert_tensor_float_to_float16,
    convert_with_lists,
    store_all_float16,
    warn_not_done,
)

__all__ = [
    "DEFAULT_OP_BLOCK_LIST", "CompatWarning", "convert_float_to_float16", "convert_np_to_float16",
    "convert_tensor_float_to_float16",
]  # fmt: skip


def convert_float_to_float16(
    model: onnx.ModelProto | str | Path,
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | list[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, list[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
    **options: object,
) -> onnx.ModelProto:
    """A model in float16, by `ampgraph.convert` at O2; the model that is given is never changed.

    Args:
        model: the model, or its path.
        min_positive_val: weights of nodes that are not blocked are raised to it in their absolute value, if it is
            given; else nothing is clamped, and a node whose weights float16 cannot hold stays float32.
        max_finite_val: the same from above.
        keep_io_types: whether inputs and outputs keep their types, or the names of those that do.
        disable_shape_infer: makes no difference; types are always known, and never written into the result.
        op_block_list: operators that stay float32, besides those that ampgraph's rules hold.
        node_block_list: names of nodes that stay float32.
        force_fp16_initializers: weights of float32 nodes are stored in float16 too, a Cast behind each.
        force_fp16_inputs: not done, with a CompatWarning.
        use_bfloat16_as_blocked_nodes_dtype: not done, with a CompatWarning: they compute in float32.
        **options: of `ampgraph.convert`: ``check="auto"`` (off here), ``target``, ``level``, ``data`` ...

    Raises:
        AmpError: as `ampgraph.convert`; a ValueError too where ``model`` is no model.
    """
    if force_fp16_inputs:
        warn_not_done("force_fp16_inputs", "ampgraph's tables say which inputs of an operator may be float16")
    if use_bfloat16_as_blocked_nodes_dtype:
        warn_not_done("use_bfloat16_as_blocked_nodes_dtype", "blocked nodes compute in float32")
    result = convert_with_lists(
        model, min_positive_val=min_positive_val, max_finite_val=max_finite_val, keep_io_types=keep_io_types,
        op_block_list=op_block_list, node_block_list=node_block_list, options=options,
    )  # fmt: skip
    if force_fp16_initializers:
        store_all_float16(result)
    return result
