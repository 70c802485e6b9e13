"""Element types of a torch module, and whether it was handed to a compiler."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from slotool.errors import GraphError
from slotool.graphs.graph_documents import FLOAT32

INT8 = "int8"


def uncompiled(module: nn.Module) -> tuple[nn.Module, bool]:
    """The module as it was before ``torch.compile``, and whether it was compiled.

    Raises ``GraphError`` for a TorchScript module, which does not show what it was made from.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise GraphError("a TorchScript module cannot be traced; capture the torch.nn.Module that it was made from")
    inner = getattr(module, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return inner, True
    parts = list(module.modules())
    compiled = any(getattr(part, "_compiled_call_impl", None) is not None for part in parts)
    inside = any(isinstance(getattr(part, "_orig_mod", None), nn.Module) for part in parts)
    return module, compiled or inside or any(map(_has_compiled_functions, parts))


def _has_compiled_functions(part: nn.Module) -> bool:
    """Whether its own attributes, its class's functions, or what these call by a global name went through
    ``torch.compile``."""
    own = type(part).__mro__[: type(part).__mro__.index(nn.Module)]
    if any(_is_compiled(value) for scope in (part, *own) for value in vars(scope).values()):
        return True
    functions = [value for scope in own for value in vars(scope).values() if inspect.isfunction(value)]
    return any(
        _is_compiled(function.__globals__.get(name)) for function in functions for name in function.__code__.co_names
    )


def _is_compiled(value: Any) -> bool:
    value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if not callable(value) or isinstance(value, type):
        return False
    # What torch.compiler.disable returns has an original too.
    made = getattr(value, "_torchdynamo_orig_callable", None) is not None
    return made and not getattr(value, "_torchdynamo_disable", False)


def _is_quantised(part: nn.Module) -> bool:
    return ".quantized" in type(part).__module__


class Forms:
    """Collects what a module computes in: of its matrix products where it has any, else of its weights."""

    def __init__(self, module: nn.Module):
        floating = [tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.is_floating_point()]
        self._weights = {_name(tensor.dtype) for tensor in floating}
        self._products: set[str] = set()
        # Whether a product was met whose output has not one share of the batch for each example.
        self.batch_lost = False
        # Calls whose cost follows neither from the bytes they move nor from FLOPs that torch counts.
        self.uncosted: set[str] = set()
        # How many weights were met again by another operator.
        self.shared_weights = 0
        # FLOPs of one example as torch's counter has those of each call.
        self.counted_flops = 0.0
        self._quantised = any(map(_is_quantised, module.modules()))

    def note(self, name: str, value: Any, *, is_product: bool) -> None:
        """A call of this name whose first output is ``value``; ``is_product`` when it has FLOPs that torch counts."""
        if name.startswith(("quantize_", "dequantize", "_int_mm", "_weight_int")) or "int8" in name:
            self._quantised = True
        dtype = getattr(value, "dtype", None)
        if is_product and dtype is not None:
            self._products.add(_name(dtype))

    @property
    def element_type(self) -> str:
        types = {INT8} if self._quantised else self._products or self._weights
        return "+".join(sorted(types)) or FLOAT32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
