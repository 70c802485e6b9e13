"""Log prices of work in this project's own CPU settings, beside which few labels of a new setting are weighed.

``python -m benchmarks.refit --only cpu-prices`` prints them anew, from the labels in ``datasets/``. TensorFlow's forty
labels are too few for sixty prices.
"""

from __future__ import annotations

import numpy as np

# Tenths of a logarithm. Each row: of calls, of cost or of bytes, by category.
_ROWS = (
    # Random architectures and CNNs of blocks, torch, one thread of an EPYC.
    (18, 5, 5, -8, -5, 2, -13, -2, -7, -9, -4, -6, 8, -4, -10, -9, -10, -10, -8, -17),
    (5, 8, 10, -10, 7, 12, -19, 8, -7, -12, -5, -7, 16, -3, -6, -6, -9, -9, -8, -24),
    (-25, -34, -31, -43, -38, -31, -48, -34, -41, -44, -40, -41, -27, -39, -42, -42, -43, -43, -42, -52),
    # Random architectures, ONNX Runtime, the same.
    (-39, -45, -36, -51, -42, -34, -53, -32, -45, -52, -47, -45, -44, -44, -45, -45, -44, -47, -46, -56),
    (2, -8, 6, -18, -2, 10, -22, 14, -9, -20, -12, -8, -6, -7, -8, -8, -6, -12, -9, -26),
    (-42, -47, -38, -53, -45, -36, -55, -34, -47, -54, -49, -47, -46, -47, -47, -47, -46, -49, -48, -58),
    # CNNs of blocks and Keras applications, torch, two threads of a Xeon.
    (21, 7, 13, 26, 12, 13, 1, 15, 13, 3, 9, 15, 15, 13, 14, 13, 14, 9, 11, 26),
    (-3, -2, -7, -1, -11, -7, -16, -12, -7, -14, -16, -8, 9, -7, -6, -7, -3, -9, -15, 8),
    (-7, -7, -11, -5, -15, -11, -20, -15, -11, -18, -20, -12, 1, -11, -11, -11, -8, -13, -18, 2),
)
# float64 [``TERMS``, 3].
CPU_LOG_PRICES = np.array(_ROWS, dtype=np.float64).reshape(3, -1).T / 10
