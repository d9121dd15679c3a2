"""An independent check of MindIR models: types inferred forward as MindSpore's loader does, but mixed floats refused.

``faults(model)`` lists what is wrong; ``faults(converted, original)`` also what must not have changed. Shares nothing
with ampgraph but the wire format and the table of operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ampgraph.formats.mindir import schema
from ampgraph.oplists.mindspore_schemas import operators

FLOATS = ("float32", "float16", "bfloat16", "float64")
NAMES = {42: "float16", 43: "float32", 44: "float64", 45: "bfloat16"}
Type = Any  # an element type, a tuple of types, "" for what is no tensor


def types_of(abstract: Any) -> Type:
    if abstract is None:
        return ""
    if abstract.type in (schema.TUPLE, schema.LIST):
        return tuple(types_of(item) for item in abstract.values)
    return schema.ELEMENT_TYPES.get(abstract.tensors[0].data_type, "") if abstract.tensors else ""


def info_type(info: Any) -> Type:
    if info.tensor:
        return schema.ELEMENT_TYPES.get(info.tensor[0].data_type, "")
    return types_of(info.attr_info) if info.HasField("attr_info") else ""


def flat(item: Type) -> Iterator[str]:
    if isinstance(item, tuple):
        for part in item:
            yield from flat(part)
    else:
        yield item


def floats(item: Type) -> Type:
    """A type without what is no float: numbers and indices count the same."""
    if isinstance(item, tuple):
        return tuple(floats(part) for part in item)
    return item if item in FLOATS else ""


def attribute(node: Any, name: str) -> Any:
    return next((item for item in node.attribute if item.name == name), None)


class Checker:
    def __init__(self, model: Any, original: Any = None) -> None:
        self.model = model
        self.faults: list[str] = []
        self.kinds = {f"REF::{p.name}": p.op_type for p in model.primitives}
        self.functions = {graph.name: graph for graph in model.functions}
        self.before = Checker(original).signatures() if original is not None else {}
        self.constants: dict[str, Any] = {}
        for graph in (model.graph, *model.functions):
            for node in graph.node:
                if node.op_type == "Constant":
                    self.constants[node.output[0]] = attribute(node, "value")

    def run(self) -> list[str]:
        graphs = (self.model.graph, *self.model.functions)
        names = [i.name for g in graphs for i in (*g.parameter, *g.input)]
        names += [name for graph in graphs for node in graph.node for name in node.output]
        if len(names) != len(set(names)):
            self.faults.append("names are not unique")
        for graph in graphs:
            self.graph(graph)
        return self.faults

    def signatures(self) -> dict[str, Any]:
        """What nodes read and make, by name."""
        self.seen: dict[str, Any] = {}
        self.run()
        return self.seen

    def graph(self, graph: Any) -> None:
        parameters = {t.ref_key: schema.ELEMENT_TYPES[t.data_type] for t in self.model.graph.parameter}
        known: dict[str, Type] = {t.name: parameters[t.ref_key] for t in graph.parameter}
        for info in graph.input:
            known[info.name] = info_type(info)
            if info.tensor and info.tensor[0].ref_key and known[info.name] != parameters[info.tensor[0].ref_key]:
                self.faults.append(f"formal {info.name} is not of its parameter's type")
        own = {node.output[0] for node in graph.node if node.op_type == "Constant"}
        closures: dict[str, list[tuple[str, list[Type]]]] = {}
        for node in graph.node:
            result = self.node(node, known, own, closures)
            declared = types_of(attribute(node, "shape"))
            if (
                node.op_type != "Constant"
                and attribute(node, "shape") is not None
                and floats(result) != floats(declared)
            ):
                self.faults.append(f"{node.output[0]}: is {result}, its abstract says {declared}")
            known[node.output[0]] = result
        for info in graph.output:
            result = known.get(info.name, types_of(self.constants.get(info.name)))
            if info.name not in known and info.name not in self.constants:
                self.faults.append(f"nothing makes the output {info.name}")
            elif floats(info_type(info)) != floats(result):
                self.faults.append(f"output {info.name} is {result}, and says {info_type(info)}")

    def node(self, node: Any, known: dict[str, Type], own: set[str], closures: dict[str, Any]) -> Type:
        if node.op_type == "Constant":
            return types_of(attribute(node, "value"))
        for name in node.input:
            outside = (name in self.constants and name not in own) or name in self.functions
            if name not in known and not outside:
                self.faults.append(f"{node.output[0]} reads {name} before it is there")
        given = [known[n] if n in known else types_of(self.constants.get(n)) for n in node.input]
        kind = self.kinds.get(node.op_type, node.op_type)
        if kind in ("MakeTuple", "MakeList", "make_list", "make_tuple"):
            return tuple(given)
        if kind in ("Load", "Depend"):
            return given[0]
        if kind == "TupleGetItem":
            return given[0][self.constants[node.input[1]].i]
        if kind == "UpdateState":
            return ""
        called = self.call(kind, node, given, closures)
        result = self.operator(kind, node, given) if called is None else called
        if hasattr(self, "seen"):
            self.seen[node.output[0]] = kind, given, types_of(attribute(node, "shape"))
        return result

    def call(self, kind: str, node: Any, given: list[Type], closures: dict[str, Any]) -> Type | None:
        if kind == "Partial":
            name = node.input[0]
            inner = closures.get(name, [(name, [])])
            closures[node.output[0]] = [(function, [*before, *given[1:]]) for function, before in inner]
            return ""
        if kind == "Switch":
            closures[node.output[0]] = [c for name in node.input[1:] for c in closures.get(name, [(name, [])])]
            return ""
        if not kind.startswith("REF::"):
            return None
        name, results = kind.removeprefix("REF::"), set()
        for function, before in closures.get(name, [(name, [])]):
            graph = self.functions[function]
            formals = [info_type(info) for info in graph.input]
            if formals != [*before, *given]:
                self.faults.append(f"{function} takes {formals} and is given {[*before, *given]}")
            results.add(info_type(graph.output[0]))
        if len(results) != 1:
            self.faults.append(f"{node.output[0]} is one of {results}")
        return results.pop()

    def operator(self, kind: str, node: Any, given: list[Type]) -> Type:
        declared = types_of(attribute(node, "shape"))
        entry = operators().get(kind)
        before = self.before.get(node.output[0])
        before = before if before and before[0] == kind else None
        if kind == "Cast":
            number = self.constants[node.input[1]].i
            return NAMES.get(number, declared)
        if entry is None:
            if before and before[1:] != (given, declared):
                self.faults.append(f"{kind} {node.output[0]} is unknown and was changed")
            return declared
        slots: dict[str, set[str]] = {}
        for position, item in enumerate(given):
            slot = entry.slot_of_input(position)
            if slot == "-":
                if before and before[1][position] != item:
                    self.faults.append(f"{kind} {node.output[0]}: operand {position} was changed to {item}")
                continue
            slots.setdefault(slot, set()).update(f for f in flat(item) if f in FLOATS)
        for slot, found in slots.items():
            if len(found) > 1:
                self.faults.append(f"{kind} {node.output[0]}: {slot} holds {sorted(found)}")
            elif before and found & {"float16", "bfloat16"} - entry.admits:
                self.faults.append(f"{kind} {node.output[0]}: {slot} does not admit {sorted(found)}")
        made = [self.made(entry, n, item, slots, node) for n, item in enumerate(flat(declared))]
        if before:
            for number, item in enumerate(flat(before[2])):
                if entry.slot_of_output(number) == "-" and made[number] != item:
                    self.faults.append(f"{kind} {node.output[0]}: result {number} was changed")
        return tuple(made) if isinstance(declared, tuple) else made[0]

    def made(self, entry: Any, number: int, declared: str, slots: dict[str, set[str]], node: Any) -> str:
        place = entry.attributes.get("dtype")
        if place is not None and 0 <= place.operand < len(node.input):
            given = self.constants.get(node.input[place.operand])
            if given is not None and given.i in NAMES:
                return NAMES[given.i]
        slot = entry.slot_of_output(number)
        if slot in slots and slots[slot] and declared in FLOATS:
            return sorted(slots[slot])[0]
        return slot if slot in FLOATS else declared


def faults(model: Any, original: Any = None) -> list[str]:
    """What is wrong with a model; with its original, also what must not have changed."""
    found = Checker(model, original).run()
    if original is not None:
        known = set(Checker(original).run())
        found = [fault for fault in found if fault not in known]
    return found


def interface(model: Any) -> tuple[list[Any], list[Any]]:
    """Names and types of the inputs, types of the outputs."""
    graph = model.graph
    inputs = [(info.name, info_type(info)) for info in graph.input]
    return inputs, [(info.name, info_type(info)) for info in graph.output]
