"""What work costs in Keras (TensorFlow) ÷ in torch, by networks measured in both on one machine with the same threads.

``python -m benchmarks.backend_prices`` prints the numbers anew, from the labels in ``datasets/``. A factor of
all is left out: it is the machine's too, and labels tell it. Those of ONNX Runtime are not here: with them
ten labels of networks of people left no less (docs/results/predicting.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

# Log of the price of a type's calls, FLOPs and bytes.
Prices = tuple[float, float, float]
# Where nothing is known, and of torch.
NO_PRICES: Mapping[str, Prices] = MappingProxyType({})

# Tenths of a logarithm; under "" those of any other type of operator.
_ROWS: dict[str, dict[str, tuple[int, int, int]]] = {
    "torch": {},
    "keras": {
        "": (3, -3, 0),
        "Add": (3, -2, 1),
        "AveragePooling2D": (2, -4, -1),
        "BatchNormalization": (-2, -8, -8),
        "Concatenate": (0, -3, -4),
        "Constant": (2, -3, 0),
        "Conv2D": (-3, -10, -5),
        "Conv2D 1×1": (-3, -7, -7),
        "Conv2D of groups": (-5, 45, 27),
        "Copy": (2, -3, -1),
        "Dense": (3, -8, -1),
        "Embedding": (-1, -3, -5),
        "GlobalAveragePooling2D": (1, -3, -1),
        "InputLayer": (2, -3, 0),
        "LayerNormalization": (10, 5, 11),
        "LayerScale": (2, -3, 0),
        "MaxPooling2D": (0, -5, -3),
        "Mean": (3, -2, 0),
        "Multiply": (3, -2, 2),
        "ReLU": (0, -5, -3),
        "Rescaling": (2, -3, 0),
        "Reshape": (11, -3, 9),
        "Roll": (2, -3, 0),
        "ScaledDotProductAttention": (12, 8, 10),
        "Slice": (2, -3, 0),
        "Softmax": (3, -2, 0),
        "Transpose": (13, -3, 0),
        "gelu()": (5, 0, 3),
        "hard_silu()": (4, -1, 2),
        "relu6()": (-1, -6, -4),
        "silu()": (4, -2, 0),
    },
}
BACKEND_LOG_PRICES: dict[str, dict[str, Prices]] = {
    backend: {kind: (calls / 10, flops / 10, moved / 10) for kind, (calls, flops, moved) in rows.items()}
    for backend, rows in _ROWS.items()
}


def prices_from(document: Mapping[str, Sequence[float]]) -> dict[str, Prices]:
    """Those of a stored predictor, by type."""
    return {kind: (calls, flops, moved) for kind, (calls, flops, moved) in document.items()}
