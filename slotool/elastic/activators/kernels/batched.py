"""Many queries in one compiled call, one after the other, to pay the cost of a call from Python once.

Importing this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from slotool.compilation import njit
from slotool.elastic.activators.kernels.int8 import FAST, insert
from slotool.elastic.activators.kernels.intrinsics import pointer
from slotool.elastic.activators.kernels.records import handle_of
from slotool.elastic.activators.kernels.single import answer_dense, answer_sparse

# Scores that are looked at together for whether any is among the best.
AT_A_TIME = 64


@njit(cache=True, fastmath=FAST)
def rows(
    x: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    taken: np.ndarray,
    handle: np.ndarray,
    threshold: float,
) -> int:
    """``top_dense`` or ``top_sparse`` of every row of ``single.batch`` into ``labels`` int32 and ``scores`` float32
    [n, p].

    ``taken``: int64 [n], the point each row was answered at. Returns the first row that cannot be answered, with its
    error code in ``taken``, or −1. Raises ``ValueError`` where shapes do not fit.
    """
    n, dense = len(labels), x.shape[1] > 0
    if labels.shape != scores.shape or labels.shape[1] != handle_of(handle).answers or len(taken) != n:
        raise ValueError("arrays of another number of answers than the session gives")
    if (len(x) if dense else len(indptr) - 1) != n:
        raise ValueError("arrays of another number of queries than of answers")
    for row in range(n):
        if not dense:
            begin, end = indptr[row], indptr[row + 1]
            if not 0 <= begin <= end <= len(indices):
                raise ValueError("row pointers that do not ascend within the entries")
            taken[row] = answer_sparse(indices[begin:end], values[begin:end], handle, threshold)
        else:
            taken[row] = answer_dense(x[row], handle, threshold)
        if taken[row] < 0:
            return row
        _copy(labels[row], scores[row], handle)
    return -1


@njit(cache=True, forceinline=True)
def _copy(labels: np.ndarray, scores: np.ndarray, handle: np.ndarray) -> None:
    own = handle_of(handle)
    wanted = own.answers
    found = carray(pointer(own.labels_at, np.int32(0)), (wanted,))
    their = carray(pointer(own.scores_at, np.float32(0)), (wanted,))
    for i in range(wanted):
        labels[i], scores[i] = found[i], their[i]


@njit(cache=True, fastmath=FAST)
def best_of_rows(values: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> None:
    """Of each row of ``values`` float32 [n, classes] the best: ``labels`` int32 and ``scores`` float32 [n, p].

    Raises ``ValueError`` where shapes do not fit.
    """
    wanted = labels.shape[1]
    if labels.shape != scores.shape or len(labels) != len(values) or not 0 < wanted <= values.shape[1]:
        raise ValueError("arrays of shapes that do not belong together")
    for query in range(len(values)):
        row, nodes, best = values[query], labels[query], scores[query]
        for i in range(wanted):
            nodes[i], best[i] = -1, -np.inf
        for start in range(0, len(row), AT_A_TIME):
            part = row[start : start + AT_A_TIME]
            highest = np.float32(-np.inf)
            for i in range(len(part)):
                highest = max(highest, part[i])
            if highest > best[wanted - 1]:
                for i in range(len(part)):
                    if part[i] > best[wanted - 1]:
                        insert(part[i], start + i, wanted, best, nodes)
