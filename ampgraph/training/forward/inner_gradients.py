"""Modules that take gradients inside of forward, as gradient penalties do: written out before they are exported.

torch.export traces no gradient; make_fx does, by what autograd calls. Where the module detaches what is trained the
graph has lost it, and the comparison behind the export refuses it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx


class GradientsWritten(torch.nn.Module):
    """A traced function under the names that its parameters had."""

    def __init__(self, traced: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> None:
        super().__init__()
        self.names = list(parameters)
        for name, parameter in parameters.items():
            *path, last = name.split(".")
            holder: torch.nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, torch.nn.Module())
                holder = holder.get_submodule(part)
            holder.register_parameter(last, parameter)
        self.add_module("traced by make_fx", traced)

    def forward(self, *args: object) -> object:
        parameters = [self.get_parameter(name) for name in self.names]
        return self.get_submodule("traced by make_fx")(parameters, *args)


def written(module: torch.nn.Module, args: Sequence[object]) -> GradientsWritten:
    """The module with its gradients written out, for inputs of any sizes; it computes with the same parameters.

    For modules without buffers: what one does to them would be lost.
    """
    parameters = dict(module.named_parameters())

    def function(values: Sequence[torch.Tensor], *given: object) -> object:
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), given)

    table: Any = core_aten_decompositions()
    values = list(parameters.values())
    with torch.enable_grad():
        traced = make_fx(function, decomposition_table=table, tracing_mode="symbolic")(values, *args)
    return GradientsWritten(traced, parameters)


def input_names(module: torch.nn.Module) -> list[str]:
    """What forward calls its arguments."""
    return list(inspect.signature(module.forward).parameters)
