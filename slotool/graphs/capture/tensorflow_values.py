"""Values that TensorFlow's operations take, as torch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor(value: Any) -> Tensor:
    """Of an array; in place of texts, which torch does not have, numbers."""
    if isinstance(value, Tensor):
        return value
    array = np.array(value)
    return torch.from_numpy(np.zeros(array.shape, np.int64) if array.dtype.kind in "OSU" else array)


def dtype_of(kind: Any) -> torch.dtype:
    """torch's element type for one of TensorFlow's."""
    return named_dtype(str(kind.name))


def named_dtype(name: str) -> torch.dtype:
    """torch's element type for the name of one of Keras' or TensorFlow's; of texts that of the numbers in their
    place."""
    found = torch.int64 if name == "string" else getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"values of {name}")
    return found


def axes_of(value: Any) -> list[int]:
    return [int(each) for each in np.array(value).reshape(-1)]
