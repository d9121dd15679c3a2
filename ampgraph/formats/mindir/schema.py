"""The wire format of MindIR files as a table of field numbers, in a descriptor pool of its own.

Needs protobuf alone, from 4.25 on; nothing is registered where MindSpore's own descriptors live. What the table does
not name survives a round trip as unknown fields. Enumerations are int32: the same bytes. Source of the numbers: files
exported by MindSpore 2.10 (mind_ir_version 3).
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""A message of the file. Its class is made of the table below when the program runs, so there is no type to name."""

NEWEST_VERSION = 3  # mind_ir_version

_MESSAGES = {
    "Model": "ir_version:string:1 producer_name:string:2 producer_version:string:3 model_version:string:5 "
    "graph:Graph:7 functions:*Graph:8 little_endian:bool:10 primitives:*Primitive:12 mind_ir_version:int64:13 "
    "user_info:*UserInfo:14",
    "UserInfo": "key:string:1 value:string:2",
    "Graph": "node:*Node:1 name:string:2 parameter:*Tensor:3 input:*ValueInfo:5 output:*ValueInfo:6 "
    "attribute:*Attribute:8",
    "Node": "input:*string:1 output:*string:2 name:string:3 op_type:string:4 attribute:*Attribute:5 domain:string:7 "
    "node_attr:*Attribute:8 primal_attr:*Attribute:9",
    "ValueInfo": "name:string:1 tensor:*Tensor:2 denotation:string:4 attr_info:Attribute:5",
    "Tensor": "dims:*int64:1 data_type:int32:2 float_data:*float:3 int32_data:*int32:4 int64_data:*int64:6 "
    "name:string:7 raw_data:bytes:9 external_data:ExternalData:12 ref_key:string:13 min_dims:*int64:14 "
    "max_dims:*int64:15 compression_type:int32:16",
    "ExternalData": "location:string:1 offset:int64:2 length:int64:3",
    "Attribute": "name:string:1 f:float:2 i:int64:3 d:double:4 s:bytes:5 t:Tensor:6 floats:*float:8 doubles:*double:9 "
    "ints:*int64:10 strings:*bytes:11 tensors:*Tensor:12 type:int32:16 values:*Attribute:17 seq_info:SeqInfo:18",
    "SeqInfo": "is_dyn_len:bool:1 tuple_elem_item:Attribute:2",
    "Primitive": "name:string:1 op_type:string:2 attribute:*Attribute:3 instance_name:string:4 prim_type:int32:5",
}
"""Message -> ``field:type:number`` words; a star marks a repeated field (proto2, never packed)."""

_SCALARS = {"double": 1, "float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_MESSAGE_TYPE, _OPTIONAL, _REPEATED = 11, 1, 3


def _message_classes() -> dict[str, Any]:
    """Makes protobuf's classes for the MindIR messages in the table `_MESSAGES`, by name: ``Model``, ``Graph``, ..."""
    file = descriptor_pb2.FileDescriptorProto(name="ampgraph/mindir.proto", package="ampgraph.mindir", syntax="proto2")
    for name, words in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for word in words.split():
            field, kind, number = word.split(":")
            element = kind.lstrip("*")  # a scalar, or another message of the table
            label = _REPEATED if kind.startswith("*") else _OPTIONAL
            entry = message.field.add(name=field, number=int(number), label=label)
            entry.type = _SCALARS.get(element, _MESSAGE_TYPE)
            if element not in _SCALARS:
                entry.type_name = f".ampgraph.mindir.{element}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _message_classes()
Model, Graph, Node, ValueInfo = (_CLASSES[name] for name in ("Model", "Graph", "Node", "ValueInfo"))
Tensor, ExternalData, Attribute = (_CLASSES[name] for name in ("Tensor", "ExternalData", "Attribute"))
Primitive, UserInfo = _CLASSES["Primitive"], _CLASSES["UserInfo"]

ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float64",
}
"""Tensor.data_type -> element type."""
TENSOR_OF_BOOL = 9

ELEMENT_NUMBERS = {"float32": 1, "float16": 10, "bfloat16": 16}
TYPE_IDS = {"float16": 42, "float32": 43, "float64": 44, "bfloat16": 45}
"""How the ``dtype`` operand of a Cast names a type, as an INT64 constant."""

FLOAT, DOUBLE, INT64, STRING, BOOL, TENSOR, TENSORS, TUPLE, LIST = 1, 11, 7, 8, 9, 17, 19, 20, 21
UMONAD, IOMONAD, NONE_TYPE, FUNCTION, FUNCTIONS, SCALAR = 23, 24, 25, 27, 29, 39
"""Attribute.type"""

PRIMITIVE, PRIMITIVE_FUNCTION = 1, 2
"""Primitive.prim_type"""
