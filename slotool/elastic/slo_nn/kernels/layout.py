"""The layout of the flat arrays that ``compiled.Compiled`` fills and the kernels read.

- ``numbers`` float32: weights by rows and by columns, biases, thresholds, confidences, workspaces;
- ``ints`` int64: a ``HEADER``, a ``LAYER`` each, node counts, workspaces;
- ``ids`` uint32: hashed nodes, slots, ranked lists; ``bytes_`` int8: int8 weights, centroids, quantized input, stamps.

Fields ending in ``_at`` are offsets into one of these arrays.
"""

from __future__ import annotations

import numpy as np

# Rows of int8 weights and records take whole cache lines.
LINE_BYTES = 64


def _integers(**groups: str) -> np.dtype:
    """Return a record of int64 fields, by group of their names in this order; it takes whole cache lines."""
    names = [name for group in groups.values() for name in group.split()]
    size = -(-8 * len(names) // LINE_BYTES) * LINE_BYTES
    return np.dtype({"names": names, "formats": [np.int64] * len(names), "itemsize": size})


# Header of ``ints``. ``last_stamp`` is the latest node's.
HEADER = _integers(
    counts="layers shares last_stamp",
    numbers="means_at input_at values_at all_at output_at best_at query_scale_at",
    ints="active_at chosen_at starts_at best_nodes_at",
    bytes_="stamps_at query_at",
)
# Behind it, one of each layer. ``kind`` is NONE without an activator. ``int8_sums_at`` is −1 where inputs are never
# negative.
LAYER = _integers(
    network="inputs units rows_at columns_at bias_at int8_at int8_scales_at int8_sums_at",
    activator="kind tables buckets slots_at lists_at length overall_at counts_at hashed hashed_at",
    hash="bits positions_at thresholds_at projections_at",
    clusters="coarse fine coarse_at fine_at coarse_scales_at fine_scales_at",
)
# Argument of ``top_dense`` and ``top_sparse``: addresses and lengths of the four arrays, where the answer
# goes, how many labels, the point, and the thread that owns the session (that of the first call; 0 before it).
HANDLE = _integers(
    arrays="numbers_at numbers_length ints_at ints_length ids_at ids_length bytes_at bytes_length",
    answer="labels_at scores_at answers point",
    session="owner",
)
HEADER_SIZE, LAYER_SIZE, HANDLE_SIZE = (record.itemsize // 8 for record in (HEADER, LAYER, HANDLE))
OWNER = HANDLE.fields["owner"][1] // 8  # type: ignore[index]

# Entries at ``query_scale_at``: step and least value of the quantized query; from SUMS on its centroid sums.
SUMS = 4
# Kinds of activators.
NONE, HASH, CLUSTERS, PROJECTED = range(4)

# Maximum number of labels of a query.
MAX_ANSWERS = 128
# Least number of best labels scored again in float32 after int8 weights.
MIN_RESCORED = 2

# Result of a query without an answer.
NOT_FINITE, OUT_OF_RANGE, WRONG_LENGTH, TOO_MANY, OTHER_THREAD = -1, -2, -3, -4, -5
# Instead of a point: the least k whose confidence is at least the threshold.
BY_CONFIDENCE = -1


def require_results(labels: np.ndarray, scores: np.ndarray) -> None:
    """Raise ``ValueError`` unless compiled code may write answers there: int32 and float32 [p], contiguous."""
    fits = labels.dtype == np.int32 and scores.dtype == np.float32 and labels.shape == scores.shape == (len(labels),)
    whole = labels.flags.carray and scores.flags.carray
    if not (fits and whole and len(labels) <= MAX_ANSWERS):
        raise ValueError(f"results must be int32 and float32 [p], contiguous, with p at most {MAX_ANSWERS}")
