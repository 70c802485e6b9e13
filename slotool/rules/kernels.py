"""The compiled loops of this room. Import it inside functions: numba takes a moment that serving must not pay."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def step_means(bins: np.ndarray, answers: np.ndarray, rows: np.ndarray, steps: int) -> np.ndarray:
    """Means at every threshold of one path, over several samples of its examples: float64 [samples, columns, steps].

    ``bins``: int32 [examples], how many thresholds each example's confidence reaches. ``answers``: float64
    [examples, 2, columns], what early termination and full operation give. ``rows``: int64 [samples, size].
    """
    columns, size = answers.shape[2], rows.shape[1]
    means = np.empty((rows.shape[0], columns, steps))
    sums = np.empty((steps + 1, 2, columns))
    for sample in range(rows.shape[0]):
        sums[:] = 0.0
        for at in range(size):
            row = rows[sample, at]
            own = sums[bins[row]]
            for column in range(columns):
                own[0, column] += answers[row, 0, column]
                own[1, column] += answers[row, 1, column]
        for column in range(columns):
            # At threshold k an example terminates early when it reaches more than k thresholds.
            early = 0.0
            for step in range(steps - 1, -1, -1):
                early += sums[step + 1, 0, column]
                means[sample, column, step] = early
            full = 0.0
            for step in range(steps):
                full += sums[step, 1, column]
                means[sample, column, step] = (means[sample, column, step] + full) / size
    return means
