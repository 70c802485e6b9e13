"""Calls that no FLOP counter has a formula for, and that bytes say nothing of, take the interval away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_torch
from slotool.predictors.features.domain import Domain


class Calls(nn.Module):
    """A linear layer, and what a function makes of its weights and its output."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.linear, self._function = nn.Linear(16, 16), function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(self.linear.weight, self.linear(x))


@torch.library.custom_op("slotool_tests::slow", mutates_args=())
def slow(x: Tensor) -> Tensor:
    return x.clone()


@slow.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


UNCOSTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matrix_exp": lambda w, y: y @ torch.linalg.matrix_exp(w),
    "linalg_svdvals": lambda w, y: y + torch.linalg.svdvals(w),
    "linalg_inv": lambda w, y: y.reshape(-1, 4, 4).matmul(torch.linalg.inv(y.reshape(-1, 4, 4))).flatten(1),
    "slow": lambda w, y: slow(y),
}
COSTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "norm": lambda w, y: torch.nn.functional.normalize(y),
    "detach": lambda w, y: y.detach(),
    "softmax": lambda w, y: y.softmax(1),
    "sort": lambda w, y: y.sort(1).values,
    "products of weights": lambda w, y: y @ (w @ w),
}


@torch.library.custom_op("slotool_tests::grouped_mm", mutates_args=())
def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x @ weight[0]


@grouped_mm.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[2])


FOURIER: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "rfft": (lambda y: torch.fft.rfft(y).abs(), 2.5 * 16 * 4),
    "fft2": (lambda y: torch.fft.fft2(y.to(torch.complex64).view(-1, 4, 4)).abs().flatten(1), 5 * 16 * 4),
    "there and back": (lambda y: torch.fft.irfft(torch.fft.rfft(y), 16), 2 * 2.5 * 16 * 4),
}


@pytest.mark.parametrize("name", FOURIER)
def test_a_fourier_transform_costs_what_it_computes_and_is_no_product(name: str) -> None:
    function, flops = FOURIER[name]
    graph = capture_torch(Calls(lambda w, y: function(y)), (16,))
    assert graph.uncosted == ()
    assert sum(operator.flops for operator in graph.unknown if "fft" in operator.op) == flops
    assert graph.flops_mismatch == 0


def test_a_row_costs_the_same_wherever_a_mixture_of_experts_sends_it() -> None:
    def routed(weight: Tensor, y: Tensor) -> Tensor:
        return grouped_mm(y, weight.reshape(2, 8, 16).repeat(1, 2, 1), torch.zeros(2, dtype=torch.int32))

    graph = capture_torch(Calls(routed), (16,))
    assert graph.uncosted == ()
    assert sum(operator.flops for operator in graph.unknown) == 2 * 16 * 16


@pytest.mark.parametrize("name", UNCOSTED)
def test_a_call_of_unknown_cost_is_named_and_takes_the_interval_away(name: str) -> None:
    graph = capture_torch(Calls(UNCOSTED[name]), (16,))
    assert any(name in call for call in graph.uncosted), graph.uncosted
    assert OperatorGraph.from_document(graph.document()).uncosted == graph.uncosted
    (distance,) = Domain.of([graph]).distances([graph])
    assert f"nothing counts the FLOPs of {', '.join(graph.uncosted)}: " in str(distance.too_far())


@pytest.mark.parametrize("name", COSTED)
def test_ordinary_calls_have_a_cost(name: str) -> None:
    graph = capture_torch(Calls(COSTED[name]), (16,))
    assert graph.uncosted == ()
    assert Domain.of([graph]).distances([graph])[0].too_far() is None
