"""What an SLO-NN on a GPU does before its output layer, as Triton kernels: the sparse first layer, and the look-up.

PyTorch launches some twenty kernels for the two, and each launch takes longer than its work. Each program here answers
one query, or a part of one query's nodes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slotool.elastic.activators.quantization import INPUT_STEPS, MIN_SPREAD

# Nodes of a program, and features it reads at a time.
MAX_UNITS, FEATURES = 128, 32
# float32 values of centroids that a program of eight warps holds at a time (see output_kernel).
WARPS, MAX_HELD = 8, 8_192
# Coarse clusters, and fine ones of each, whose scores a program holds.
MAX_CENTROIDS = 4_096


def hidden_of_rows(starts: Tensor, features: Tensor, values: Tensor, columns: Tensor, bias: Tensor) -> Tensor:
    """max(0, w·x + b) of every node for the rows of a CSR matrix: float32 [n, units].

    ``starts``: int32 [n + 1]; ``features``: int32 [entries], each a row of ``columns``, float32 [inputs, units], which
    are addresses here; ``values``: float32 [entries]. Entries from ``starts[n]`` on are not read.
    """
    n, units = len(starts) - 1, len(bias)
    hidden = torch.empty((n, units), dtype=torch.float32, device=columns.device)
    block = min(triton.next_power_of_2(units), MAX_UNITS)
    _hidden_of_rows[(n, triton.cdiv(units, block))](
        starts, features, values, columns, bias, hidden, units, UNITS=block, FEATURES=FEATURES, num_warps=4
    )
    return hidden


@triton.jit  # type: ignore[untyped-decorator]
def _hidden_of_rows(  # type: ignore[no-untyped-def]
    starts, features, values, columns, bias, hidden, units, UNITS: tl.constexpr, FEATURES: tl.constexpr
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    inside = at < units
    total = tl.load(bias + at, mask=inside, other=0.0)
    end = tl.load(starts + query + 1)
    for begin in range(tl.load(starts + query), end, FEATURES):
        entry = begin + tl.arange(0, FEATURES)
        known = entry < end
        feature = tl.load(features + entry, mask=known, other=0).to(tl.int64)
        value = tl.load(values + entry, mask=known, other=0.0)
        wanted = known[:, None] & inside[None, :]
        part = tl.load(columns + feature[:, None] * units + at[None, :], mask=wanted, other=0.0)
        total += tl.sum(part * value[:, None], axis=0)
    # What is no number stays so, and is noticed in the answer.
    tl.store(hidden + query * units + at, tl.where(total < 0, 0.0, total), mask=inside)


def nearest_clusters(
    x: Tensor, coarse: tuple[Tensor, Tensor, Tensor, Tensor], fine: tuple[Tensor, Tensor, Tensor, Tensor]
) -> Tensor:
    """The bucket of each of ``x``, float32 [n, inputs], by the ranker ``Clusters``: int64 [n, 1].

    ``coarse``: float32 centroids [c, inputs], and [c] each: their sums, scales and offsets; ``fine``: the same of
    [c, f, inputs] and [c, f].
    """
    n, inputs = x.shape
    clusters, within = fine[0].shape[:2]
    keys = torch.empty((n, 1), dtype=torch.int64, device=x.device)
    places = [triton.next_power_of_2(count) for count in (clusters, within)]
    piece = max(1, min(triton.next_power_of_2(inputs), MAX_HELD // max(places)))
    # Rounded as PyTorch and the compiled calls round: a query on the border of two steps has one bucket everywhere.
    _nearest_clusters[(n,)](
        x.contiguous(), *coarse, *fine, keys, clusters, within, inputs, float(INPUT_STEPS), float(MIN_SPREAD),
        COARSE=places[0], FINE=places[1], PIECE=piece, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return keys


@triton.jit  # type: ignore[untyped-decorator]
def _nearest_clusters(  # type: ignore[no-untyped-def]
    x, coarse, coarse_sums, coarse_scale, coarse_offset, fine, fine_sums, fine_scale, fine_offset, keys,
    clusters, within, inputs, input_steps, min_spread, COARSE: tl.constexpr, FINE: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    own = x + query * inputs
    low, high = 0.0, 0.0
    for start in range(0, inputs, PIECE):
        at = start + tl.arange(0, PIECE)
        part = tl.load(own + at, mask=at < inputs, other=0.0)
        low = tl.minimum(low, tl.min(part, axis=0))
        high = tl.maximum(high, tl.max(part, axis=0))
    spread = high - low
    enough = spread > min_spread
    divisor = tl.where(enough, spread, 1.0)
    per_step = tl.where(enough, tl.div_rn(input_steps, divisor), 0.0)
    step = tl.where(enough, tl.div_rn(divisor, input_steps), 0.0)
    near = _nearest(
        own, low, per_step, step, coarse, coarse_sums, coarse_scale, coarse_offset, clusters, inputs, COARSE, PIECE
    )
    first = near.to(tl.int64) * within
    best = _nearest(
        own, low, per_step, step, fine + first * inputs, fine_sums + first, fine_scale + first, fine_offset + first,
        within, inputs, FINE, PIECE,
    )  # fmt: skip
    tl.store(keys + query, first + best)


@triton.jit  # type: ignore[untyped-decorator]
def _nearest(  # type: ignore[no-untyped-def]
    own, low, per_step, step, centroids, sums, scale, offset, count, inputs, PLACES: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """The number of the first nearest centroid."""
    places = tl.arange(0, PLACES)
    known = places < count
    products = tl.zeros([PLACES], tl.float32)
    for start in range(0, inputs, PIECE):
        at = start + tl.arange(0, PIECE)
        inside = at < inputs
        part = tl.load(own + at, mask=inside, other=0.0)
        steps = tl.where(inside, tl.floor((part - low) * per_step + 0.5), 0.0)
        wanted = known[:, None] & inside[None, :]
        taken = tl.load(centroids + places[:, None] * inputs + at[None, :], mask=wanted, other=0.0)
        products += tl.sum(taken * steps[None, :], axis=1)
    shifted = products * step + low * tl.load(sums + places, mask=known, other=0.0)
    scores = shifted * tl.load(scale + places, mask=known, other=0.0)
    scores += tl.load(offset + places, mask=known, other=0.0)
    # Where scores are no numbers it is one of the centroids all the same: it is an address.
    scores = tl.where(known & (scores == scores), scores, float("-inf"))  # noqa: PLR0124
    return tl.minimum(tl.argmax(scores, axis=0), count - 1)
