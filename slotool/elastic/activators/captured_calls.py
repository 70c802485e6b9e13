"""Work of a GPU that is captured once as a CUDA graph and then replayed: its launches cost the host one call.

A call of few queries spends most of its time on launching kernels. A graph has fixed shapes and addresses, so inputs
and answers have places of their own, and each kind of call is captured at its first use, which takes some milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotool import transfers
from slotool.transfers import Link

# Graphs that are kept; the one that was not used for longest goes first.
MAX_GRAPHS = 64

Work = Callable[..., Sequence[Tensor]]
Replay = Callable[[], None]
Capture = Callable[[torch.device, Callable[[], None]], Replay]


class CapturedCalls:
    """One call at a time; ``capture`` makes what repeats a function's work on the device."""

    def __init__(self, link: Link, capture: Capture | None = None):
        self._link, self._capture, self._lock = link, capture or transfers.cuda_graph, Lock()
        self._captured: OrderedDict[Hashable, _Captured] = OrderedDict()

    def answers(self, kind: Hashable, shapes: Sequence[Staged], fill: Callable[..., None], work: Work) -> list[Any]:
        """What ``work`` gives for the inputs that ``fill`` writes: arrays of the host.

        ``kind``: calls of the same one have the same ``shapes`` and ``work``. ``fill`` gets an array of the host for
        each of ``shapes``, which holds the values of the call before; ``work`` gets them as tensors of the device, and
        must neither wait for the device nor depend on values that are on the host.
        """
        with self._lock:
            captured = self._captured.pop(kind, None)
            if captured is None:
                captured = _Captured(self._link, shapes)
                fill(*captured.inputs)
                captured.capture(work, self._capture)
            else:
                fill(*captured.inputs)
            self._captured[kind] = captured
            while len(self._captured) > MAX_GRAPHS:
                self._captured.popitem(last=False)
            return captured.replayed()


Staged = tuple[tuple[int, ...], torch.dtype]


class _Captured:
    """One graph with its places: ``inputs`` are arrays of page-locked memory."""

    def __init__(self, link: Link, shapes: Sequence[Staged]):
        self._link = link
        self._staged = [transfers.page_locked(shape, dtype) for shape, dtype in shapes]
        self.inputs = [tensor.numpy() for tensor in self._staged]
        self._there = [torch.empty(shape, dtype=dtype, device=link.device) for shape, dtype in shapes]
        self._outputs: list[Tensor] = []
        self._replay: Replay = _nothing

    def capture(self, work: Work, capture: Capture) -> None:
        self._enter()
        found = work(*self._there)
        self._outputs = [transfers.page_locked(tensor.shape, tensor.dtype) for tensor in found]

        def once() -> None:
            self._enter()
            for to, tensor in zip(self._outputs, work(*self._there), strict=True):
                to.copy_(tensor, non_blocking=True)

        self._replay = capture(self._link.device, once)

    def _enter(self) -> None:
        for to, staged in zip(self._there, self._staged, strict=True):
            to.copy_(staged, non_blocking=True)

    def replayed(self) -> list[np.ndarray]:
        self._replay()
        transfers.wait_for(self._link.device)
        # The next call writes to the same places.
        return [tensor.numpy().copy() for tensor in self._outputs]


def _nothing() -> None:
    return None
