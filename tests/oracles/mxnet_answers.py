"""What MXNet's amp.convert_symbol makes of random graphs, as `mxnet.json`.

    FOLDER/mxnet/bin/python -m oracles.mxnet_answers write|check [RUN ...]    or new START STOP: printed

In tests, with Python 3.8; environments.sh makes FOLDER. Types are those that MXNet's own inference gives the converted
symbol. An amp_cast that casts nothing is left out: MXNet puts one where it knows no type. An amp_multicast is the
casts that it makes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.contrib import amp
from mxnet.contrib.amp.lists import symbol_fp16

from oracles.random_graphs import mxnet_graph

ANSWERS = Path(__file__).with_name("mxnet.json")
RUNS = {"auto": ({}, range(330)), "names": ({"excluded": True}, range(60)), "params": ({"cast": True}, range(60))}
"""By name: what convert_symbol is asked, and seeds. ``names``: every fifth node is in excluded_sym_names; ``params``:
with cast_optional_params."""
S = mx.sym


def _activation(kind):
    return lambda n, o, w: S.Activation(o[0], act_type=kind, name=n)


def _leaky(kind):
    return lambda n, o, w: S.LeakyReLU(o[0], act_type=kind, name=n)


def _unary(name, **options):
    operator = getattr(S, name, None) or getattr(S._internal, name)
    return lambda n, o, w: operator(o[0], name=n, **options)


def _binary(name):
    return lambda n, o, w: getattr(S, name)(o[0], o[1], name=n)


def _pairs(text):
    return [pair.split(":") for pair in text.split()]


UNARY = """Exp:exp Softmax:softmax LogSoftmax:log_softmax Transpose:transpose Abs:abs Sqrt:sqrt Log:log Floor:floor
Reciprocal:reciprocal Ceil:ceil Round:rint Sign:sign Neg:negative Sin:sin Cos:cos Erf:erf Identity:identity"""
BINARY = """Add:broadcast_add Mul:broadcast_mul Sub:broadcast_sub Div:broadcast_div Max:broadcast_maximum
Min:broadcast_minimum MatMul:dot Pow:broadcast_power Greater:broadcast_greater"""
NODES = {
    **{kind: _unary(name) for kind, name in _pairs(UNARY)},
    **{kind: _binary(name) for kind, name in _pairs(BINARY)},
    **{kind: _activation(name) for kind, name in _pairs("Relu:relu Softplus:softrelu Tanh:tanh Sigmoid:sigmoid")},
    **{kind: _leaky(name) for kind, name in _pairs("Elu:elu LeakyRelu:leaky Selu:selu")},
    **{kind: _unary(name, axis=1, keepdims=True) for kind, name in _pairs("ReduceMean:mean ReduceSum:sum")},
    **{kind: _unary(name, axis=1, keepdims=True) for kind, name in _pairs("ReduceMax:max ReduceMin:min")},
    **{kind: _unary(name, scalar=2.0) for kind, name in _pairs("Doubled:_mul_scalar Shifted:_plus_scalar")},
    **{kind: _unary(name, scalar=2.0) for kind, name in _pairs("Halved:_div_scalar Inverted:_rdiv_scalar")},
    "Softsign": _activation("softsign"),
    "Squared": _unary("_power_scalar", scalar=2.0),
    "Clip": _unary("clip", a_min=-1, a_max=1),
    "Reshape": _unary("reshape", shape=(8, 8)),
    "Tile": _unary("tile", reps=(1, 1)),
    "Unsqueeze": _unary("expand_dims", axis=0),
    "Squeeze": _unary("squeeze", axis=0),
    "Slice": _unary("slice", begin=(0, 0), end=(8, 8)),
    "Split": _unary("SliceChannel", num_outputs=2, axis=0),
    "Concat": lambda n, o, w: S.concat(*o, dim=0, name=n),
    "Sum": lambda n, o, w: S.add_n(*o, name=n),
    "Where": lambda n, o, w: S.where(*o, name=n),
    "Gather": lambda n, o, w: S.take(o[0], S.var(n + "_indices"), axis=0, name=n),
    "Gemm": lambda n, o, w: S.FullyConnected(o[0], w[0], w[1], num_hidden=8, flatten=False, name=n),
    "LayerNormalization": lambda n, o, w: S.LayerNorm(o[0], w[0], w[1], name=n),
    "BatchNormalization": lambda n, o, w: S.BatchNorm(o[0], *w, name=n),
}


def symbol(seed):
    """The graph of a seed."""
    steps, outputs = mxnet_graph(seed)
    known = {name: S.var(name) for name in ("x", "y")}
    for number, step in enumerate(steps):
        weights = [S.var(f"w{number}_{place}") for place in range(len(step.weights))]
        made = NODES[step.kind](f"n{number}", [known[name] for name in step.operands], weights)
        for port in range(2 if step.kind == "Split" else 1):
            known[f"n{number}:{port}"] = made[port]
        known[f"n{number}"] = made[0]
    return S.Group([known[name] for name in outputs])


def _types(converted):
    """(node, output) -> type, by MXNet's own inference, and the nodes."""
    internals = converted.get_internals()
    attributes = converted.attr_dict()
    given = {}
    for name in converted.list_arguments():
        low = attributes.get(name, {}).get("__dtype__") == "2"
        given[name] = np.float16 if low else np.int32 if name.endswith("_indices") else np.float32
    _, types, _ = internals.infer_type(**given)
    document = json.loads(internals.tojson(remove_amp_cast=False))
    heads = [(node, port) for node, port, *_ in document["heads"]]
    return {head: np.dtype(kind).name for head, kind in zip(heads, types)}, document["nodes"]  # noqa: B905


def _source(nodes, place):
    """The name of what an operand is, through casts: ``n3``, ``n3:1`` or a variable."""
    node, port = nodes[place[0]], place[1]
    if node["op"] in ("amp_cast", "amp_multicast"):
        return _source(nodes, node["inputs"][port][:2])
    return "{}:{}".format(node["name"], port) if port else node["name"]


def answer(seed, excluded=False, cast=False):
    """The numbers of low nodes, then what is cast: ``-`` to low, ``+`` to float32; ``refused`` where MXNet's own symbol
    does not bind, or leaves a low operator float32: it took a float32 value for low there."""
    made = symbol(seed)
    own = {node["name"] for node in json.loads(made.tojson())["nodes"]}
    names = [name for name in (f"n{n}" for n in range(0, 60, 5)) if excluded and name in own]
    data = [name for name in ("x", "y") if name in made.list_inputs()]
    options: dict[str, object] = {"excluded_sym_names": names} if excluded else {}
    if cast:
        options = {"cast_optional_params": True, "data_names": data}
    try:
        types, nodes = _types(amp.convert_symbol(made, "float16", **options))
    except mx.MXNetError:
        return "refused"
    low, casts = [], set()
    for number, node in enumerate(nodes):
        ports = [(number, port) for port in range(8) if (number, port) in types]
        if node["op"] in ("amp_cast", "amp_multicast"):
            for place, head in zip([entry[:2] for entry in node["inputs"]], ports):  # noqa: B905
                if types[tuple(place)] != types[head]:
                    casts.add(("-" if types[head] == "float16" else "+") + _source(nodes, place))
        elif node["op"] != "null" and types[number, 0] == "float16":
            low.append(int(node["name"][1:]))
        elif node["op"] in symbol_fp16.FP16_FUNCS and node["name"] not in names:
            return "refused"
    return " ".join([",".join(map(str, sorted(low))), *sorted(casts)])


def run_answers(name, others=()):
    """A run anew, or of other seeds."""
    options, seeds = RUNS[name]
    return [answer(seed, **options) for seed in others or seeds]


def main():
    if sys.argv[1] == "new":
        print(json.dumps({name: run_answers(name, range(*map(int, sys.argv[2:]))) for name in RUNS}))
        return
    found = json.loads(ANSWERS.read_text())["runs"] if ANSWERS.exists() else {}
    made = {name: run_answers(name) for name in sys.argv[2:] or RUNS}
    if sys.argv[1] == "check":
        sys.exit(", ".join(name for name in made if made[name] != found[name]) or 0)
    ANSWERS.write_text(json.dumps({"version": mx.__version__, "runs": {**found, **made}}, indent=0) + "\n")


if __name__ == "__main__":
    main()
