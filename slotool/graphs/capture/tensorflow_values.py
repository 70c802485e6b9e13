"""Values that TensorFlow's operations take, as torch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def dtype_of(kind: Any) -> torch.dtype:
    """torch's name for an element type of TensorFlow's."""
    found = getattr(torch, str(kind.name), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"values of {kind.name}")
    return found


def axes_of(value: Any) -> list[int]:
    return [int(each) for each in np.array(value).reshape(-1)]
