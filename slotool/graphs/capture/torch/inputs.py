"""What a torch module takes, and what it gives: several tensors by name, and outputs of any form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from slotool.errors import GraphError

INPUT_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")


@dataclass(frozen=True)
class TorchInput:
    """One input: its ``shape`` without the batch, its ``dtype`` (None: found out), the ``name`` of the parameter of
    ``forward`` that takes it (empty: the first)."""

    shape: tuple[int, ...]
    dtype: str | None = None
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or "input"


def inputs_of(shape: Any, dtype: Any) -> tuple[TorchInput, ...]:
    """One input of a ``shape``, or several by name as a mapping; ``dtype`` one for all, or a mapping as well.

    Raises ``GraphError`` for a size below 1, a dtype that is none of ``INPUT_DTYPES``, or a name without a shape.
    """
    named = shape if isinstance(shape, Mapping) else {"": shape}
    types = dtype if isinstance(dtype, Mapping) else dict.fromkeys(named, dtype)
    strange = [name for name in types if name not in named]
    if strange:
        raise GraphError(f"input dtype of {strange[0]!r}, which is none of the inputs {', '.join(map(repr, named))}")
    for name, sizes in named.items():
        if (not sizes and not name) or any(size < 1 for size in sizes):
            raise GraphError(f"input shape {list(sizes)} has a size below 1")
        if types.get(name) is not None and types[name] not in INPUT_DTYPES:
            raise GraphError(f"input dtype {types[name]!r} is none of {', '.join(INPUT_DTYPES)}")
    return tuple(TorchInput(tuple(sizes), types.get(name), name) for name, sizes in named.items())


class TensorsOnly(nn.Module):
    """A module that takes tensors by position and gives tensors alone, whatever holds them: what tracing wants."""

    def __init__(self, module: nn.Module, names: Sequence[str]):
        super().__init__()
        self.module, self._names = module, tuple(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        named = {name: tensor for name, tensor in zip(self._names, tensors, strict=True) if name}
        plain = [tensor for name, tensor in zip(self._names, tensors, strict=True) if not name]
        return tuple(_tensors(self.module(*plain, **named)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def zeros(inputs: Sequence[TorchInput], dtype: torch.dtype, batch: int, device: torch.device) -> list[Tensor]:
    """An example of each input, ``dtype`` where it has none of its own."""
    from slotool.graphs.capture.torch.program import lazy_zeros

    types = [dtype if each.dtype is None else getattr(torch, each.dtype) for each in inputs]
    return [lazy_zeros((batch, *each.shape), kind, device) for each, kind in zip(inputs, types, strict=True)]
