"""Axis of the batch in each tensor of a captured network: not always 0, and folded into windows or heads.

A network is traced on a batch whose size is a prime that divides no axis of its input and weights. So an axis that is a
multiple of it holds the batch, and the rest of the shape is one example's share, whatever the network has turned, split
or joined before. Tracing computes shapes only; the size of the batch costs nothing.

Other tensors may have such a multiple by chance, 61 tokens or an image of 61 × 61: if the batch is found twice, the
network is traced again with a prime that divides no size of the first trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from slotool.graphs.operators import Shape

_PRIMES = (
    *(61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167),
    *(173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229, 233, 239, 241, 251),
)
# Maximum number of traces to find the batch once in every tensor.
MAX_TRACES = 3
# Batch of networks that tracing must really run.
_SMALL_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)


def batch_size(shapes: Iterable[Sequence[int]], *, small: bool = False) -> int:
    """Return a prime that divides no axis of these shapes, or the last one tried."""
    sizes = {size for size in chain.from_iterable(shapes) if size}
    primes = _SMALL_PRIMES if small else _PRIMES
    return next((prime for prime in primes if all(size % prime for size in sizes)), primes[-1])


def is_ambiguous(shapes: Iterable[Sequence[int]], batch: int) -> bool:
    """True if the batch is found more than once in any of these shapes: in two axes, or twice in one."""
    return any(0 not in shape and math.prod(shape) % batch**2 == 0 for shape in shapes)


def sizes_beside(shapes: Iterable[Sequence[int]], batch: int) -> Iterator[Shape]:
    """Yield the sizes of these shapes, and their rest without the batch, which another prime must not divide."""
    for shape in shapes:
        yield tuple(shape)
        yield tuple(size // batch for size in shape if size % batch == 0)


def axis_of(shape: Sequence[int], batch: int) -> tuple[int, int] | None:
    """Return the batch's axis and the number of windows or heads folded with it; None if absent or ambiguous."""
    holding = [axis for axis, size in enumerate(shape) if size and size % batch == 0]
    if len(holding) != 1 or math.prod(shape) % batch**2 == 0:
        return None
    return holding[0], shape[holding[0]] // batch


def share_of(shape: Sequence[int], batch: int) -> Shape | None:
    """Return one example's share of a tensor of this shape; None where the batch cannot be found in it, or twice.

    Of an axis of batch × windows the windows stay: [batch·64, 49, 96] is (64, 49, 96) per example.
    """
    place = axis_of(shape, batch)
    if place is None:
        return None
    axis, windows = place
    return (*shape[:axis], *((windows,) if windows > 1 else ()), *shape[axis + 1 :])
