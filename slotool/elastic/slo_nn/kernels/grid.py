"""Every k of the grid in one pass over an input, and the confidence of the tables in each. See ``layout``.

Importing this module imports Numba.
"""

from __future__ import annotations

import numpy as np

from slotool.compilation import copy, internal_njit, njit
from slotool.elastic.slo_nn.kernels.int8 import FAST
from slotool.elastic.slo_nn.kernels.intrinsics import header_of, layer_of
from slotool.elastic.slo_nn.kernels.layer import confidence, find_buckets, gather, hash_nodes, pick
from slotool.elastic.slo_nn.kernels.layout import NONE
from slotool.elastic.slo_nn.kernels.single import require

# The logarithm of ``confidence.MIN_PROBABILITY``.
_LOG_MIN_PROBABILITY = float(np.log(1e-6))


@njit(cache=True, fastmath=FAST)
def evaluate_nested(
    x: np.ndarray,
    log_partition: np.ndarray,
    best: np.ndarray,
    closeness: np.ndarray,
    probability: np.ndarray,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> None:
    """All k of the grid from one gather, where the output layer alone is activated: its lists are nested.

    ``x``: float32 [n, inputs of the output layer]; ``log_partition``: float32 [n], of the full logits. Fills ``best``
    int32 [n, shares], the label that scores highest, ``probability`` float32 [n, shares], what the full softmax gives
    it, and ``closeness`` float32 [n, shares], minus the cross-entropy to the full answer, a label that was not computed
    having ``MIN_PROBABILITY``. Raises ``ValueError`` where shapes do not fit.
    """
    header = header_of(ints)
    layers, shares = header.layers, header.shares
    row = layer_of(ints, layers - 1)
    require(x.shape[1] == row.inputs and row.kind != NONE and len(log_partition) == len(x))
    require(best.shape == closeness.shape == probability.shape == (len(x), shares))
    output, chosen = numbers[header.output_at :], ints[header.chosen_at :]
    inputs = numbers[header.input_at : header.input_at + row.inputs]
    for query in range(len(x)):
        copy(x[query], inputs)
        hash_nodes(row, False, numbers, ints, ids)
        find_buckets(row, numbers, ints, ids, bytes_)
        hashed = row.hashed
        count = ints[row.counts_at + shares - 1]
        pick(row, hashed, count, ints, ids, bytes_)
        gather(row, hashed, count, 0, numbers, ints, bytes_)
        done, at, highest = 0, 0, np.float32(-np.inf)
        mass, weighted = 0.0, 0.0
        for share in range(shares):
            for i in range(done, ints[row.counts_at + share]):
                value = output[i]
                if value > highest:
                    highest, at = value, chosen[i]
                below = value - log_partition[query]
                if below > -25.0:
                    part = np.exp(below)
                    mass += part
                    weighted += part * below
            done = ints[row.counts_at + share]
            best[query, share] = at
            probability[query, share] = np.exp(highest - log_partition[query])
            missing = max(0.0, 1.0 - mass)
            own = mass * np.log(mass) if mass > 0.0 else 0.0
            closeness[query, share] = weighted - own + missing * _LOG_MIN_PROBABILITY


@njit(cache=True, fastmath=FAST)
def estimate(
    x: np.ndarray, out: np.ndarray, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray
) -> None:
    """Fill ``out`` float64 [shares] with ĉ(k, x) for ``x`` float32 [inputs of the first activated layer].

    Raises ``ValueError`` where shapes do not fit.
    """
    header = header_of(ints)
    at = _first_activated(ints)
    row = layer_of(ints, at)
    require(len(x) == row.inputs and len(out) == header.shares)
    copy(x, numbers[header.input_at : header.input_at + row.inputs])
    hash_nodes(row, False, numbers, ints, ids)
    find_buckets(row, numbers, ints, ids, bytes_)
    for share in range(header.shares):
        out[share] = confidence(row, share, numbers, ints)


@internal_njit()
def _first_activated(ints: np.ndarray) -> int:
    header = header_of(ints)
    at = 0
    while at < header.layers - 1 and layer_of(ints, at).kind == NONE:
        at += 1
    require(layer_of(ints, at).kind != NONE)
    return at
