"""Linear layers by oneDNN, for training: MKL, which torch takes for float32, is several times slower on AMD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# Below so many rows a call costs more than its product.
MIN_ROWS = 256


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x · weightᵀ + bias, float32 [n, out], with gradients: of x [n, in], weight [out, in] and bias [out].

    The operator is the one that torch's own compiler emits; where it is missing, as on a GPU, and for few rows, this
    is ``torch.nn.functional.linear``.
    """
    if len(x) < MIN_ROWS or x.is_cuda or not _there():
        return nn.functional.linear(x, weight, bias)
    product: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = _product(gradient, weight.t().contiguous()) if ctx.needs_input_grad[0] else None
        return of_x, _product(gradient.t(), x.t()), gradient.sum(dim=0)


def _there() -> bool:
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
