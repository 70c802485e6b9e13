"""SubnetNorm (superserve, §3): batch statistics of each subnet, kept once for all subnets that agree up to a layer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotool.errors import InputError
from slotool.graphs import OperatorGraph

# Bytes of a signature: of a million subnets, two of one signature are not to be expected.
SIGNATURE_BYTES = 10


def signatures(graph: OperatorGraph) -> dict[str, bytes]:
    """Per operator a hash of all that its output depends on: two subnets that agree up to a layer share its signature.

    ``graph``: a subnet as ``Space.narrowed`` gives it, whose operators have the names of the whole network's.
    """
    found: dict[str, bytes] = {}
    for operator in graph.operators:
        content = f"{operator.name}\n{operator.structure}\n".encode()
        content += b"".join(found[name] for name in operator.inputs)
        found[operator.name] = hashlib.blake2b(content, digest_size=SIGNATURE_BYTES).digest()
    return found


class SubnetNorm:
    """Mean and variance of what each normalisation of each subnet is given.

    Rows of one layer lie one after another in one float32 array, so that a subnet costs its channels and an index.
    """

    def __init__(self) -> None:
        self._where: dict[str, dict[bytes, tuple[int, int]]] = {}
        self._values: dict[str, Tensor] = {}
        self._new: dict[str, list[Tensor]] = {}

    def known(self, layer: str, signature: bytes) -> bool:
        return signature in self._where.get(layer, {})

    def add(self, layer: str, signature: bytes, mean: Tensor, variance: Tensor) -> None:
        """Keep what was measured: ``mean``, ``variance`` float32 [channels]."""
        rows = self._where.setdefault(layer, {})
        rows[signature] = (sum(length for _, length in rows.values()), len(mean))
        self._new.setdefault(layer, []).append(torch.stack([mean, variance]).detach().cpu())

    def of(self, layer: str, signature: bytes) -> tuple[Tensor, Tensor]:
        """(mean, variance), views of what is kept. Raises ``InputError`` when they were never measured."""
        self._settle(layer)
        try:
            start, length = self._where[layer][signature]
        except KeyError:
            raise InputError(
                f"the batch statistics of {layer!r} are missing for this subnet: calibrate it first"
            ) from None
        mean, variance = self._values[layer][:, start : start + length]
        return mean, variance

    @property
    def bytes(self) -> int:
        """Of all rows, without their index."""
        for layer in self._where:
            self._settle(layer)
        return sum(values.nbytes for values in self._values.values())

    @property
    def rows(self) -> int:
        return sum(map(len, self._where.values()))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Per layer float32 [2, channels of all rows]; and per layer its rows' signatures and lengths."""
        for layer in self._where:
            self._settle(layer)
        index = {
            layer: [[signature.hex(), length] for signature, (_, length) in rows.items()]
            for layer, rows in self._where.items()
        }
        return {layer: values.numpy() for layer, values in self._values.items()}, index

    @classmethod
    def from_state(cls, tensors: Mapping[str, np.ndarray], index: Mapping[str, Any]) -> SubnetNorm:
        """Read it back. Raises ``InputError`` when arrays and index do not belong together."""
        norm = cls()
        for layer, rows in index.items():
            at, where = 0, {}
            for signature, length in rows:
                where[bytes.fromhex(signature)] = (at, length)
                at += length
            if layer not in tensors or tensors[layer].shape != (2, at):
                raise InputError(f"the batch statistics of {layer!r} do not fit their index")
            norm._where[layer], norm._values[layer] = where, torch.from_numpy(tensors[layer])
        return norm

    def _settle(self, layer: str) -> None:
        if new := self._new.pop(layer, None):
            old = [self._values[layer]] if layer in self._values else []
            self._values[layer] = torch.cat([*old, *new], dim=1)
