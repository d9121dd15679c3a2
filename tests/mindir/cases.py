"""What the parity tests run, by name; needs no mindspore. The networks stand in ``nets``."""

from collections.abc import Iterable

from share import FULL

LEVELS = ("O1", "O2", "O3", "auto")

ESSENTIAL = ("mlp", "cnn", "residual", "block", "lstm", "gru", "if", "while", "dynamic")
"""What the goal names."""

USUAL = (
    "gpt",
    "encoder",
    "unet",
    "upsample",
    "mixer",
    "encoder_layer",
    "bilstm",
    "lstm_cell",
    "gru_cell",
    "rnn_cell",
    "rnn",
)
CORNERS = (
    *("dynamic_block", "functions", "two_outputs", "ends_in_layernorm", "ends_in_batchnorm", "two_norms"),
    *("shared_weights", "raw_parameters", "matrix_products", "casts", "to_low", "to_exact", "branches", "early_return"),
    *("cells_in_lists", "low_norms", "promotion", "exact_values", "three_dimensions", "inputs"),
    *("made_constants", "functions_of_parameters", "late_cells", "nested_lists", "inheriting"),
)
NAMES = (*ESSENTIAL, *USUAL, *CORNERS)

_HELPER = "the cell hands its weights to a function, where they stay float32: MatMul refuses float16 with float32"
REFUSED = {
    ("upsample", "O1"): "the rewriter loses a name of nn.LeakyReLU: The name 'maximum_' is not defined",
    ("lstm_cell", "O1"): "the rewriter loses a name of nn.LSTMCell: name '_check_lstmcell_init' is not defined",
    **{(name, level): _HELPER for name in ("lstm_cell", "gru_cell", "rnn_cell") for level in ("O2", "O3")},
}
"""(network, level) -> why MindSpore 2.10 cannot export its own mixed precision of it."""

_MADE = "a float32 tensor made in the network is one more constant in the file; MindSpore casts the network's own only"
_EXACT = "a cell that the user set to float32 looks like any other in the file"
_SOURCE = "the rewriter of O1 goes by the source of the network's classes, of which a file has the names alone"
UNDECIDABLE = {
    ("inheriting", "O1"): _SOURCE,
    **{("to_exact", level): _EXACT for level in ("O1", "auto")},
    **{("made_constants", level): _MADE for level in ("O2", "O3")},
}
"""(network, level) -> why the float32 file alone does not determine MindSpore's result."""

_GIVEN = "float16 that the file holds stays so; MindSpore decides anew from the network"
_KERNEL = "MindSpore leaves nn.MultiheadAttention's float32 divisor to the kernel, beside float16; here it is rounded"
_JOINED = "MindSpore leaves a Concat of two types to the kernel; here its low operand is cast, with the same numbers"
DIFFERENT = {
    **{("to_low", level): _GIVEN for level in ("O2", "O3", "auto")},
    **{("encoder_layer", level): _KERNEL for level in ("O2", "O3")},
    **{("functions_of_parameters", level): _JOINED for level in ("O2", "O3")},
}
"""(network, level) -> why our result differs from MindSpore's, although the file would tell."""

MIXED = {
    **{("promotion", "O2"): 1, ("promotion", "O3"): 1, ("promotion", "auto"): 4},
    **{("encoder_layer", level): 2 for level in ("O2", "O3")},
}
"""(network, level) -> operators that MindSpore gives both types, as MaskedFill and Mul; ours are given one."""

_TYPE = "BatchNorm takes no bfloat16"
REFUSED_BFLOAT16 = {(name, "O3"): _TYPE for name in ("cnn", "residual", "dynamic")}
"""(network, level) -> why MindSpore cannot export its bfloat16 of an essential network."""

CROSSING = {("if", "O1"): 2}
"""(network, level) -> casts of bfloat16 values into and out of branches that we save as MindSpore does in float16."""


_RECURRENT = "MindSpore leaves recurrent products in float32; here they are low, between float32 gates"
MORE_CASTS = {
    **{(name, "O1"): _RECURRENT for name in ("gru", "bilstm", "encoder_layer")},
    ("bilstm", "auto"): _RECURRENT,
    ("functions", "O2"): "accuracy guards keep Exp, Pow, ReduceMean and CumSum in float32",
}
"""(network, level) -> why policy ``ampgraph`` takes more casts than MindSpore; of all networks, no other does."""


Pair = tuple[str, str]


def every(names: Iterable[str]) -> list[Pair]:
    return [(name, level) for name in names for level in LEVELS]


def half(names: Iterable[str]) -> list[Pair]:
    """Each network at two levels, those next to each other at different ones; at all levels in a full run."""
    levels = [LEVELS] * 2 if FULL else [LEVELS[::2], LEVELS[1::2]]
    return [(name, level) for place, name in enumerate(names) for level in levels[place % 2]]


def comparable(pairs: Iterable[Pair]) -> list[Pair]:
    """The (network, level) in which a converted file must equal MindSpore's own."""
    return [pair for pair in pairs if pair not in {**REFUSED, **UNDECIDABLE, **DIFFERENT}]
