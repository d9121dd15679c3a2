"""The packed forward graph: what cannot be unpacked, and what is made to fill the memory."""

from __future__ import annotations

import base64
import resource
import zlib

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.training.step.packed_forward import pack, unpack
from training.small_steps import regression, weights


def text_of(data: bytes) -> str:
    return base64.b85encode(data).decode()


@pytest.mark.parametrize(
    "text",
    ["", "no base 85 ", text_of(b"no zlib"), text_of(zlib.compress(bytes(100))[:-2]), text_of(zlib.compress(b"\xff"))],
)
def test_what_is_not_a_packed_graph(text):
    with pytest.raises(AmpError, match="AMP206.*cannot be read"):
        unpack(text, {})


def test_a_text_that_would_fill_the_memory_is_refused():
    stream, pieces = zlib.compressobj(9), []
    for _ in range(8):
        pieces.append(stream.compress(bytes(16 << 20)))
    text = text_of(b"".join(pieces) + stream.flush())  # 130 kilobytes hold 128 megabytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AmpError, match="AMP206.*cannot be read"):
        unpack(text, {})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_graph_that_is_nearly_empty_of_information_is_read_again():
    """Its text would be that of a bomb."""
    model = ir.from_proto(regression())
    model.metadata_props["note"] = "." * (2 << 20)
    found = unpack(pack(model), weights())
    assert found.metadata_props["note"] == model.metadata_props["note"]
    np.testing.assert_array_equal(found.graph.initializers["w1"].const_value.numpy(), weights()["w1"])
