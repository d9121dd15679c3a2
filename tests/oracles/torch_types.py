"""The type that every node of an exported module had when the module ran under torch.autocast.

The module is exported once; its graph holds the operators that eager PyTorch calls. That graph runs node by node under
autocast and every operator that is dispatched is noted. The same exported program becomes an ONNX file, whose nodes say
which node of it they came from.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from oracles.facade import Facade, autocast_cuda, types_of

CASTS = ("aten._to_copy.default", "aten.to.dtype", "aten.copy_.default")
VIEWS = "view permute unsqueeze squeeze expand t transpose slice select clone _unsafe_view alias split detach narrow"
MOVES = {f"aten.{name}" for name in f"{VIEWS} as_strided _reshape_alias unbind split_with_sizes".split()}  # noqa: SIM905
FLOATS = {"float32", "float16", "bfloat16"}
LOW = ("float16", "bfloat16")


class Recorder(TorchDispatchMode):
    """Notes what plain tensors run."""

    def __init__(self):
        super().__init__()
        self.log, self.where = [], ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        numbers = [id(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        self.log.append((self.where, str(func), types_of((args, kwargs)), types_of(out), numbers))
        return out


class NodeByNode(torch.fx.Interpreter):
    """Runs an exported graph; ``place`` hears which node is next."""

    def __init__(self, graph, place, facade):
        super().__init__(graph)
        self.place, self.facade, self.seen = place, facade, {}

    def fetch_attr(self, target):
        if target not in self.seen:
            found = super().fetch_attr(target)
            if isinstance(found, torch.Tensor) and self.facade:
                found = Facade(found.detach(), requires_grad=isinstance(found, torch.nn.Parameter))
            self.seen[target] = found
        return self.seen[target]

    def call_function(self, target, args, kwargs):
        if self.facade and "device" in kwargs:  # the export names the CPU
            kwargs = {**kwargs, "device": torch.device("cuda:0")}
        return super().call_function(target, args, kwargs)

    def run_node(self, n):
        self.place(n.name)
        return super().run_node(n)


def run_autocast(program, args, device, dtype):
    """(operators by node, all of them in order, outputs) of an exported program under autocast."""
    graph = program.module()
    with torch.no_grad():
        if device == "cuda":
            Facade.noted = log = []

            def place(name):
                Facade.place = name

            with autocast_cuda(dtype):
                given = tree_map(lambda t: Facade(t) if isinstance(t, torch.Tensor) else t, args)
                out = NodeByNode(graph, place, True).run(*given)
            Facade.noted, Facade.place = None, ""
            out = tree_map(lambda t: t.held if isinstance(t, Facade) else t, out)
        else:
            recorder = Recorder()

            def place(name):
                recorder.where = name

            with torch.autocast("cpu", dtype), recorder:
                out = NodeByNode(graph, place, False).run(*args)
            log = recorder.log
    calls: OrderedDict = OrderedDict()
    for where, op, given, made, _ in log:
        floats = [[t for t in side if t in FLOATS] for side in (given, made)]
        calls.setdefault(where, []).append((op, *floats))
    return calls, log, tree_leaves(out)


def compute_types(calls):
    """The types that a node computed in, casts and moves aside; empty where it had no float operand.

    A kernel that takes low data beside float32 parameters has the type of its data, which comes first; one that reads
    low data and gives float32, as softmax with its type filled in, computes in float32.
    """
    found = [(op, given, made) for op, given, made in calls if op not in CASTS and given]
    found = [call for call in found if call[0].rsplit(".", 1)[0] not in MOVES] or found
    return {"float32" if given[0] in LOW and made and made[0] == "float32" else given[0] for _, given, made in found}


def origins(node):
    """Names of the nodes of the first exported graph that a node of the decomposed one came from."""
    found, todo = set(), list(node.meta.get("from_node", []) or [])
    while todo:
        source = todo.pop()
        inner = list(getattr(source, "from_node", []) or [])
        if inner:
            todo += inner
        else:
            found.add(source.name)
    return found or {node.name}


def export(program, opset):
    """An exported program as an ONNX program."""
    return torch.onnx.export(program, dynamo=True, verbose=False, opset_version=opset)


def sources_of(onnx_program):
    """ONNX node name -> the nodes of the exported program that it came from, empty where it says none."""
    fx = {node.name: node for node in onnx_program.exported_program.graph.nodes}
    found = {}
    for node in onnx_program.model.graph:
        text = node.metadata_props.get("pkg.torch.onnx.fx_node", "")
        name = text.split(":")[0].strip().lstrip("%").split(" ")[0]
        found[node.name] = origins(fx[name]) if name in fx else set()
    return found


def onnx_types(onnx_program, calls):
    """ONNX node name -> the types that its part of the module computed in, sorted; None where nothing says it."""
    found = {}
    for name, sources in sources_of(onnx_program).items():
        types = set().union(*(compute_types(calls[s]) for s in sources if s in calls))
        found[name] = sorted(types)
    return found
