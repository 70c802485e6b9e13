"""Where things lie in the flat arrays that ``compiled.Compiled`` fills and the kernels read.

- ``numbers`` float32: weights by rows and by columns, biases, thresholds, confidences, workspaces;
- ``ints`` int64: ``HEADER`` fields, then ``FIELDS`` per layer, node counts, workspaces;
- ``ids`` uint32: hashed nodes, slots, ranked lists; ``bytes_`` int8: rounded rows, centroids, rounded input, stamps.

Fields ending in _AT are offsets.
"""

from __future__ import annotations

import numpy as np

# Fields of the header.
LAYERS, SHARES, MEANS_AT, CLOCK = range(4)
INPUT_AT, VALUES_AT, ALL_AT, OUTPUT_AT, BEST_AT = range(4, 9)  # numbers
ACTIVE_AT, CHOSEN_AT = range(9, 11)  # ints
STAMPS_AT = 11  # bytes
STARTS_AT, BEST_NODES_AT = range(12, 14)  # ints
QUERY_AT, QUERY_STEPS_AT = range(14, 16)  # bytes, numbers
CONVOLVED_AT = 16  # numbers
# Values that a query has: those of the first layer, which a convolution's view has fewer of.
QUERY_INPUTS = 17
HEADER = 24
# At QUERY_STEPS: step and least value of the rounded query; from SUMS on what centroids have of it.
SUMS = 4
# Fields of a layer; KIND is NONE without an activator.
INPUTS, UNITS, ROWS_AT, COLUMNS_AT, BIAS_AT, BYTES_AT, STEPS_AT = range(7)
KIND, TABLES, BUCKETS, SLOTS_AT, LISTS_AT, LENGTH, OVERALL_AT, COUNTS_AT, HASHED, HASHED_AT = range(7, 17)
BITS, POSITIONS_AT, THRESHOLDS_AT = range(17, 20)
COARSE, FINE, COARSE_AT, FINE_AT, COARSE_STEPS_AT, FINE_STEPS_AT = range(20, 26)
PROJECTIONS_AT = 26
# Of a convolutional layer, whose INPUTS, rows and look-ups are those of its view; KERNEL_HIGH is 0 of a dense one.
KERNEL_HIGH, KERNEL_WIDE, DOWN, ACROSS, KERNELS_AT = range(27, 32)
CHANNELS, PICTURE_HIGH, PICTURE_WIDE, PADDED_HIGH, PADDED_WIDE, TOP, LEFT, MAPS_AT = range(32, 40)
HIGH, WIDE, POOL, POOLED_HIGH, POOLED_WIDE, GRID = range(40, 46)
FIELDS = 48
NONE, HASH, CLUSTERS, PROJECTED = range(4)

# A row of int8 takes whole cache lines.
LINE_BYTES = 64

# Most labels that a query may ask for.
MAX_ANSWERS = 128
# With int8 weights at least this many of the best labels are scored again with float32 weights.
MIN_RESCORED = 2
# From this batch size on, one matrix product per layer is faster than one query after another, when k is 100 %.
MIN_BATCH_FOR_PRODUCTS = 16

# Fields of a handle, see ``top_dense``; first an address and a length for each of the four arrays.
LABELS_AT, SCORES_AT, ANSWERS, POINT = range(8, 12)
# The thread that the session belongs to: the first that asks it; 0 before.
OWNER = 12
HANDLE = 13

# What a query that cannot be answered returns.
NOT_FINITE, OUT_OF_RANGE, WRONG_LENGTH, TOO_MANY, OTHER_THREAD = -1, -2, -3, -4, -5
# Instead of a point: the least k whose confidence is at least the threshold.
BY_CONFIDENCE = -1


def require_results(labels: np.ndarray, scores: np.ndarray) -> None:
    """Raises ``ValueError`` unless compiled code may write answers there: int32 and float32 [p], contiguous."""
    alike = labels.dtype == np.int32 and scores.dtype == np.float32 and labels.shape == scores.shape == (len(labels),)
    whole = labels.flags.carray and scores.flags.carray
    if not (alike and whole and len(labels) <= MAX_ANSWERS):
        raise ValueError(f"results must be int32 and float32 [p], contiguous, with p at most {MAX_ANSWERS}")
